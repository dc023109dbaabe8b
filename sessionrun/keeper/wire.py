"""How root, keeper and supervisor speak: command lines, exit codes, and frames on a socket.

A line for the session's log is written here, too.

A frame is its length (4 bytes) and its fields, each again with its length before it: arguments and paths may hold
any byte.  The first field is the kind:

    to the keeper       J key grace cwd stdin stdout stderr argc argv... env...    start a job
                        K key grace cwd stdin stdout stderr argc argv... env...    the same; its leftovers are kept
                        T key now              stop its tree; now = 1: without grace
                        H                      asks for a hello, once the session's lock is held
                        Q                      the session has ended
                        V until grace          of a node: its lease (nanoseconds of CLOCK_BOOTTIME)
                        O key                  of a node: kill it, as if the lease were over
                        A key                  of a node: its end is known to its session
    to the supervisor   H pid started ledger   hello: all up to this offset of the ledger is to be read there
                        P key pid started ledger       the process exists
                        X key status cpu ledger [how command]...   it and its tree ended; how, command: left over
                        F key errno detail ledger      it could not be started
                        R key reason           refused for now, and certainly not started
                        L key ledger           its end was not seen
                        D key                  not started: it was claimed before
                        O key                  it is ended because the lease is over
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

LENGTH: Final = struct.Struct("!I")
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


def pack(fields: Iterable[bytes]) -> bytes:
    """One frame."""
    body = b"".join([part for field in fields for part in (LENGTH.pack(len(field)), field)])
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> list[bytes]:
    """The fields of a frame without its length."""
    fields = []
    position = 0
    while position < len(body):
        (length,) = LENGTH.unpack_from(body, position)
        position += LENGTH.size
        fields.append(body[position : position + length])
        position += length
    return fields


def pack_job(order: JobOrder) -> list[bytes]:
    """The fields of a J frame; K of a job whose leftovers are kept."""
    places = (order.cwd, order.stdin, order.stdout, order.stderr)
    env = [word for pair in order.env.items() for word in pair]
    words = (order.key, repr(order.grace_s), *places, str(len(order.argv)), *order.argv, *env)
    return [b"K" if order.keeps else b"J", *map(os.fsencode, words)]


def unpack_job(fields: list[bytes]) -> JobOrder:
    """Read what `pack_job` wrote."""
    key, grace, cwd, stdin, stdout, stderr, count, *rest = map(os.fsdecode, fields[1:])
    argv, env = rest[: int(count)], rest[int(count) :]
    named = dict(zip(env[::2], env[1::2], strict=True))
    return JobOrder(key, float(grace), cwd, stdin, stdout, stderr, argv, named, keeps=fields[0] == b"K")


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

    def send(self, *fields: bytes) -> None:
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

    def receive(self) -> list[list[bytes]]:
        """The frames that have come in whole.

        Raises:
            EOFError: the peer is gone, and all it had sent was returned before; half a frame is never one.
        """
        closed = False
        while True:
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                closed = True
                break
            self._incoming += chunk
        frames = list(self._cut())
        if closed and not frames:
            raise EOFError("the other side is gone")
        return frames

    def _cut(self) -> Iterable[list[bytes]]:
        position = 0
        while len(self._incoming) - position >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._incoming, position)
            end = position + LENGTH.size + length
            if len(self._incoming) < end:
                break
            yield unpack(bytes(self._incoming[position + LENGTH.size : end]))
            position = end
        del self._incoming[:position]

    def close(self) -> None:
        """Give up the socket."""
        self._socket.close()


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
