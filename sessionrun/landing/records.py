"""Records of a landing: what is asked for, what is known of it on the disk, what came out; and its log.

The log is of a session's landings on one branch: what was green, what landed, what was bounced.  Read from its
end, it says what became of each task's work.  It is append-only, in the folder of the landing.  Its writer is the
holder of the slot, so a session whose supervisor runs and one that has ended land alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import orjson

from sessionrun.git.git import Git
from sessionrun.model.errors import StoreError
from sessionrun.model.frozen import changeable, frozen
from sessionrun.model.places import Repository
from sessionrun.store.codec import build
from sessionrun.store.files import make_directories
from sessionrun.store.logs import AppendLog, read_log
from sessionrun.walls.wish import WallsWish
from sessionrun.worktrees.request import EnvironmentRequest

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
    `environment` the commands run in one that is made for what they try.  With `walls` they run inside.
    """

    commands: tuple[str, ...] = ()
    timeout_s: float | None = None
    links: tuple[str, ...] = ()
    environment: EnvironmentRequest | None = None
    walls: WallsWish | None = None


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

    `reason` says why it has not landed, or what is remarkable, and `mend` which command ends a hold; `files`,
    `against`, `output` as of `WorkBounced`.
    """

    task: str
    status: Status
    reason_class: str | None = None
    reason: str = ""
    commit: str | None = None
    files: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    output: str = ""
    mend: str = ""


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


def room_path(repository: Repository, target: str) -> Path:
    """Where the gates of a target run."""
    return Path(repository.worktree_dir, find_prefix(repository) + digest_target(target))


def find_prefix(repository: Repository) -> str:
    """How the names of a repository's rooms begin; the digest of the target follows."""
    from hashlib import sha256  # as of `digest_target`

    whose = sha256(os.fsencode(repository.common_dir)).hexdigest()[:8]
    return f".gate-{whose}-"


def is_ancestor(git: Git, commit: str, of: str) -> bool:
    return git.attempt("merge-base", "--is-ancestor", commit, of).returncode == 0


def find_changed(git: Git, old: str, new: str, kinds: str = "") -> set[str]:
    """The files that differ between two commits; `kinds` is as in git's ``--diff-filter``."""
    words = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", f"--diff-filter={kinds}")
    return set(git.names(*words, old, new))


def shorten(target: str) -> str:
    """The name of a branch for people."""
    return target.removeprefix(HEADS)


# --- the log ---

LOG: Final = "log"
MAX_BYTES: Final = 64 * 2**20
"""A longer log is not read to show something."""

KEPT: Final = 8
"""Of so many landings it is looked whether they are still in the branch."""


@frozen
class End(Fate):
    """What became of a task's work at last, on the branch `target` (its full name).

    `tip` is the commit that was tried, `at` a time as UTC.
    """

    target: str = ""
    tip: str = ""
    at: str = ""


@changeable
class History:
    """What the log says.

    `green` has trees on which gates passed, each with the digest of the gates; what made others red may be mended
    outside of the repository.  `ends` are by task, `moves` are the last landings.
    """

    green: set[tuple[str, str]] = field(default_factory=set)
    ends: dict[str, End] = field(default_factory=dict)
    moves: list[Landed] = field(default_factory=list)

    def apply(self, record: dict[str, Any]) -> None:
        """Take in one record; unknown kinds are those of a later version."""
        kind = record["kind"]
        if kind == "fate":
            self.ends[record["task"]] = build(End, record)
        elif kind == "green":
            self.green.add((record["tree"], record["gates"]))
        elif kind == "moved":
            at = datetime.fromisoformat(record["at"]).timestamp()
            self.moves = [*self.moves, Landed(record["old"], record["new"], at)][-KEPT:]

    def find_landed(self, task: str, tip: str) -> str | None:
        """The commit of the target with which the work of a task landed whose end is `tip`, if it is known."""
        end = self.ends.get(task)
        return end.commit if end is not None and (end.status, end.tip) == ("landed", tip) else None


class LandingLog:
    """The writing end of the log, and what it says."""

    def __init__(self, folder: Path) -> None:
        """Open the log of a folder, for the holder of the slot.

        Raises:
            StoreError, OSError: it is damaged, or cannot be written.
        """
        make_directories(folder, 0o700)
        self.history, end = load_history(folder)
        self._log = AppendLog(folder / LOG)
        self._log.cut(end)

    def note_green(self, tree: str, gates: str) -> None:
        """Gates, by their digest, have passed on a tree."""
        self._append("green", tree=tree, gates=gates)

    def note_moved(self, record: SlotRecord) -> None:
        """The target has moved, and with its new commit the work of the tasks of the record is in it."""
        self._append("moved", old=record.old, new=record.new)
        for task, tip in record.entries.items():
            if self.history.find_landed(task, tip) != record.new:
                self._note_fate(Fate(task, "landed", commit=record.new), record.target, tip)
        self._log.sync()

    def note_fates(self, fates: Iterable[Fate], tips: Mapping[str, str], target: str) -> None:
        """What became of tasks in a turn that has ended, for readers; `tips` are the commits that were tried.

        Work that came into the target by another way, and was never tried, is passed over.
        """
        for fate in fates:
            known = self.history.ends.get(fate.task)
            is_new = fate.reason if known is None else (known.status, known.reason) != ("landed", fate.reason)
            if fate.status in ("bounced", "held") or (fate.status == "landed" and is_new):
                self._note_fate(fate, target, tips[fate.task])
        self._log.sync()

    def close(self) -> None:
        self._log.close()

    def _note_fate(self, fate: Fate, target: str, tip: str) -> None:
        self._append("fate", **asdict(fate), target=target, tip=tip)

    def _append(self, kind: str, **about: Any) -> None:
        record = {"kind": kind, **about, "at": datetime.now(timezone.utc).isoformat()}
        self._log.append([orjson.dumps(record)])
        self.history.apply(record)


def load_history(folder: Path, limit: int | None = None) -> tuple[History, int]:
    """What the log in a folder says, and where its last record ends; nothing if there is none.

    Raises:
        StoreError: it is damaged, or cannot be read.
    """
    history, path = History(), folder / LOG
    contents = read_log(path, limit)
    if contents.damage_at is not None:
        raise StoreError(f"{path} is damaged at byte {contents.damage_at}: put it aside")
    try:
        for payload in contents.payloads:
            history.apply(orjson.loads(payload))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} is damaged: put it aside") from error
    return history, contents.end
