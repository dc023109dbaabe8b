"""Leave the caller: a session's own processes, away from its terminal, group and file descriptors.

The launcher holds the session's `root.lock` already and waits on a pipe until the first record is durable and root
and keeper are up, as fresh interpreters; only then is the session id worth printing.  Anything but the one byte
means that the start failed.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import orjson

from sessionrun import __version__
from sessionrun.agents.programs import find_callers
from sessionrun.house import HOUSE, load
from sessionrun.keeper.wire import SUPERVISOR, root_command
from sessionrun.model.errors import StoreError
from sessionrun.store import locks, processes
from sessionrun.store.creation import discard_session
from sessionrun.store.files import open_regular, read_end, sync_directory
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.engine.state import State

READY_TIMEOUT_S: Final = 30.0
LOCK_TIMEOUT_S: Final = 0.5
"""A reader's probe holds a lock for an instant.  To give up at once would take the probe for a living session."""

FEEDBACK_VARIABLE: Final = "SESSIONRUN_FEEDBACK"
CALLER_S_REPOSITORY: Final = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH", "GIT_PREFIX"),
)
"""By these git tells a hook where it is.  A task is elsewhere: its commits would go to the user's own branch."""

_REPLACED: Final[list[Any]] = []
"""The caller's streams: they must not be flushed here when nothing else names them any more."""

DEATH_TIMEOUT_S: Final = 1.0
"""A process that was killed holds its locks until all its threads have ended."""

DEATH_POLL_S: Final = 0.005

_READY: Final = b"\x01"
_REASON_BYTES: Final = 1000
_LOG_TAIL_BYTES: Final = 2000


def resume(session: SessionDir, *, even_ended: bool = True) -> bool:
    """Start the processes of a session again of which none is left; False when one is.

    The session gets the environment of this process.  Without `even_ended` one that has ended is not started.

    Raises:
        StoreError: its logs are damaged or a newer version's, or the processes did not come up.
        NotRegular: something else lies in the place of a lock or of its log.
        InputError: this machine lacks what the session asked of it, such as walls: no task runs without.
    """
    session = SessionDir(session.path.absolute())
    deadline = time.monotonic() + DEATH_TIMEOUT_S
    while session.is_alive():  # or only dies, which may take a moment after a kill
        if "root.lock" in session.held_locks() or time.monotonic() > deadline:
            return False
        time.sleep(DEATH_POLL_S)
    lock_fd = locks.hold(session.path / "root.lock", timeout_s=LOCK_TIMEOUT_S)
    if lock_fd is None:
        return False  # another one was faster
    try:
        if session.held_locks() != ("root.lock",):
            return False  # a supervisor that was left alone is about to lead
        state = _check_logs(session)
        if state.ended is not None and not even_ended:
            return False  # it went on and ended since the caller looked
        for business in HOUSE:
            if business.trial:
                load(business.trial)(state.spec)
        start_detached(session, os.dup(lock_fd), new=False)
        return True
    finally:
        os.close(lock_fd)


def _check_logs(session: SessionDir) -> State:
    """Raise what no supervisor could go on from; how the session stands."""
    from sessionrun.session.history import find_damage, project_status, replay

    state, _ = replay(session)
    project_status(session, state)
    damage = find_damage(session)
    if damage is not None:
        raise StoreError(damage)
    for path in (*(session.path / name for name in locks.NAMES), session.log_path):
        if os.path.lexists(path):  # each process of the chain would die of something else than a file there
            os.close(open_regular(path))
    return state


def start_detached(
    session: SessionDir,
    lock_fd: int,
    *,
    new: bool = True,
    meanwhile: Callable[[], None] = lambda: None,
    program: str = SUPERVISOR,
) -> bool:
    """Start the session's root, which gets `lock_fd`; return once root and keeper are up, and `meanwhile` is done.

    Its keeper then starts `main` of the module `program`.  Descriptors 0 to 2 must be open: whatever takes their
    place would be lost on the way.  False: the processes of a new session live, but were not up in time.

    Raises:
        StoreError: they did not come up; the message says why, and the directory of a new session is gone again.
    """
    ready_read, ready_write = os.pipe()
    gc.freeze()  # or the last collection of each of us copies every page that we share
    # Ctrl+C between the fork and its being ignored would make a second launcher of the child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        pid = os.fork()
    except OSError as error:
        if new:
            discard_session(session)
        raise StoreError(f"cannot start session {session.session_id}: {error.strerror}") from error
    if pid == 0:
        os.close(ready_read)
        _leave(session, ready_write, lock_fd, new=new, program=program)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(ready_write)
    os.close(lock_fd)
    poller = select.poll()
    poller.register(ready_read, select.POLLIN)
    try:
        meanwhile()
        answer = os.read(ready_read, _REASON_BYTES) if poller.poll(READY_TIMEOUT_S * 1000) else None
    finally:
        os.close(ready_read)
        with suppress(ChildProcessError):  # our caller ignores SIGCHLD, and so do we: the system reaps
            os.waitpid(pid, 0)
    if answer and answer.startswith(_READY):  # twice, if a first keeper was killed behind it
        return True
    if answer is None and new:  # to say that it failed would be wrong a moment later
        return False
    reason = answer.decode("utf-8", "replace") if answer else _tail(session.log_path)
    if new:
        discard_session(session)
    raise StoreError(f"session {session.session_id} did not start: {reason}")


def _leave(session: SessionDir, ready_fd: int, lock_fd: int, *, new: bool, program: str) -> NoReturn:
    """In the forked child: become a daemon, and then the root, which says when it is ready."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the launcher, which asks for the end then
    try:
        _detach(session, ready_fd, lock_fd)
        if new:
            _begin_journal(session)
        _execute(session, ready_fd, lock_fd, program)
    except BaseException as error:
        import traceback

        os.write(ready_fd, str(error).encode("utf-8", "replace")[:_REASON_BYTES] or b"?")
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(3)


def _detach(session: SessionDir, ready_fd: int, lock_fd: int) -> None:
    from daemon import DaemonContext

    # Our standard streams are what is redirected, whatever objects our caller has put in their place.
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        _REPLACED.append(getattr(sys, name))
        setattr(sys, name, open(fd, mode, closefd=False))
    umask = os.umask(0o077)
    log = open(session.log_path, "ab", buffering=0, opener=open_regular)
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
    from sessionrun.model.events import Entry, SessionStarted, to_record
    from sessionrun.store.logs import AppendLog

    started = SessionStarted(processes.boot_id(), processes.pid_namespace(), __version__)
    journal = AppendLog(session.journal_path)
    journal.append([orjson.dumps(to_record(Entry(1, time.time(), time.monotonic(), started)))])
    journal.sync()
    journal.close()
    sync_directory(session.path)


def _execute(session: SessionDir, ready_fd: int, lock_fd: int, program: str) -> NoReturn:
    environ = dict(os.environ)
    marker = environ.pop(processes.JOB_MARKER, None)
    if marker is not None:  # launched from a job: that job's end must not be ours
        environ[processes.PARENT_VARIABLE] = marker
    # Those of the gate, the check, the hook or the agent that launched it are not the session's.  They are dropped
    # here, for all of its jobs: a setup or a check may start an agent as well.
    for name in (processes.SCRIPT_MARKER, FEEDBACK_VARIABLE, *CALLER_S_REPOSITORY, *find_callers(environ)):
        environ.pop(name, None)
    os.set_inheritable(lock_fd, True)
    os.set_inheritable(ready_fd, True)
    os.execve(sys.executable, root_command(str(session.path), lock_fd, ready_fd, program), environ)


def _tail(path: Path) -> str:
    lines = read_end(path, _LOG_TAIL_BYTES).decode("utf-8", "replace").split("\n")
    printed = [line for line in lines if line.strip()]
    return printed[-1] if printed else "it printed nothing"
