"""What the jobs between PREPARE and RELEASE do in a worktree by git: keep a round's work, take it back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.store.files import replace_file
from sessionrun.workspaces.fence import open_fence
from sessionrun.workspaces.park import Site
from sessionrun.workspaces.release import find_site, find_worktree
from sessionrun.workspaces.request import Loop, WorkRequest, WorkspaceRequest
from sessionrun.workspaces.rounds import Kept, is_kept, keep_work, set_back, work_base

PATCH: Final = "round.patch"
"""In the folder of a job: what the round had changed."""

DONE: Final = "reset-done"
"""In the folder of a round's first WORK job: the worktree was set back; what lies there now is this round's."""


@contextmanager
def open_site(request: WorkspaceRequest, folder: Path) -> Iterator[Site]:
    """Git in the worktree of a task, for as long as it is needed.

    Raises:
        SessionrunError, OSError: there is no such worktree any more, or git fails.
    """
    with open_fence(request.repository, folder, limit_s=request.git_limit_s) as fence:
        path = find_worktree(request)
        if path is None:
            raise SessionrunError(f"the worktree {request.place and request.place.worktree} is gone")
        yield find_site(fence, request, path, folder)


def keep_round(loop: Loop, folder: Path) -> Kept:
    """Keep what lies in the worktree as the work of this round; its patch comes into the job's folder.

    Raises:
        SessionrunError, OSError: it cannot be kept.
    """
    with open_site(loop.workspace, folder) as site:
        return keep_work(site, loop.name, folder / PATCH)


def list_changes(loop: Loop, kept: Kept, folder: Path) -> list[tuple[str, str, str]]:
    """What a round had changed: path, lines added, lines deleted ("-" for a binary file) of each file.

    Raises:
        SessionrunError, OSError: git fails.
    """
    assert loop.workspace.place is not None
    words = ("diff-tree", "-r", "--numstat", "--no-renames", "--no-ext-diff", "-z")
    with open_fence(loop.workspace.repository, folder, limit_s=loop.workspace.git_limit_s) as fence:
        lines = fence.main().names(*words, work_base(loop.workspace.place), kept.tree)
    rows = [line.split("\t", 2) for line in lines]
    return [(path, added, deleted) for added, deleted, path in rows]


def take_back(request: WorkRequest, folder: Path) -> None:
    """Set the worktree back to where WORK began, once in a round; keep what is taken back, if no CHECK did.

    Raises:
        SessionrunError, OSError: it cannot be done.
    """
    done = Path(request.first, DONE)
    if os.path.lexists(done):
        return
    with open_site(request.loop.workspace, folder) as site:
        if not is_kept(site, request.loop.name):
            keep_work(site, request.loop.name, Path(request.before, PATCH))
        base = site.place.taken_up or work_base(site.place)
        set_back(site, base, base)
    workspace = request.loop.workspace
    if workspace.walls is not None and workspace.place is not None:
        from sessionrun.workspaces.view import renew_view  # only walled tasks need it

        renew_view(workspace, workspace.place)
    replace_file(done, b"", durable=True)
