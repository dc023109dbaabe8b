"""Makes commits by plumbing: no hook runs, no key signs, and no ref moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sessionrun.workspaces.git import ENVIRONMENT, Git

AUTHOR: Final = f"{ENVIRONMENT['GIT_COMMITTER_NAME'][0]} <{ENVIRONMENT['GIT_COMMITTER_EMAIL'][0]}>"
"""Whose our commits are."""


def commit_tree(git: Git, tree: str, parents: Iterable[str], message: str) -> str:
    """Make a commit of now.

    Raises:
        GitError: git failed.
    """
    words = [word for parent in parents for word in ("-p", parent)]
    text = message.encode("utf-8", "surrogateescape")
    return git("commit-tree", tree, *words, "-F", "-", stdin=text).decode().strip()


def commit_repeatably(git: Git, tree: str, parents: Iterable[str], message: str, moment: int | None = None) -> str:
    """Make a commit that depends on the arguments alone: made again after a crash it is the same.

    Args:
        git: in the repository.
        tree: of the commit.
        parents: of the commit; at least one.
        message: the whole of it.
        moment: its time (Unix time); None: that of the newest parent.

    Raises:
        GitError: git failed.
    """
    parents = list(parents)
    if moment is None:
        times = git.line("rev-list", "--no-walk", "--timestamp", *parents).split("\n")
        moment = max(int(line.split(" ")[0]) for line in times)
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    lines += [f"{role} {AUTHOR} {moment} +0000" for role in ("author", "committer")]
    return write_commit(git, "\n".join([*lines, "", message]).encode("utf-8", "surrogateescape"))


def write_commit(git: Git, content: bytes) -> str:
    """Write a commit as it is.

    Raises:
        GitError: git failed.
    """
    return git("hash-object", "-t", "commit", "-w", "--stdin", stdin=content).decode().strip()
