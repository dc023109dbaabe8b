"""Finds which entries cannot be merged with each other, in the object database.  Nothing changes.

Only entries that change the same file, or of which one needs a directory where the other has a file, are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import PurePosixPath
from typing import Final

from sessionrun.landing.queue import Queue
from sessionrun.landing.records import Clash, Entry
from sessionrun.workspaces.merging import MergeRoom

MAX_PAIRS: Final = 1000
"""So many pairs are merged at most: some 20 ms each."""


class Clashes:
    """The pairs of a queue; each is merged once."""

    def __init__(self, queue: Queue, room: MergeRoom) -> None:
        self._queue = queue
        self._room = room
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}
        self._folders: dict[str, frozenset[str]] = {}

    def compare(self, first: Entry, second: Entry) -> tuple[str, ...]:
        """The files in conflict if both are merged; empty: none.

        What needs other tasks has their work, too: that counts only if its own work is in conflict as well.

        Raises:
            GitError: git failed.
        """
        tips = self._queue.tip_of(first), self._queue.tip_of(second)
        if tips not in self._known:
            merged = self._room.merge(*tips)
            # git renames a file where a directory is to be
            files = dict.fromkeys(_strip(file, tips) for file in merged.files)
            is_theirs = merged.tree is None and all(self._is_in(one, files) for one in (first, second))
            self._known[tips] = tuple(files) if is_theirs else ()
        return self._known[tips]

    def _is_in(self, entry: Entry, files: Iterable[str]) -> bool:
        """Whether an entry's own work may be in conflict in one of these files."""
        own = self._queue.paths_of(entry) | self._folders_of(entry)
        return not entry.needs or not own.isdisjoint(files)

    def list(self, entries: Sequence[Entry], groups: Mapping[str, str] | None = None) -> tuple[list[Clash], int]:
        """The clashes among entries, and how many pairs were not merged because there are too many.

        Args:
            entries: which.
            groups: by task its group; entries of one group are not compared.

        Raises:
            GitError: git failed.
        """
        pairs = [
            pair
            for pair in combinations(entries, 2)
            if not (groups and groups[pair[0].task] == groups[pair[1].task]) and self._may_clash(*pair)
        ]
        found = []
        for first, second in pairs[:MAX_PAIRS]:
            files = self.compare(first, second)
            if files:
                found.append(Clash((first.task, second.task), files))
        return found, len(pairs[MAX_PAIRS:])

    def _may_clash(self, first: Entry, second: Entry) -> bool:
        ours, theirs = self._queue.paths_of(first), self._queue.paths_of(second)
        if not ours.isdisjoint(theirs):
            return True
        return not (ours.isdisjoint(self._folders_of(second)) and theirs.isdisjoint(self._folders_of(first)))

    def _folders_of(self, entry: Entry) -> frozenset[str]:
        if entry.task not in self._folders:
            paths = self._queue.paths_of(entry)
            self._folders[entry.task] = frozenset(
                str(parent) for path in paths for parent in PurePosixPath(path).parents
            )
        return self._folders[entry.task]


def _strip(file: str, tips: Iterable[str]) -> str:
    for tip in tips:
        file = file.removesuffix(f"~{tip}")
    return file
