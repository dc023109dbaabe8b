"""Starts the command without a new interpreter: a process that has imported all of it forks for each call.

An interpreter and its imports are nine tenths of what a verb costs, and the tests call thousands of verbs.  The
child is a process like any other: with descriptors, a directory, an environment, signals and an exit code of its
own.  Only its imports were made by another: tests that look at these ask for the real command.  A session that it
starts has its own processes, and these begin without interpreters too: `tests/execs.py` says how.

    python tests/warm.py FD      serve the socket until its other end is closed

Each call is a byte on the socket that brings descriptors: a connection, the call as JSON, and three streams.  The
connection tells the pid of the child, and then its exit code.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, cast

from execs import CODE, begin, choose, encode, install, show_as

import sessionrun
from sessionrun.model import frozen
from sessionrun.model.events import EVENTS
from sessionrun.model.spec import SessionSpec
from sessionrun.store import codec

_STREAMS: Final = 3
_NUMBER: Final = struct.Struct("!i")


# --- the side of the tests ---


class Warm:
    """The process that forks; one for each process of tests."""

    def __init__(self) -> None:
        """It starts with the first call, and its environment is the one of now."""
        self._base = dict(os.environ)
        self._control: socket.socket | None = None
        self._lock = threading.Lock()

    def _start(self) -> socket.socket:
        from calls import CAN_WATCH, build_library

        ours, theirs = socket.socketpair()
        watched = {"LD_PRELOAD": build_library()} if CAN_WATCH else {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={**self._base, **watched},
                pass_fds=[theirs.fileno()],
            )
        return ours

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
            self._process.wait()

    def serves(self, environ: Mapping[str, str]) -> bool:
        """Whether its fork is as good as a new process with this environment."""
        return choose(environ) == choose(self._base)

    def popen(self, words: Sequence[str], *, cwd: Path, environ: Mapping[str, str], stdin: bytes = b"") -> Called:
        """Call the command beside the test, which need not read what it says."""
        files = [tempfile.TemporaryFile() for _ in range(_STREAMS)]
        files[0].write(stdin)
        files[0].seek(0)
        connection, theirs = socket.socketpair()
        with self._lock, files[0], theirs, tempfile.TemporaryFile("w+") as call:
            umask = os.umask(0o077)
            os.umask(umask)
            json.dump({"words": [*words], "cwd": str(cwd), "environ": dict(environ), "umask": umask}, call)
            call.seek(0)
            self._control = self._control or self._start()
            fds = [theirs.fileno(), call.fileno(), *(file.fileno() for file in files)]
            socket.send_fds(self._control, [b"."], fds)
        return Called(words, connection, files[1:])


class Called:
    """A running call, with as much of `Popen` as is needed."""

    def __init__(self, words: Sequence[str], connection: socket.socket, said: Sequence[BinaryIO]) -> None:
        """It has been asked for, and begins; what it says comes into two files."""
        self.args = ["sessionrun", *words]
        self.returncode: int | None = None
        self.connection = connection
        self._said = said
        self.pid = self._read()

    def _read(self) -> int:
        content = self.connection.recv(_NUMBER.size, socket.MSG_WAITALL)
        if len(content) < _NUMBER.size:
            raise RuntimeError("the warm process has died")
        number: int = _NUMBER.unpack(content)[0]
        return number

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit code, or the negative number of the signal that killed it."""
        if self.returncode is None:
            self.connection.settimeout(timeout)
            try:
                self.returncode = self._read()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self.connection.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; what it said on both streams."""
        self.wait(timeout)
        for stream in self._said:
            stream.seek(0)
        out, error = (stream.read().decode("utf-8", "surrogateescape") for stream in self._said)
        return out, error


# --- the side of the command ---


def _serve(control: socket.socket) -> None:
    running: dict[int, socket.socket] = {}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the tests, which close their end
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    sources: list[socket.socket | int] = [control, wake_read]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
            _reap(running)
        if control not in ready:
            continue
        asked, fds, _, _ = socket.recv_fds(control, 1, 2 + _STREAMS)
        if not asked:
            return
        with open(fds[1]) as stream:
            call = json.load(stream)
        connection = socket.socket(fileno=fds[0])
        connection.set_inheritable(False)
        pid = os.fork()
        if pid == 0:
            _become(call, fds[2:])
        for fd in fds[2:]:
            os.close(fd)
        running[pid] = connection
        connection.sendall(_NUMBER.pack(pid))


def _reap(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as connection, suppress(OSError):  # who asked may have gone
            connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _become(call: dict[str, Any], fds: list[int]) -> NoReturn:
    """In the child: what a new interpreter would be, and then the command, or the program behind `-c`."""
    from sessionrun.cli import main

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(call["cwd"])
    os.umask(call["umask"])
    words, program = [sys.executable, "-m", "sessionrun", *call["words"]], cast("Callable[[], object]", main)
    if call["words"][:1] == ["-c"]:
        os.setsid()  # a rule may kill its group
        words = [sys.executable, *call["words"]]
        program = partial(exec, words[2], {"__name__": "__main__"})
    argv, environ = encode(words, call["environ"])
    show_as(argv, environ)
    begin(program, argv, environ)


EXTRAS: Final = ("sessionrun.doors.", "sessionrun.cluster.dask")
"""What only verbs of an extra need, and import for themselves: it brings twice as much as all the rest, and each
fork copies the tables of the memory that it takes."""

OTHERS: Final = ("daemon", "yaml", "rich.console", "rich.progress", "tabulate", "psutil", "filelock")
"""What our code imports where it needs it."""


def _make_ready() -> None:
    """Import our code but for the extras, and make what is otherwise made with the first record of a class."""
    for module in pkgutil.walk_packages(sessionrun.__path__, "sessionrun."):
        if not module.name.startswith(EXTRAS) and not module.name.endswith("__main__"):
            import_module(module.name)
    for name in OTHERS:
        import_module(name)
    for cls in object.__subclasses__():
        if cls.__init__ is frozen._compile_and_init:
            with suppress(TypeError):  # it has no defaults for all fields; its `__init__` is compiled now
                cls()
    written: list[Any] = [*EVENTS.values(), SessionSpec]
    for record in written:
        codec._decoder(record)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Serve the socket whose number is given."""
    sys.path[0] = CODE
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    _make_ready()
    install()
    _serve(control)


if __name__ == "__main__":
    main()
