"""A session from its launch to its end in one process, forked from that of the tests.

The command line, the supervisor, the keeper's care for jobs and the jobs are the real ones, and the logs
are whole.  Left out are interpreters: those of root, keeper and supervisor, and that of each job of our
own code.  They take far longer to start than to work.  This is only for sessions that end by themselves, and
not for tests of processes: nothing is detached here.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from conftest import Command, eventually
from prewarm import make_ready

import sessionrun.cli.run
import sessionrun.client.launching.launch
import sessionrun.input.prompts
import sessionrun.runtime.jobs.check.check
import sessionrun.runtime.launch
import sessionrun.workspaces.release
import sessionrun.workspaces.worktree  # these are imported so that no fork does it anew
from sessionrun.cli import main
from sessionrun.model.keys import JobKey, parse_job_key
from sessionrun.model.spec import Job
from sessionrun.runtime import main as supervising
from sessionrun.runtime.executors.local import LocalExecutor, _order
from sessionrun.runtime.executors.protocol import Notice, read_frame
from sessionrun.runtime.jobs import job as own_job
from sessionrun.runtime.jobs.commands import AND_SETTLE
from sessionrun.runtime.jobs.maker import JobMaker
from sessionrun.runtime.jobs.shared import SHELL
from sessionrun.runtime.keeper.children import Children
from sessionrun.runtime.keeper.loop import _drain, _wake_on_death
from sessionrun.runtime.launch import _begin_journal
from sessionrun.runtime.partners import SystemClock
from sessionrun.runtime.sharing import LimitSharing
from sessionrun.runtime.supervisor import Supervisor
from sessionrun.store import processes
from sessionrun.store.files import open_regular
from sessionrun.store.journal import AppendLog, read_log
from sessionrun.store.ledger import BEGAN, fold_ledger, make_record
from sessionrun.store.session import SessionDir

LONGEST_POLL_S = 60.0


def run_inside(command: Command, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `sessionrun` with these words, which start or resume a session, until the session has ended."""
    with inside(command, *words) as running:
        return running.end()


@contextmanager
def inside(command: Command, *words: str) -> Iterator[Running]:
    """Run it beside the test, which can look at the session, ask it for something and wait for its end."""
    make_ready()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        pid = os.fork()
        if pid == 0:
            _leave_with(lambda: _be_command(command.cwd, words, out.fileno(), error.fileno()))
        running = Running(pid, words, (out.fileno(), error.fileno()))
        try:
            yield running
        finally:
            running.kill()


class Running:
    """A session in one process."""

    def __init__(self, pid: int, words: Sequence[str], outputs: tuple[int, int]) -> None:
        self._pid, self._words, self._outputs = pid, words, outputs
        self._status: int | None = None

    def has_ended(self) -> bool:
        """Whether the process has."""
        if self._status is None:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = status if ended else None
        return self._status is not None

    def end(self) -> subprocess.CompletedProcess[str]:
        """Wait for the end; what the command said."""
        eventually(self.has_ended)
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        return subprocess.CompletedProcess(list(self._words), code, *map(_read, self._outputs))

    def kill(self) -> None:
        """For tests that fail: end what has not ended."""
        if not self.has_ended():
            os.kill(self._pid, signal.SIGKILL)
            _, self._status = os.waitpid(self._pid, 0)


def _read(fd: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb", closefd=False) as stream:
        return stream.read().decode("utf-8", "surrogateescape")


def _leave_with(work: Callable[[], int]) -> NoReturn:
    """In a forked child: do the work and leave with its code, whatever happens."""
    gc.freeze()
    code = 1
    try:
        code = work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _take_streams(*fds: int) -> None:
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    sys.stdin, sys.stdout = (open(number, mode, closefd=False) for number, mode in ((0, "r"), (1, "w")))
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # what is said goes where 2 leads at that moment


def _be_command(cwd: Path, words: Sequence[str], out: int, error: int) -> int:
    os.setsid()
    _take_streams(os.open(os.devnull, os.O_RDONLY), out, error)
    os.chdir(cwd)
    os.environ["PWD"] = str(cwd)
    module: Any
    for module in (sessionrun.client.launching.launch, sessionrun.runtime.launch):
        module.start_detached = _supervise
    return main(list(words))


def _supervise(
    session: SessionDir,
    lock_fd: int,
    *,
    new: bool = True,
    meanwhile: Callable[[], None] = lambda: None,
    program: str = "",
) -> None:
    """In the place of `start_detached`: be root, keeper and supervisor, until the session has ended."""
    cwd, ours = os.getcwd(), {number: os.dup(number) for number in (1, 2)}
    with open(session.log_path, "ab", opener=open_regular) as log:
        for number in ours:
            os.dup2(log.fileno(), number)
    os.chdir("/")
    if new:
        _begin_journal(session)
    meanwhile()
    processes.become_subreaper()
    module: Any = os
    module.posix_spawn = _spawn
    _run(session)
    os.close(lock_fd)
    for number, fd in ours.items():
        os.dup2(fd, number)
    os.chdir(cwd)


def _run(session: SessionDir) -> None:
    executor: Any = _Executor(session)
    state, journal = supervising._load(session)
    supervising._record(state, journal, supervising._introduce(state, executor))
    notices = supervising._recover(session, state, journal, executor.ledger_end)
    exports = supervising._open_exports(session, state.spec)
    sharing = LimitSharing(session, state.spec, os.environ, print)
    jobs = JobMaker(session, state.spec)
    Supervisor(session, state, journal, executor, jobs, SystemClock(), exports, sharing).run(notices)


class _Executor:
    """The keeper's jobs, without the socket between."""

    def __init__(self, session: SessionDir) -> None:
        self.keeper_pid = os.getpid()
        self.keeper_started = processes.start_time(self.keeper_pid) or 0
        self._frames: list[list[bytes]] = []
        ledger = AppendLog(session.ledger_path)
        self._children = Children(ledger, session.session_id, lambda *fields: self._frames.append(list(fields)))
        self._children.note(
            make_record(
                BEGAN, self.keeper_pid, self.keeper_started, processes.boot_id(), processes.pid_namespace()
            )
        )
        self._children.claimed.update(fold_ledger(read_log(session.ledger_path).payloads).jobs)
        self.ledger_end = ledger.end
        self._death_fd = _wake_on_death()

    needs_sync = False
    claim, settle = LocalExecutor.claim, LocalExecutor.settle

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        self._children.start([_order(job) for job in jobs])
        return []

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        self._children.stop(key.text(), now=now)

    def wait(self, timeout_s: float | None, wake_fd: int | None) -> list[Notice]:
        until = time.monotonic() + (LONGEST_POLL_S if timeout_s is None else max(0.0, timeout_s))
        while not (notices := self._look()):
            if self._poll(until, wake_fd) or time.monotonic() >= until:
                return []
        return notices

    def _look(self) -> list[Notice]:
        self._children.reap()
        self._children.go_on_stopping()
        frames, self._frames[:] = list(self._frames), []
        return [notice for frame in frames for notice in read_frame(frame, parse_job_key(frame[1].decode()))]

    def _poll(self, until: float, wake_fd: int | None) -> bool:
        """Wait for the end of a job; whether the session's own FIFO woke us instead."""
        poller = select.poll()
        for fd in (self._death_fd, wake_fd):
            if fd is not None:
                poller.register(fd, select.POLLIN)
        until = min(one for one in (until, self._children.next_time()) if one is not None)
        ready = [fd for fd, _ in poller.poll(max(0.0, until - time.monotonic()) * 1000 + 0.5)]
        if self._death_fd in ready:
            _drain(self._death_fd)
        return wake_fd in ready

    def close(self) -> None:
        assert not self._children.by_key


_real_spawn = os.posix_spawn


def _spawn(path: bytes, argv: list[bytes], environ: Any, **how: Any) -> int:
    """In the place of posix_spawn: jobs of our own code are forked, for here all that they need is imported."""
    words = [os.fsdecode(word) for word in argv]
    first = words[4] if words[:3] == [SHELL, "-c", AND_SETTLE] else None
    if first is not None:
        words = words[5:]
    work = _OURS.get(words[1]) if len(words) > 1 else None
    if work is None:
        return _real_spawn(path, argv, environ, **how)
    pid = os.fork()
    if pid == 0:
        words = words[2:]
        if first is not None:
            work = partial(_settle, work, first)
        _leave_with(lambda: _be_job(work, words, environ, how["file_actions"]))
    return pid


def _be_job(
    work: Callable[..., int], words: Sequence[str], environ: dict[bytes, bytes], files: Sequence[Any]
) -> int:
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _take_streams(*(os.open(path, flags, mode) for _, _, path, flags, mode in files))
    os.environb.clear()
    os.environb.update(environ)
    return work(*words)


def _settle(work: Callable[..., int], script: str, *words: str) -> int:
    """`AND_SETTLE`, as a shell runs it."""
    code = subprocess.call([SHELL, "-ec", script])
    return work(*words) if code == 0 else code if code > 0 else 128 - code


_OURS: dict[str, Callable[..., int]] = {os.path.abspath(own_job.__file__): own_job.run}
