"""The files of the network of jobs inside of walls, and what their proxy has denied (see `walls.proxy`).

jobs/<id>/a<attempt>-r<round>-<phase>/network-<n>/
    list.json  denied.json  door/socket
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sessionrun.store.files import list_folders, read_regular

NETWORK: Final = "network-"
"""The beginning of the names of a job's folders for the network."""

LIST: Final = "list.json"
DOOR: Final = "door"
SOCKET: Final = "socket"
DENIED: Final = "denied.json"
MAX_FILE: Final = 1 << 20


def list_networks(job: Path) -> Iterator[Path]:
    """The folders for the network of a job, in the order in which they were made."""
    number = 1
    while (folder := job / f"{NETWORK}{number}").is_dir():
        yield folder
        number += 1


def read_denials(session: Path, task: str) -> list[dict[str, Any]]:
    """The hosts that a task's jobs were denied, those that were asked for most often first.

    Each has `host`, `port`, `count`, `first_at` and `last_at` (seconds since the epoch) and `why`.
    """
    hosts: dict[tuple[str, int], dict[str, Any]] = {}
    for found in _load_all(session / "jobs" / task):
        known = hosts.setdefault((found["host"], found["port"]), {**found, "count": 0})
        known["count"] += found["count"]
        known["first_at"] = min(known["first_at"], found["first_at"])
        known["last_at"] = max(known["last_at"], found["last_at"])
    return sorted(hosts.values(), key=lambda found: (-found["count"], found["host"], found["port"]))


def _load_all(jobs: Path) -> Iterator[dict[str, Any]]:
    for job in list_folders(jobs):
        for network in list_networks(jobs / job):
            yield from _load(network / DENIED)


def _load(path: Path) -> list[dict[str, Any]]:
    """The hosts of a file; none if it is damaged."""
    import orjson

    types: dict[str, Any] = {
        "host": str,
        "port": int,
        "count": int,
        "first_at": (int, float),
        "last_at": (int, float),
        "why": str,
    }
    try:
        hosts = orjson.loads(read_regular(path, MAX_FILE))["hosts"]
        return [
            {key: found[key] for key in types}
            for found in hosts
            if all(isinstance(found[key], kind) for key, kind in types.items())
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
