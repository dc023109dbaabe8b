"""The record of what a job was denied: one file for each list, replaced as a whole.

    {"hosts": [{"host", "port", "count", "first_at", "last_at", "why"}]}

The first denial of a host is in the file before the client is answered; how often it came since follows with a
later denial, or when the program has ended.  A task could ask for any number of hosts; only the first `MOST` are
named.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Final

PAUSE_S: Final = 0.5
"""How long after a write a repetition alone is not written."""

MOST: Final = 200
OTHERS: Final = "(others)"


class Denials:
    """What was denied to one list; not safe for threads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._hosts = {(found["host"], found["port"]): found for found in _load(path)}  # of programs before
        self._written_at = 0.0

    def add(self, host: str, port: int, why: str) -> None:
        """Take note of a denial."""
        if (host, port) not in self._hosts and len(self._hosts) >= MOST:
            host, port, why = OTHERS, 0, f"more than {MOST} hosts were denied"
        at = round(time.time(), 3)
        is_new = (host, port) not in self._hosts
        first = {"host": host, "port": port, "count": 0, "first_at": at}
        known = self._hosts.setdefault((host, port), first)
        known |= {"count": known["count"] + 1, "last_at": at, "why": why}
        if is_new or time.monotonic() - self._written_at >= PAUSE_S:
            self.write()

    def write(self) -> None:
        """Replace the file; a disk that is full, or a session that was removed, changes nothing else."""
        if not self._hosts:
            return
        self._written_at = time.monotonic()
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
