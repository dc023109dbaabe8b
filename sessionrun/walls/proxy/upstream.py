"""Finds and connects the server of a request, then carries bytes both ways until both ends are done.

Names are resolved here, outside of the walls.

If the user's own environment names a proxy, that one is asked, as by any other program of the user; it then
resolves the names.  Addresses, ``localhost`` and what NO_PROXY names are connected to directly.

It looks at nothing that it carries.  For a client that is gone altogether the server's end is not waited for.
"""

from __future__ import annotations

import base64
import errno
import re
import select
import socket
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import unquote

from sessionrun.walls.proxy.request import (
    END,
    MAX_HEAD,
    ProxyRequest,
    Rule,
    find_wrong_address,
    is_local,
    parse_address,
    split_authority,
)

CONNECT_S: Final = 20.0
"""How long one address may take."""

ANSWER_S: Final = 60.0
"""How long another proxy may take to open a tunnel."""

OUTER: Final = "WALLS_OUTER_"
"""The beginning of the names of variables that only the proxy is given."""

_PARENT: Final = re.compile(r"http://(?:([^@/]*)@)?([^@/]+)/?")


class Denied(Exception):
    """The list does not let this through; the text says why."""


class Unreachable(Exception):
    """There is no connection; the text says why."""


class Parent(NamedTuple):
    """The user's own proxy; `login` is the header by which it knows the user, if it wants one."""

    host: str
    port: int
    login: bytes = b""


def find_parent(environ: Mapping[str, str], request: ProxyRequest) -> Parent | None:
    """The proxy that the user's environment names for a request; None: it is connected to directly.

    Raises:
        Unreachable: the environment names something that is no HTTP proxy.
    """
    kind = "https_proxy" if request.tunnel else "http_proxy"
    named = next((environ[name] for name in _spell(kind, "all_proxy") if environ.get(name)), "")
    if not named or _is_direct(environ, request):
        return None
    found = _PARENT.fullmatch(named if "://" in named else f"http://{named}")
    asked = None if found is None else split_authority(found[2], 80)
    if found is None or asked is None:
        raise Unreachable(
            f"the proxy of this session's environment ({kind.upper()}) is not one of http://HOST:PORT"
        )
    words = unquote(found[1] or "").encode("utf-8")
    login = b"Proxy-Authorization: Basic " + base64.b64encode(words) + b"\r\n" if found[1] else b""
    return Parent(*asked, login)


def _spell(*names: str) -> Iterable[str]:
    for name in names:
        yield from (name, name.upper())


def _is_direct(environ: Mapping[str, str], request: ProxyRequest) -> bool:
    host = request.host
    if parse_address(host) is not None or is_local(host):
        return True
    listed = next((environ[name] for name in _spell("no_proxy") if environ.get(name)), "")
    for entry in (word.strip().lower() for word in listed.split(",")):
        name, _, port = entry.partition(":")
        name = name.removeprefix("*").removeprefix(".")
        if port and port != str(request.port):
            continue
        if entry == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return True
    return False


def connect(
    rules: tuple[Rule, ...], request: ProxyRequest, environ: Mapping[str, str]
) -> tuple[socket.socket, bytes]:
    """Connect the server of a request that the list lets through.

    Returns:
        A socket, and what is sent to the server first.

    Raises:
        Denied: the name leads to an address that the list does not let through.
        Unreachable: no server answers.
    """
    parent = find_parent(environ, request)
    if parent is None:
        return _connect_any(rules, request), b"" if request.tunnel else request.word(whole=False)
    try:
        server = socket.create_connection((parent.host, parent.port), CONNECT_S)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"the proxy of this session's environment does not answer: {error}") from None
    _keep_alive(server)
    if not request.tunnel:
        return server, request.word(whole=True, extra=parent.login)
    try:
        _open_tunnel(server, request, parent)
    except BaseException:
        server.close()
        raise
    return server, b""


def _connect_any(rules: tuple[Rule, ...], request: ProxyRequest) -> socket.socket:
    """Connect to the first of the addresses that answers; each of them has to be let through."""
    host, port = request.host, request.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise Unreachable(f"{host} is not found: {why or error}") from None
    wrong: str | None = None
    failed: str | None = None
    for family, kind, number, _, place in found:
        refusal = find_wrong_address(rules, host, port, str(place[0]))
        if refusal is not None:
            wrong = wrong or refusal
            continue
        server = socket.socket(family, kind, number)
        server.settimeout(CONNECT_S)
        try:
            server.connect(place)
        except OSError as error:
            server.close()
            failed = failed or f"{host}:{port} cannot be reached: {error.strerror or error}"
            continue
        _keep_alive(server)
        return server
    if failed is None and wrong is not None:
        raise Denied(wrong)
    raise Unreachable(failed or f"{host} has no address")


def _keep_alive(server: socket.socket) -> None:
    """Find out some day that a server is gone which says nothing; and send small pieces at once."""
    server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 30), (socket.TCP_KEEPCNT, 6)):
        server.setsockopt(socket.IPPROTO_TCP, option, value)


def _open_tunnel(server: socket.socket, request: ProxyRequest, parent: Parent) -> None:
    server.settimeout(ANSWER_S)
    asked = b"CONNECT " + request.authority + b" HTTP/1.1\r\nHost: " + request.authority + b"\r\n"
    answer = b""
    try:
        server.sendall(asked + parent.login + b"\r\n")
        while END not in answer and len(answer) < MAX_HEAD:
            byte = server.recv(1)  # what follows the answer belongs to the tunnel
            if not byte:
                break
            answer += byte
    except OSError as error:
        raise Unreachable(
            f"the proxy of this session's environment breaks off: {error.strerror or error}"
        ) from None
    first = answer.partition(b"\r\n")[0].decode("latin-1")
    if END not in answer or re.match(r"HTTP/1\.[01] 2[0-9][0-9]\b", first) is None:
        raise Unreachable(f"the proxy of this session's environment says: {first!r:.100}")


def keep_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that name the user's proxy, by names that are not those of the proxy inside."""
    names = _spell("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    return {f"{OUTER}{name}": environ[name] for name in names if name in environ}


CHUNK: Final = 1 << 16


def relay(client: socket.socket, server: socket.socket, first: bytes = b"", most: int | None = None) -> None:
    """Carry until both ends are done, or one is gone.

    Args:
        first: what the client has sent already.
        most: how much the client may send, with `first`; None: any amount.

    Raises:
        OSError: there is no room for a thread, or the server takes nothing.
    """
    for end in (client, server):
        end.settimeout(None)  # a stream may be silent for as long as it likes: a model thinks
    back = threading.Thread(target=_pump, args=(server, client), daemon=True)
    try:
        back.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    server.sendall(first if most is None else first[:most])
    _pump(client, server, None if most is None else max(0, most - len(first)))
    back.join()


def _pump(source: socket.socket, sink: socket.socket, left: int | None = None) -> None:
    """Carry bytes one way, until the source ends or the sink hangs up; after an error both are closed."""
    poller = select.poll()
    poller.register(source, select.POLLIN)
    poller.register(sink, 0)  # for its hanging up, which needs no asking
    try:
        while left != 0:
            if sink.fileno() in dict(poller.poll()):
                return
            chunk = source.recv(CHUNK if left is None else min(CHUNK, left))
            if not chunk:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(chunk)
            left = left and left - len(chunk)
    except OSError:
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
