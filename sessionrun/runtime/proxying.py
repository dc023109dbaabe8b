"""The proxy of a session (`walls.proxy`): starts it when the first job wants it, opens a door for each job.

A door is a Unix socket in a folder that is bound into the walls of one job, with a list of hosts.  It listens
before the job starts.  This process keeps the sockets, too: if the proxy dies, another one goes on with them, and
what has connected in between only waits.  If this process is killed, the proxy sees the end of its socket and
retires; the next supervisor makes the doors of the jobs that run anew, in the same folders, and starts another.
`store.networks` has the names of the files.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from sessionrun.store.files import make_directories, read_regular, replace_file
from sessionrun.store.networks import DENIED, DOOR, LIST, MAX_FILE, NETWORK, SOCKET, list_denied, list_networks
from sessionrun.walls import proxy
from sessionrun.walls.proxy.hosts import Rule, rule_from_record

if TYPE_CHECKING:
    import subprocess

    from sessionrun.model.keys import JobKey
    from sessionrun.store.session import SessionDir

TELL_S: Final = 10.0
"""How long the proxy may take to take a message."""

LEAVE_S: Final = 5.0
RESTART_S: Final = 1.0
_BACKLOG: Final = 128
_VARIABLES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class _Door:
    """What one job has."""

    def __init__(self, number: int, key: JobKey, folder: Path, rules: tuple[Rule, ...]) -> None:
        self.number, self.key, self.folder, self.rules = number, key, folder, rules
        self.listener = _listen(folder / DOOR)

    def describe(self) -> bytes:
        """The message by which a proxy learns of it, and of a file for what that proxy denies.

        The file is made here: one that retires may still write its own, where it has denied nothing yet.
        """
        denied = self.folder / f"{DENIED}{1 + sum(1 for _ in list_denied(self.folder))}.json"
        denied.touch(0o600)
        message = {
            "do": "open",
            "number": self.number,
            "task": self.key.task,
            "denied": str(denied),
            "rules": [list(rule) for rule in self.rules],
        }
        return orjson.dumps(message)


class Proxying:
    """The proxy and the doors of one session.

    The lock is there because a thread starts a new proxy when the one before has died.
    """

    def __init__(self, session: SessionDir, say: Callable[[str], None]) -> None:
        self._session, self._say = session, say
        self._lock = threading.Lock()
        self._doors: dict[int, _Door] = {}
        self._last = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_ending = False
        self._has_left = threading.Event()

    def open(self, key: JobKey, rules: tuple[Rule, ...]) -> str:
        """Make a door for a job; returns the folder of its socket, which listens.

        Raises:
            OSError: that cannot be.
        """
        job = self._session.make_job_path(key).absolute()
        folder = job / f"{NETWORK}{1 + sum(1 for _ in list_networks(job))}"
        make_directories(folder / DOOR, 0o700)
        replace_file(folder / LIST, orjson.dumps([list(rule) for rule in rules]), durable=False)
        self._open(key, folder, rules)
        return str(folder / DOOR)

    def go_on(self, keys: Iterable[JobKey]) -> None:
        """Make the doors of jobs that run anew: another supervisor had made them."""
        for key in keys:
            for folder in list_networks(self._session.job_path(key).absolute()):
                try:
                    records = orjson.loads(read_regular(folder / LIST, MAX_FILE))
                    self._open(key, folder, tuple(rule_from_record(record) for record in records))
                except (OSError, ValueError, TypeError) as error:
                    self._say(f"job {key.text()} has lost its network: {error}")

    def shut(self, key: JobKey) -> None:
        """A job has ended, or was never started: nothing may come in by its doors."""
        with self._lock:
            for door in [door for door in self._doors.values() if door.key == key]:
                del self._doors[door.number]
                door.listener.close()
                with contextlib.suppress(OSError):
                    (door.folder / DOOR / SOCKET).unlink()
                with contextlib.suppress(OSError):
                    self._tell(orjson.dumps({"do": "shut", "number": door.number}))

    def end(self) -> None:
        """The session has ended, and so does the proxy."""
        with self._lock:
            self._is_ending = True
            process = self._process
            if process is None:
                return
            with contextlib.suppress(OSError):
                self._tell(b'{"do":"leave"}')
        if not self._has_left.wait(LEAVE_S):
            process.kill()
            self._has_left.wait()

    def _open(self, key: JobKey, folder: Path, rules: tuple[Rule, ...]) -> None:
        with self._lock:
            self._last += 1
            door = _Door(self._last, key, folder, rules)
            self._doors[door.number] = door
            if self._process is None:
                self._start()
            else:
                self._introduce(door)

    def _introduce(self, door: _Door) -> None:
        """Tell the proxy of a door; if it has died this moment, it is told when it is started again."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._tell(door.describe(), door.listener)

    def _tell(self, message: bytes, *passed: socket.socket) -> None:
        if self._control is not None:  # else no proxy could be started so far
            socket.send_fds(self._control, [message], [one.fileno() for one in passed])

    def _start(self) -> None:
        import subprocess

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(TELL_S)
        program = os.path.join(os.path.dirname(os.path.abspath(proxy.__file__)), "__main__.py")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", program, str(theirs.fileno()), str(self._session.path.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={name: value for name, value in os.environ.items() if name.lower() in _VARIABLES},
                pass_fds=(theirs.fileno(),),
            )
        if self._control is not None:
            self._control.close()
        self._control = ours
        for door in self._doors.values():
            self._introduce(door)
        threading.Thread(target=self._watch, args=(self._process,), daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Start another proxy if this one dies."""
        born = time.monotonic()
        code = process.wait()
        if time.monotonic() - born < RESTART_S and not self._is_ending:
            time.sleep(RESTART_S)
        while not self._go_on_without(code):
            time.sleep(RESTART_S)

    def _go_on_without(self, code: int) -> bool:
        """A proxy has ended: start another one, or take note that this was wanted; whether that is done."""
        with self._lock:
            if self._is_ending:
                self._has_left.set()
                return True
            self._say(f"the proxy has ended ({code}): another one is started")
            try:
                self._start()
            except OSError as error:
                self._say(f"the proxy cannot be started: {error.strerror}")
                return False
            return True


def _listen(folder: Path) -> socket.socket:
    """Listen at the socket of a folder, in the place of the one before; its path may be too long to be named."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        draft = f"{SOCKET}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=fd)
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(f"/proc/self/fd/{fd}/{draft}")
            os.chmod(draft, 0o600, dir_fd=fd)  # whatever the umask is
            listener.listen(_BACKLOG)
            os.rename(draft, SOCKET, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            listener.close()
            raise
    finally:
        os.close(fd)
    return listener
