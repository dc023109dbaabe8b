"""The ledger: what was claimed, spawned and reaped.  Its records, and what they add up to.

Payloads are ASCII words (the lines around them are `journal`'s):

    K pid start boot_id pid_ns   an executor process began to write; its identity
    C key                        the job is claimed: it will be started at most once, by this record
    T key                        the start is about to be tried
    S key pid start              the process exists; `start` is the kernel's start time of `pid`
    X key status                 it ended; raw status of wait(2), written before it was reaped
    F key errno                  it could not be started
    L key                        its end was seen by nobody
    G                            the executor gave up restarting
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sessionrun.model import JobKey


@dataclass(slots=True)
class LedgerJob:
    """What the ledger says of one job."""

    tried: bool = False
    pid: int | None = None
    started: int | None = None
    wait_status: int | None = None
    errno: int | None = None
    lost: bool = False
    boot_id: str = ""


@dataclass(slots=True)
class Ledger:
    """All records of a ledger, added up; `jobs` by key text."""

    boot_id: str = ""
    pid_ns: str = ""
    jobs: dict[str, LedgerJob] = field(default_factory=dict)


def claim_record(key: JobKey) -> bytes:
    """The job is claimed."""
    return b"C " + key.text().encode()


def try_record(key: JobKey) -> bytes:
    """The start is about to be tried."""
    return b"T " + key.text().encode()


def spawn_record(key: JobKey, pid: int, started: int) -> bytes:
    """The process exists."""
    return b"S %b %d %d" % (key.text().encode(), pid, started)


def exit_record(key: JobKey, wait_status: int) -> bytes:
    """The process ended."""
    return b"X %b %d" % (key.text().encode(), wait_status)


def failure_record(key: JobKey, errno: int) -> bytes:
    """The process could not be started."""
    return b"F %b %d" % (key.text().encode(), errno)


def incarnation_record(pid: int, started: int, boot_id: str, pid_ns: str) -> bytes:
    """An executor process began to write."""
    return b"K %d %d %b %b" % (pid, started, boot_id.encode() or b"-", pid_ns.encode() or b"-")


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
    if kind == "K":
        ledger.boot_id, ledger.pid_ns = words[2], words[3]
        return
    if kind not in ("C", "T", "S", "X", "F", "L"):
        return
    job = ledger.jobs.setdefault(words[0], LedgerJob(boot_id=ledger.boot_id))
    if kind == "T":
        job.tried = True
    elif kind == "S":
        job.pid, job.started = int(words[1]), int(words[2])
    elif kind == "X":
        job.wait_status = int(words[1])
    elif kind == "F":
        job.errno = int(words[1])
    elif kind == "L":
        job.lost = True
