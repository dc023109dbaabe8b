"""What `doctor` and `clean` find of worktrees, branches, mirrors, environments, and of locks in repositories.

`doctor` changes nothing of it: `clean` and `resume` do.  A branch that holds work is not a finding: the user
merges it at any time.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.client.evidence import Evidence, find_marked, find_recorded
from sessionrun.client.findings import Finding, Findings, Kind, Leftover, error, warning
from sessionrun.engine.task import TaskState
from sessionrun.model.errors import JobFileError, SessionrunError
from sessionrun.model.places import Repository
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.spec import TaskSpec, title_of
from sessionrun.store import locks
from sessionrun.store.jobfiles import ANSWER

if TYPE_CHECKING:
    from sessionrun.worktrees.clean import Claimed
    from sessionrun.worktrees.request import Claim

# --- worktrees ---


def check_worktrees(evidence: Evidence) -> Iterator[Finding]:
    """Whether worktrees that git lists are there, and none was left by a crash; one may have been removed."""
    from sessionrun.worktrees.registration import find_claims

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
        for _, claim in find_claims(evidence.session.path / "jobs" / task.spec.id):
            if isinstance(claim, JobFileError):
                yield error(claim.path, f"its claim cannot be read: {claim.why}", "look at it")
            elif (repository := repository_of(spec, task.spec, claim.start)) is None:
                continue  # no job of ours makes a claim there
            elif os.path.isdir(repository.common_dir):
                yield from _check_claim(f"{spec.session_id}/{task.spec.id}", repository, claim, named)
            elif os.path.isdir(claim.worktree):
                shows = f"sessionrun diff {spec.session_id} shows the work; take what else you need"
                plan = f"{shows}, then: rm -r {shlex.quote(claim.worktree)}"
                yield error(claim.worktree, f"its repository {repository.common_dir} is gone", plan)


def _check_claim(owner: str, repository: Repository, claim: Claim, named: str | None) -> Iterator[Finding]:
    from sessionrun.worktrees import registration

    clean = f"sessionrun clean --worktrees {owner.partition('/')[0]}"
    path = Path(claim.worktree)
    admin = registration.find_admin(repository, path)
    is_ours = admin is not None and registration.load_owner(admin) == owner
    if path.is_dir() and claim.worktree != named and is_ours:
        yield warning(path, "a worktree of no task, left by a crash", clean)
    trash = registration.trash_path(path, owner)
    if trash.exists():
        yield warning(trash, "a worktree whose removal was broken off", clean)


def check_git(_: Path) -> Iterator[Finding]:
    from sessionrun.git import git

    plan = f"install git {'.'.join(map(str, git.MINIMUM))} or newer; only --worktree needs it"
    try:
        version = git.version(Path("/"))
    except SessionrunError as fault:
        yield warning("git", str(fault), plan)
        return
    if version < git.MINIMUM:
        yield warning("git", f"this is {'.'.join(map(str, version))}", plan)


# --- what `clean` takes away of a session ---


def take_away(evidence: Evidence, *, dry_run: bool) -> Iterator[Leftover]:
    """What went of the worktrees and branches of a session, or stays."""
    from sessionrun.worktrees.clean import LOCK_NAME, clean_seats

    tasks_at_launch = () if evidence.spec is None else evidence.spec.tasks
    if evidence.fault is evidence.journal_fault is not None and not any(map(has_worktree, tasks_at_launch)):
        return  # a damaged journal is no reason to keep it
    session, state = evidence.session, evidence.require()
    tasks = [task for task in state.tasks.values() if has_worktree(task.spec)]
    if not tasks or not (session.path / "jobs").is_dir():
        return
    marked = find_marked().get(session.session_id, ())
    living = {survivor.task for survivor in (*marked, *find_recorded(evidence.ledger))}  # these may write there
    with locks.hold_lock(session.path / "jobs" / LOCK_NAME, 0o600):
        for task in tasks:
            if task.spec.id in living:
                name, why = (task.place and task.place.worktree) or task.spec.id, f"task {task.spec.id} still runs"
                yield Leftover("worktree", name, False, why, session.session_id, task=task.spec.id)
            else:
                yield from _clean_task(evidence, task, dry_run=dry_run)
        seats, repository = state.spec.seats, state.spec.repository
        if not living and seats is not None and repository is not None and os.path.exists(repository.common_dir):
            yield from clean_seats(repository, seats, session.path, session.session_id, dry_run=dry_run)


def _clean_task(evidence: Evidence, task: TaskState, *, dry_run: bool) -> Iterator[Leftover]:
    """Clean what a task's claims name; what cannot be read, or written, stays, and the others go on."""
    from sessionrun.worktrees.clean import clean_claimed

    session_id, spec = evidence.session.session_id, evidence.require().spec
    claimed, unreadable = _list_claimed(evidence, task.spec)
    for each in claimed:
        home, path = each.request.repository, each.claim.worktree
        try:
            if os.path.exists(home.common_dir):
                yield from clean_claimed(each, dry_run=dry_run)
            elif os.path.exists(path):  # all its branches went with its repository
                yield each.describe("worktree", path, f"{home.top} is gone", removed=False)
        except (SessionrunError, OSError) as error:
            yield each.describe("worktree", path, str(error), removed=False)
    for fault in unreadable:  # where the worktree is not known, the claim is named
        name, why = (task.place and task.place.worktree) or fault.path, f"its claim cannot be read: {fault}"
        repository = repository_of(spec, task.spec)
        top = None if repository is None else repository.top
        yield Leftover("worktree", name, False, why, session_id, top, task.spec.id)


def _list_claimed(evidence: Evidence, task: TaskSpec) -> tuple[list[Claimed], list[JobFileError]]:
    """What a task's claims name, each name once, and the claims that cannot be read."""
    from sessionrun.worktrees.clean import Claimed
    from sessionrun.worktrees.registration import find_claims
    from sessionrun.worktrees.request import WorkspaceRequest

    session, spec = evidence.session, evidence.require().spec
    claimed: dict[tuple[str, str], Claimed] = {}
    unreadable: list[JobFileError] = []
    for folder, claim in find_claims(session.path / "jobs" / task.id):
        if isinstance(claim, JobFileError):
            unreadable.append(claim)
            continue
        repository = repository_of(spec, task, claim.start)
        if repository is None:
            continue  # no job of ours makes a claim there
        name = claim.branch, claim.worktree  # claimed again, if nothing had come of an earlier claim
        whose = repository, session.session_id, task.id, title_of(task), task.links
        request = WorkspaceRequest(*whose, upstream=task.upstream)
        # no other job of the attempt begins before that is on the disk
        worked = os.path.lexists(folder / ANSWER) or (name in claimed and claimed[name].worked)
        claimed[name] = Claimed.of(request, claim, folder, worked=worked)
    return list(claimed.values()), unreadable


def sweep_repository(repository: Repository) -> None:
    """Remove the lock of worktrees and directories that are empty, if no process uses them."""
    from sessionrun.worktrees.registration import LOCK_NAME, register_lock

    common, unused = Path(repository.common_dir), [Path(repository.worktree_dir)]
    if common.is_dir():
        with register_lock(repository), suppress(OSError):  # PREPARE makes the directory under the same lock
            unused.pop().rmdir()
        locks.remove_free(common / LOCK_NAME)
        unused.append(common / "refs" / "sessionrun")  # git leaves the directory of refs that are gone
        if not os.path.lexists(repository.worktree_dir):  # no task is at work behind a link to it
            unused.append(common / "lfs")  # made by `git.private`
    for path in unused:
        with suppress(OSError):  # something is in it, or it is not there
            path.rmdir()


# --- what `clean --cache` takes away ---


def list_kinds() -> tuple[Kind, ...]:
    from sessionrun.git.mirrors import iterate_mirrors, remove_mirror
    from sessionrun.store.trees import iterate_entries, remove_unused
    from sessionrun.worktrees.request import ENTRY, ENVIRONMENTS, MANIFEST

    return (
        Kind("mirror", iterate_mirrors, remove_mirror),
        Kind(
            "environment",
            lambda cache: iterate_entries(
                cache / ENVIRONMENTS, lambda name: bool(ENTRY.fullmatch(name)), MANIFEST
            ),
            lambda entry, **kind: remove_unused(entry.path, **kind),
        ),
    )


FINDINGS: Final = Findings(
    session_checks={"worktrees": check_worktrees},
    machine_checks={"git": check_git},
    take_away=take_away,
    sweep_repository=sweep_repository,
    list_kinds=list_kinds,
)
