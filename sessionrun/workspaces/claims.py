"""Claims of PREPARE jobs: finding them, and taking back worktrees and branches that were never used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sessionrun.model.places import Repository
from sessionrun.store.files import read_regular
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.registration import (
    drop_branch,
    find_admin,
    load_branch,
    load_owner,
    read_branches,
    register_lock,
    take_back,
)
from sessionrun.workspaces.request import Claim, WorkspaceRequest, load_claim


def prepare_jobs(folder: Path) -> Iterator[tuple[Path, Claim]]:
    """The PREPARE jobs of a job's attempt that wrote a claim."""
    attempt = folder.name.partition("-")[0]
    for job in sorted(folder.parent.glob(f"{attempt}-*-prepare*")):
        claim = load_claim(job)
        if claim is not None:
            yield job, claim


def take_back_unused(main: Git, request: WorkspaceRequest, folder: Path) -> None:
    """Take back what other PREPARE jobs of this attempt began and did not finish: no task has worked there."""
    used = request.place.worktree if request.place else None
    for job, claim in prepare_jobs(folder):
        if job == folder or claim.worktree == used:
            continue
        with register_lock(request.repository):
            drop_unused(main, request, claim)


def drop_unused(main: Git, request: WorkspaceRequest, claim: Claim) -> None:
    """Take back what a claim names and no task worked in; a seat that was not taken yet stays, under the lock."""
    repository, path = request.repository, Path(claim.worktree)
    admin = find_admin(repository, path) if claim.seat is not None else None
    of_another = admin is not None and load_branch(admin) != claim.branch
    if is_untouched(request, path) and not of_another:
        take_back(main, repository, claim)
    elif claim.seat is not None and claim.branch not in read_branches(repository):
        drop_branch(main, repository, claim)


def is_untouched(request: WorkspaceRequest, path: Path) -> bool:
    """Whether a worktree in which no job worked may be taken away: it is ours, or has no owner; under the lock.

    A worktree without a mark is either half made, and empty, or another session's.
    """
    if not path.exists():
        return True
    admin = find_admin(request.repository, path)
    owner = load_owner(admin) if admin else None
    if owner is not None:
        return owner == request.owner
    if not path.is_dir():
        return False
    linked = admin is not None or _leads_nowhere(request.repository, path / ".git")
    return {entry.name for entry in path.iterdir()} <= ({".git"} if linked else set())


def _leads_nowhere(repository: Repository, link: Path) -> bool:
    """Whether a process was killed while it made a worktree here: its link names no administrative directory."""
    try:
        text = read_regular(link)
    except OSError:
        return False
    begun = b"gitdir: " + os.fsencode(Path(repository.common_dir, "worktrees")) + b"/"
    return begun.startswith(text) or (text.startswith(begun) and not os.path.exists(text[8:].rstrip(b"\n")))
