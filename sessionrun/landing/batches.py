"""How many tasks go into a batch, in which order, and how the first red one of a batch is found.  Pure.

The longest green prefix lands, and the entry after it is tried alone: the same result as one by one, with fewer
runs of the gates.  So of two entries that clash, the first in the queue wins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import log
from typing import Final

from sessionrun.landing.records import Entry

LARGEST: Final = 16
_BEFORE_BOUNCED, _BEFORE_DECIDED = 1, 8
"""What is supposed before anything is known: one of eight is red."""


def choose_size(decided: int, bounced: int) -> int:
    """The size with which a batch is green every other time, if the share of red entries stays as it was.

    Args:
        decided: how many entries the gates let land, or bounced.
        bounced: how many of them they bounced.
    """
    share = (_BEFORE_BOUNCED + bounced) / (_BEFORE_DECIDED + decided)
    if share >= 1:
        return 1
    return min(max(round(log(0.5) / log(1 - share)), 1), LARGEST)


def sort_entries(entries: Sequence[Entry], bounced: Collection[str]) -> list[Entry]:
    """The entries in the order in which they are tried: those that were bounced before go last.

    An entry never goes before one that it needs.
    """
    late: set[str] = set()
    for entry in entries:  # needs stand before what needs them
        if entry.task in bounced or late.intersection(entry.needs):
            late.add(entry.task)
    return sorted(entries, key=lambda entry: entry.task in late)


def find_green_prefix(count: int, passes: Callable[[int], bool]) -> int:
    """How many of the first `count` entries pass together; the next one does not.

    Args:
        count: at least 1.
        passes: runs the gates on the first so many entries.
    """
    if passes(count):
        return count
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if passes(middle):
            good = middle
        else:
            bad = middle
    return good


def find_unmet(entry: Entry, landed: Collection[str], settled: Mapping[str, object]) -> tuple[list[str], bool]:
    """The needs of an entry that have not landed, and whether one of them will not land now.

    Args:
        entry: whose.
        landed: tasks whose work is in the target.
        settled: tasks that are not tried any more.
    """
    unmet = [need for need in entry.needs if need not in landed]
    return unmet, any(need in settled for need in unmet)
