"""The ledger: what was claimed, spawned and reaped.  Its records, and what they add up to.

Payloads are ASCII words (the lines around them are `journal`'s):

    K pid start boot_id pid_ns   a keeper began to write; its identity
    C key                        the job is claimed: it will be started at most once, by this record
    T key grace                  the start is about to be tried; `grace` in seconds is for its stopping
    S key pid start              the process exists; `start` is the kernel's start time of `pid`
    X key status                 it ended; raw status of wait(2), written before it was reaped
    B key how command            what it left: `s`, we stopped it; `k`, its agent killed it; the command as hex
    Z key                        nothing of its tree of processes is left
    F key errno                  it could not be started
    L key                        its end was not seen, and nothing of its tree is left
    G count status               the keeper gave up: so many supervisors in a row did nothing; how the last ended
    O key                        of a node: it was ended because the lease was over
    A key                        of a node: its end is known to its session

The keeper imports this module without site-packages.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Iterable
from typing import Final

REFUSALS: Final = frozenset(
    (errnos.EAGAIN, errnos.ENOMEM, errnos.EMFILE, errnos.ENFILE, errnos.ENOSPC, errnos.EDQUOT)
)
"""No room now, of processes, memory, descriptors or files: not the task's fault."""

BEGAN: Final = "K"
CLAIMED: Final = "C"
TRIED: Final = "T"
SPAWNED: Final = "S"
EXITED: Final = "X"
LEFT: Final = "B"
GONE: Final = "Z"
FAILED: Final = "F"
LOST: Final = "L"
GAVE_UP: Final = "G"
OVER: Final = "O"
ACKNOWLEDGED: Final = "A"

_FLAGS: Final = {GONE: "gone", LOST: "lost", OVER: "over", ACKNOWLEDGED: "acked"}
OF_JOBS: Final = (CLAIMED, TRIED, SPAWNED, EXITED, LEFT, FAILED, *_FLAGS)

STOPPED: Final = b"s"
KILLED: Final = b"k"


class LedgerJob:
    """What the ledger says of one job; `boot_id` and `pid_ns` are those of the keeper that claimed it."""

    __slots__ = (
        "acked",
        "boot_id",
        "errno",
        "gone",
        "grace_s",
        "left",
        "lost",
        "over",
        "pid",
        "pid_ns",
        "started",
        "tried",
        "wait_status",
    )

    def __init__(self, boot_id: str, pid_ns: str) -> None:
        self.boot_id = boot_id
        self.pid_ns = pid_ns
        self.tried = self.lost = self.gone = self.over = self.acked = False
        self.grace_s = 3.0
        self.left: list[tuple[bytes, bytes]] = []
        self.pid: int | None = None
        self.started: int | None = None
        self.wait_status: int | None = None
        self.errno: int | None = None

    @property
    def never_ran(self) -> bool:
        """Whether no process was made, and for no fault of the job's own.

        Of one that was not tried this holds on the boot it was claimed on: the record of a try is not synced.
        """
        return not self.tried or self.errno in REFUSALS

    @property
    def is_open(self) -> bool:
        """Whether a process of it may be left: neither its tree's end nor a failure is on record."""
        return self.tried and not (self.gone or self.lost or self.errno is not None)


class Ledger:
    """All records of a ledger, added up; `jobs` by key text; its last keeper: its identity, and how it gave up."""

    def __init__(self) -> None:
        self.gave_up: tuple[int, int] | None = None
        self.pid = self.started = 0
        self.boot_id = self.pid_ns = ""
        self.jobs: dict[str, LedgerJob] = {}


def make_record(kind: str, *words: object) -> bytes:
    """The payload of a record; its words, as the head of this module lists them, hold no space."""
    return " ".join((kind, *map(str, words))).encode()


def fold_ledger(payloads: Iterable[bytes]) -> Ledger:
    """Add up the records; unknown ones, of a later version, are passed over."""
    ledger = Ledger()
    for payload in payloads:
        kind, *words = payload.decode("ascii", "replace").split(" ")
        try:
            _fold_record(ledger, kind, words)
        except (IndexError, ValueError):
            continue
    return ledger


def _fold_record(ledger: Ledger, kind: str, words: list[str]) -> None:
    if kind == BEGAN:
        ledger.pid, ledger.started = int(words[0]), int(words[1])
        ledger.boot_id, ledger.pid_ns = words[2], words[3]
        ledger.gave_up = None
        return
    if kind == GAVE_UP:
        ledger.gave_up = int(words[0]), int(words[1])
    if kind not in OF_JOBS:
        return
    job = ledger.jobs.setdefault(words[0], LedgerJob(ledger.boot_id, ledger.pid_ns))
    if kind == TRIED:
        job.tried = True
        job.grace_s = float(words[1])
    elif kind == LEFT:
        job.left.append((words[1].encode(), bytes.fromhex(words[2])))
    elif kind == SPAWNED:
        job.pid, job.started = int(words[1]), int(words[2])
    elif kind == EXITED:
        job.wait_status = int(words[1])
    elif kind == FAILED:
        job.errno = int(words[1])
    elif kind in _FLAGS:
        setattr(job, _FLAGS[kind], True)
