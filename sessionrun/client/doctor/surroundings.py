"""What `doctor` finds around a session: its processes and those of its jobs, requests, worktrees, mirrors, disk.

Nothing here is changed: `clean`, `resume` and `merge` do that, and a mirror may hold work.  A branch that holds
work is not a finding: the user merges it at any time.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sessionrun.client.evidence import Evidence, find_recorded
from sessionrun.client.findings import Finding, error, warning
from sessionrun.client.reading.stopped import find_stopped
from sessionrun.engine.task import TaskState
from sessionrun.model.errors import JobFileError, SessionrunError
from sessionrun.model.events import JobFinished, JobLost
from sessionrun.model.places import Repository
from sessionrun.model.repositories import repository_of
from sessionrun.store import processes
from sessionrun.store.ballast import describe_shortage, find_shortage
from sessionrun.store.damage import describe_rest
from sessionrun.store.locks import is_held
from sessionrun.workspaces.request import Claim

LINGERS_AFTER_S: Final = 60.0
"""A supervisor that has ended its session leaves within moments; a request is taken within moments."""


# --- who lives ---


def check_disk(evidence: Evidence) -> Iterator[Finding]:
    """Whether the disk has room for a session that goes on."""
    shortage = None if evidence.ended or not evidence.begun else find_shortage(evidence.session.path)
    if shortage is not None:
        what = f"its disk is full: {describe_shortage(shortage)}: nothing new starts"
        plan = "make room; `cancel` and `hold` work meanwhile, and ends are recorded once there is room"
        yield error(evidence.session.path, what, plan)


def check_interrupted(evidence: Evidence) -> Iterator[Finding]:
    """Whether a process runs a session that has not ended."""
    if evidence.alive or evidence.ended or evidence.spec is None or not evidence.begun:
        return
    if evidence.can_resume:
        what, plan = "it has not ended, and no process runs it", f"go on with it: {_resume(evidence)}"
    else:
        what = "no process runs it, and it cannot go on: its logs cannot be used"
        plan = describe_rest(evidence.session.session_id)
    yield warning(evidence.session.path, what, plan)


def check_lingering(evidence: Evidence) -> Iterator[Finding]:
    """Whether a supervisor stays long after the end."""
    state, lock = evidence.state, evidence.session.path / "lock"
    if state is None or state.ended_at is None or evidence.now - state.ended_at < LINGERS_AFTER_S:
        return
    if evidence.alive and is_held(lock):
        pid = state.supervisor.pid if state.supervisor else "?"
        what = f"the session has ended, but its lock is held; its last supervisor was process {pid}"
        yield warning(lock, what, f"look at its supervisor.log and at the process: ps -p {pid}")


def check_stopped(evidence: Evidence) -> Iterator[Finding]:
    """Whether a process that runs the session is stopped."""
    known = (evidence.status or {}).get("processes")
    for role in find_stopped(known) if evidence.alive and not evidence.ended else ():
        pid = known[role]["pid"] if known else 0
        yield warning(
            evidence.session.path, f"its {role}, process {pid}, is stopped: nothing goes on", f"kill -CONT {pid}"
        )


def check_processes(evidence: Evidence) -> Iterator[Finding]:
    """Whether a job's process lives although the job has ended, or although no process runs the session."""
    events = (entry.event for entry in evidence.entries)
    over = {event.key.text() for event in events if isinstance(event, (JobFinished, JobLost))}
    ours = (survivor for survivor in evidence.marked if survivor.ours)
    by_key: dict[str, set[str]] = {}
    for survivor in (*find_recorded(evidence.ledger), *ours):
        is_orphan = not evidence.alive or survivor.key in over
        if is_orphan and processes.is_alive(survivor.process):  # it may have ended since we looked
            by_key.setdefault(survivor.key, set()).add(str(survivor.process.pid))
    for key, left in sorted(by_key.items()):
        pids = " ".join(sorted(left))
        plan = f"to stop it: kill -TERM {pids}"
        if evidence.can_resume and not (evidence.ended or key in over):
            plan += f"; to go on with the session: {_resume(evidence)}"
        why = "it has ended" if key in over else "no process runs the session"
        yield warning(evidence.session.path, f"job {key}: {why}, but process {pids} lives", plan)


def check_requests(evidence: Evidence) -> Iterator[Finding]:
    """Whether requests wait and no process takes them."""
    folder = evidence.session.path / "requests"
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return
    for path in paths:
        try:
            age_s = evidence.now - path.lstat().st_mtime
        except OSError:
            continue  # taken just now
        remove = f"rm {shlex.quote(str(path))}"
        if evidence.alive and age_s < LINGERS_AFTER_S:
            continue
        if evidence.ended:
            yield warning(path, "it came too late: the session has ended", f"remove it: {remove}")
        elif evidence.alive:
            plan = "see whether the supervisor is stopped or its disk is full"
            yield warning(path, "it was not taken for a minute", plan)
        elif not evidence.can_resume:
            yield warning(path, "it will not be taken: the session cannot go on", f"take it back: {remove}")
        else:
            plan = f"{_resume(evidence)} carries it out; or take it back: {remove}"
            yield warning(path, "it waits for a supervisor", plan)


def _resume(evidence: Evidence) -> str:
    return f"sessionrun resume {evidence.session.session_id}"


# --- worktrees ---


def check_worktrees(evidence: Evidence) -> Iterator[Finding]:
    """Whether worktrees that git lists are there, and none was left by a crash; one may have been removed."""
    from sessionrun.workspaces.request import load_claim

    state, spec = evidence.state, evidence.spec
    if state is None or spec is None:
        return
    if spec.repository is not None and not os.path.isdir(spec.repository.common_dir):
        plan = "if it was moved, move it back; if it was deleted, its branches went with it"
        yield warning(spec.repository.common_dir, "the session's repository is gone", plan)
        return
    idle = [task for task in state.tasks.values() if not (task.active if evidence.alive else not evidence.ended)]
    for task in idle:
        named = task.place.worktree if task.place else None
        for folder in sorted((evidence.session.path / "jobs" / task.spec.id).glob("a*-prepare*")):
            try:
                claim = load_claim(folder)
            except JobFileError as fault:
                yield error(fault.path, f"its claim cannot be read: {fault.why}", "look at it")
                continue
            repository = None if claim is None else repository_of(spec, task.spec, claim.start)
            if claim is not None and repository is not None:
                yield from _check_claim(evidence, repository, claim, named)


def _check_claim(evidence: Evidence, repository: Repository, claim: Claim, named: str | None) -> Iterator[Finding]:
    from sessionrun.workspaces import registration
    from sessionrun.workspaces.site import STALE_LOCK_S

    clean = f"sessionrun clean --worktrees {evidence.session.session_id}"
    path = Path(claim.worktree)
    admin = registration.find_admin(repository, path)
    is_ours = admin is not None and registration.load_owner(admin) == claim.owner
    if path.is_dir() and claim.worktree != named and is_ours:
        yield warning(path, "a worktree of no task, left by a crash", clean)
    for lost in () if path.exists() else registration.find_lost_admins(repository, path):
        if registration.load_owner(lost) == claim.owner:
            plan = f"git -C {repository.top} worktree prune"
            yield warning(lost, f"git still lists the worktree {path}, which is gone", plan)
    trash = registration.trash_path(path, claim.owner)
    if trash.exists():
        yield warning(trash, "a worktree whose removal was broken off", clean)
    lock = registration.find_branch_lock(repository.common_dir, claim.branch)
    try:
        is_stale = evidence.now - lock.stat().st_mtime > STALE_LOCK_S
    except OSError:
        return
    if is_stale:
        yield warning(lock, "a lock that a killed git left: the branch cannot be changed", clean)


def check_landings(evidence: Evidence) -> Iterator[Finding]:
    """Whether a landing was killed while it moved a branch: its lock keeps git out of the user's checkout."""
    from sessionrun.client.reading.landed import find_killed_landings, has_landings

    if evidence.spec is None or evidence.alive or not has_landings(evidence.session):
        return
    for path in find_killed_landings(evidence.session):
        plan = f"sessionrun merge {evidence.session.session_id}"
        yield warning(path, "a landing was killed and left it", plan)


# --- mirrors ---


def check_mirrors(evidence: Evidence) -> Iterator[Finding]:
    """Whether mirrors are there, as far as they are needed, and are mirrors of the right repositories.

    One that is gone is a finding only if the session still needs it; `clean --cache` removes what none needs.
    """
    from sessionrun.workspaces.mirrors import describe_fault

    state, spec = evidence.state, evidence.spec
    if state is None or spec is None or spec.mirrors is None:
        return
    by_mirror: dict[tuple[str, str], list[TaskState]] = {}
    for task in state.tasks.values():
        if task.spec.upstream is not None:
            by_mirror.setdefault((task.spec.upstream.mirror, task.spec.upstream.repo), []).append(task)
    for (mirror, repo), tasks in by_mirror.items():
        if not os.path.lexists(mirror):
            yield from _check_gone(evidence, mirror, repo, tasks)
        elif (why := describe_fault(Path(mirror), repo)) is not None:
            what = f"it is no mirror of {repo}: tasks cannot begin in it ({why})"
            plan = f"mv {shlex.quote(mirror)} {shlex.quote(f'{mirror}.old')}, and the next task fetches it again"
            yield error(mirror, what, plan, shared=True)


def _check_gone(evidence: Evidence, mirror: str, repo: str, tasks: list[TaskState]) -> Iterator[Finding]:
    assert evidence.spec is not None and evidence.spec.mirrors is not None
    session_id, site = evidence.session.session_id, evidence.spec.mirrors
    own = [task for task in tasks if task.spec.upstream is not None and task.spec.upstream.history is None]
    worktrees = [task.place.worktree for task in own if task.place is not None and task.place.worktree is not None]
    left = [path for path in worktrees if os.path.isdir(path)]
    lost = [task.spec.id for task in own if _is_lost(task)]
    what = f"the mirror of {repo} is gone"
    if left:
        shows = f"sessionrun diff {session_id} shows the work; take what else you need"
        what = f"{what}, and so these worktrees have no repository: {', '.join(left)}"
        yield error(mirror, what, f"{shows}, then: rm -r {shlex.join(left)}")
    elif lost:
        what = f"{what}, and with it the branches of: {', '.join(lost)}"
        yield error(mirror, what, f"sessionrun diff {session_id} shows their work")
    elif site.require_cache and not evidence.ended:
        words = shlex.join((site.cache_dir, evidence.spec.source or "FILE"))
        plan = f"sessionrun precache --cache-dir {words}"
        yield warning(mirror, f"{what}, and this session fetches nothing", plan)


def _is_lost(task: TaskState) -> bool:
    """Whether the task's work was on a branch of the mirror and is not in a local repository."""
    from sessionrun.workspaces.transport import open_room

    place, upstream = task.place, task.spec.upstream
    if place is None or upstream is None or place.branch is None or place.holds_no_work:
        return False
    if upstream.home is None or not os.path.isdir(upstream.home):
        return True
    try:
        with open_room(Path(upstream.home), "") as room:
            return room.git.commit_of(place.commit or f"refs/heads/{place.branch}") is None
    except (SessionrunError, OSError):
        return False  # it is not known
