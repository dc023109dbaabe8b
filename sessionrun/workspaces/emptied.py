"""Deletes RELEASE's branch if it holds no work: only branches with work stay, and its name is free again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import orjson

from sessionrun.model.places import Place
from sessionrun.store.files import replace_file
from sessionrun.workspaces.bases import holds_nothing
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.registration import read_heads, register_lock
from sessionrun.workspaces.request import CLAIM, Claim, WorkspaceRequest


def drop_empty_branch(
    request: WorkspaceRequest, main: Git, place: Place, jobs: Iterable[tuple[Path, Claim]]
) -> Place:
    """The place without its branch, if that holds nothing and its worktree is gone; else the place as it is.

    This is noted in the claim first: a new start after a crash finds neither worktree nor branch, as if the task
    had deleted both.

    Args:
        request: of the RELEASE.
        main: git in the repository.
        place: what the RELEASE found.
        jobs: the PREPARE jobs of its attempt, with their claims.
    """
    branch, base = place.branch, place.base_commit
    if branch is None or base is None or not place.holds_no_work or place.rescue or place.worktree:
        return place
    with register_lock(request.repository):
        tip = main.commit_of(f"refs/heads/{branch}")
        if tip is None or branch in read_heads(request.repository, None):
            return place
        if not holds_nothing(main, request.repository, branch, tip, base, place.setup_commit):
            return place
        for job, claim in jobs:
            if claim.branch == branch:
                replace_file(job / CLAIM, orjson.dumps(replace(claim, emptied=True)), durable=True)
        gone = main.attempt("update-ref", "-d", f"refs/heads/{branch}", tip).returncode == 0
    return replace(place, branch=None) if gone else place


def is_emptied(place: Place, jobs: Iterable[tuple[Path, Claim]]) -> bool:
    """Whether an earlier start of this RELEASE found that the place's branch holds nothing."""
    return any(claim.emptied and claim.branch == place.branch for _, claim in jobs)
