"""Checks of a session's worktrees against their repository.  Nothing is changed here; `clean` repairs.

A branch that holds work is not a finding: the user merges it at any time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sessionrun.client.doctor.evidence import Evidence
from sessionrun.client.doctor.finding import Finding
from sessionrun.model.errors import JobFileError
from sessionrun.model.places import Repository
from sessionrun.model.repositories import repository_of
from sessionrun.workspaces.request import Claim


def check_worktrees(evidence: Evidence) -> Iterator[Finding]:
    """Whether worktrees that git lists are there, and none was left by a crash; one may have been removed."""
    from sessionrun.workspaces.request import load_claim

    state, spec = evidence.state, evidence.spec
    if state is None or spec is None:
        return
    if spec.repository is not None and not os.path.isdir(spec.repository.common_dir):
        plan = "if it was moved, move it back; if it was deleted, its branches went with it"
        yield Finding("worktrees", "warning", spec.repository.common_dir, "the session's repository is gone", plan)
        return
    for task in state.tasks.values():
        busy = task.active if evidence.alive else not evidence.ended
        if busy:
            continue
        named = task.place.worktree if task.place else None
        for folder in sorted((evidence.session.path / "jobs" / task.spec.id).glob("a*-prepare*")):
            try:
                claim = load_claim(folder)
            except JobFileError as error:
                what = f"its claim cannot be read: {error.why}"
                yield Finding("worktrees", "error", error.path, what, "look at it")
                continue
            repository = None if claim is None else repository_of(spec, task.spec, claim.start)
            if claim is not None and repository is not None:
                yield from _check_claim(evidence, repository, claim, named)


def check_landings(evidence: Evidence) -> Iterator[Finding]:
    """Whether a landing was killed while it moved a branch: its lock keeps git out of the user's checkout."""
    from sessionrun.client.reading.landed import find_killed_landings, has_landings

    if evidence.spec is None or evidence.alive or not has_landings(evidence.session):
        return
    for path in find_killed_landings(evidence.session):
        plan = f"sessionrun merge {evidence.session.session_id}"
        yield Finding("landings", "warning", str(path), "a landing was killed and left it", plan)


def _check_claim(evidence: Evidence, repository: Repository, claim: Claim, named: str | None) -> Iterator[Finding]:
    from sessionrun.workspaces.git_locks import STALE_LOCK_S
    from sessionrun.workspaces.registration import (
        find_admin,
        find_branch_lock,
        find_lost_admins,
        load_owner,
        trash_path,
    )

    path = Path(claim.worktree)
    admin = find_admin(repository, path)
    if path.is_dir() and claim.worktree != named and admin is not None and load_owner(admin) == claim.owner:
        what = "a worktree of no task, left by a crash"
        yield Finding("worktrees", "warning", str(path), what, _clean(evidence))
    if not path.exists():
        for lost in find_lost_admins(repository, path):
            if load_owner(lost) == claim.owner:
                what = f"git still lists the worktree {path}, which is gone"
                plan = f"git -C {repository.top} worktree prune"
                yield Finding("worktrees", "warning", str(lost), what, plan)
    trash = trash_path(path, claim.owner)
    if trash.exists():
        what = "a worktree whose removal was broken off"
        yield Finding("worktrees", "warning", str(trash), what, _clean(evidence))
    lock = find_branch_lock(repository, claim.branch)
    try:
        stale = evidence.now - lock.stat().st_mtime > STALE_LOCK_S
    except OSError:
        return
    if stale:
        what = "a lock that a killed git left: the branch cannot be changed"
        yield Finding("worktrees", "warning", str(lock), what, _clean(evidence))


def _clean(evidence: Evidence) -> str:
    return f"sessionrun clean --worktrees {evidence.session.session_id}"
