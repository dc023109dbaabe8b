"""Folds spec and journal to a session's state, as a supervisor would, and to what status.json shows.

Records that are good one by one may still not fit each other.  That is damage, too, and becomes one error that
names the record, for readers, for `resume` and for the supervisor.

What a new supervisor makes of the ledger stands here, too: which jobs of the journal never ran, live, ended, or
are lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from sessionrun.engine import moves
from sessionrun.engine.fold import apply
from sessionrun.engine.rules import Rules
from sessionrun.engine.state import State
from sessionrun.engine.status import project
from sessionrun.house import HOUSE, load
from sessionrun.model.errors import StoreError
from sessionrun.model.events import JobClaimed, JobLost, JobStarted
from sessionrun.model.keys import JobKey
from sessionrun.session.executor import UNSEEN, Exit, Notice, name_left
from sessionrun.store.journal import told_as_damage
from sessionrun.store.ledger import Ledger, LedgerJob

if TYPE_CHECKING:
    from pathlib import Path

    from sessionrun.model.events import Entry
    from sessionrun.model.spec import SessionSpec, TaskSpec
    from sessionrun.store.journal import LogContents
    from sessionrun.store.session import SessionDir


def begin(spec: SessionSpec) -> State:
    """The state before anything happened, with the rules of the businesses that the session has."""
    rows = [row.rules for row in HOUSE if row.rules and getattr(spec, row.asked) is not None]
    rules: list[Rules] = [load(name) for name in rows]
    return moves.begin(spec, tuple(rules))


def replay(session: SessionDir, until: int | None = None) -> tuple[State, list[Entry], LogContents]:
    """The state, the entries it was folded from, and the journal as it was read.

    Args:
        session: the session.
        until: the number of the last record that counts; None: all count.

    Raises:
        StoreError: spec or journal are damaged, or a newer version's.
    """
    spec = session.load_spec()
    entries, contents = session.load_journal()
    if until is not None:
        entries = [entry for entry in entries if entry.seq <= until]
    return fold_entries(session, spec, entries), entries, contents


def fold_entries(session: SessionDir, spec: SessionSpec, entries: Iterable[Entry]) -> State:
    """The state to which the entries of a journal fold.

    Raises:
        StoreError: spec or journal are damaged.
    """
    with told_as_damage(session.spec_path):
        state = begin(spec)
    done = 0
    with told_as_damage(session.journal_path, lambda: f" at record {done + 1}"):
        for entry in entries:
            apply(state, entry)
            done += 1
    return state


def load_tasks(session: SessionDir) -> dict[str, TaskSpec]:
    """All tasks of a session by id: those of its launch, and those that were added since.

    Raises:
        StoreError: spec or journal are damaged, or a newer version's.
    """
    entries, _ = session.load_journal()
    return {task.id: task for task in _widen(session, entries).tasks}


def load_spec_now(session: SessionDir) -> SessionSpec:
    """The spec with the tasks and agents that were added since the launch, as far as the journal can be read.

    Raises:
        StoreError: the spec is damaged, or a newer version's.
    """
    try:
        entries, _ = session.load_journal()
    except (StoreError, OSError):
        entries = []
    return _widen(session, entries)


def _widen(session: SessionDir, entries: Iterable[Entry]) -> SessionSpec:
    """The spec after these entries; what a retry changed only the state knows."""
    from dataclasses import replace

    from sessionrun.engine.requests import widen_spec
    from sessionrun.model.events import RequestReceived, TaskAdded, TasksAdded

    spec = session.load_spec()
    fed: dict[str, TaskSpec] = {}
    for event in (entry.event for entry in entries):
        if isinstance(event, RequestReceived) and event.change is not None:
            return replay(session)[0].spec
        if isinstance(event, TasksAdded):
            spec = widen_spec(spec, event)
        elif isinstance(event, TaskAdded):
            fed[event.task.id] = event.task
    return replace(spec, tasks=(*spec.tasks, *fed.values())) if fed else spec


_Known = TypeVar("_Known")


def find_task(session: SessionDir, tasks: Mapping[str, _Known], task_id: str) -> _Known:
    """What a session's own files have of a task that status.json shows.

    Raises:
        StoreError: they know no such task.
    """
    if task_id not in tasks:
        raise StoreError(f"{session.spec_path} is damaged: it lacks the task {task_id!r:.140} of status.json")
    return tasks[task_id]


def find_damage(session: SessionDir) -> str | None:
    """Which of its logs is damaged, and at which byte; such a session cannot go on.  None: both are whole."""
    from sessionrun.store.journal import read_log

    for path in (session.journal_path, session.ledger_path):
        damage_at = read_log(path).damage_at
        if damage_at is not None:
            return describe_damage(path, damage_at)
    return None


def describe_damage(path: Path, offset: int) -> str:
    """That a log is damaged from this byte on."""
    return f"{path.absolute()} is damaged at byte {offset}: nothing can be decided from it"


def project_status(session: SessionDir, state: State) -> dict[str, Any]:
    """The object of status.json for this state.

    Raises:
        StoreError: the journal holds what cannot be shown.
    """
    with told_as_damage(session.journal_path, lambda: f" in its first {state.seq} records"):
        return project(state)


def find_unclaimed(state: State, ledger: Ledger) -> Iterator[JobClaimed]:
    """Claims that the ledger knows and the journal does not: it lost its unsynced end when the power went."""
    for task in state.tasks.values():
        if task.job is None and task.outcome is None and task.next_key().text() in ledger.jobs:
            yield JobClaimed(task.next_key())
    for rules in state.rules:
        key = rules.starts(state, math.inf)
        if key is not None and key.text() in ledger.jobs:
            yield JobClaimed(key)


def find_notices(state: State, ledger: Ledger, offset: int) -> Iterator[Notice]:
    """What happened to the jobs that are running as far as the journal knows.

    Args:
        state: folded from the journal, after the claims of `find_unclaimed`.
        ledger: folded up to the keeper's hello; its last keeper is the one that lives now.
        offset: where that was (bytes).
    """
    for task in state.tasks.values():
        if task.job is None or task.job.node is not None:
            continue  # what became of a job on a node, its cluster will tell
        key = task.job.key
        job = ledger.jobs.get(key.text())
        if job is not None and job.pid is not None and task.job.pid is None:
            yield JobStarted(key, job.pid, job.started or 0, offset)
        notice = judge_job(key, job, ledger, offset, was_seen=task.job.pid is not None)
        if notice is not None:
            yield notice


def judge_job(key: JobKey, job: LedgerJob | None, ledger: Ledger, offset: int, *, was_seen: bool) -> Notice | None:
    """Return the end of a job by the ledger; None: it runs.  `was_seen`: the journal has seen its process."""
    if job is None:
        return _judge_missing(key, was_seen=was_seen)
    if job.wait_status is not None:
        return Exit(key, job.wait_status, offset, left=name_left(job.left)) if job.gone else None
    same_boot = (job.boot_id, job.pid_ns) == (ledger.boot_id, ledger.pid_ns)
    if job.never_ran and (same_boot or job.tried):
        if was_seen and job.errno is None:
            return _judge_missing(key, was_seen=True)
        return JobLost(key, "void", "it was claimed and not started", counts=False)
    if job.errno is not None:
        return Exit(key, None, offset, errno=job.errno)
    if job.boot_id != ledger.boot_id:
        return JobLost(key, "interrupted", "the machine was restarted while it ran", gone=True)
    if job.lost:
        # whether a process of another container lives cannot be seen
        gone = True if same_boot and job.pid is not None else None
        return JobLost(key, "lost", UNSEEN, gone=gone)
    return None


def _judge_missing(key: JobKey, *, was_seen: bool) -> JobLost:
    """The ledger has no record of its start; `was_seen` is whether the journal has."""
    if was_seen:  # the ledger was cut: to start it anew would run it twice
        return JobLost(key, "lost", "it was started, and the ledger has lost the record of it")
    return JobLost(key, "void", "it was not started", counts=False)
