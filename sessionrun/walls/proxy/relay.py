"""Carries bytes both ways between two sockets until both ends are done.

It waits in poll(2) and looks at nothing that it carries.  A stream may be silent for as long as it likes: a model
thinks.  If the client is gone altogether, which only its own end can tell, the server's end is not waited for.
"""

from __future__ import annotations

import select
import socket
from typing import Final

CHUNK: Final = 1 << 16
MOST: Final = 4 * CHUNK
"""How much may wait for an end that does not take it (bytes)."""


class _Flow:
    """One direction."""

    def __init__(self, source: socket.socket, sink: socket.socket, first: bytes, most: int | None) -> None:
        self.source, self.sink = source, sink
        self.waiting = bytearray(first if most is None else first[:most])
        self.left = None if most is None else max(0, most - len(first))
        self.is_read = False
        self.is_done = False

    def wants(self, end: socket.socket) -> int:
        """What to wait for at one of its ends."""
        if end is self.source:
            # an end that has nothing more to say is only watched: for its hanging up
            return select.POLLIN if not self.is_read and self.left != 0 and len(self.waiting) < MOST else 0
        return select.POLLOUT if self.waiting else 0

    def read(self) -> None:
        """Read what has come; what is too much is not taken."""
        try:
            chunk = self.source.recv(CHUNK if self.left is None else min(CHUNK, self.left))
        except (BlockingIOError, InterruptedError):
            return
        self.is_read = not chunk
        self.waiting += chunk
        if self.left is not None:
            self.left -= len(chunk)

    def write(self) -> None:
        """Write what can be written, and say that it was all once it was."""
        if self.waiting:
            try:
                del self.waiting[: self.sink.send(self.waiting)]
            except (BlockingIOError, InterruptedError):
                return
        if self.is_read and not self.waiting and not self.is_done:
            self.is_done = True
            try:
                self.sink.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it is gone


def relay(client: socket.socket, server: socket.socket, first: bytes = b"", most: int | None = None) -> None:
    """Carry until both ends are done, or one is gone.

    Args:
        client: a Unix socket.
        server: the other one.
        first: what the client has sent already.
        most: how much the client may send, with `first`; None: any amount.

    Raises:
        OSError: an end has broken off.
    """
    there, back = _Flow(client, server, first, most), _Flow(server, client, b"", None)
    is_gone = False
    for end in (client, server):
        end.setblocking(False)
    while not back.is_done or (not there.is_done and there.left != 0):
        ready = _wait(client, server, there, back, watched=not is_gone)
        is_gone = is_gone or bool(ready.get(client.fileno(), 0) & select.POLLHUP)
        if client.fileno() in ready and there.wants(client):
            there.read()
        if server.fileno() in ready and back.wants(server):
            back.read()
        there.write()
        if not is_gone:
            back.write()
        elif not there.waiting and not there.wants(client):
            return


def _wait(
    client: socket.socket, server: socket.socket, there: _Flow, back: _Flow, *, watched: bool
) -> dict[int, int]:
    """Wait for what is wanted, and for the hanging up of a client that is watched: that needs no asking."""
    poller = select.poll()
    for end in (client, server):
        events = there.wants(end) | back.wants(end)
        if events or (watched and end is client):
            poller.register(end, events)
    return dict(poller.poll())
