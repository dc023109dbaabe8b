"""How root, keeper and supervisor speak: command lines, exit codes, and frames on a socket.

A line for the session's log is written here, too.

A frame is a line: a list in JSON, which escapes what is not UTF-8.  Its first field is the kind:

    to the keeper       J order...             start a job: the fields of a `JobOrder`
                        T key now              stop its tree; now: without grace
                        H                      asks for a hello, once the session's lock is held
                        Q                      the session has ended
                        V until grace          of a node: its lease (nanoseconds of CLOCK_BOOTTIME)
                        O key                  of a node: kill it, as if the lease were over
                        A key                  of a node: its end is known to its session
    to the supervisor   H pid started ledger   hello: all up to this offset of the ledger is to be read there
                        P key pid started ledger       the process exists
                        X key status cpu ledger left    it and its tree ended; left: how and command of each
                        F key errno detail ledger      it could not be started
                        R key reason           refused for now, and certainly not started
                        L key ledger           its end was not seen
                        D key                  not started: it was claimed before
                        O key                  it is ended because the lease is over
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

_CHUNK: Final = 1 << 16


class JobOrder(NamedTuple):
    """A job on its way to its process, here as a frame, elsewhere as JSON (`session.executor`).

    An empty `stdin` means the null device; `env` are the variables beside those of the process that starts it.
    """

    key: str
    grace_s: float
    cwd: str
    stdin: str
    stdout: str
    stderr: str
    argv: list[str]
    env: Mapping[str, str]
    keeps: bool = False


def pack(fields: Iterable[object]) -> bytes:
    return json.dumps([*fields]).encode() + b"\n"


class Connection:
    """One end of the socket.  Never blocks: a stopped peer must not stop this side's work."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(False)
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def fileno(self) -> int:
        """For poll(2)."""
        return self._socket.fileno()

    @property
    def has_more(self) -> bool:
        """Whether something waits to be sent: `flush` once the socket can be written."""
        return bool(self._outgoing)

    def send(self, *fields: object) -> None:
        """Queue a frame; `flush` sends it."""
        self._outgoing += pack(fields)

    def flush(self) -> None:
        """Send what the socket takes now; a peer that is gone is noticed by `receive`.

        So is any other error, by both sides: a frame that is lost here would be waited for, and one that comes in
        parts cannot be mended.  Both then begin anew from the ledger, as after a death.
        """
        while self._outgoing:
            try:
                sent = self._socket.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError:
                self._outgoing.clear()
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                return
            del self._outgoing[:sent]

    def receive(self) -> list[list[Any]]:
        """The frames that have come in whole.

        Raises:
            EOFError: the peer is gone, and all it had sent was returned before; half a frame is never one.
        """
        closed = False
        while not closed:
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            closed = not chunk
            self._incoming += chunk
        *lines, self._incoming = self._incoming.split(b"\n")
        if closed and not lines:
            raise EOFError("the other side is gone")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._socket.close()


_LONGEST_WAIT_S: Final = 86400.0


def count_ms(wait_s: float | None) -> float | None:
    """How long poll(2) is to wait, in its own unit; None: until something happens.

    It counts in an int, and refuses more than 24 days.  To wake early does no harm.
    """
    return None if wait_s is None else min(max(0.0, wait_s), _LONGEST_WAIT_S) * 1000 + 0.5


LEASE: Final = "lease"
"""File in a node's directory: that it is there makes the directory a node's (see `lease`)."""

EXIT_TAKEN: Final = 75
"""Of a supervisor: another one holds the session's lock."""

EXIT_NO_ROOM: Final = 74
"""Of a supervisor: the disk refuses its first records; another one may try in a while, as often as need be."""

EXIT_REFUSED: Final = 78
"""Of supervisor and keeper: a new start does not help (damaged logs, a newer version's session)."""

SUPERVISOR: Final = "sessionrun.session.main"

PACKAGE_ROOT: Final = os.path.abspath(os.path.join(os.path.realpath(__file__), *[os.pardir] * 3))
"""The directory that holds this package."""

_NO_GC: Final = "import gc; gc.disable(); "
"""Until all is imported; the program's `main` enables it."""


def say(line: object) -> None:
    """A line for the session's log; a disk that is full may be the log's, and must change no exit code."""
    try:
        os.write(2, f"{line}\n".encode("utf-8", "replace"))
    except OSError:
        pass


def root_command(session: str, lock_fd: int, ready_fd: int = -1, program: str = SUPERVISOR) -> list[str]:
    """The argument list of a root; it gets the held `root.lock` and a descriptor to say that it is up.

    `program` is the module whose `main` its keeper starts: the supervisor, or what a node has in its place.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    # Elsewhere than on Linux looking at processes needs psutil, which is a site-package.
    isolated = ["-I", "-S"] if sys.platform.startswith("linux") else ["-I"]
    root = [sys.executable, *isolated, os.path.join(here, "__main__.py"), session, str(lock_fd), str(ready_fd)]
    return [*root, *module_command(program, session, begin=_NO_GC)]


def module_command(module: str, *words: str, begin: str = "") -> list[str]:
    """The argument list of a program of ours that is the `main` of a module: the same code as the caller's."""
    code = f"{begin}import sys; sys.path[0] = sys.argv.pop(1); from {module} import main; sys.exit(main())"
    return [sys.executable, "-c", code, PACKAGE_ROOT, *words]
