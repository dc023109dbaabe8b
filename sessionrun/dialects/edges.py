"""Which job waits for which: what they say themselves, and what follows from the files they read and write.

Explicit edges hold.  An edge that follows from files is taken only where it closes no circle, so such edges never
make one; of two jobs that each read what the other writes, the one whose id comes first goes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One job: the ids it names, the files it is shown or changes, and those it writes."""

    id: str
    needs: tuple[str, ...]
    reads: frozenset[str]
    writes: frozenset[str]


def derive_edges(nodes: Iterable[Node]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """All needs by id, and a line for each edge that was not taken because others stand against it."""
    by_id = {node.id: node for node in nodes}
    needs = {node.id: list(node.needs) for node in by_id.values()}
    refused = []
    for later, earlier, path in _candidates(by_id):
        if earlier in needs[later]:
            continue
        if not _reaches(needs, earlier, later):
            needs[later].append(earlier)
        elif not (by_id[later].writes & by_id[earlier].reads):  # else the same edge holds the other way round
            refused.append(
                f"{later} uses {path}, which {earlier} writes after it: it gets the file as it is before"
            )
    return {name: tuple(wanted) for name, wanted in needs.items()}, refused


def _candidates(by_id: Mapping[str, Node]) -> list[tuple[str, str, str]]:
    """(who waits, for whom, because of which file): those along the order of ids first."""
    writers: dict[str, list[str]] = {}
    for node in by_id.values():
        for path in node.writes:
            writers.setdefault(path, []).append(node.id)
    found: dict[tuple[str, str], str] = {}
    for node in by_id.values():
        for path in sorted(node.reads):
            for writer in writers.get(path, ()):
                if writer != node.id:
                    found.setdefault((node.id, writer), path)
    return [(*pair, found[pair]) for pair in sorted(found, key=lambda pair: (pair[1] > pair[0], pair))]


def _reaches(needs: Mapping[str, list[str]], start: str, goal: str) -> bool:
    """Whether `start` waits for `goal`, directly or through others."""
    seen, queue = {start}, [start]
    while queue:
        for need in needs.get(queue.pop(), ()):
            if need == goal:
                return True
            if need not in seen:
                seen.add(need)
                queue.append(need)
    return False
