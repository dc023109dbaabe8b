"""What a client asks of a proxy, and whether its list lets that through, by name and address.  Pure.

The name decides what is asked for, the address what is connected to: a name of the list that leads to this machine
or to a private network is refused, unless that very address is in the list, too.  Else the owner of the name could
lead a task to what only answers from here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

USUAL_PORTS: Final = (80, 443)
MAX_NAME: Final = 253

_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_LOCAL: Final = "localhost"
_TRANSLATED: Final = ipaddress.ip_network("64:ff9b::/96")


class Rule(NamedTuple):
    """An entry of a list: a name, ``*.`` and a name for all that end so, or an address, at some `ports` or at any.

    `private`: its addresses may be those of this machine or of a private network.
    """

    host: str
    ports: tuple[int, ...] = ()
    private: bool = False

    def names(self, host: str) -> bool:
        """Whether a host that was asked for is one of this entry, at any port; it is normal (see `normalize`)."""
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and parse_address(host) is None
        return host == self.host


def make_rule(host: str, ports: Iterable[int] = (), *, private: bool = False) -> Rule:
    """An entry with its host as `normalize` writes it."""
    stem = host.removeprefix("*.")
    return Rule(host[: len(host) - len(stem)] + (normalize(stem) or stem), tuple(ports), private)


def normalize(host: str) -> str | None:
    """A host in the form in which hosts are compared; None: it is none."""
    host = host.strip("[]") if host.startswith("[") and host.endswith("]") else host.removesuffix(".")
    address = parse_address(host)
    if address is not None:
        return str(_unwrap(address))
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    host = host.lower()
    return host if len(host) <= MAX_NAME and _NAME.fullmatch(host) else None


def parse_address(text: str) -> Address | None:
    """An address from its text; None: it is a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def split_authority(text: str, usual: int | None = None) -> tuple[str, int] | None:
    """The host and the port of ``HOST:PORT`` or ``[ADDRESS]:PORT``; the port may be a usual one; else None."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/?#\s]+)(?::([0-9]{1,5}))?", text)
    host = None if found is None else normalize(found[1])
    if found is None or host is None:
        return None
    port = int(found[2]) if found[2] else usual
    return (host, port) if port is not None and 0 < port < 65536 else None


def find_refusal(rules: Iterable[Rule], host: str, port: int) -> str | None:
    """Why a host is not let through, by its name; None: it is."""
    named = [rule for rule in rules if rule.names(host)]
    if any(not rule.ports or port in rule.ports for rule in named):
        return None
    if named:
        return f"port {port} of {host} is not in the list of this task's network"
    return f"{host} is not in the list of this task's network"


def find_wrong_address(rules: Iterable[Rule], host: str, port: int, address: str) -> str | None:
    """Why an address to which a host leads is not connected to; None: it is.

    Args:
        rules: the list, which lets the host through.
        host: the host as `normalize` writes it.
        address: the address, as the system writes it.
    """
    found = parse_address(address.partition("%")[0])
    if found is None:
        return f"{host} leads to {address}, which is no address"
    real = _unwrap(found)
    if real.is_global and not real.is_multicast:
        return None
    for rule in rules:
        if rule.ports and port not in rule.ports:
            continue
        if rule.host == str(real) or (rule.private and rule.names(host)):
            return None
        if rule.names(host) and is_local(host) and real.is_loopback:
            return None
    return f"{host} leads to the private address {real}, which is not in the list of this task's network"


def is_local(host: str) -> bool:
    """Whether a name is that of this machine."""
    return host == _LOCAL or host.endswith(f".{_LOCAL}")


def _unwrap(address: Address) -> Address:
    """The IPv4 address inside of an IPv6 address that stands for one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _TRANSLATED:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


MAX_HEAD: Final = 1 << 16
END: Final = b"\r\n\r\n"

_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*", re.DOTALL)
_HOP: Final = frozenset((b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"host"))


class BadRequest(Exception):
    """The client does not speak as one speaks to a proxy; the text says how."""


class ProxyRequest(NamedTuple):
    """One request: for a `tunnel` to the host (as `normalize` writes it), or for an answer.

    `start` has the method and the version, `lines` those of the head behind the first one that are sent on, and
    `body` how long the body is (bytes); None: that is not said.
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
