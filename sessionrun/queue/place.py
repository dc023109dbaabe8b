"""Where a directory's queue is: the top of the main checkout of its repository.

A linked worktree has a copy of each file that is committed.  A task that an agent adds in there would be lost with
the worktree, so the queue is that of the main checkout.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

LOCK_NAME: Final = "sessionrun-queue.lock"


class QueuePlace(NamedTuple):
    """The directory with the queue, and the file whose lock a process holds that changes it."""

    top: Path
    lock: Path


def find_place(cwd: Path) -> QueuePlace:
    """Return the place of the queue for a directory; without a repository that directory itself.

    The lock lies in the git directory, so that it shows in no `git status`.
    """
    start = Path(os.path.abspath(cwd))
    for folder in (start, *start.parents):
        entry = folder / ".git"
        if entry.is_dir():
            return QueuePlace(folder, entry / LOCK_NAME)
        if entry.is_file() and (git_dir := _read_path(entry, "gitdir: ", folder)) is not None:
            return _find_main(folder, git_dir)
    return QueuePlace(start, start / f".{LOCK_NAME}")


def _find_main(folder: Path, git_dir: Path) -> QueuePlace:
    """The main checkout of a linked worktree; a submodule, and a worktree of a bare repository, is its own."""
    common = _read_path(git_dir / "commondir", "", git_dir) or git_dir
    is_linked = common != git_dir and common.name == ".git"
    return QueuePlace(common.parent if is_linked else folder, common / LOCK_NAME)


def _read_path(file: Path, prefix: str, base: Path) -> Path | None:
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    if not text.startswith(prefix):
        return None
    return Path(os.path.normpath(base / text[len(prefix) :].rstrip("\n")))


Signature = tuple[tuple[str, int, int, int], ...]

_WRITTEN: Final = ("-wal", ".jsonl", "last-touched")
"""How the names of files end that a program of Beads writes with a change; others it touches to read, too."""


def read_signature(place: Path) -> Signature:
    """Return what differs after a change; nothing if the queue is not there.

    Not every version of a program shows each change in these files: a queue in a directory has to be loaded now
    and then all the same.
    """
    files = [place]
    with suppress(OSError):
        files = sorted(place / name for name in os.listdir(place) if name.endswith(_WRITTEN))
    found = []
    for file in files:
        with suppress(OSError):
            inode = os.stat(file)
            found.append((str(file), inode.st_ino, inode.st_mtime_ns, inode.st_size))
    return tuple(found)
