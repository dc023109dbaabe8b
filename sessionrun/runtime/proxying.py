"""The proxy of a session (`walls.proxy`): starts it when the first job wants it, and opens a door for each job.

A door is a Unix socket in a folder that is bound into the walls of one job, with a list of hosts.  It listens before
the job starts.  This process keeps the sockets, too: if the proxy dies, another one goes on with them, and what has
connected in between only waits.  If this process is killed, the proxy sees the end of its socket and retires; the
next supervisor makes the doors of the jobs that run anew, in the same folders, and starts another proxy.

    jobs/<id>/a<attempt>-r<round>-<phase>/network-<n>/
        list.json  denied-<n>.json  door/socket
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from sessionrun.store.files import make_directories, read_regular, replace_file
from sessionrun.walls import proxy
from sessionrun.walls.proxy.hosts import Rule, rule_from_record

if TYPE_CHECKING:
    from sessionrun.model.keys import JobKey
    from sessionrun.store.session import SessionDir

NETWORK: Final = "network-"
"""In a job's folder: the beginning of the names of its folders for the network."""

LIST: Final = "list.json"
DOOR: Final = "door"
DENIED: Final = "denied-"
SOCKET: Final = "socket"
TELL_S: Final = 10.0
"""How long the proxy may take to take a message."""

LEAVE_S: Final = 5.0
RESTART_S: Final = 1.0
_MAX_LIST: Final = 1 << 20
_BACKLOG: Final = 128
_VARIABLES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class _Door:
    """What one job has."""

    def __init__(self, number: int, key: JobKey, folder: Path, rules: tuple[Rule, ...]) -> None:
        self.number, self.key, self.folder, self.rules = number, key, folder, rules
        self.listener = _listen(folder / DOOR)

    def describe(self) -> bytes:
        """The message by which the proxy learns of it."""
        numbers = [path.name for path in _list_denied(self.folder)]
        message = {
            "do": "open",
            "number": self.number,
            "task": self.key.task,
            "denied": str(self.folder / f"{DENIED}{len(numbers) + 1}.json"),
            "rules": [list(rule) for rule in self.rules],
        }
        return orjson.dumps(message)


class Proxying:
    """The proxy and the doors of one session.  The lock is there because a thread starts a proxy that died again."""

    def __init__(self, session: SessionDir, say: Callable[[str], None]) -> None:
        self._session, self._say = session, say
        self._lock = threading.Lock()
        self._doors: dict[int, _Door] = {}
        self._last = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_ending = False

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
                    records = orjson.loads(read_regular(folder / LIST, _MAX_LIST))
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
        try:
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

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
        assert self._control is not None
        socket.send_fds(self._control, [message], [one.fileno() for one in passed])

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(TELL_S)
        program = os.path.join(os.path.dirname(os.path.abspath(proxy.__file__)), "__main__.py")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", program, str(theirs.fileno())],
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
        if time.monotonic() - born < RESTART_S:
            time.sleep(RESTART_S)
        while not self._is_ending:
            self._say(f"the proxy has ended ({code}): another one is started")
            try:
                with self._lock:
                    if not self._is_ending:
                        self._start()
                return
            except OSError as error:
                self._say(f"the proxy cannot be started: {error.strerror}")
            time.sleep(RESTART_S)


def list_networks(job: Path) -> Iterator[Path]:
    """The folders for the network of a job."""
    number = 1
    while (folder := job / f"{NETWORK}{number}").is_dir():
        yield folder
        number += 1


def read_denials(job: Path) -> list[dict[str, Any]]:
    """What a job was denied, summed over its lists: the objects of `walls.proxy.denials`."""
    hosts: dict[tuple[str, int], dict[str, Any]] = {}
    for folder in list_networks(job):
        for path in _list_denied(folder):
            for found in _load_denied(path):
                place = found["host"], found["port"]
                known = hosts.setdefault(place, {**found, "count": 0})
                known["count"] += found["count"]
                known["first_at"] = min(known["first_at"], found["first_at"])
                known["last_at"] = max(known["last_at"], found["last_at"])
    return list(hosts.values())


def _list_denied(folder: Path) -> list[Path]:
    number, found = 1, []
    names = set(os.listdir(folder))
    while (name := f"{DENIED}{number}.json") in names:
        found.append(folder / name)
        number += 1
    return found


def _load_denied(path: Path) -> list[dict[str, Any]]:
    try:
        hosts = orjson.loads(read_regular(path, _MAX_LIST))["hosts"]
        return [found for found in hosts if isinstance(found["host"], str) and isinstance(found["count"], int)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


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
            listener.listen(_BACKLOG)
            os.rename(draft, SOCKET, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            listener.close()
            raise
    finally:
        os.close(fd)
    return listener
