"""The loop of the proxy: takes sockets from the supervisor, accepts, and serves each connection in a thread.

It is told what to do by messages on a socket of the kind SOCK_SEQPACKET, each an object of JSON:

    {"do": "open", "number", "task", "denied", "rules"}, with the descriptor of a socket that listens
    {"do": "shut", "number"}        nothing new is accepted there
    {"do": "leave"}                 the session has ended: leave at once

If the supervisor is killed, the socket's end is seen.  Then nothing new is accepted, what is open is served to its
end, and the process leaves: the next supervisor starts another one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import socket
import threading
import time
from typing import Any, Final

from sessionrun.walls.proxy.denials import LATE_S, Denials
from sessionrun.walls.proxy.hosts import Rule, find_refusal, rule_from_record
from sessionrun.walls.proxy.relay import CHUNK, relay
from sessionrun.walls.proxy.request import END, MAX_HEAD, BadRequest, ProxyRequest, parse_head
from sessionrun.walls.proxy.upstream import Denied, Unreachable, connect, take_environment

HEAD_S: Final = 60.0
"""How long a client may take to say what it wants."""

MOST_AT_ONCE: Final = 256
"""Connections of one list at a time; more of them wait to be accepted."""

NO_ROOM_S: Final = 0.1
"""How long to wait if there is no descriptor or memory for a connection."""

MAX_MESSAGE: Final = 1 << 20
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_STACK: Final = 512 << 10
_TUNNEL: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
_PHRASES: Final = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}


class Door:
    """A socket that listens, and its list."""

    def __init__(self, listener: socket.socket, asked: dict[str, Any]) -> None:
        self.listener = listener
        self.rules: tuple[Rule, ...] = tuple(rule_from_record(record) for record in asked["rules"])
        self.denials = Denials(asked["denied"], asked["task"])
        self.open = 0
        self.is_shut = False

    def shut(self) -> None:
        """Accept nothing new."""
        self.is_shut = True
        self.listener.close()


class Proxy:
    """All doors of a session.  The lock guards the numbers of open connections and what is denied."""

    def __init__(self, control: socket.socket) -> None:
        self._control: socket.socket | None = control
        self._doors: dict[int, Door] = {}
        self._lock = threading.Lock()
        self._environ = take_environment()
        self._open = 0
        self._written_at = 0.0
        self._wake_fd, self._ring_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._ring_fd, False)

    def run(self) -> None:
        """Go on until the session has ended, or until the supervisor is gone and nothing is open."""
        while self._control is not None or self._open:
            ready = self._wait()
            if self._wake_fd in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_fd, 4096)
            for door in self._doors.values():
                if door.listener.fileno() in ready:
                    self._accept(door)
            if self._control is not None and self._control.fileno() in ready and not self._hear(self._control):
                break
        self._write_late()

    def _wait(self) -> set[int]:
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        if self._control is not None:
            poller.register(self._control, select.POLLIN)
        with self._lock:
            for door in self._doors.values():
                if not door.is_shut and door.open < MOST_AT_ONCE:
                    poller.register(door.listener, select.POLLIN)
            is_late = any(door.denials.is_late for door in self._doors.values())
        ready = {fd for fd, _ in poller.poll(LATE_S * 1000 if is_late else None)}
        if is_late and time.monotonic() - self._written_at >= LATE_S:
            self._write_late()
        return ready

    def _write_late(self) -> None:
        self._written_at = time.monotonic()
        with self._lock:
            for door in self._doors.values():
                if door.denials.is_late:
                    door.denials.write()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._ring_fd, b"\0")

    # --- doors ---

    def _hear(self, control: socket.socket) -> bool:
        """Do what a message says; False: leave."""
        content, fds, _, _ = socket.recv_fds(control, MAX_MESSAGE, 1)
        if not content:
            self._retire(control)
            return True
        message = json.loads(content)
        if message["do"] == "open":
            listener = socket.socket(fileno=fds[0])
            listener.setblocking(False)
            self._doors[message["number"]] = Door(listener, message)
        elif message["do"] == "shut":
            door = self._doors.pop(message["number"])
            with self._lock:
                door.shut()
                if door.denials.is_late:
                    door.denials.write()
        return bool(message["do"] != "leave")

    def _retire(self, control: socket.socket) -> None:
        """The supervisor is gone: take who waits already, then nothing more."""
        control.close()
        self._control = None
        for door in self._doors.values():
            while self._accept(door):
                pass
            with self._lock:
                door.shut()

    def _accept(self, door: Door) -> bool:
        """Take a connection; False: there is none."""
        try:
            client, _ = door.listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                time.sleep(NO_ROOM_S)  # the client waits; to ask again at once would only keep the machine busy
            return False
        with self._lock:
            door.open += 1
            self._open += 1
        try:
            threading.Thread(target=self._serve, args=(door, client), daemon=True).start()
        except RuntimeError:  # no room for a thread
            client.close()
            self._done(door)
        return True

    def _done(self, door: Door) -> None:
        with self._lock:
            door.open -= 1
            self._open -= 1
        self._ring()

    # --- connections ---

    def _serve(self, door: Door, client: socket.socket) -> None:
        try:
            with client:
                self._answer(door, client)
        except OSError:
            pass  # one of the two is gone
        finally:
            self._done(door)

    def _answer(self, door: Door, client: socket.socket) -> None:
        request: ProxyRequest | None = None
        try:
            head, rest = _read_head(client)
            request = parse_head(head)
            refusal = find_refusal(door.rules, request.host, request.port)
            if refusal is not None:
                raise Denied(refusal)
            server, first = connect(door.rules, request, self._environ)
        except BadRequest as error:
            _refuse(client, 400, str(error))
            return
        except Unreachable as error:
            _refuse(client, 502, str(error))
            return
        except Denied as error:
            assert request is not None
            with self._lock:
                door.denials.add(request.host, request.port, str(error))
                if door.is_shut and door.denials.is_late:
                    door.denials.write()
            self._ring()
            _refuse(client, 403, str(error))
            return
        with server:
            server.settimeout(HEAD_S)
            server.sendall(first)
            if request.tunnel:
                client.sendall(_TUNNEL)
            relay(client, server, rest, None if request.tunnel else request.body)
        _drain(client)


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """The head of the first request, and what follows it.

    Raises:
        BadRequest: there is none.
    """
    client.settimeout(HEAD_S)
    content = b""
    while END not in content:
        if len(content) > MAX_HEAD:
            raise BadRequest("the head of the request is too long")
        chunk = client.recv(MAX_HEAD)
        if not chunk:
            raise BadRequest("the request is not whole")
        content += chunk
    head, _, rest = content.partition(END)
    return head, rest


def _refuse(client: socket.socket, code: int, why: str) -> None:
    body = f"sessionrun: {why}\n".encode("ascii", "backslashreplace")
    head = f"HTTP/1.1 {code} {_PHRASES[code]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    client.sendall(head.encode("ascii") + b"Connection: close\r\n\r\n" + body)
    client.shutdown(socket.SHUT_WR)
    _drain(client)


def _drain(client: socket.socket) -> None:
    """Read to the end: to close with something unread would break off the answer."""
    client.settimeout(HEAD_S)
    while client.recv(CHUNK):
        pass


def main(fd: int) -> int:
    """Serve until told to leave."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o077)  # whatever that of the agents is
    threading.stack_size(_STACK)
    Proxy(socket.socket(fileno=fd)).run()
    return 0
