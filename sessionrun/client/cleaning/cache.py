"""The cache that sessions share: which of its entries go, by the age of their last use and by size.

`KINDS` has a row for each kind of entry.  An entry that a session uses, or that holds work, always stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from sessionrun.client.cleaning.cached_copies import iterate_copies, remove_copy
from sessionrun.client.cleaning.replicas import iterate_replicas, remove_replica
from sessionrun.client.config import load_cache_dir
from sessionrun.model.errors import SessionrunError
from sessionrun.workspaces.environments.cached import iterate_environments, remove_environment
from sessionrun.workspaces.mirror_cache import iterate_mirrors, remove_mirror
from sessionrun.workspaces.throwaway import iterate_checkouts, remove_checkout

Record = dict[str, Any]
"""What went, or stays, and why: an object of ``clean --cache --json``."""


class Entry(Protocol):
    """One entry of the cache; times are wall time, sizes bytes."""

    @property
    def path(self) -> Path:
        """Where it is."""

    @property
    def repo(self) -> str | None:
        """Which repository it belongs to."""

    @property
    def used_at(self) -> float:
        """When it was used last."""

    @property
    def size(self) -> int:
        """How much room it takes."""


class Kind(NamedTuple):
    """How entries of one kind are listed and removed; the latter says why one stays.  `what` is its word."""

    what: str
    iterate: Callable[[Path], Iterator[Any]]
    remove: Callable[..., str | None]


KINDS: Final = (
    Kind("mirror", iterate_mirrors, remove_mirror),
    Kind("environment", iterate_environments, remove_environment),
    Kind("environment", iterate_copies, remove_copy),
    Kind("checkout", iterate_checkouts, remove_checkout),
)


_REPLICA: Final = Kind("replica", lambda _: iterate_replicas(), remove_replica)
"""The replicas of this machine's nodes lie elsewhere."""


def clean_cache(
    *,
    cache_dir: Path | None = None,
    older_than_s: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> list[Record]:
    """Remove entries of the cache that nothing needs; say what went and what stays.

    Args:
        cache_dir: the cache; None: the configured one.
        older_than_s: only entries that were used last so many seconds ago.
        max_bytes: remove the longest unused ones until the cache takes no more room than that; with `older_than_s`
            an entry goes if either says so.  Without both all go that nothing needs.
        dry_run: change nothing, and say what would go: `would_remove`.

    Raises:
        InputError: a file of the configuration cannot be used.
    """
    cache = find_cache(cache_dir)
    now = time.time()
    entries: list[tuple[Kind, Entry]] = [(kind, entry) for kind in KINDS for entry in kind.iterate(cache)]
    if cache_dir is None:
        entries += [(_REPLICA, entry) for entry in iterate_replicas()]
    entries.sort(key=lambda pair: pair[1].used_at)
    left = sum(entry.size for _, entry in entries)
    records = []
    for kind, entry in entries:
        old = older_than_s is not None and now - entry.used_at >= older_than_s
        large = max_bytes is not None and left > max_bytes
        if not (old or large or (older_than_s is None and max_bytes is None)):
            continue
        why = _remove(kind, entry, dry_run=dry_run)
        left -= 0 if why else entry.size
        records.append(_describe(kind, entry, why, now, dry_run=dry_run))
    return records


def find_cache(cache_dir: Path | None) -> Path:
    """The cache in use: the one that is named, or else the configured one."""
    return Path(os.path.realpath(cache_dir or load_cache_dir(Path.cwd(), os.environ)))


def _remove(kind: Kind, entry: Entry, *, dry_run: bool) -> str | None:
    try:
        return kind.remove(entry, dry_run=dry_run)
    except (SessionrunError, OSError) as error:
        return f"it cannot be removed: {error}"


def _describe(kind: Kind, entry: Entry, why: str | None, now: float, *, dry_run: bool) -> Record:
    days = max(0.0, now - entry.used_at) / 86400
    words = f"{entry.size / 2**20:.1f} MiB, last used {days:.1f} days ago"
    return {
        "session_id": None,
        "repository": entry.repo,
        "what": kind.what,
        "name": str(entry.path),
        "id": None,
        "bytes": entry.size,
        "removed": why is None and not dry_run,
        "would_remove": why is None if dry_run else None,
        "why": words if why is None else why,
    }
