"""Takes what setups left off the work: it does not land, the work alone does.

The work is written anew without the commits of setups, commit by commit, with the same authors, times and
messages.  The new commits depend on the old ones alone: so the target itself tells whether they have landed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sessionrun.workspaces.commits import commit_tree, write_commit
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.merging import MergeRoom


class Taken(NamedTuple):
    """The commit that holds the work alone; None and files, if the work changes what a setup had changed."""

    commit: str | None
    files: list[str]


def take_off(git: Git, room: MergeRoom | None, tip: str, old: str, setups: Collection[str]) -> Taken:
    """The work of `tip` without what these commits of setups brought.

    Args:
        git: of the repository.
        room: where is merged; None if there are no setups.
        tip: the commit that holds work.
        old: the target; its commits stay what they are.
        setups: commits that setups left.

    Raises:
        GitError: git failed.
    """
    if not setups:
        return Taken(tip, [])
    listed = git.line("rev-list", "--topo-order", "--reverse", "--parents", tip, "--not", old)
    rows = [line.split(" ") for line in listed.split("\n") if line]
    if room is None or not any(row[0] in setups for row in rows):
        return Taken(tip, [])
    made: dict[str, str] = {}
    below: dict[str, tuple[str, ...]] = {}
    for commit, *parents in rows:
        under = tuple(dict.fromkeys(setup for parent in parents for setup in below.get(parent, ())))
        below[commit] = under
        if commit in setups:
            below[commit] = (*under, commit)
            made[commit] = made.get(parents[0], parents[0])
        elif not under:
            made[commit] = commit
        else:
            tree, files = _revert(git, room, commit, under)
            if tree is None and commit == tip:
                return Taken(None, files)
            made[commit] = _rewrite(git, commit, tree or _tree_of(git, commit), made)
    return Taken(made[tip], [])


def _revert(git: Git, room: MergeRoom, commit: str, setups: Collection[str]) -> tuple[str | None, list[str]]:
    """The tree of a commit without what setups below it brought, the last one first."""
    tree = _tree_of(git, commit)
    for setup in reversed(list(setups)):
        with_setup = commit_tree(git, tree, (setup,), "with")
        without = commit_tree(git, _tree_of(git, f"{setup}~1"), (setup,), "without")
        merged = room.merge(with_setup, without)
        if merged.tree is None:
            return None, merged.files
        tree = merged.tree
    return tree, []


def _rewrite(git: Git, commit: str, tree: str, made: Mapping[str, str]) -> str:
    """The same commit with another tree, on top of what was made of its parents."""
    head, _, message = git("cat-file", "commit", commit).partition(b"\n\n")
    lines, is_signature = [], False
    for line in head.split(b"\n"):
        name, _, value = line.partition(b" ")
        is_signature = name.startswith(b"gpgsig") or (is_signature and not name)
        if name == b"tree":
            lines.append(b"tree " + tree.encode())
        elif name == b"parent":
            lines.append(b"parent " + made.get(value.decode(), value.decode()).encode())
        elif not is_signature:
            lines.append(line)
    content = b"\n".join(lines) + b"\n\n" + message
    return write_commit(git, content)


def _tree_of(git: Git, commit: str) -> str:
    return git.line("rev-parse", f"{commit}^{{tree}}")
