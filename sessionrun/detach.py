"""Leave the caller: a session's own process, away from its terminal, group and file descriptors.

The launcher waits on a pipe until the detached process holds the session's lock and its first record is
durable; only then is the session id worth printing.  End of file without a byte means that the start failed.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import Final, NoReturn

import orjson

from sessionrun.errors import StoreError
from sessionrun.events import to_record
from sessionrun.processes import JOB_MARKER
from sessionrun.store import SessionDir, sync_directory

READY_TIMEOUT_S: Final = 30.0
PARENT_VARIABLE: Final = "SESSIONRUN_PARENT"
_LOG_TAIL_BYTES: Final = 2000


def start_detached(session: SessionDir) -> None:
    """Start the session's supervisor; return once it is up.

    Raises:
        StoreError: it did not come up; the message has the end of its log.
    """
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready_read)
        _leave(session, ready_write)
    os.close(ready_write)
    try:
        readable, _, _ = select.select([ready_read], [], [], READY_TIMEOUT_S)
        ready = bool(readable and os.read(ready_read, 1))
    finally:
        os.close(ready_read)
        os.waitpid(pid, 0)
    if not ready:
        raise StoreError(f"session {session.session_id} did not start: {_tail(session.log_path)}")


def _leave(session: SessionDir, ready_fd: int) -> NoReturn:
    """In the forked child: become a daemon, say so, and become the supervisor."""
    try:
        _detach(session, ready_fd)
        lock_fd = session.hold_lock()
        _begin_journal(session)
        os.write(ready_fd, b"1")
        os.close(ready_fd)
        _execute(session, lock_fd)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(3)


def _detach(session: SessionDir, ready_fd: int) -> None:
    from daemon import DaemonContext

    _fill_standard_descriptors()
    log = open(session.log_path, "ab", buffering=0, opener=_open_private)
    DaemonContext(
        detach_process=True,  # the library's guess fails when stdin is a socket or the parent is pid 1
        umask=0o077,
        working_directory="/",
        files_preserve=[ready_fd],
        stdout=log,
        stderr=log,
        prevent_core=False,  # a limit that the agents would inherit
        signal_map={},
    ).open()
    if os.getsid(0) == os.getpid():
        raise RuntimeError("still a session leader after detaching")


def _begin_journal(session: SessionDir) -> None:
    from sessionrun.journal import AppendLog
    from sessionrun.supervisor import SystemClock, first_entry

    journal = AppendLog(session.journal_path)
    journal.append([orjson.dumps(to_record(first_entry(SystemClock(), 1, 1)))])
    journal.sync()
    journal.close()
    sync_directory(session.path)


def _execute(session: SessionDir, lock_fd: int) -> NoReturn:
    from sessionrun import detached

    environ = dict(os.environ)
    marker = environ.pop(JOB_MARKER, None)
    if marker is not None:  # launched from a job: that job's end must not be ours
        environ[PARENT_VARIABLE] = marker
    os.set_inheritable(lock_fd, True)
    package_root = str(Path(__file__).resolve().parent.parent)
    argv = [sys.executable, "-c", detached.COMMAND, package_root, str(session.path), str(lock_fd)]
    os.execve(sys.executable, argv, environ)


def _fill_standard_descriptors() -> None:
    """Callers may close 0, 1 or 2; whatever was opened next would take their place."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, closefd=False))


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _tail(path: Path) -> str:
    try:
        lines = path.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").split("\n")
    except OSError:
        return "no log was written"
    said = [line for line in lines if line.strip()]
    return said[-1] if said else "it said nothing"
