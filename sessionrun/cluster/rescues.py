"""The work in progress of a task on a node, as packs that its session keeps in case the node never comes back.

A pack holds a commit of all that lies in the worktree.  No ref, index or file of the worktree changes.  Its name
tells its number and its commit.  What only looks at names loads no git.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.model.errors import SessionrunError
from sessionrun.store.files import make_directories, replace_file

if TYPE_CHECKING:
    from sessionrun.worktrees.request import WorkspaceRequest

FOLDER: Final = "rescue"
"""In the folder of a WORK on a node: what says how to make packs of its worktree."""

MAX_BYTES: Final = 16 * 1024 * 1024

_NAME: Final = re.compile(r"rescue-([0-9]{6})-([0-9a-f]{40,64})\.pack")


# --- packs in the folder of a job ---


def list_packs(folder: Path) -> list[Path]:
    """The packs in the folder of a job, the newest first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [folder / name for name in sorted(filter(_NAME.fullmatch, names), reverse=True)]


def commit_of(pack: Path) -> str:
    return pack.stem.split("-")[2]


def drop_older(pack: Path) -> None:
    """Delete the packs in the folder of a new one but for that and the one before it; if it is none, nothing."""
    if _NAME.fullmatch(pack.name):
        for old in list_packs(pack.parent)[2:]:
            old.unlink(missing_ok=True)


# --- on the node ---


def make_pack(folder: Path, scratch: Path) -> Path | None:
    """Make a pack of the worktree of the job in `folder`, if something is in it that the last pack lacks.

    It comes there by one rename; other files go to `scratch`.

    Raises:
        SessionrunError, OSError: it cannot be made, or is too big.
    """
    from sessionrun.cluster.replica import ReplicaWish, pack_objects
    from sessionrun.git.git import Git
    from sessionrun.store.jobfiles import REPLICA, REQUEST, load_record
    from sessionrun.worktrees.request import WorkspaceRequest

    request = load_record(folder / FOLDER / REQUEST, WorkspaceRequest)
    known = load_record(folder / FOLDER / REPLICA, ReplicaWish).known
    make_directories(scratch, 0o700)
    last = next(iter(list_packs(folder)), None)
    commit = _make_commit(request, scratch, commit_of(last) if last is not None else None)
    if commit is None or commit in known:
        return None
    content = pack_objects(Git(Path(request.repository.top), limit_s=request.git_limit_s), [commit], known)
    if len(content) > MAX_BYTES:
        raise SessionrunError(
            f"the work has {len(content)} bytes: more than {MAX_BYTES} are not kept for a rescue"
        )
    number = 1 if last is None else int(last.stem.split("-")[1]) + 1
    path = folder / f"rescue-{number:06}-{commit}.pack"
    replace_file(scratch / "pack", content, durable=False)
    os.rename(scratch / "pack", path)
    return path


def _make_commit(request: WorkspaceRequest, scratch: Path, last: str | None) -> str | None:
    """A commit of what lies in the worktree; None: the `last` one has the same, or the worktree is gone."""
    from sessionrun.git.private import open_fence
    from sessionrun.worktrees.park import write_worktree
    from sessionrun.worktrees.site import find_site, find_worktree

    with open_fence(request.repository, scratch, limit_s=request.git_limit_s) as fence:
        path = find_worktree(request)
        if path is None or request.place is None:
            return None
        site = find_site(fence, request, path, scratch)
        git, written = site.git, write_worktree(site)
        if last is not None and git.line("rev-parse", f"{last}^{{tree}}") == written.tree:
            return None
        if written.tree == written.head.tree:
            return written.head.commit
        return git.commit_tree(written.tree, [written.head.commit], f"Work in progress of task {request.task}\n")


def main() -> None:
    """Make one pack: ``argv[1]`` is the folder of the job, ``argv[2]`` one for other files."""
    os.nice(10)
    try:
        make_pack(Path(sys.argv[1]), Path(sys.argv[2]))
    except (SessionrunError, OSError) as error:
        sys.exit(f"{sys.argv[1]}: its work cannot be packed: {error}")
