"""The commits of a batch: a chain of one merge per task, and the one commit with which a prefix of it lands.

How many tasks go into a batch, in which order, and how the first red one is found, is pure.

All is made in the object database.  The target's first parents are the states that its gates saw.  To take one
task back: ``git revert -m 1`` of its own merge.

The longest green prefix lands, and the entry after it is tried alone: the same result as one by one, with fewer
runs of the gates.  So of two entries that clash, the first in the queue wins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import log
from typing import Final, NamedTuple

from sessionrun.git.git import Git
from sessionrun.git.merging import MergeRoom, commit_tree
from sessionrun.landing.records import Entry


class Link(NamedTuple):
    """The merge of one task on top of those before it."""

    entry: Entry
    commit: str
    tree: str


class Chain(NamedTuple):
    """A batch on top of `old`.

    `conflicts` are entries, with files, that cannot be merged with `old` itself; it has all that is in those
    `there`.  What cannot be merged with an entry before it in the batch is left out: it waits for the next batch.
    """

    old: str
    links: list[Link]
    conflicts: list[tuple[Entry, list[str]]]
    there: list[Entry]


def build_chain(
    git: Git, room: MergeRoom, old: str, batch: Sequence[Entry], tips: Callable[[Entry], str]
) -> Chain:
    """Merge entries, each on top of those before it.

    Args:
        room: where is merged, with the attributes of `old`.
        old: the commit of the target.
        tips: the commit to merge for an entry.
    """
    chain = Chain(old, [], [], [])
    head, tree = old, git.line("rev-parse", f"{old}^{{tree}}")
    left_out: set[str] = set()
    for entry in batch:
        if left_out.intersection(entry.needs):
            left_out.add(entry.task)
            continue
        tip = tips(entry)
        merged = room.merge(head, tip)
        is_first = not chain.links
        if merged.tree is None:
            left_out.add(entry.task)
            alone = merged if is_first else room.merge(old, tip)
            if alone.tree is None:
                chain.conflicts.append((entry, alone.files))
        elif merged.tree != tree:
            head, tree = commit_tree(git, merged.tree, (head, tip), _word_merge(entry)), merged.tree
            chain.links.append(Link(entry, head, tree))
        elif is_first:
            chain.there.append(entry)
        else:
            left_out.add(entry.task)
    return chain


def make_candidate(git: Git, chain: Chain, count: int, session_id: str) -> str:
    """The commit with which the first `count` entries land; its first parent is the old target."""
    last = chain.links[count - 1]
    if count == 1:
        return last.commit
    lines = [f"- {link.entry.task}: {link.entry.title}" for link in chain.links[:count]]
    message = "\n".join([f"Land {count} tasks of session {session_id[:8]}", "", *lines, ""])
    return commit_tree(git, last.tree, (chain.old, last.commit), message)


def _word_merge(entry: Entry) -> str:
    subject = f"Merge task {entry.task}: {entry.title}" if entry.title else f"Merge task {entry.task}"
    lines = [subject, ""]
    return "\n".join([*lines, *entry.trailers, ""] if entry.trailers else lines)


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
        landed: tasks whose work is in the target.
        settled: tasks that are not tried any more.
    """
    unmet = [need for need in entry.needs if need not in landed]
    return unmet, any(need in settled for need in unmet)
