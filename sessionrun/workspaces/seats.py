"""Worktrees that stay after their task: what their marks say, and how one is left for the next task.

The mark in the administrative directory (see `registration`) says who has the seat.  While a task has it, the mark
is that of any worktree: its owner and its branch.  A third line says that the owner is about to leave it.

The mark of a free seat names no owner: `FREE`, then the commit that lies there, and the session that had it last.

What a task leaves is on its branch before the mark changes, so a free seat holds nothing of its own but what git
ignores: caches, for which it stays.  If a user changed something in it since, it is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.model.places import TASK_FILE, Place, Repository, Seats
from sessionrun.store import crashpoint
from sessionrun.store.files import read_regular, replace_file
from sessionrun.workspaces.books import MARK
from sessionrun.workspaces.fence import Fence
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.park import Brought, settle_index, write_worktree
from sessionrun.workspaces.registration import (
    find_admin,
    list_worktrees,
    load_branch,
    load_owner,
    read_head,
    remove_entry,
)

FREE: Final = "seat"
"""The first line of a free seat's mark; an owner has a slash."""

LEAVES: Final = "leaves "
"""What the third line of a mark begins with, once all work is on a branch; then the commit."""

OWN_RULES: Final = "sessionrun-rules"
"""In the administrative directory of a free seat: what git ignored there when its last task was released."""

_MARK_BYTES: Final = 4096


@frozen
class Free:
    """A seat that no task has: the commit that lies there, and the session that had it last."""

    commit: str
    session_id: str


def load_free(admin: Path) -> Free | None:
    """What the mark of a free seat says; None: the worktree is not one."""
    lines = _read_mark(admin)
    return Free(lines[1], lines[2]) if len(lines) > 2 and lines[0] == FREE else None


def list_free(repository: Repository, seats: Seats) -> list[tuple[Path, Path, Free]]:
    """The free seats of a repository: top, administrative directory, and mark."""
    found = []
    for top, admin in list_worktrees(repository):
        free = load_free(admin) if str(top.parent) == seats.directory else None
        if free is not None:
            found.append((top, admin, free))
    return found


def write_mark(admin: Path, *lines: str) -> None:
    """Replace the mark of a worktree."""
    path = admin / MARK
    mode = path.stat().st_mode & 0o777
    replace_file(path, "".join(f"{line}\n" for line in lines).encode(), durable=False, mode=mode)


def is_unchanged(fence: Fence, path: Path, admin: Path, free: Free, folder: Path) -> bool:
    """Whether a free seat lies there as its last task left it.

    Args:
        fence: of its repository.
        path: the seat.
        admin: its administrative directory.
        free: its mark.
        folder: where a private index may lie.

    Raises:
        GitError, OSError: it cannot be read.
    """
    if read_head(admin) != free.commit:
        return False
    ignore = ("--exclude-per-directory=.gitignore", f"--exclude-from={admin / OWN_RULES}")
    place = Place(branch=None, base_commit=free.commit)
    written = write_worktree(
        fence, fence.inside(path, admin), place, brought=Brought(path), ignore=ignore, folder=folder
    )
    return written.tree == written.head.tree and len(written.problems) == 1  # HEAD is on no branch


def leave_seat(git: Git, commit: str, *, brought: Brought, rules: bytes) -> None:
    """Free the seat in which `git` works: `commit`, which a ref holds, is all that is in it; under the lock.

    After a crash `is_leaving` goes on.

    Raises:
        OSError: it cannot be written.
    """
    admin = git.git_dir
    assert admin is not None
    _remove_links(git.directory, brought)
    settle_index(git, commit)
    replace_file(admin / OWN_RULES, rules, durable=False)
    crashpoint.step()
    write_mark(admin, *_read_mark(admin)[:2], f"{LEAVES}{commit}")
    crashpoint.step()
    _finish_leaving(admin)


def is_leaving(repository: Repository, path: Path) -> bool:
    """Whether a task was about to leave its seat when its job was killed: then it is free after this."""
    admin = find_admin(repository, path)
    leaves = admin is not None and any(line.startswith(LEAVES) for line in _read_mark(admin)[2:3])
    if admin is not None and leaves:
        _finish_leaving(admin)
    return leaves


def _finish_leaving(admin: Path) -> None:
    lines = _read_mark(admin)
    commit = lines[2].removeprefix(LEAVES)
    replace_file(admin / "HEAD", f"{commit}\n".encode(), durable=False, mode=0o644)
    crashpoint.step()
    write_mark(admin, FREE, commit, lines[0].partition("/")[0])


def drop_task_file(git: Git, place: Place) -> None:
    """Take the file of the current task away, unless the repository has one of that name."""
    path = git.directory / TASK_FILE
    if (path.is_symlink() or path.is_file()) and not is_tracked(git, TASK_FILE, place.base_commit):
        path.unlink()


def write_task_file(git: Git, prompt: str, base_commit: str) -> None:
    """Leave the task's prompt in the seat, unless the repository has something of that name.

    Raises:
        OSError: it cannot be written.
    """
    path = git.directory / TASK_FILE
    if is_tracked(git, TASK_FILE, base_commit):
        return
    remove_entry(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "wb") as stream:
        stream.write(prompt.rstrip("\n").encode("utf-8", "surrogateescape") + b"\n")


def is_tracked(git: Git, name: str, commit: str | None) -> bool:
    """Whether a commit has a file or directory of this name."""
    return bool(git("--literal-pathspecs", "ls-tree", "-z", commit or "HEAD", "--", name))


def is_seat_of(repository: Repository, path: Path, owner: str, branch: str) -> bool:
    """Whether a task has this seat, for this branch."""
    admin = find_admin(repository, path)
    return admin is not None and load_owner(admin) == owner and load_branch(admin) == branch


def _remove_links(top: Path, brought: Brought) -> None:
    for name in brought.links:
        if brought.has(name, top / name):
            (top / name).unlink()


def _read_mark(admin: Path) -> Sequence[str]:
    return os.fsdecode(_read(admin / MARK)).split("\n")


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _MARK_BYTES)
    except OSError:
        return b""
