"""The work in progress of a task on a node, as packs that its session keeps in case the node never comes back.

A pack holds a commit of all that lies in the worktree.  No ref, index or file of the worktree changes.  Its name
tells its number and its commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Place, Repository
from sessionrun.store.files import make_directories, open_regular
from sessionrun.store.jobfiles import load_record, load_request
from sessionrun.workspaces.commits import commit_tree
from sessionrun.workspaces.fence import open_fence
from sessionrun.workspaces.git import Git, GitError
from sessionrun.workspaces.park import write_worktree
from sessionrun.workspaces.release import find_site, find_worktree
from sessionrun.workspaces.replica import WISH, ReplicaWish, open_home, pack_objects, set_branch, take_pack
from sessionrun.workspaces.request import RESCUE_SUFFIX, WorkspaceRequest
from sessionrun.workspaces.rescue_names import FOLDER, commit_of, list_packs, number_of

MAX_BYTES: Final = 16 * 1024 * 1024


def make_pack(folder: Path, scratch: Path) -> Path | None:
    """Make a pack of the worktree of the job in `folder`, if something is in it that the last pack lacks.

    Args:
        folder: of the job; the pack comes into it by one rename.
        scratch: where other files may go.

    Raises:
        SessionrunError, OSError: it cannot be made, or is too big.
    """
    request = load_request(folder / FOLDER, WorkspaceRequest)
    known = load_record(folder / FOLDER / WISH, ReplicaWish).known
    make_directories(scratch, 0o700)
    last = next(iter(list_packs(folder)), None)
    commit = _make_commit(request, scratch, last)
    if commit is None or commit in known:
        return None
    content = pack_objects(Git(Path(request.repository.top), limit_s=request.git_limit_s), [commit], known)
    if len(content) > MAX_BYTES:
        raise SessionrunError(
            f"the work has {len(content)} bytes: more than {MAX_BYTES} are not kept for a rescue"
        )
    number = 1 if last is None else number_of(last) + 1
    with open(open_regular(scratch / "pack", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as stream:
        stream.write(content)
    path = folder / f"rescue-{number:06}-{commit}.pack"
    os.rename(scratch / "pack", path)
    return path


def _make_commit(request: WorkspaceRequest, scratch: Path, last: Path | None) -> str | None:
    """A commit of what lies in the worktree; None: the last pack has the same, or the worktree is gone."""
    place = request.place
    with open_fence(request.repository, scratch, limit_s=request.git_limit_s) as fence:
        path = find_worktree(request)
        if path is None or place is None:
            return None
        site = find_site(fence, request, path, scratch)
        git, written = site.git, write_worktree(site)
        if last is not None and git.line("rev-parse", f"{commit_of(last)}^{{tree}}") == written.tree:
            return None
        if written.tree == written.head.tree:
            return written.head.commit
        return commit_tree(git, written.tree, [written.head.commit], f"Work in progress of task {request.task}\n")


def take_rescue(repository: Repository, place: Place, folders: Iterator[Path]) -> Place | None:
    """Keep the newest work that came of a task whose node is lost, on a branch of its own; None: none came.

    Raises:
        SessionrunError: no name is free for the branch.
    """
    with open_home(repository) as git:
        for pack in (pack for folder in folders for pack in list_packs(folder)):
            commit = commit_of(pack)
            try:
                take_pack(git, pack)
            except (GitError, OSError):
                continue  # it did not come whole; the one before it did
            name = set_branch(git, f"{place.branch}{RESCUE_SUFFIX}", commit)
            return replace(place, rescue=name, commit=commit)
    return None
