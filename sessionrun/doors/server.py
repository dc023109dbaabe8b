"""Runs the server on an address of this machine until it is told to stop."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from sessionrun.doors.app import Desk
from sessionrun.doors.guard import Guard
from sessionrun.model.errors import InputError


def serve(results_dir: Path, host: str, port: int, *, control: bool, tell: Callable[[str, bool], None]) -> None:
    """Show the sessions of a directory until SIGINT or SIGTERM.

    Args:
        results_dir: where they are kept, absolute.
        host: an address of this machine.
        port: 0: one that is free.
        control: whether the pages may change anything.
        tell: is given the address with the token, and whether others than this machine can ask there.

    Raises:
        InputError: that address cannot be used.
    """
    listener = _listen(host, port)
    bound, port = listener.getsockname()[:2]
    named = f"[{bound}]" if ":" in bound else bound
    hosts = [f"{named}:{port}"]
    is_local = ipaddress.ip_address(bound).is_loopback
    if is_local:
        hosts.append(f"localhost:{port}")
    token = secrets.token_urlsafe(32)
    desk = Desk(results_dir, control=control)
    app = Guard(desk.make_app(), token, hosts, control=control)
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    config = uvicorn.Config(app, lifespan="off", timeout_graceful_shutdown=5, **quiet)
    tell(f"http://{named}:{port}/?token={token}", not is_local)
    _Server(config, desk).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends the streams first: a browser would keep them open."""

    def __init__(self, config: uvicorn.Config, desk: Desk) -> None:
        super().__init__(config)
        self._desk = desk

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        self._desk.close()
        super().handle_exit(sig, frame)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(address[0]).is_unspecified:
            raise InputError(f"--host {host}: name one address of this machine; browsers have to ask for that")
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen at {host} port {port}: {why}") from None
    return listener
