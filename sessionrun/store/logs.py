"""Append-only logs of checked lines: the form that both have, the room kept for them, the records of the ledger.

A line is ``CRC32 (8 hex digits) SPACE payload LF``; the payload holds no LF.  One process writes (the holder
of the log's lock); anyone may read at any time.  A torn last line is normal after a crash and is not a record;
a bad line with good ones behind it is damage.  What our code raises for a bad value becomes an error that names
the file.  What the journal's payloads mean is not known here; a good record can still not fit those before it.

The ledger says what was claimed, spawned and reaped.  Its payloads are ASCII words:

    K pid start boot_id pid_ns   a keeper began to write; its identity
    C key                        the job is claimed: it will be started at most once, by this record
    T key grace                  the start is about to be tried; `grace` in seconds is for its stopping
    S key pid start              the process exists; `start` is the kernel's start time of `pid`
    X key status                 it ended; raw status of wait(2), written before it was reaped
    B key how command            a process that it left: who ended it (`s`: we, `k`: its agent); its command as hex
    Z key                        nothing of its tree of processes is left
    F key errno                  it could not be started
    L key                        its end was not seen, and nothing of its tree is left
    G count status               the keeper gave up: so many supervisors in a row did nothing; how the last ended
    O key                        of a node: it was ended because the lease was over
    A key                        of a node: its end is known to its session

The keeper imports this module without site-packages.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from sessionrun.model.errors import StoreError
from sessionrun.store.files import open_regular, read_regular, replace_file

REFUSALS: Final = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)
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

STOPPED: Final = "s"
KILLED: Final = "k"


class LedgerJob:
    """What the ledger says of one job; `boot_id` and `pid_ns` are those of the keeper that claimed it."""

    def __init__(self, boot_id: str, pid_ns: str) -> None:
        self.boot_id = boot_id
        self.pid_ns = pid_ns
        self.tried = self.lost = self.gone = self.over = self.acked = False
        self.grace_s = 3.0
        self.left: list[tuple[str, str]] = []
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
        job.left.append((words[1], bytes.fromhex(words[2]).decode("utf-8", "replace")))
    elif kind == SPAWNED:
        job.pid, job.started = int(words[1]), int(words[2])
    elif kind == EXITED:
        job.wait_status = int(words[1])
    elif kind == FAILED:
        job.errno = int(words[1])
    elif kind in _FLAGS:
        setattr(job, _FLAGS[kind], True)


class LogContents(NamedTuple):
    """The good records of a log, the offset behind the last one, and where damage begins, if any."""

    payloads: list[bytes]
    end: int
    damage_at: int | None = None


RESERVE: Final = "reserve"
"""A file with room on the disk for both logs, given up when nothing else can be written.

What runs when a disk fills up will end, and how it ended must be recorded: so a session holds a little room from
its start.  Once that is given up nothing new is started until it can be had again."""

SMALLEST_BYTES: Final = 64 * 1024
BYTES_PER_TASK: Final = 1024
"""The records of a task's end in both logs."""

LARGEST_BYTES: Final = 1024 * 1024
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def make_reserve(folder: Path, tasks: int) -> bool:
    """Take the room for that many tasks; False when it cannot be had.  Once taken it is left as it is."""
    path = folder / RESERVE
    if path.exists():
        return True
    size = min(SMALLEST_BYTES + BYTES_PER_TASK * tasks, LARGEST_BYTES)
    try:
        replace_file(path, b"\0" * size, durable=False)  # written, because fallocate is not everywhere
    except OSError:
        return False
    return True


def give_up_reserve(folder: Path) -> bool:
    """Make the room free; False when there is none."""
    try:
        (folder / RESERVE).unlink()
    except OSError:
        return False
    return True


def find_shortage(session: Path) -> dict[str, int | str | None] | None:
    """What is free on the disk of a session where that is too little to start anything; None: there is enough.

    `free_bytes` and `free_inodes` are what this user may still take; file systems without a number of inodes have
    null.  A reserve that is there is room enough while a block and an inode are left.
    """
    try:
        disk = os.statvfs(session)
    except OSError:
        return None
    is_root = os.geteuid() == 0
    free = (disk.f_bfree if is_root else disk.f_bavail) * disk.f_frsize
    inodes = (disk.f_ffree if is_root else disk.f_favail) if disk.f_files else None
    wanted = disk.f_frsize if os.path.lexists(session / RESERVE) else SMALLEST_BYTES
    if free >= wanted and inodes != 0:
        return None
    return {"path": os.fspath(session.absolute().parent), "free_bytes": free, "free_inodes": inodes}


class AppendLog:
    """The writing end of one log.  Not for two writers.

    Beside it lies the session's reserve, which is given up when the disk is full.

    Raises:
        StoreError: from `append` and `sync`, when the disk refuses; the log then ends where it ended before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.end = os.fstat(self._fd).st_size
        self._dirty = False
        self._broken = False

    def append(self, payloads: Iterable[bytes]) -> int:
        """Write records with one system call; return the offset behind the last (bytes)."""
        chunk = b"".join([b"%08x %b\n" % (crc32(payload), payload) for payload in payloads])
        if not chunk:
            return self.end
        while True:
            try:
                self._write(chunk)
                break
            except OSError as error:
                if error.errno not in FULL or not give_up_reserve(self.path.parent):  # there is one at most
                    raise StoreError(f"cannot write {self.path}: {error.strerror}") from error
        self.end += len(chunk)
        self._dirty = True
        return self.end

    def _write(self, chunk: bytes) -> None:
        written = os.write(self._fd, chunk)
        if written != len(chunk):  # a disk that fills up first writes a part
            os.ftruncate(self._fd, self.end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        """Make all records durable.

        After a failed sync the kernel may forget what it could not write and report success the next time: so the
        next sync is believed only of a new file, to which all is written again.
        """
        if not self._dirty:
            return
        try:
            if self._broken:
                self._renew()
            else:
                _fdatasync(self._fd)
        except OSError as error:
            self._broken = True
            raise StoreError(f"cannot sync {self.path}: {error.strerror}") from error
        self._broken = self._dirty = False

    def _renew(self) -> None:
        """Put a durable copy in the log's place; offsets stay what they were."""
        content = os.pread(self._fd, self.end, 0)
        if parse_log(content).end != self.end:  # it was dropped from memory as well
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        try:
            replace_file(self.path, content, durable=True)
        finally:  # from now on what is appended goes there, also if its name cannot be made durable
            fd = open_regular(self.path, os.O_RDWR | os.O_APPEND)
            os.close(self._fd)
            self._fd = fd

    def cut(self, end: int) -> None:
        """Drop a torn tail, so that what is appended next begins a line."""
        if end < self.end:
            os.ftruncate(self._fd, end)
            self.end = end
            self._dirty = True

    def close(self) -> None:
        os.close(self._fd)


_fdatasync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


def parse_log(content: bytes) -> LogContents:
    """Read a log's records; never raises, whatever the bytes are."""
    payloads: list[bytes] = []
    end = 0
    position = 0
    damage_at: int | None = None
    while (newline := content.find(b"\n", position)) >= 0:
        checksum, payload = content[position : position + 9], content[position + 9 : newline]
        if checksum != b"%08x " % crc32(payload):
            damage_at = position if damage_at is None else damage_at
        elif damage_at is not None:
            return LogContents(payloads, end, damage_at)  # a good record behind a bad one
        else:
            payloads.append(payload)
            end = newline + 1
        position = newline + 1
    return LogContents(payloads, end)


def read_log(path: Path, limit: int | None = None) -> LogContents:
    """Read a log file; one that does not exist is empty.

    Raises:
        StoreError: the file cannot be read, or has more than `limit` bytes.
    """
    try:
        return parse_log(read_regular(path, limit))
    except FileNotFoundError:
        return LogContents([], 0)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


FAULTS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What code raises that meets a value which it does not expect."""


@contextmanager
def told_as_damage(path: Path, place: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn such an exception into a StoreError: the file is damaged, at the `place` that is asked for then."""
    try:
        yield
    except FAULTS as error:
        what = str(error) if type(error) is ValueError else repr(error)  # that one has words of ours
        raise StoreError(f"{path} is damaged{place()}: {what}") from error


def describe_rest(session_id: str) -> str:
    """What can still be done with a session whose logs are damaged: `resume` refuses it."""
    return (
        f"to read what its tasks printed: sessionrun logs {session_id}; its worktrees are kept; "
        f"to remove it: sessionrun clean --state interrupted {session_id}"
    )
