"""Records of a landing: what is asked for, what is known of it on the disk, and what came out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from sessionrun.git.git import Git
from sessionrun.model.asked import Sandbox
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Repository
from sessionrun.walls.wish import WallsWish
from sessionrun.worktrees.environments.request import EnvironmentRequest

Status = Literal["ready", "landed", "bounced", "waiting", "held", "none"]
"""What became of a task: `ready` is a forecast, `none` a task without work to land."""

Take = Literal["branches", "recorded"]
"""What lands if a person has changed the branch of a task: the branch as it is now, or the commit on record."""

HEADS: Final = "refs/heads/"

MARK: Final = b'{"lock":"sessionrun landing",'
"""How the record of a slot begins, and so each lock of an index that is a landing's."""

NOT_RUN: Final = "could not be run"
"""How the verdict of gates begins of which one was not found or is not executable."""

GIT_LIMIT_S: Final = 600.0
"""How long each git command of a landing may take (seconds)."""


def digest_target(target: str) -> str:
    """The short name of a target in the names of files and refs."""
    from hashlib import sha1  # its library takes longer to load than all of this module

    return sha1(os.fsencode(target), usedforsecurity=False).hexdigest()[:8]


@frozen
class Entry:
    """The work of a task that may land: the commit `tip` above `base`, behind the tasks that it needs.

    Unless it is `wanted` it is only looked whether it has landed.  `branch` holds it, or more than it; if it is
    empty, the commit itself lands.  `title` and `trailers` are for the message of its merge.
    """

    task: str
    tip: str
    base: str
    title: str = ""
    needs: tuple[str, ...] = ()
    wanted: bool = True
    trailers: tuple[str, ...] = ()
    branch: str = ""
    walled: bool = False


@frozen
class Gates:
    """Shell commands that all have to exit 0; each may take `timeout_s` (seconds; None: any time).

    `links` are those that the worktrees of the session have: the room of the gates has them, too.  With an
    `environment` the commands run in one that is made for what they try.  With `walls` they run inside; `sandbox`
    is how these were asked for, and their verdict depends on it.
    """

    commands: tuple[str, ...] = ()
    timeout_s: float | None = None
    links: tuple[str, ...] = ()
    environment: EnvironmentRequest | None = None
    walls: WallsWish | None = None
    sandbox: Sandbox | None = None


@frozen
class LandRequest:
    """Work that is to land on one branch, `target` by its full name; each entry stands behind those that it needs.

    Attributes:
        folder: where the landing keeps its log and what gates print; only the holder of the slot writes there.
        batch: how many tasks a batch has at most; None: as many as usual.
        setups: the commits of what setups left in the session: that does not land.
        late_s: how long after the target has moved a switch to it is looked for that read the old one (seconds).
        groups: attempts at the same thing, in the order of their worth: of each group one lands.
        take: None: work whose branch was changed is held.
        only_mend: finish or put back what an earlier landing left, and land nothing new.
        by_person: whether a person asks for it now; else the session lands by itself.
    """

    repository: Repository
    session_id: str
    folder: str
    target: str
    entries: tuple[Entry, ...]
    gates: Gates = Gates()
    batch: int | None = None
    setups: tuple[str, ...] = ()
    late_s: float = 0.8
    groups: tuple[tuple[str, ...], ...] = ()
    take: Take | None = None
    only_mend: bool = False
    by_person: bool = True


@frozen
class Hold:
    """Why nothing lands at the moment: the class, a sentence, and the command that mends it."""

    reason_class: str
    reason: str
    mend: str = ""


@frozen
class Fate:
    """What became of a task: of one that landed, `commit` is the first-parent commit of the target that holds it.

    `reason` says why it has not landed, or what is remarkable; `files`, `against`, `output` as of `WorkBounced`.
    """

    task: str
    status: Status
    reason_class: str | None = None
    reason: str = ""
    commit: str | None = None
    files: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    output: str = ""


@frozen
class Report:
    """What a landing came to: where the target stood and stands, the tasks in the order of the request.

    `gate_runs` counts runs of the gates; `remarks` name what an earlier landing left and may not be mended by us.
    """

    old: str
    new: str
    fates: tuple[Fate, ...]
    hold: Hold | None = None
    gate_runs: int = 0
    remarks: tuple[str, ...] = ()


@frozen
class Checkout:
    """A work tree: its top, and its administrative directory."""

    top: str
    git_dir: str


@frozen
class SlotRecord:
    """What the holder of a slot is about to do; durable before it is done.

    `new` is the commit that may land in place of `old`, `entries` has its tasks and their tips; `folder` is that
    of the request.  Its file ends with a line feed from before the first file of a work tree changes.
    """

    folder: str
    target: str
    old: str
    new: str
    entries: Mapping[str, str] = field(default_factory=dict)


class Landed(NamedTuple):
    """A move of the target that is done, and when that was (seconds of the epoch)."""

    old: str
    new: str
    at: float


@frozen
class Verdict:
    """How the gates ended on one tree: how often green and red; `why` and `output` are of the last red run."""

    green: int = 0
    red: int = 0
    why: str = ""
    output: str = ""

    @property
    def could_not_run(self) -> bool:
        """Whether the last red run was none: the shell had no program to start."""
        return bool(self.red) and self.why.startswith(NOT_RUN)


def room_path(repository: Repository, target: str) -> Path:
    """Where the gates of a target run."""
    return Path(repository.worktree_dir, find_prefix(repository) + digest_target(target))


def find_prefix(repository: Repository) -> str:
    """How the names of a repository's rooms begin; the digest of the target follows."""
    from hashlib import sha256  # as of `digest_target`

    whose = sha256(os.fsencode(repository.common_dir)).hexdigest()[:8]
    return f".gate-{whose}-"


def is_ancestor(git: Git, commit: str, of: str) -> bool:
    """Whether a commit is in the history of another one."""
    return git.attempt("merge-base", "--is-ancestor", commit, of).returncode == 0


def find_changed(git: Git, old: str, new: str, kinds: str = "") -> set[str]:
    """The files that differ between two commits; `kinds` is as in git's ``--diff-filter``."""
    words = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", f"--diff-filter={kinds}")
    return set(git.names(*words, old, new))


def shorten(target: str) -> str:
    """The name of a branch for people."""
    return target.removeprefix(HEADS)
