"""The files of the network of jobs inside of walls, and what their proxy has denied (see `walls.proxy`).

jobs/<id>/a<attempt>-r<round>-<phase>/network-<n>/
    list.json  denied.json  door/socket
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import Count, Moment
from sessionrun.store.files import list_folders
from sessionrun.store.jobfiles import load_usable

NETWORK: Final = "network-"
"""The beginning of the names of a job's folders for the network."""

LIST: Final = "list.json"
DOOR: Final = "door"
SOCKET: Final = "socket"
DENIED: Final = "denied.json"


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


@frozen
class _Denial:
    host: str
    port: int
    count: Count
    first_at: Moment
    last_at: Moment
    why: str


@frozen
class _Denials:
    hosts: tuple[_Denial, ...]


def _load_all(jobs: Path) -> Iterator[dict[str, Any]]:
    """What the files of a task's jobs hold; nothing of one that is damaged."""
    for job in list_folders(jobs):
        for network in list_networks(jobs / job):
            found = load_usable(network / DENIED, _Denials)
            yield from map(asdict, found.hosts if found is not None else ())
