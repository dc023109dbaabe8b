"""The end of a SETUP in a worktree: what it left is committed, so that it does not count as work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Place
from sessionrun.store.files import replace_file
from sessionrun.workspaces.fence import open_fence
from sessionrun.workspaces.git_locks import break_own_locks
from sessionrun.workspaces.park import commit_setup
from sessionrun.workspaces.registration import prepare_jobs
from sessionrun.workspaces.release import find_site, find_worktree, word_message
from sessionrun.workspaces.request import CLAIM, WorkspaceRequest
from sessionrun.workspaces.seats import is_leaving


def settle(request: WorkspaceRequest, folder: Path) -> Place:
    """Commit what SETUP left; done again after a crash, do it once.

    If the attempt goes on with earlier work, this commit is a part of the work: the attempt counts as begun there,
    and the work as begun where it was.  In any other attempt the work counts as begun at this commit.

    Raises:
        SessionrunError, OSError: it could not be committed; the worktree is as it was.
    """
    place = request.place
    assert place is not None and place.worktree is not None
    with open_fence(request.repository, folder, limit_s=request.git_limit_s) as fence:
        break_own_locks(request, folder, Path(place.worktree))
        site = find_site(fence, request, Path(place.worktree), folder)
        begins_at = commit_setup(site, word_message("Setup", request))
    if request.walls is not None:
        from sessionrun.workspaces.view import renew_view  # only walled tasks need it

        renew_view(request, place)
    if place.taken_up is not None:
        return replace(place, taken_up=begins_at or place.taken_up)
    for job, claim in prepare_jobs(folder):
        if claim.branch == place.branch:
            replace_file(job / CLAIM, orjson.dumps(replace(claim, setup_commit=begins_at)), durable=False)
    return replace(place, setup_commit=begins_at)


def settle_first(request: WorkspaceRequest, folder: Path) -> WorkspaceRequest:
    """The request of a RELEASE; if no work has begun, what a broken-off SETUP has left is told from work first."""
    place = request.place
    if request.worked or place is None or place.worktree is None or place.setup_commit is not None:
        return request
    path = find_worktree(request)
    if path is not None and not is_leaving(request.repository, path):
        try:
            place = settle(replace(request, place=replace(place, worktree=str(path))), folder)
        except SessionrunError:
            return request  # RELEASE finds the same fault, keeps the worktree and says why
    else:  # an earlier start of this job has removed it
        claims = [claim for _, claim in prepare_jobs(folder) if claim.branch == place.branch]
        place = replace(place, setup_commit=claims[-1].setup_commit if claims else None)
    return replace(request, place=place)
