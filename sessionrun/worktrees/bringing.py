"""What a worktree, or a clean room, gets beside its commit: ignored files of the user's checkout, and links."""

from __future__ import annotations

import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Final

from sessionrun.git.git import Git
from sessionrun.git.links import describe_problem, find_name
from sessionrun.git.repository import included_files
from sessionrun.model.errors import SessionrunError
from sessionrun.store.files import expand_path
from sessionrun.worktrees.request import WorkspaceRequest

KEPT: Final = "included"


def kept_path(top: Path, owner: str) -> Path:
    """Where a node keeps the included files of a task, beside the replica `top`."""
    return top.parent / KEPT / sha256(os.fsencode(owner)).hexdigest()[:16]


def find_included(git: Git, request: WorkspaceRequest) -> tuple[Path, list[str]]:
    """The directory that has the included files, and their names: the checkout, or on a node what was sent."""
    top = Path(request.repository.top)
    if request.upstream is not None:  # a mirror has no files
        return top, []
    kept = kept_path(top, request.owner)
    if not kept.is_dir():
        return top, included_files(git)
    found = [Path(place, name) for place, _, names in os.walk(kept) for name in names]
    return kept, sorted(str(path.relative_to(kept)) for path in found)


def bring_files(git: Git, request: WorkspaceRequest, path: Path, *, in_room: bool = False) -> None:
    """Copy what `.worktreeinclude` names and link what the task asks for, out of the user's checkout.

    Args:
        git: in the user's checkout.
        path: the worktree or, with `in_room`, a clean room: there files of the work stay where a link would be.
    """
    top = Path(request.repository.top)
    origins, included = find_included(git, request)
    for name in included:
        if not os.path.lexists(path / name) and _is_inside(path / name, path):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(origins / name, path / name, follow_symlinks=False)
    for link in request.links:
        name, origin = find_name(str(top), link), Path(expand_path(str(top), link))
        if not in_room and (problem := describe_problem(str(top), request.links, link)) is not None:
            raise SessionrunError(f"links: {problem}")
        target = path / name
        if target.is_symlink() and target.readlink() == origin:
            continue  # an earlier start of this job did that
        gives_way = request.gives_way or (request.upstream is not None and request.upstream.history is not None)
        if gives_way and os.path.lexists(target):
            continue  # its links are those that are usual, as far as there is room for them
        if in_room and (os.path.lexists(target) or not _is_inside(target, path)):
            continue
        if os.path.lexists(target):
            raise SessionrunError(f"links: {link} is tracked by git, so the worktree has its own")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(origin)


def _is_inside(target: Path, top: Path) -> bool:
    """Whether no link, and no file, of the work stands in the way to the target."""
    parent = target.parent
    while parent != top:
        if parent.is_symlink() or (os.path.lexists(parent) and not parent.is_dir()):
            return False
        parent = parent.parent
    return True
