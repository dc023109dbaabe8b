"""What the jobs of a workspace are asked for, and the files that they leave; environments: where they lie.

They are processes of their own (see `session.job`), so that they run where the executor runs jobs and a slow
disk never holds up the supervisor.  All are idempotent: a second start does not repeat what is done.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sessionrun.model.errors import JobFileError, SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import PathText, Seconds
from sessionrun.model.landings import MendBase
from sessionrun.model.places import (
    WORKSPACE_LIMIT_S,
    Handed,
    MadeEnvironment,
    Place,
    Repository,
    Seats,
    Upstream,
)
from sessionrun.store.jobfiles import ANSWER, CLAIM, load_answer, load_record_if_any
from sessionrun.store.trees import remove_entry
from sessionrun.walls.wish import WallsWish

RESCUE_SUFFIX: Final = "-rescue"
"""The end of a rescue branch's name: it holds work that could not go to the task's own branch."""

HIDDEN: Final = "hidden-links"
"""In the folder of a PREPARE: rules by which the git of the task's jobs overlooks links that lead out."""


@frozen
class WorkspaceRequest:
    """What a PREPARE or RELEASE job is to do.

    Attributes:
        title: the message of a commit of ours.
        place: what PREPARE made; for RELEASE.
        worked: whether its work has begun: what lies there before that, its setup has left.
        patch: the file for the diff.
        expect_change: work that changes nothing is a failure.
        branch, directory: their names, if they are free.
        needs: the ends of other tasks at which the worktree begins.
        limit_s: how long the job may take (seconds); 0 = as long as it needs, None = the usual time.
        round: the name of the round's ref, for jobs that keep it or take it back.
        best: for RELEASE: the commit of the round whose work is put back, None = what lies there stays.
        replaced: the file for the diff of what `best` takes the place of.
        upstream: the repository of the task's own, of which `repository` is the mirror.
        require_cache: whether nothing of it may be fetched.
        seats: where worktrees that stay lie; None: the worktree goes with its task.
        seat: the number of the seat to begin with, in the search for one.
        prompt: for PREPARE of a seat: what the file of the current task says.
        target: the branch at which the worktree begins beside its needs, by its full name.
        partly: for PARK: work that the branch cannot hold whole is committed as far as it can be.
        mend: for PREPARE and RELEASE of a mend: where it begins.
        earlier: for PREPARE: where an earlier attempt ended, with whose work this one goes on.
        walls: the folder of the task's walls.
        tests: for PREPARE: the patch that will bring hidden tests, which has to apply to the base.
        gives_way: where the worktree has something, a link is left out; so it is with a part of a history, too.
    """

    repository: Repository
    session_id: str
    task: str
    title: str
    links: tuple[str, ...] = ()
    place: Place | None = None
    succeeded: bool = False
    worked: bool = True
    patch: str | None = None
    expect_change: bool = False
    branch: str | None = None
    directory: str | None = None
    needs: tuple[Handed, ...] = ()
    limit_s: Seconds | None = None
    round: str = ""
    best: str | None = None
    replaced: str = ""
    upstream: Upstream | None = None
    require_cache: bool = False
    seats: Seats | None = None
    seat: int | None = None
    prompt: str = ""
    target: str | None = None
    partly: bool = False
    mend: MendBase | None = None
    earlier: Place | None = None
    walls: str | None = None
    tests: str = ""
    gives_way: bool = False

    @property
    def git_limit_s(self) -> float | None:
        """How long each git command may take: twice the job's time, so that the job's own limit comes first."""
        return WORKSPACE_LIMIT_S if self.limit_s is None else 2 * self.limit_s or None

    @property
    def owner(self) -> str:
        """The worktree's owner, as its mark names it."""
        return f"{self.session_id}/{self.task}"

    @property
    def made(self) -> Place:
        """What PREPARE made, for what comes behind it."""
        assert self.place is not None
        return self.place


@frozen
class Claim(Place):
    """The place that a PREPARE job is about to make, and that it answers once all of it is there.

    `emptied`: the worktree is gone, and RELEASE deletes the branch, or has deleted it, because it holds nothing.
    A branch that was `taken_up` holds earlier work; a worktree that was `reused` was there before, with its work.
    """

    branch: PathText
    worktree: PathText
    base_commit: PathText
    emptied: bool = False
    reused: bool = False

    @classmethod
    def again(
        cls, earlier: Place, worktree: str, begin: str, *, seat: int | None = None, reused: bool = False
    ) -> Claim:
        """The claim of a branch with earlier work, which goes on at the commit `begin`."""
        known = earlier.branch or "", worktree, earlier.base_commit or ""
        return cls(
            *known,
            setup_commit=earlier.setup_commit,
            start=earlier.start,
            seat=seat,
            taken_up=begin,
            reused=reused,
        )


class NeedsConflict(SessionrunError):
    """The work of a task's needs cannot be merged; a PREPARE that finds this ends with `job_code`."""

    job_code: Final = 10


class TestsUnusable(SessionrunError):
    """The patch with hidden tests does not apply to the base: the PREPARE ends with `job_code`."""

    job_code: Final = 12


def load_place(folder: Path) -> Place | None:
    """What a finished job answered; None without an answer.  Raises `JobFileError` if it is damaged."""
    place = load_answer(folder, Place)
    if place is not None:
        _check_names(folder / ANSWER, place)
    return place


def load_claim(folder: Path) -> Claim | None:
    """What a PREPARE job was about to make; None before its claim.  Raises `JobFileError` if it is damaged."""
    claim = load_record_if_any(folder / CLAIM, Claim)
    if claim is not None:
        _check_names(folder / CLAIM, claim)
    return claim


def _check_names(path: Path, record: Place) -> None:
    """Refuse what we never write: relative paths, and words that git would take for something else."""
    of_start = (None, None) if record.start is None else (record.start.name, record.start.commit)
    commits = (record.base_commit, record.setup_commit, record.taken_up, of_start[1])
    for words, pattern, what in (
        ((record.worktree,), r"/[^\0]*[^\0/]", "an absolute path of a directory"),
        ((record.branch, of_start[0]), r"[^-\x00-\x1f][^\x00-\x1f]*", "a branch"),
        (commits, "[0-9a-f]{40}|[0-9a-f]{64}", "a commit"),
    ):
        for word in words:
            if word is not None and not re.fullmatch(pattern, word, re.DOTALL):
                raise JobFileError(path, f"it is damaged: {word!r:.140} is not {what}")


@frozen
class WorkRequest:
    """A WORK job before which the worktree is set back.

    Attributes:
        workspace: as RELEASE is asked, with the round that is taken back.
        argv: the agent.
        first: the folder of the round's first WORK job, which says whether it was done.
        before: the folder of the last round's WORK job, for its patch if no CHECK kept it.
    """

    workspace: WorkspaceRequest
    argv: tuple[str, ...]
    first: str
    before: str


# --- environments ---

ENVIRONMENTS: Final = "environments"
"""In the cache: a directory for each digest, and beside it a lock, which the process holds that builds it."""

WISH: Final = "environment-request.json"
REPORT: Final = "environment.json"
LOG: Final = "environment.log"
"""In the folder of a SETUP; in the last is what uv was told to do, and printed."""

MANIFEST: Final = "manifest.json"
"""In an entry, beside `env/` and `left/`: it is whole, and what is in it."""

ENTRY: Final = re.compile("[0-9a-f]{16,64}(?:-log)?")
"""The name of an entry, or of what a build printed that failed."""


class EnvironmentProblem(SessionrunError):
    """An environment cannot be made: the message is one line."""


@frozen
class EnvironmentRequest:
    """What environment is to be made.

    Attributes:
        top: the checkout; the environment comes beside it.
        directory: where in the checkout jobs run; the project is looked for from there upwards.
        cache: the directory of all that was built.
        python: a version as in ``3.11``, or a path; None = the first ``python3`` of PATH.
        repository: whose worktree `top` is; None = `top` is a repository of ours, which no task has written to.
        commit: what is checked out, for the tags before it.
        copy: False = only the entry of the cache is made, and nothing beside `top`.
        mirror: of whose history `top` has a part; None = it has all.
        pristine: whether nothing in `top` is the work of a task; counts only with `walls`.
        tag: on a node, which has no mirror: the last tag before the commit, as `find_tag_behind` finds it there.
    """

    top: str
    directory: str
    cache: str
    python: str | None = None
    require_cache: bool = False
    repository: Repository | None = None
    commit: str = "HEAD"
    copy: bool = True
    mirror: str | None = None
    walls: WallsWish | None = None
    pristine: bool = False
    tag: str | None = None

    @property
    def target(self) -> str:
        return find_environment(self.top)


@frozen
class EnvironmentReport:
    """What was made, or the `problem` why there is none; its digest is "" where the inputs could not be read.

    `packages` are ``name==version``.
    """

    made: MadeEnvironment
    packages: tuple[str, ...] = ()
    problem: str | None = None


def find_environment(top: str | Path) -> str:
    """Where the environment of a worktree, or of a room, is: beside it.

    Its name says whose it is: an agent may make its environment anew, and no file in it is proof.
    """
    folder, name = os.path.split(top)
    return f"{folder}/.env-{name.lstrip('.')}"


def drop_environment(top: Path) -> None:
    """Remove it, whole or not, whatever its agent made of it."""
    remove_entry(Path(find_environment(top)))


def name_variables(folder: str, path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which programs find an environment; `path` is the PATH without it."""
    variables = {"VIRTUAL_ENV": folder, "PATH": os.pathsep.join((os.path.join(folder, "bin"), path))}
    return {**variables, "PYTHONHOME": ""} if environ.get("PYTHONHOME") else variables
