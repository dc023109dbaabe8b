"""Takes away the worktrees that a session was the last to have, when `clean` is asked to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Repository, Seats
from sessionrun.workspaces.clean import CleanResult
from sessionrun.workspaces.fence import Fence, open_fence
from sessionrun.workspaces.registration import register_lock, remove_tree, unregister
from sessionrun.workspaces.request import WORKSPACE_LIMIT_S
from sessionrun.workspaces.seats import GITIGNORE, Free, is_unchanged, list_free, load_free


def clean_seats(
    repository: Repository, seats: Seats, session: Path, session_id: str, *, dry_run: bool
) -> Iterator[CleanResult]:
    """Remove the free seats that no session took after this one; one in which a user worked since stays.

    Args:
        repository: whose worktrees they are.
        seats: where they lie.
        session: the session's directory, in which temporary files may be.
        session_id: the session, which has ended.
        dry_run: change nothing.
    """
    mine = [found for found in list_free(repository, seats) if found[2].session_id == session_id]
    if mine:
        folder = session.absolute() / "jobs"
        with (
            tempfile.TemporaryDirectory(prefix=".seats-", dir=folder) as made,
            open_fence(repository, Path(made), limit_s=WORKSPACE_LIMIT_S) as fence,
        ):
            for top, admin, free in mine:
                yield _clean_seat(fence, top, admin, free, Path(made), dry_run=dry_run)
    if not dry_run and seats.placement == "inside":
        _remove_folder(Path(seats.directory))


def _clean_seat(fence: Fence, top: Path, admin: Path, free: Free, folder: Path, *, dry_run: bool) -> CleanResult:
    trash = top
    with nullcontext() if dry_run else register_lock(fence.repository):
        why = _why_kept(fence, top, admin, free, folder)
        if why is None and not dry_run:
            trash = unregister(fence.repository, top, f"{free.session_id}/")
    if why is None and not dry_run:
        try:
            remove_tree(trash)
        except OSError as error:
            return CleanResult("trash", str(trash), None, False, str(error))
    return CleanResult(
        "worktree", str(top), None, why is None, why or "no task has it, and its work is on branches"
    )


def _why_kept(fence: Fence, top: Path, admin: Path, free: Free, folder: Path) -> str | None:
    if load_free(admin) != free:
        return "another session has it now"
    if (admin / "locked").exists():
        return "it is locked (git worktree lock)"
    try:
        unchanged = not top.exists() or is_unchanged(fence, top, admin, free, folder)
    except (SessionrunError, OSError) as error:
        return f"it cannot be read: {error}"
    return None if unchanged else "it has changes since its last task: commit them to a branch, or take them back"


def _remove_folder(folder: Path) -> None:
    """Remove the directory of the seats if nothing but our rules is in it."""
    rules = folder / ".gitignore"
    with suppress(OSError):
        if os.listdir(folder) == [rules.name] and rules.read_bytes() == GITIGNORE:
            rules.unlink()
        folder.rmdir()
