"""Runs jobs as processes of this machine.

Each job is its own session and process group; its files are opened by the kernel in the child; nothing of
its output passes through here.  Before a process is started its claim is durable in the ledger, and its exit
is in the ledger before it is reaped.  A job has ended when its whole tree has: what the leader leaves behind
in its group is stopped first, and a job that is stopped takes its descendants along.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sessionrun import processes
from sessionrun.errors import StoreError
from sessionrun.events import HoldPlaced, JobLost, JobStarted
from sessionrun.executors import Exit, Notice
from sessionrun.journal import AppendLog
from sessionrun.ledger import (
    claim_record,
    exit_record,
    failure_record,
    incarnation_record,
    spawn_record,
    try_record,
)
from sessionrun.model import SLOT, Job, JobKey
from sessionrun.processes import JOB_MARKER, Identity

RESCAN_FIRST_S: Final = 0.05
RESCAN_LAST_S: Final = 0.5
GIVE_UP_AFTER_KILL_S: Final = 5.0
"""A process in the kernel's hands may not die for a while; its job is not held up for longer."""

LONGEST_WAIT_S: Final = 86400.0
"""poll(2) counts milliseconds in an int: it refuses more than 24 days.  To wake early does no harm."""

REFUSED_RETRY_S: Final = 1.0
_REFUSALS: Final = frozenset((errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT))
"""No room now, of processes, memory, descriptors or files: not the task's fault."""

_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
"""Not blocking, so that a FIFO planted in a file's place is refused; to a file it means nothing."""

_DEFAULT_SIGNALS: Final = tuple(
    number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)
)


@dataclass(slots=True)
class _Stop:
    """How far the stopping of a tree has come; times are monotonic."""

    kill_at: float
    scan_at: float
    interval_s: float = RESCAN_FIRST_S
    asked: bool = False
    members: set[Identity] = field(default_factory=set)


@dataclass(slots=True)
class _Child:
    """A job that was started; `exit` is set once its leader was reaped."""

    key: JobKey
    leader: Identity
    marker: str
    grace_s: float
    exit: Exit | None = None
    stop: _Stop | None = None


class LocalExecutor:
    """The executor for this machine.  Call it from the main thread only."""

    def __init__(self, ledger: AppendLog, session_id: str, environ: Mapping[bytes, bytes]) -> None:
        self._ledger = ledger
        self._session_id = session_id
        self._environ = dict(environ)
        self._children: dict[int, _Child] = {}
        self._by_key: dict[JobKey, _Child] = {}
        self._backlog: list[bytes] = []
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        pid = os.getpid()
        identity = incarnation_record(
            pid, processes.start_time(pid) or 0, processes.boot_id(), processes.pid_namespace()
        )
        self._note(identity)

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        """See `Executor.start`."""
        try:
            self._ledger.append([claim_record(job.key) for job in jobs])
            self._ledger.sync()
        except StoreError as error:
            return [_refuse(str(error)), *(_never_ran(job, str(error)) for job in jobs)]
        notices: list[Notice] = []
        for number, job in enumerate(jobs):
            notices.append(self._spawn(job))
            if isinstance(notices[-1], HoldPlaced):
                reason = notices[-1].reason
                notices += [_never_ran(rest, reason) for rest in jobs[number:]]
                break
        os.chdir("/")  # so that no job's directory is kept busy
        return notices

    def stop(self, key: JobKey) -> None:
        """See `Executor.stop`."""
        child = self._by_key.get(key)
        if child is not None and child.stop is None:
            self._begin_stop(child)

    def wait(self, timeout_s: float | None, wake_fd: int | None) -> list[Notice]:
        """See `Executor.wait`."""
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        if wake_fd is not None:
            poller.register(wake_fd, select.POLLIN)
        scans = [child.stop.scan_at for child in self._children.values() if child.stop]
        if scans:
            own = max(0.0, min(scans) - time.monotonic())
            timeout_s = own if timeout_s is None else min(timeout_s, own)
        poller.poll(None if timeout_s is None else min(max(0.0, timeout_s), LONGEST_WAIT_S) * 1000 + 0.5)
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass
        return [*self._reap(), *self._go_on_stopping()]

    def close(self) -> None:
        """See `Executor.close`."""
        signal.set_wakeup_fd(-1)
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._ledger.close()

    def _note(self, record: bytes) -> int:
        """Record what has happened already; on a full disk it waits here for the next chance."""
        self._backlog.append(record)
        try:
            self._ledger.append(self._backlog)
            self._backlog.clear()
        except StoreError:
            pass
        return self._ledger.end

    # --- starting ---

    def _spawn(self, job: Job) -> Notice:
        marker = f"{self._session_id}/{job.key.text()}"
        environ = {**self._environ, **_encode(job.env), JOB_MARKER.encode(): marker.encode()}
        try:
            self._ledger.append([try_record(job.key)])
            os.chdir(job.cwd)
            pid = os.posix_spawn(
                job.argv[0],
                job.argv,
                environ,
                file_actions=_file_actions(job),
                setsid=True,
                setsigdef=_DEFAULT_SIGNALS,
                setsigmask=(),
            )
        except StoreError as error:
            return _refuse(str(error))
        except (OSError, ValueError) as error:
            return self._not_started(job, error)
        started = processes.start_time(pid) or 0
        end = self._note(spawn_record(job.key, pid, started))
        child = _Child(job.key, Identity(pid, started), marker, job.stop_grace_s)
        self._children[pid] = self._by_key[job.key] = child
        return JobStarted(job.key, pid, started, end)

    def _not_started(self, job: Job, error: OSError | ValueError) -> Notice:
        number = (error.errno if isinstance(error, OSError) else None) or errno.EINVAL
        if number in _REFUSALS:
            return _refuse(os.strerror(number))
        end = self._note(failure_record(job.key, number))
        return Exit(job.key, None, end, errno=number, detail=_find_fault(job) or os.strerror(number))

    # --- ending ---

    def _reap(self) -> list[Notice]:
        notices: list[Notice] = []
        while (ended := _next_ended()) is not None:
            pid, status = ended
            child = self._children.get(pid)
            if child is not None and status is not None:
                self._note(exit_record(child.key, status))
            _, raw, usage = os.wait4(pid, 0)
            if child is None:
                continue
            if status is None:
                self._note(exit_record(child.key, raw))
            cpu_s = round(usage.ru_utime + usage.ru_stime, 6)
            child.exit = Exit(child.key, raw, self._ledger.end, cpu_s=cpu_s)
            if child.stop is None and processes.group_is_empty(pid):
                notices.append(self._forget(child))
            elif child.stop is None:
                self._begin_stop(child)
        return notices

    def _forget(self, child: _Child) -> Exit:
        del self._children[child.leader.pid]
        del self._by_key[child.key]
        assert child.exit is not None
        return child.exit

    def _begin_stop(self, child: _Child) -> None:
        """The next turn of `wait` sees to it, for all that are to be stopped with one look at the system."""
        now = time.monotonic()
        child.stop = _Stop(kill_at=now + child.grace_s, scan_at=now)

    def _go_on_stopping(self) -> list[Notice]:
        due = [child for child in self._children.values() if child.stop and child.stop.scan_at <= time.monotonic()]
        if not due:
            return []
        seen = processes.scan()
        now = time.monotonic()
        return [self._forget(child) for child in due if child.stop and _has_stopped(child, child.stop, seen, now)]


def _has_stopped(child: _Child, stop: _Stop, seen: processes.Scan, now: float) -> bool:
    """Whether a tree is gone, or given up; else it is told to end: TERM at first, KILL when its grace is over."""
    stop.members = processes.find_tree(seen, child.leader, child.marker, stop.members)
    given_up = now > stop.kill_at + GIVE_UP_AFTER_KILL_S
    if child.exit is not None and (not stop.members or given_up):
        return True
    kill = now >= stop.kill_at
    signals = (signal.SIGKILL,) if kill else () if stop.asked else (signal.SIGTERM, signal.SIGCONT)
    for member in stop.members:
        for number in signals:  # CONT, because a stopped process cannot end
            processes.send_signal(member, number)
    stop.scan_at = now + stop.interval_s if kill else min(now + stop.interval_s, stop.kill_at)
    stop.interval_s = RESCAN_FIRST_S if kill else min(stop.interval_s * 2, RESCAN_LAST_S)
    stop.asked = True
    return False


def _next_ended() -> tuple[int, int | None] | None:
    """A child that ended, still unreaped, and its raw wait status (None where the system must reap to know)."""
    if not hasattr(os, "waitid"):
        return _next_ended_by_scan()
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return found.si_pid, found.si_status << 8
    return found.si_pid, found.si_status | (0x80 if found.si_code == os.CLD_DUMPED else 0)


def _next_ended_by_scan() -> tuple[int, int | None] | None:
    import psutil

    for process in psutil.Process().children():
        if process.status() == psutil.STATUS_ZOMBIE:
            return process.pid, None
    return None


def _file_actions(job: Job) -> list[tuple[int, int, str, int, int]]:
    """stdin, stdout and stderr, opened in the child."""
    return [
        (os.POSIX_SPAWN_OPEN, 0, job.stdin or os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, job.stdout, _APPEND, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, job.stderr, _APPEND, 0o600),
    ]


def _find_fault(job: Job) -> str | None:
    """posix_spawn does not say which of its paths was at fault; look which one is."""
    if not os.path.isdir(job.cwd):
        return f"no directory {job.cwd}"
    if not os.access(job.argv[0], os.X_OK):
        return f"cannot execute {job.argv[0]}"
    return None


def _encode(env: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in env.items()}


def _refuse(reason: str) -> HoldPlaced:
    """Nothing can be started now: a hold, not a failure of the task."""
    return HoldPlaced(SLOT, reason, until=time.monotonic() + REFUSED_RETRY_S, until_exit=True)


def _never_ran(job: Job, reason: str) -> JobLost:
    return JobLost(job.key, "void", reason, counts=False)
