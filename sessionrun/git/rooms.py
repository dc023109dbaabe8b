"""Clean rooms: where proofs and gates run.

A clean room is a directory in which one tree of files is checked out, and no more.  Its repository borrows the
objects of the real one, and has copies of those that were made for it and of the tags before its commit.  It
shares nothing else: a program in the room can change no branch, no setting and no other worktree.  Its HEAD is a
commit of that tree, so git works there as usual.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sessionrun.git.clone import list_tags, make_repository
from sessionrun.git.git import Git, GitError
from sessionrun.git.private import Fence
from sessionrun.git.submodules import fill_submodules, find_places
from sessionrun.model.places import Repository
from sessionrun.store.files import make_directories
from sessionrun.store.trees import remove_entry, remove_tree


def room_path(repository: Repository, owner: str) -> Path:
    """Where the room of a task is, while there is one: beside the worktrees, outside of any repository."""
    from hashlib import sha256

    return Path(repository.worktree_dir, f".room-{sha256(os.fsencode(owner)).hexdigest()[:16]}")


@contextmanager
def open_clean_room(fence: Fence, owner: str, commit: str, objects: Path) -> Iterator[Path]:
    """Make a clean room with the files of a commit; it goes at the end.

    Args:
        objects: a directory of objects that may hold the commit and borrows the repository's own; it is copied.
    """
    path = room_path(fence.repository, owner)
    remove_clean_room(fence.repository, owner)
    try:
        make_directories(path.parent)
        path.mkdir(mode=0o700)
        _check_out(fence, path, commit, objects)
        yield path
    finally:
        remove_clean_room(fence.repository, owner)


def remove_clean_room(repository: Repository, owner: str) -> None:
    """Remove the clean room that a crash left; links are not followed."""
    remove_entry(room_path(repository, owner))


def keep_room(fence: Fence, path: Path, commit: str) -> Git:
    """Make a room at `path` that stays, or bring the one that is there to a commit; git in it is returned.

    What git ignores stays, so that a build there need not begin anew.  If the room is damaged, it is made anew.
    """
    make_directories(path, 0o700)
    try:
        return _renew(fence, path, commit)
    except (GitError, OSError):
        remove_tree(path)
        make_directories(path, 0o700)
        return _renew(fence, path, commit)


def _renew(fence: Fence, path: Path, commit: str) -> Git:
    git_dir = path / ".git"
    for entry in git_dir.iterdir() if git_dir.is_dir() else ():
        if entry.name not in ("index", "objects"):  # locks of a killed git, branches of a program there
            remove_entry(entry)
    git = _check_out(fence, path, commit, Path(fence.repository.common_dir, "objects"))
    git("clean", "-ffdq")
    return git


def _check_out(fence: Fence, path: Path, commit: str, objects: Path) -> Git:
    git_dir, real = path / ".git", Path(fence.repository.common_dir)
    if objects != real / "objects":  # walls hide where they are
        import shutil  # slow to load, and a PREPARE has no time for that

        shutil.copytree(objects, git_dir / "objects")
    formats = [pair for pair in fence.settings.config if pair[0].lower() == "extensions.objectformat"]
    make_repository(
        git_dir, commit, formats, of=real, refs=list_tags(replace(fence.main(), trial=objects), commit)
    )
    git: Git = replace(fence.inside(path, git_dir), trial=git_dir / "objects")
    git("read-tree", "-u", "--reset", commit)
    fill_submodules(git, find_places(fence.repository))
    return git
