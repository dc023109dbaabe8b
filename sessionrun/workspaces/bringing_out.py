"""How the commits of a walled task come out of its view (see `view`).

What reads the worktree outside of the walls first brings out the commits.  A program inside (`walls.export`)
prints where HEAD is, and a pack; both are checked here, and then the task's own branch, and HEAD of its worktree,
are moved to where they are inside.  No git of ours ever reads a view from outside.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Place
from sessionrun.store.files import read_regular, replace_file
from sessionrun.walls.argv import TMP_FOLDER, VIEW_FOLDER
from sessionrun.workspaces.exporting import CannotBringOut, Exported, export_view
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.large_files import take_large_files
from sessionrun.workspaces.links import is_behind_link
from sessionrun.workspaces.park import settle_index
from sessionrun.workspaces.registration import find_lost_admins, load_owner, remove_tree, trash_path
from sessionrun.workspaces.request import WorkspaceRequest
from sessionrun.workspaces.view import BroughtOut, load_brought, note_brought

LEFT: Final = "left-inside"
"""In a task's folder of walls: in one line what the task has in its view that does not come out."""

PACK: Final = "export.pack"
UNMERGED: Final = ".sessionrun-unmerged"
_MOVED: Final = "{} was moved from outside while the task ran"


def bring_out_of(request: WorkspaceRequest, git: Git) -> None:
    """Bring out the commits of the task of a request; `git` is in its worktree.

    Raises:
        SessionrunError, OSError: they cannot be brought out.
    """
    place, walls = request.place, Path(request.walls or "")
    if request.walls is None or place is None or place.branch is None or not (walls / VIEW_FOLDER).is_dir():
        return
    known = [commit for commit in (place.base_commit, place.setup_commit, place.taken_up) if commit]
    common_dir, limit_s = Path(request.repository.common_dir), request.export_limit_s
    bring_out(git, walls, common_dir, place.branch, known, limit_s=limit_s)


def try_to_bring_out(request: WorkspaceRequest, git: Git) -> str | None:
    """The same; returns in one line why the commits stay inside, and where that is, if they cannot come out."""
    try:
        bring_out_of(request, git)
    except (SessionrunError, OSError) as error:
        return f"{error}; its commits stay in {Path(request.walls or '', VIEW_FOLDER)}"
    return None


def bring_out_of_gone(request: WorkspaceRequest, main: Git, path: Path, folder: Path) -> None:
    """The same for a worktree that is gone from `path`, by its books, if the repository still has them.

    Args:
        request: of the RELEASE.
        main: git in the repository.
        path: where the worktree was.
        folder: a directory of ours that stands for it.

    Raises:
        SessionrunError, OSError: they cannot be brought out.
    """
    # An earlier start renames the worktree once all has come out; a kill may have left a part of the books.
    is_removed = trash_path(path, request.owner).exists()
    for admin in find_lost_admins(request.repository, path):
        if load_owner(admin) == request.owner and not (is_removed and not (admin / "HEAD").exists()):
            bring_out_of(request, replace(main, directory=folder, git_dir=admin))


def bring_out(
    git: Git, walls: Path, common_dir: Path, branch: str, known: Sequence[str], *, limit_s: float
) -> None:
    """Bring the commits of a walled task into its repository; branch and HEAD are then where the task left them.

    What is outside only moves if the task has moved it inside since the view was made or was brought out last.  So
    commits of ours that lie above the task's stay where they are, and those of a user who goes on in a worktree
    that was kept.  A second call changes nothing.

    Args:
        git: in the task's worktree; on trial nothing moves, and only what the view prints is checked.
        walls: the task's folder of walls.
        common_dir: the common directory of the repository.
        branch: the task's own.
        known: commits that the view has had since it was made; the first one is where the task began.
        limit_s: how long the program inside may take (seconds).

    Raises:
        CannotBringOut: the program inside fails, takes too long, or prints what cannot be used.
        GitError, OSError: it cannot be stored.
    """
    assert git.git_dir is not None
    name = f"refs/heads/{branch}"
    tip = git.commit_of(name)
    known = tuple(dict.fromkeys([*known, *([tip] if tip else [])]))
    pack = walls / PACK
    try:
        found = export_view(git, walls, common_dir, branch, known, pack, limit_s=limit_s)
        _check_there(git, found)
    finally:
        pack.unlink(missing_ok=True)
    if git.trial is not None:
        return
    take_large_files(walls / VIEW_FOLDER, common_dir)
    before = load_brought(walls)
    if before != found.state:
        _check_unmoved(git, name, tip, before, found)
        _move(git, name, tip, found)
        _stage(git, found.staged)
        note_brought(walls, found.state)
    replace_file(walls / LEFT, found.left.encode("utf-8", "replace"), durable=False)


def _check_unmoved(git: Git, name: str, tip: str | None, before: BroughtOut | None, found: Exported) -> None:
    """Check that what moves outside is where the task's view had it from.

    Raises:
        CannotBringOut: somebody outside has moved it.
    """
    if before is None:
        return
    moved = name if tip not in (before.own, found.own) else None
    if moved is None and git.commit_of("HEAD") not in (before.head, found.head):
        moved = "HEAD"
    if moved is not None:
        raise CannotBringOut(_MOVED.format(moved))


def read_left(walls: Path) -> str:
    """In one line what a task has in its view that did not come out; '' for nothing."""
    try:
        return read_regular(walls / LEFT, 1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""


def leave_walls(request: WorkspaceRequest, released: Place) -> Place:
    """View and /tmp of a walled task go with its worktree; a remark names what did not come out.

    What cannot be deleted stays, and goes with the session.
    """
    walls = Path(request.walls or "")
    left = read_left(walls)
    for path in (walls / VIEW_FOLDER, *walls.glob(f"{TMP_FOLDER}*")) if released.worktree is None else ():
        with suppress(OSError):
            remove_tree(path)
    return replace(released, remark="; ".join(part for part in (released.remark, left) if part) or None)


def _move(git: Git, name: str, tip: str | None, found: Exported) -> None:
    """Move the branch and HEAD; if HEAD is on another branch inside, it names none outside."""
    assert git.git_dir is not None
    if found.own is not None and found.own != tip and not git.set_ref(name, found.own, tip):
        raise CannotBringOut(_MOVED.format(name))
    if found.head is None:
        return
    was = git.commit_of("HEAD")
    if found.reference == name:
        git("symbolic-ref", "HEAD", name)
    else:
        git("update-ref", "--no-deref", "HEAD", found.head)
    if was != found.head or found.own != tip:
        settle_index(git, found.head)  # else a file that is committed, and ignored, would count as deleted
    merging = git.git_dir / "MERGE_HEAD"
    if found.merge:
        replace_file(merging, "".join(f"{commit}\n" for commit in found.merge).encode(), durable=False)
    else:
        merging.unlink(missing_ok=True)
    _mark_unmerged(git, unmerged=found.unmerged)


def _stage(git: Git, names: Sequence[str]) -> None:
    """Put files of the worktree into its index, as the task did inside: else ignored ones would be no work."""
    links: dict[str, bool] = {}
    there = [name for name in names if _is_file(git.directory, name, links)]
    if there:
        content = b"".join(os.fsencode(name) + b"\0" for name in there)
        git("update-index", "--add", "--remove", "--replace", "-z", "--stdin", stdin=content)


def _is_file(top: Path, name: str, links: dict[str, bool]) -> bool:
    """Whether a file or a link lies there, and not behind a link, where git takes none."""
    try:
        mode = os.lstat(os.path.join(top, name)).st_mode
    except (OSError, ValueError):
        return False
    return (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) and not is_behind_link(top, name, links)


def _mark_unmerged(git: Git, *, unmerged: bool) -> None:
    """Say in the worktree's own index whether a merge is unfinished inside: one entry stands for all.

    The index inside is not believed, so nothing else of it comes out.
    """
    marked = bool(git("ls-files", "--unmerged", "--", UNMERGED))
    if unmerged and not marked:
        blob = git.line("hash-object", "-w", "--stdin")
        git("update-index", "--index-info", stdin=f"100644 {blob} 2\t{UNMERGED}\n".encode())
    elif marked and not unmerged:
        git("update-index", "--force-remove", "--", UNMERGED)


def _check_there(git: Git, found: Exported) -> None:
    """Check that all that was named came whole.

    Raises:
        CannotBringOut: something is missing.
    """
    for commit in dict.fromkeys((found.head, found.own, *found.merge)):
        if commit is None:
            continue
        if git.commit_of(commit) != commit:
            raise CannotBringOut(f"the task names commit {commit}, and did not send it")
        done = git.attempt("rev-list", "--objects", "--quiet", commit, "--not", "--all")
        if done.returncode != 0:
            raise CannotBringOut(f"the task sent commit {commit} without all of its files")
