"""`clean --cache`: which entries of the cache that sessions share go, by the age of their last use and by size.

Businesses say which kinds of entries there are.  One that a session uses, or that holds work, always stays.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from sessionrun.client.config import load_cache_dir
from sessionrun.client.findings import Leftover, load_findings
from sessionrun.model.errors import SessionrunError
from sessionrun.store.index import find_cache_folder


def clean_cache(
    *,
    cache_dir: Path | None = None,
    older_than_s: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> list[dict[str, Any]]:
    """Remove entries of the cache that nothing needs; say what went and what stays, as ``clean --json`` does.

    Args:
        cache_dir: the cache; None: the configured one, and the replicas of this machine's nodes.
        older_than_s: only entries that were used last so many seconds ago.
        max_bytes: remove the longest unused ones until the cache takes no more room than that; with `older_than_s`
            an entry goes if either says so.  Without both all go that nothing needs.
        dry_run: change nothing, and say what would go: `would_remove`.

    Raises:
        InputError: a file of the configuration cannot be used.
    """
    cache = Path(os.path.realpath(cache_dir or load_cache_dir(Path.cwd(), os.environ) or find_cache_folder()))
    kinds = [kind for found in load_findings() for kind in found.list_kinds()]
    mine = [kind for kind in kinds if cache_dir is None or not kind.beside]
    entries = [(kind.what, kind.remove, entry) for kind in mine for entry in kind.iterate(cache)]
    entries.sort(key=lambda row: row[2].used_at)
    now, left = time.time(), sum(entry.size for _, _, entry in entries)
    cleaned = []
    for what, remove, entry in entries:
        age_s = now - entry.used_at
        is_old = older_than_s is not None and age_s >= older_than_s
        is_too_much = max_bytes is not None and left > max_bytes
        if not (is_old or is_too_much or (older_than_s is None and max_bytes is None)):
            continue
        try:
            why = remove(entry, dry_run=dry_run)
        except (SessionrunError, OSError) as error:
            why = f"it cannot be removed: {error}"
        left -= 0 if why else entry.size
        words = f"{entry.size / 2**20:.1f} MiB, last used {max(0.0, age_s) / 86400:.1f} days ago"
        about = Leftover(what, str(entry.path), why is None, why or words, repository=entry.repo, size=entry.size)
        cleaned.append(about.show(dry_run=dry_run))
    return cleaned
