"""Merges and commits in the object database, by plumbing: no branch, index or file of the repository changes.

No hook runs, no key signs, and no ref moves.

Git merges by the `.gitattributes` of the directory where it runs.  So it runs in an empty directory, with those of
one commit alone: what lies in a checkout decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.git.git import ENVIRONMENT, Git, check, split_names, version
from sessionrun.git.private import Fence
from sessionrun.model.frozen import frozen
from sessionrun.store.trees import remove_entry, remove_tree

MERGE_TREE: Final = (2, 38)
"""Oldest git with `merge-tree --write-tree`; older ones merge by a private index."""


_MERGE_TREE: Final = (
    *("merge-tree", "--write-tree", "--allow-unrelated-histories"),
    *("-z", "--name-only", "--no-messages"),
)
_DIFF3: Final = ("-c", "merge.conflictStyle=diff3")


class Merged(NamedTuple):
    """The tree of a merge; if there is a conflict, None and the files in conflict."""

    tree: str | None
    files: list[str]


@frozen
class MergeRoom:
    """An empty directory in which git merges as if it was the work tree; an old git needs an index."""

    git: Git
    index: Path | None

    def merge(self, ours: str, theirs: str, *, marks: bool = False) -> Merged:
        """Merge two commits; with `marks` what conflicts is in the tree, with marks and the common version."""
        if self.index is not None:
            return self._merge_by_index(ours, theirs, self.index, marks=marks)
        conflicts, output = _merge(self.git, *(_DIFF3 if marks else ()), *_MERGE_TREE, ours, theirs)
        tree, *files = split_names(output)
        return Merged(None if conflicts and not marks else tree, files)

    def _merge_by_index(self, ours: str, theirs: str, index: Path, *, marks: bool) -> Merged:
        """`merge` with git older than 2.38.  Only files that change are written into the work tree."""
        own = self.git.with_index(index)
        try:
            own("read-tree", ours)
            own("update-index", "-q", "--refresh", "--ignore-missing", codes=(0, 1))
            bases = own("merge-base", "--all", ours, theirs, codes=(0, 1)).decode().split()
            conflicts, _ = _merge(own, *(_DIFF3 if marks else ()), "merge-recursive", *bases, "--", ours, theirs)
            if conflicts:
                named = list(dict.fromkeys(own.names("diff", "--name-only", "-z", "--diff-filter=U")))
                if not marks:
                    return Merged(None, named)
                names = b"".join(os.fsencode(name) + b"\0" for name in named)
                own("update-index", "--add", "--remove", "-z", "--stdin", stdin=names)
            return Merged(own.line("write-tree"), [])
        finally:
            index.unlink(missing_ok=True)
            for entry in self.git.directory.iterdir():
                remove_entry(entry)


@contextmanager
def open_merge_room(
    fence: Fence, attributes: str, folder: Path, *, trial: Path | None = None
) -> Iterator[MergeRoom]:
    """Make the directory, for as long as it is needed.

    Args:
        attributes: the commit whose `.gitattributes` count.
        folder: where the directory may be made.
        trial: as of `Git`.
    """
    path = folder / "merge"
    remove_tree(path)
    path.mkdir()
    try:
        old, main = _is_old(os.environ.get("PATH")), fence.main()
        for entry in main.names("ls-tree", "-r", "-z", "--full-tree", attributes):
            about, _, name = entry.partition("\t")
            mode, _, blob = about.split(" ")
            if os.path.basename(name) == ".gitattributes" and mode.startswith("100"):
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_bytes(main("cat-file", "blob", blob))
        git = replace(fence.inside(path, fence.common), trial=trial)
        yield MergeRoom(git, folder / "merge-index" if old else None)
    finally:
        remove_tree(path)


@cache
def _is_old(path: str | None) -> bool:
    """Whether the git that is found by a PATH needs an index."""
    return version(Path.cwd()) < MERGE_TREE


def _merge(git: Git, *argv: str) -> tuple[bool, bytes]:
    """Whether a merge has a conflict, and the output of the command."""
    done = git.attempt(*argv)
    return done.returncode != 0, check(argv, done, (0, 1))


AUTHOR: Final = f"{ENVIRONMENT['GIT_COMMITTER_NAME'][0]} <{ENVIRONMENT['GIT_COMMITTER_EMAIL'][0]}>"
"""Whose our commits are."""


def commit_repeatably(git: Git, tree: str, parents: Iterable[str], message: str, moment: int | None = None) -> str:
    """Make a commit that depends on the arguments alone: made again after a crash it is the same.

    `moment` is its time (Unix time); None: that of the newest parent.
    """
    parents = list(parents)
    if moment is None:
        times = git.line("rev-list", "--no-walk", "--timestamp", *parents).split("\n")
        moment = max(int(line.split(" ")[0]) for line in times)
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    lines += [f"{role} {AUTHOR} {moment} +0000" for role in ("author", "committer")]
    return write_commit(git, "\n".join([*lines, "", message]).encode("utf-8", "surrogateescape"))


def write_commit(git: Git, content: bytes) -> str:
    return git("hash-object", "-t", "commit", "-w", "--stdin", stdin=content).decode().strip()


_APPLY: Final = ("apply", "--cached", "--whitespace=nowarn")


def find_patch_fault(git: Git, commit: str, patch: bytes, index: Path) -> str | None:
    """Why a patch does not apply to a commit, in git's words; None: it does.  `index` is a file of its own."""
    if not patch.strip():
        return None
    own = git.with_index(index)
    own("read-tree", commit)
    tried = own.attempt(*_APPLY, "--check", "-", stdin=patch)
    index.unlink(missing_ok=True)
    return None if tried.returncode == 0 else tried.stderr.decode("utf-8", "replace").strip().split("\n")[0]


def apply_to_tree(git: Git, tree: str, patch: bytes, index: Path) -> str:
    """The tree of these files and a patch; `index` is a file of its own.

    Raises:
        GitError: the patch does not apply.
    """
    own = git.with_index(index)
    own("read-tree", tree)
    if patch.strip():
        own(*_APPLY, "-", stdin=patch)
    made = own.line("write-tree")
    index.unlink(missing_ok=True)
    return made
