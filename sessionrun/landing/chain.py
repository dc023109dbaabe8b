"""The commits of a batch: a chain of one merge per task, and the one commit with which a prefix of it lands.

All is made in the object database.  The target's first parents are the states that its gates saw.  To take one
task back: ``git revert -m 1`` of its own merge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sessionrun.landing.records import Entry
from sessionrun.workspaces.commits import commit_tree
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.merging import MergeRoom


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
        git: of the repository.
        room: where is merged, with the attributes of `old`.
        old: the commit of the target.
        batch: the entries in their order.
        tips: the commit to merge for an entry.

    Raises:
        GitError: git failed.
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
    """The commit with which the first `count` entries land; its first parent is the old target.

    Raises:
        GitError: git failed.
    """
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
