"""The fourth watcher of a node, in the program that keeps its worker running; and who watches that: systemd.

The three others may all be stopped or gone.  Then this one kills what still runs when the lease has been over for
a while, and tells systemd's watchdog as long as it is there to do so.  If it is stopped, too, systemd kills all of
the node's processes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from sessionrun.cluster.timers import BRIDGE_SLACK_S
from sessionrun.runtime.keeper.watcher import Watcher

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
VARIABLES: Final = (SOCKET_VARIABLE, "WATCHDOG_USEC", "WATCHDOG_PID")
"""What systemd tells a service of itself, see sd_notify(3); for that process alone."""

WATCHDOG_S: Final = 30
"""When systemd has to have heard of it (seconds): less than a lease, so that all is dead before that is over."""

LOOK_S: Final = 1.0


class Watchdog:
    """Looks after one node's directory; `environ` says where systemd listens, if it does."""

    def __init__(self, directory: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._watcher = Watcher(directory, BRIDGE_SLACK_S)
        self._address = environ.get(SOCKET_VARIABLE, "")
        self._say = say
        self._due = 0.0

    def look(self) -> None:
        """Kill what runs too long, and tell systemd; does nothing if it is too soon for that."""
        now = time.monotonic()
        if now < self._due:
            return
        try:
            self._due = now + min(self._watcher.look(), LOOK_S)
        except OSError as error:
            self._due = now + LOOK_S
            self._say(f"it cannot be seen whether jobs run too long: {error}")
            return
        self._tell()

    def _tell(self) -> None:
        """Say it; that it is ready only the first time means something."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end, suppress(OSError):
            end.sendto(b"READY=1\nWATCHDOG=1", socket.MSG_DONTWAIT, address)
