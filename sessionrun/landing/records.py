"""Records of a landing: what is asked for, what is known of it on the disk, and what came out.

Must not know git or files.
"""

from __future__ import annotations

import os
from typing import Final, Literal, NamedTuple

from sessionrun.model.frozen import frozen
from sessionrun.model.places import Repository
from sessionrun.model.sandbox import Sandbox
from sessionrun.walls.argv import Enclosure
from sessionrun.walls.wish import WallsWish
from sessionrun.workspaces.environments.request import EnvironmentRequest

Status = Literal["ready", "landed", "bounced", "waiting", "held", "none"]
"""What became of a task: `ready` is a forecast, `none` a task without work to land."""

State = Literal["building", "gating", "landing"]

CONFLICT: Final = "conflict"
RED: Final = "gate_red"
SETUP: Final = "setup_conflict"
GONE: Final = "work_gone"
ASTRAY: Final = "branch_astray"
INSIDE: Final = "repository_inside"
NEEDS: Final = "needs"
NOT_CHOSEN: Final = "not_chosen"

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
    """The work of a task that may land.

    Attributes:
        task: its id.
        tip: the commit that holds the work.
        base: the commit at which the work began.
        title: one line for the message of its merge.
        needs: the tasks that have to land before it.
        wanted: whether it is to land now; else it is only looked whether it has landed.
        trailers: lines for the end of the message.
        astray: why its branch is not where its task left it, and the work does not land; empty: it is.
    """

    task: str
    tip: str
    base: str
    title: str = ""
    needs: tuple[str, ...] = ()
    wanted: bool = True
    trailers: tuple[str, ...] = ()
    astray: str = ""


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


class GateWalls(NamedTuple):
    """The walls that gates wish for, around their commands and around the making of their environment."""

    commands: Enclosure | None = None
    build: Enclosure | None = None


@frozen
class LandRequest:
    """Work that is to land on one branch.

    Attributes:
        repository: of the session, with the settings of its launch.
        session_id: whose work it is.
        folder: where the landing keeps its log and what gates print; only the holder of the slot writes there.
        target: the full name of the branch.
        entries: in their order, each behind those that it needs.
        gates: what has to pass.
        batch: how many tasks a batch has at most; None: as many as the share of red ones allows.
        setups: the commits of what setups left in the session: that does not land.
        late_s: how long after the target has moved a switch to it is looked for that read the old one (seconds).
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


@frozen
class Hold:
    """Why nothing lands at the moment: the class, a sentence, and the command that mends it."""

    reason_class: str
    reason: str
    mend: str = ""


@frozen
class Fate:
    """What became of a task.

    Attributes:
        task: its id.
        status: see `Status`.
        reason_class: why it has not landed.
        reason: the same in one line; for a task that landed, what is remarkable.
        commit: the first-parent commit of the target that holds it.
        files: the files in conflict.
        against: tasks that landed before and changed the same files.
        output: what the red gate printed: a file.
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
class Taken:
    """An entry of a slot record."""

    task: str
    tip: str


@frozen
class Checkout:
    """A work tree in which the target is checked out: its top, and its administrative directory."""

    top: str
    git_dir: str


@frozen
class SlotRecord:
    """What the holder of a slot is about to do; durable before it is done.

    `new` is the commit that may land in place of `old`, with the work of `entries`; `folder` is the request's.
    """

    state: State
    session_id: str
    folder: str
    target: str
    old: str
    new: str = ""
    entries: tuple[Taken, ...] = ()
    checkout: Checkout | None = None


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

    @property
    def is_flaky(self) -> bool:
        """Whether the same files came out both green and red."""
        return bool(self.green and self.red)
