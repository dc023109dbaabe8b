"""Leave the caller: a session's own process, away from its terminal, group and file descriptors.

The launcher waits on a pipe until the detached process has the session's lock and its first record is
durable; only then is the session id worth printing.  Anything but the one byte means that the start failed.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from sessionrun import __version__, processes
from sessionrun.errors import StoreError
from sessionrun.store import SessionDir, sync_directory

READY_TIMEOUT_S: Final = 30.0
PARENT_VARIABLE: Final = "SESSIONRUN_PARENT"
FEEDBACK_VARIABLE: Final = "SESSIONRUN_FEEDBACK"
_READY: Final = b"\x01"
_REASON_BYTES: Final = 1000
_LOG_TAIL_BYTES: Final = 2000
_COMMAND: Final = "import sys; sys.path[0] = sys.argv.pop(1); from sessionrun.detached import main; main()"
"""Given to ``python -c`` with the directory that holds this package: the same code as the launcher's."""


def start_detached(session: SessionDir, lock_fd: int) -> None:
    """Start the session's supervisor, which gets `lock_fd`; return once it is up.

    Descriptors 0 to 2 must be open: whatever takes their place would be lost on the way.

    Raises:
        StoreError: it did not come up; the message says why, and the session's directory is gone again.
    """
    ready_read, ready_write = os.pipe()
    gc.freeze()  # or the last collection of each of us copies every page that we share
    # Ctrl+C between the fork and its being ignored would make a second launcher of the child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        pid = os.fork()
    except OSError as error:
        session.discard()
        raise StoreError(f"cannot start session {session.session_id}: {error.strerror}") from error
    if pid == 0:
        os.close(ready_read)
        _leave(session, ready_write, lock_fd)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(ready_write)
    os.close(lock_fd)
    poller = select.poll()
    poller.register(ready_read, select.POLLIN)
    try:
        told = os.read(ready_read, _REASON_BYTES) if poller.poll(READY_TIMEOUT_S * 1000) else None
    finally:
        os.close(ready_read)
        _reap(pid)
    if told == _READY:
        return
    reason = told.decode("utf-8", "replace") if told else _tail(session.log_path)
    if told is not None:  # else it may still come up
        session.discard()
    raise StoreError(f"session {session.session_id} did not start: {reason}")


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:  # our caller ignores SIGCHLD, and so do we: the system reaps
        pass


def _leave(session: SessionDir, ready_fd: int, lock_fd: int) -> NoReturn:
    """In the forked child: become a daemon, say so, and become the supervisor."""
    ready = False
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the launcher, which asks for the end then
    try:
        _detach(session, ready_fd, lock_fd)
        _begin_journal(session)
        os.write(ready_fd, _READY)
        ready = True
        os.close(ready_fd)
        _execute(session, lock_fd)
    except BaseException as error:
        import traceback

        if not ready:
            os.write(ready_fd, str(error).encode("utf-8", "replace")[:_REASON_BYTES] or b"?")
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(3)


def _detach(session: SessionDir, ready_fd: int, lock_fd: int) -> None:
    from daemon import DaemonContext

    umask = os.umask(0o077)
    log = open(session.log_path, "ab", buffering=0, opener=_open_private)
    DaemonContext(
        detach_process=True,  # the library's guess fails when stdin is a socket or the parent is pid 1
        umask=umask,  # the agents' own: our files are private by their modes
        working_directory="/",
        files_preserve=[ready_fd, lock_fd],
        stdout=log,
        stderr=log,
        prevent_core=False,  # a limit that the agents would inherit
        signal_map={},
    ).open()
    for fd in (0, 1, 2):
        os.set_inheritable(fd, True)  # what is opened right at its place was not duplicated there
    if os.getsid(0) == os.getpid():
        raise RuntimeError("still a session leader after detaching")


def _begin_journal(session: SessionDir) -> None:
    from sessionrun.journal import AppendLog

    journal = AppendLog(session.journal_path)
    journal.append([orjson.dumps(_first_record())])
    journal.sync()
    journal.close()
    sync_directory(session.path)


def _first_record() -> dict[str, Any]:
    """`events.SupervisorStarted` as the journal spells it: to import its module, the caller would wait longer."""
    pid = os.getpid()
    return {
        "seq": 1,
        "at": time.time(),
        "mono": time.monotonic(),
        "ev": "SupervisorStarted",
        "epoch": 1,
        "pid": pid,
        "started": processes.start_time(pid) or 0,
        "boot_id": processes.boot_id(),
        "pid_ns": processes.pid_namespace(),
        "version": __version__,
        "journal_version": 1,
    }


def _execute(session: SessionDir, lock_fd: int) -> NoReturn:
    environ = dict(os.environ)
    marker = environ.pop(processes.JOB_MARKER, None)
    if marker is not None:  # launched from a job: that job's end must not be ours
        environ[PARENT_VARIABLE] = marker
    environ.pop(FEEDBACK_VARIABLE, None)  # of that job's check, not of ours
    os.set_inheritable(lock_fd, True)
    package_root = str(Path(__file__).resolve().parent.parent)
    argv = [sys.executable, "-c", _COMMAND, package_root, str(session.path), str(lock_fd)]
    os.execve(sys.executable, argv, environ)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _tail(path: Path) -> str:
    try:
        lines = path.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").split("\n")
    except OSError:
        return "no log was written"
    said = [line for line in lines if line.strip()]
    return said[-1] if said else "it said nothing"
