"""Frozen records about git: a session's repository, how it treats files, a task's workspace, its work at the end.

A part of `model`, which all others import them from.  This module must not know git itself, files or processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import DiffStat, PathText

if TYPE_CHECKING:
    from sessionrun.model.words import LandWord

KeepPolicy = Literal["always", "on-failure", "never"]
KEEP_POLICIES: Final[tuple[KeepPolicy, ...]] = ("always", "on-failure", "never")


@frozen
class GitSettings:
    """What decides how git reads and writes the files of a repository, as it was at the launch.

    `config` are settings by their full names, in order (a value of None is a name without a value); `attributes`
    is the text of the system's and the user's attribute files, `shared_attributes` that of ``info/attributes``;
    `git_dir` is the administrative directory of the user's checkout.
    """

    config: tuple[tuple[str, str | None], ...]
    user_attributes: str
    shared_attributes: str
    git_dir: str


@frozen
class Repository:
    """The git repository that worktrees are made from; all paths absolute.

    `top` is the user's checkout, `common_dir` what its worktrees share; branches are called after
    `base_branch` and begin at `base_commit`; `worktree_dir` holds the worktrees.  `excludes` is what git ignores
    there by rules outside of its tree, `settings` how it treats files.  A mirror has no checkout: `top` and
    `common_dir` are the mirror, and `upstream` says of which repository.
    """

    top: PathText
    common_dir: PathText
    base_branch: PathText
    base_commit: PathText
    worktree_dir: PathText
    keep: KeepPolicy = "never"
    excludes: str = ""
    settings: GitSettings | None = None
    upstream: str | None = None


@frozen
class Start:
    """Where the ref that a task names stood in its mirror, for the whole session: `name` and `commit`."""

    name: str
    commit: str


@frozen
class EnvironmentStep:
    """One step of making an environment, and how long it took (seconds)."""

    name: str
    duration_s: float


@frozen
class MadeEnvironment:
    """The environment of a task: the digest of its inputs, whether it came from the cache, where it is.

    `choice` is the way to install that was taken.
    """

    digest: str
    cached: bool
    path: PathText | None = None
    choice: str | None = None
    steps: tuple[EnvironmentStep, ...] = ()


@frozen
class Place:
    """A task's workspace in git, as far as PREPARE and RELEASE tell; None = there is no such thing.

    `worktree` is its path while it exists; it began at `base_commit`, and its work at `setup_commit` if its setup
    left something that git does not ignore.  `commit` holds the work, on `branch` or, where that could not be,
    on `rescue`; `diff_stat` counts files, insertions and deletions against `work_base`; `kept` is why the
    worktree was not removed; `remark` is what became of work that is nowhere.  `changed` is whether anything in it
    that git does not ignore differs from `work_base`, as far as RELEASE can tell.  `start` is there
    if the worktree is of a mirror.  `environment` is what SETUP made for it.  `seat` is the number of a worktree
    that stays.  `taken_up` is the commit at which the last attempt began, if it went on with earlier work.
    `refused` is why the work of a mend may not land.
    """

    branch: PathText | None = None
    worktree: PathText | None = None
    base_commit: PathText | None = None
    commit: PathText | None = None
    diff_stat: DiffStat | None = None
    rescue: PathText | None = None
    kept: str | None = None
    remark: str | None = None
    changed: bool | None = None
    setup_commit: PathText | None = None
    start: Start | None = None
    environment: MadeEnvironment | None = None
    seat: int | None = None
    taken_up: PathText | None = None
    refused: str | None = None

    @property
    def work_base(self) -> str | None:
        """The commit at which the task's work began: what setup left is no work."""
        return self.setup_commit or self.base_commit

    @property
    def holds_no_work(self) -> bool:
        """Whether it is known that the task committed nothing beyond what it began with."""
        return self.commit is not None and self.commit in (self.base_commit, self.work_base)


Placement = Literal["inside", "sibling"]
PLACEMENTS: Final[tuple[Placement, ...]] = get_args(Placement)

SEATS_INSIDE: Final = "worktrees"
"""The directory in the user's checkout for seats that lie inside."""

TASK_FILE: Final = ".current_task.txt"
"""In a seat while a task has it: the task's prompt."""

SEAT_PREFIX: Final = "w"
"""What the names of seats begin with, of those that lie inside."""


@frozen
class Seats:
    """Where the worktrees that stay lie: `prefix` and a number, from 1, in `directory` (absolute)."""

    directory: str
    prefix: str = SEAT_PREFIX
    placement: Placement = "inside"

    def path_of(self, number: int) -> str:
        """The worktree of this number."""
        return f"{self.directory}/{self.prefix}{number}"


@frozen
class Handed:
    """Where a task ended that another one needs: `commit` holds its work, on `branch` while that is there.

    Without a commit nothing holds it, and `why` says so.  `earlier`: it ended in an earlier session, which may
    have begun elsewhere.  `follow`: if the branch goes on from the commit, its tip counts; for a user has looked
    at it since, and perhaps mended it.
    """

    task: str
    commit: str | None
    branch: str | None = None
    why: str | None = None
    earlier: bool = False
    follow: bool = False


@frozen
class Leftover:
    """A process that a job left behind: its command, and how it ended."""

    command: str
    how: str


STOPPED_BY_US: Final = "stopped by us"
KILLED_BY_AGENT: Final = "killed by the agent"


class LandEntry(NamedTuple):
    """The work of a task in the landing queue of its session."""

    status: LandWord
    """Where it stands: `ready` for the next LAND job, `waiting` for the work of a needed task, or at an end."""
    reason_class: str | None = None
    """The word for why it has not landed."""
    reason: str | None = None
    """The same in one line for people; of work that landed, what is remarkable."""
    commit: str | None = None
    """The commit of the branch with which it landed, if that is known."""
    mend: str | None = None
    """What a user can do so that it lands."""
    files: tuple[str, ...] = ()
    """The files in conflict."""
    against: tuple[str, ...] = ()
    """The tasks that landed before and changed the same files."""
    output: str | None = None
    """The file with what a red gate printed."""
    at: float | None = None
    """When the journal said that it landed, was bounced or is held (seconds since the epoch)."""
    seq: int | None = None
    """The number of the journal's record with which it came to stand there; None: that of the task's end."""
