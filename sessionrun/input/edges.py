"""Which job file waits for which: what they state themselves, and what follows from the files they read and write.

Explicit edges hold.  An edge that follows from files is taken only where it closes no circle, so such edges never
make one; of two job files that each read what the other writes, the one whose id comes first goes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sessionrun.model.frozen import frozen


@frozen
class Node:
    """One job file: the ids it names, the files it is shown or changes, and those it writes."""

    id: str
    needs: tuple[str, ...]
    reads: frozenset[str]
    writes: frozenset[str]


def derive_edges(nodes: Iterable[Node]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """All needs by id, and a line for each edge that was not taken because others stand against it.

    An edge that follows from other edges is left out: many job files that write one file would need each other.
    """
    by_id = {node.id: node for node in nodes}
    ids = sorted(by_id)
    bits = {name: 1 << place for place, name in enumerate(ids)}
    needs = {node.id: list(node.needs) for node in by_id.values()}
    order = _Order(bits)
    for name in ids:
        for need in by_id[name].needs:
            order.add(name, need)
    refused = []
    for later, earlier, path in _find_candidates([by_id[name] for name in ids], bits, order):
        if not order.waits[earlier] & bits[later]:
            needs[later].append(earlier)
            order.add(later, earlier)
        elif not (by_id[later].writes & by_id[earlier].reads):  # else the same edge holds the other way round
            refused.append(
                f"{later} uses {path}, which {earlier} writes after it: it gets the file as it is before"
            )
    return {name: tuple(wanted) for name, wanted in needs.items()}, refused


class _Order:
    """Which task waits for which, through others too: `waits` has, by id, the bits of all that it waits for."""

    def __init__(self, bits: Mapping[str, int]) -> None:
        self._bits = bits
        self.waits = dict.fromkeys(bits, 0)

    def add(self, later: str, earlier: str) -> None:
        bit, new = self._bits[later], self.waits[earlier] | self._bits[earlier]
        for name, waits in self.waits.items():
            if waits & bit or name == later:
                self.waits[name] = waits | new


def _find_candidates(
    nodes: Sequence[Node], bits: Mapping[str, int], order: _Order
) -> Iterator[tuple[str, str, str]]:
    """(task that should wait, the one it should wait for, the file), without those that already do in their turn.

    Those along the order of ids come first; of several the last writer, as it mostly waits for the others.
    """
    names = list(bits)
    writers: dict[str, int] = {}
    for node in nodes:
        for path in node.writes:
            writers[path] = writers.get(path, 0) | bits[node.id]
    for ahead in (True, False):
        for node in nodes:
            own, tried = bits[node.id], bits[node.id]
            side = own - 1 if ahead else ~(own - 1)
            for path in sorted(node.reads if ahead else node.reads - node.writes):  # writers are in order by then
                while left := writers.get(path, 0) & side & ~tried & ~order.waits[node.id]:
                    place = left.bit_length() - 1
                    tried |= 1 << place
                    yield node.id, names[place], path
