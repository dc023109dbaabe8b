"""The proxy as a program: ``python -I -S serving.py SOCKET LIST DENIED DIES PROGRAM ARGUMENT...``.

It listens at SOCKET for what the file LIST lets through, runs the program, and ends as it does.  Each connection
has a thread.  DIES is ``1`` if both end with the process that started them, else ``-``.

What a job was denied is recorded in the file DENIED, which is replaced as a whole.

    {"hosts": [{"host", "port", "count", "first_at", "last_at", "why"}]}

The first denial of a host is in the file before the client is answered; how often it came since follows with a
later denial, or when the program has ended.  A task could ask for any number of hosts; only the first `MOST` are
named.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from typing import Any, Final, NoReturn

if __name__ == "__main__":
    gc.disable()  # until all is imported
    sys.path.insert(0, os.path.abspath(os.path.join(__file__, *[os.pardir] * 4)))

from sessionrun.store.files import replace_file
from sessionrun.store.processes import die_with_parent
from sessionrun.walls.proxy.request import END, MAX_HEAD, BadRequest, ProxyRequest, Rule, find_refusal, parse_head
from sessionrun.walls.proxy.upstream import CHUNK, OUTER, Denied, Unreachable, connect, relay

PAUSE_S: Final = 0.5
"""How long after a write a repetition alone is not written."""

MOST: Final = 200
OTHERS: Final = "(others)"


class Denials:
    """What was denied to one list."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._hosts: dict[tuple[str, int], dict[str, Any]] = {}
        self._written_at = 0.0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(path, "rb") as stream:
            # of programs that this job has run before
            self._hosts |= {(found["host"], found["port"]): found for found in json.load(stream)["hosts"]}

    def add(self, host: str, port: int, why: str) -> None:
        at = round(time.time(), 3)
        with self._lock:
            if (host, port) not in self._hosts and len(self._hosts) >= MOST:
                host, port, why = OTHERS, 0, f"more than {MOST} hosts were denied"
            is_new = (host, port) not in self._hosts
            first = {"host": host, "port": port, "count": 0, "first_at": at}
            known = self._hosts.setdefault((host, port), first)
            known |= {"count": known["count"] + 1, "last_at": at, "why": why}
            if is_new or time.monotonic() - self._written_at >= PAUSE_S:
                self.write()

    def write(self) -> None:
        """Replace the file; a disk that is full, or a session that was removed, changes nothing else."""
        with self._lock, contextlib.suppress(OSError):
            if self._hosts:
                self._written_at = time.monotonic()
                content = json.dumps({"hosts": list(self._hosts.values())}).encode()
                replace_file(self._path, content, durable=False)


HEAD_S: Final = 60.0
"""How long a client may take to say what it wants."""

MOST_AT_ONCE: Final = 256
"""Connections at a time; more of them wait to be accepted."""

NO_ROOM_S: Final = 0.1
"""How long to wait if there is no descriptor or memory for a connection."""

_BACKLOG: Final = 128
_STACK: Final = 512 << 10
_TUNNEL: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
_PHRASES: Final = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}
_FOR_THE_PROGRAM: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Proxy:
    """A socket that listens, and its list."""

    def __init__(self, listener: socket.socket, rules: tuple[Rule, ...], denials: Denials) -> None:
        self._listener, self._rules, self._denials = listener, rules, denials
        self._room = threading.Semaphore(MOST_AT_ONCE)
        kept = {name: value for name, value in os.environ.items() if name.startswith(OUTER)}
        self._environ = {name.removeprefix(OUTER): value for name, value in kept.items()}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._room.acquire()
            try:
                client, _ = self._listener.accept()
            except OSError:
                self._room.release()
                time.sleep(NO_ROOM_S)  # the client waits; to ask again at once would only keep the machine busy
                continue
            try:
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()
            except RuntimeError:  # no room for a thread
                client.close()
                self._room.release()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                self._answer(client)
        except OSError:
            pass  # one of the two is gone
        finally:
            self._room.release()

    def _answer(self, client: socket.socket) -> None:
        request: ProxyRequest | None = None
        try:
            head, rest = _read_head(client)
            request = parse_head(head)
            refusal = find_refusal(self._rules, request.host, request.port)
            if refusal is not None:
                raise Denied(refusal)
            server, first = connect(self._rules, request, self._environ)
        except BadRequest as error:
            _refuse(client, 400, str(error))
            return
        except Unreachable as error:
            _refuse(client, 502, str(error))
            return
        except Denied as error:
            assert request is not None
            self._denials.add(request.host, request.port, str(error))
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


def listen(path: str) -> socket.socket:
    """Listen at a socket, in the place of one before; its path may be too long to be named."""
    folder, name = os.path.split(path)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"/proc/self/fd/{fd}/{name}")
        os.chmod(name, 0o600, dir_fd=fd)  # whatever the umask is
        listener.listen(_BACKLOG)
    finally:
        os.close(fd)
    return listener


def main(door: str, hosts: str, denied: str, dies: str, *argv: str) -> NoReturn:
    """Run the program with a proxy beside it, and end as it does."""
    if dies != "-":
        die_with_parent()
    for number in _FOR_THE_PROGRAM:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as by a caller, it would leave no status to wait for
    with open(hosts, "rb") as stream:
        rules = tuple(Rule(host, tuple(ports), private) for host, ports, private in json.load(stream))
    threading.stack_size(_STACK)
    denials = Denials(denied)
    Proxy(listen(door), rules, denials)
    # the names of the user's own proxy may hold a password, and /proc/1/environ can be read inside
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
    pid = os.posix_spawn(argv[0], argv, environ, setsigdef=(*_FOR_THE_PROGRAM, signal.SIGPIPE, signal.SIGXFSZ))
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o077)  # whatever that of the agents is
    _, status = os.waitpid(pid, 0)
    denials.write()
    with contextlib.suppress(OSError):
        os.unlink(door)
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # of SIGKILL there is nothing to set
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))  # connections that are open have no client any more


if __name__ == "__main__":
    gc.enable()
    main(*sys.argv[1:])
