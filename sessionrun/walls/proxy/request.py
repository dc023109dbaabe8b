"""What a client asks of a proxy: the head of its first request, and what is sent on of it.  Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from sessionrun.walls.proxy.hosts import split_authority

MAX_HEAD: Final = 1 << 16
END: Final = b"\r\n\r\n"

_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*", re.DOTALL)
_HOP: Final = frozenset((b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"host"))


class BadRequest(Exception):
    """The client does not speak as one speaks to a proxy; the text says how."""


class ProxyRequest(NamedTuple):
    """One request.

    Attributes:
        host: as `hosts.normalize` writes it.
        port: the port.
        tunnel: whether the client wants a tunnel; else it wants an answer.
        target: what is asked of the server.
        lines: the lines of the head behind the first one that are sent on.
        start: the method and the version.
        body: how long the body is (bytes); None: that is not said.
    """

    host: str
    port: int
    tunnel: bool
    target: bytes = b""
    lines: tuple[bytes, ...] = ()
    start: tuple[bytes, bytes] = (b"", b"")
    body: int | None = 0

    @property
    def authority(self) -> bytes:
        """Host and port as a server is named."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii")

    def word(self, *, whole: bool, extra: bytes = b"") -> bytes:
        """The head that is sent on; `whole`: with the whole address, as another proxy wants it."""
        method, version = self.start
        named = self.authority.removesuffix(b":80")
        target = b"http://" + named + self.target if whole else self.target
        first = method + b" " + target + b" HTTP/1." + version
        return (
            b"\r\n".join((first, b"Host: " + named, *self.lines, b"Connection: close")) + b"\r\n" + extra + b"\r\n"
        )


def parse_head(head: bytes) -> ProxyRequest:
    """Read the head of a request, without the empty line.

    Raises:
        BadRequest: it is none that a proxy can do.
    """
    first, *lines = head.split(b"\r\n")
    found = _LINE.fullmatch(first)
    if found is None:
        raise BadRequest("this is not a request to an HTTP proxy")
    method, target, version = found[1], found[2], found[3]
    if method == b"CONNECT":
        asked = split_authority(target.decode("latin-1"))
        if asked is None:
            raise BadRequest("CONNECT needs HOST:PORT")
        return ProxyRequest(*asked, tunnel=True)
    scheme, _, rest = target.partition(b"://")
    if scheme.lower() != b"http":
        raise BadRequest("a request to a proxy needs a whole address, http://...; for https there is CONNECT")
    authority = re.split(rb"[/?#]", rest, maxsplit=1)[0]
    asked = split_authority(authority.rpartition(b"@")[2].decode("latin-1"), 80)
    if asked is None:
        raise BadRequest("the address names no host")
    path = rest[len(authority) :].partition(b"#")[0]
    kept, body = _read_headers(lines)
    return ProxyRequest(
        *asked, False, path if path.startswith(b"/") else b"/" + path, kept, (method, version), body
    )


def _read_headers(lines: list[bytes]) -> tuple[tuple[bytes, ...], int | None]:
    """The lines that are sent on, and the length of the body."""
    lengths: set[bytes] = set()
    kept, chunked = [], False
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None or b"\n" in line or b"\r" in line or b"\0" in line:
            raise BadRequest("a header of the request is damaged")
        name = found[1].lower()
        if name == b"content-length":
            lengths.add(found[2])
        chunked = chunked or name == b"transfer-encoding"
        if name not in _HOP:
            kept.append(line)
    if (
        len(lengths) > 1
        or (lengths and chunked)
        or not all(re.fullmatch(rb"[0-9]{1,18}", text) for text in lengths)
    ):
        raise BadRequest("the length of the request's body is not clear")
    return tuple(kept), None if chunked else int(lengths.pop()) if lengths else 0
