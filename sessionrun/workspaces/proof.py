"""Proves that the commit holds what lies in the worktree, file by file, and that the repository has all of it.

A blob is the file itself, or what the conversions of the launch (filters, line ends) make of the file.  If it is
neither, the file changed while it was read, or the conversion changed: then the commit does not hold the work.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from sessionrun.model.phrases import name_some
from sessionrun.workspaces.git import Git

_QUOTED: Final = {"\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_MOST_NAMED: Final = 3


def find_untrue(index: Git, names: Sequence[str], gitlinks: Collection[str]) -> list[str]:
    """Name the files of which the index holds something else; at most one line.

    Args:
        index: git with the private index.
        names: paths that were added to the index.
        gitlinks: those of them that are other repositories.
    """
    links = set(gitlinks)
    files = [name for name in names if name not in links and _is_file(index, name)]
    if not files:
        return []
    held = _list_blobs(index, set(files))
    suspects = [
        name
        for name, blob in zip(files, _hash(index, files, "--no-filters"), strict=True)
        if held.get(name) != blob
    ]
    untrue = suspects and [
        name for name, blob in zip(suspects, _hash(index, suspects), strict=True) if held.get(name) != blob
    ]
    if not untrue:
        return []
    return [f"{name_some(untrue, _MOST_NAMED)} changed while the work was parked"]


def is_readable(path: Path) -> bool:
    """Whether a commit can hold what is at a path, or nothing is there."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return not stat.S_ISREG(mode) or os.access(path, os.R_OK)


def find_missing(git: Git, commit: str, base: str | None) -> list[str]:
    """Say whether the repository lacks a part of a commit that a ref holds; at most one line.

    If git collects garbage between the first new object and the ref, it deletes objects that no ref held yet.
    """
    known = ("--not", base) if base is not None else ()
    done = git.attempt("rev-list", "--objects", "--quiet", commit, *known, "--")
    return [] if done.returncode == 0 else ["a part of its commit is missing in the repository"]


def _is_file(index: Git, name: str) -> bool:
    path = index.directory / name
    return path.is_file() and not path.is_symlink()


def _list_blobs(index: Git, wanted: Collection[str]) -> dict[str, str]:
    entries = (entry.partition("\t") for entry in index.names("ls-files", "--stage", "-z"))
    return {name: about.split(" ")[1] for about, _, name in entries if name in wanted}


def _hash(index: Git, names: Sequence[str], *words: str) -> Iterator[str]:
    """The ids of the blobs that these files would be."""
    listed = b"".join(os.fsencode(_quote(name)) + b"\n" for name in names)
    return iter(index("hash-object", *words, "--stdin-paths", stdin=listed).decode().split())


def _quote(name: str) -> str:
    """A path as git reads it from a line: in quotes if git would otherwise read another path."""
    if not (name.startswith('"') or "\n" in name or name.endswith("\r")):
        return name
    return '"' + "".join(_QUOTED.get(letter, letter) for letter in name) + '"'
