"""Puts files back that a landing had begun to write, when it did not come to its end.

A file is put back only if we know that the landing wrote it: what it holds is what the new commit has there, or a
beginning of that, or it is gone.  Anything else is the user's, and stays.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.store.files import is_folder, remove_empty
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.links import is_behind_link

_NOTHING: Final = "000000"
_LINK: Final = "120000"
_PROGRAM: Final = "100755"


class _Change(NamedTuple):
    """A path that differs between two commits: its modes and blobs before and after."""

    path: str
    old_mode: str
    new_mode: str
    old_blob: str
    new_blob: str


def put_back(git: Git, old: str, new: str) -> list[str]:
    """Make the files between two commits those of `old`; return the paths that hold something else than either.

    Args:
        git: in the work tree, with the index that belongs to `old`.
        old: the commit that is checked out.
        new: the commit whose files may have been written.

    Raises:
        GitError, OSError: a file cannot be written.
    """
    foreign, missing = [], []
    tracked = set(git.names("ls-files", "-z"))
    for change in _list_changes(git, old, new):
        path = git.directory / change.path
        if change.old_mode == _NOTHING and is_behind_link(git.directory, change.path):
            continue  # the link that was to become a directory is still there
        if _holds(git, path, change.old_mode, old, change.path):
            continue
        if not _is_ours(git, path, change, new):
            foreign.append(change.path)
        elif change.old_mode == _NOTHING and change.path in tracked:
            continue  # a person removed our lock, and has committed or staged the file
        elif change.old_mode == _NOTHING:
            _remove(git.directory, change.path)
        else:
            missing.append(change.path)
    for name in missing:  # a file may lie where a directory is to be, or the other way round
        _make_way(git.directory, name)
    git("checkout-index", "-f", "-z", "--stdin", stdin=os.fsencode("".join(f"{name}\0" for name in missing)))
    return foreign


def _list_changes(git: Git, old: str, new: str) -> list[_Change]:
    fields = git.names("diff-tree", "-r", "-z", "--no-renames", "--raw", "--no-abbrev", old, new)
    changes = []
    for about, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, old_blob, new_blob, _ = about.removeprefix(":").split(" ")
        changes.append(_Change(path, old_mode, new_mode, old_blob, new_blob))
    return changes


def _holds(git: Git, path: Path, mode: str, commit: str, name: str) -> bool:
    """Whether a path holds what a commit has there."""
    if mode == _NOTHING:
        return not os.path.lexists(path) or is_folder(path)
    return _mode_of(path) == mode and _read(path) == _content(git, commit, name, mode)


def _is_ours(git: Git, path: Path, change: _Change, new: str) -> bool:
    """Whether a landing may have left a path so."""
    if not os.path.lexists(path) or is_folder(path):
        return True
    if change.new_mode == _NOTHING:
        return False
    return _content(git, new, change.path, change.new_mode).startswith(_read(path))


def _mode_of(path: Path) -> str:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return _NOTHING
    if stat.S_ISLNK(mode):
        return _LINK
    if not stat.S_ISREG(mode):
        return _NOTHING
    return _PROGRAM if mode & stat.S_IXUSR else "100644"


def _read(path: Path) -> bytes:
    return os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()


def _content(git: Git, commit: str, name: str, mode: str) -> bytes:
    """What the file of a commit is in the work tree."""
    if mode == _LINK:
        return git("cat-file", "blob", f"{commit}:{name}")
    return git("cat-file", "--filters", f"{commit}:{name}")


def _remove(top: Path, name: str) -> None:
    """Remove a file that was added, and the directories that were made for it."""
    path = top / name
    if os.path.lexists(path):
        path.unlink()
    remove_empty(path.parent, top)


def _make_way(top: Path, name: str) -> None:
    try:
        (top / name).rmdir()  # an empty one; checkout-index does the rest
    except OSError:
        pass
