"""The record of what a job was denied: one file for each list, replaced as a whole.

    {"hosts": [{"host", "port", "count", "first_at", "last_at", "why"}]}

The first denial of a host is in the file before the client is answered; how often it came since follows within
`LATE_S`, or when the program has ended.  A task could ask for any number of hosts; only the first `MOST` are
named.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Final

LATE_S: Final = 0.5
MOST: Final = 200
OTHERS: Final = "(others)"


class Denials:
    """What was denied to one list; not safe for threads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._hosts = {(found["host"], found["port"]): found for found in _load(path)}  # of programs before
        self._is_late = False

    @property
    def is_late(self) -> bool:
        """Whether the file is older than what happened."""
        return self._is_late

    def add(self, host: str, port: int, why: str) -> None:
        """Take note of a denial."""
        if (host, port) not in self._hosts and len(self._hosts) >= MOST:
            host, port, why = OTHERS, 0, f"more than {MOST} hosts were denied"
        at = round(time.time(), 3)
        known = self._hosts.get((host, port))
        if known is None:
            first = {"host": host, "port": port, "count": 1, "first_at": at, "last_at": at, "why": why}
            self._hosts[host, port] = first
            self.write()
            return
        known["count"] += 1
        known["last_at"], known["why"] = at, why
        self._is_late = True

    def write(self) -> None:
        """Replace the file; a disk that is full, or a session that was removed, changes nothing else."""
        self._is_late = False
        content = json.dumps({"hosts": list(self._hosts.values())}).encode()
        draft = f"{self._path}.new"
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as stream:
                stream.write(content)
            os.replace(draft, self._path)
        except OSError:
            pass


def _load(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, "rb") as stream:
            return list(json.load(stream)["hosts"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
