"""What a new supervisor makes of the ledger: which jobs of the journal never ran, live, ended, or are lost.

Pure.  The journal says what was decided, the ledger what became of it; the ledger wins:

| the ledger says of a job whose end the journal does not tell | then |
|---|---|
| less than the journal, which has seen its process | lost |
| nothing; or claimed, not tried, and on this boot; or refused for lack of room | never ran: started anew |
| it could not be started | it failed |
| it ended, and nothing of its tree is left | judged now |
| it was spawned, no end, its keeper watches it | it runs; its end will be told |
| its end was not seen | lost |
| any of it on another boot, without an end | interrupted |
"""

from __future__ import annotations

from collections.abc import Iterator

from sessionrun.engine.state import State
from sessionrun.model.events import JobClaimed, JobLost, JobStarted
from sessionrun.model.keys import JobKey
from sessionrun.session.executor import UNSEEN, Exit, Notice, name_left
from sessionrun.store.logs import Ledger, LedgerJob


def find_unclaimed(state: State, ledger: Ledger) -> Iterator[JobClaimed]:
    """Claims that the ledger knows and the journal does not: it lost its unsynced end when the power went."""
    for task in state.tasks.values():
        if task.job is None and task.outcome is None and task.next_key().text() in ledger.jobs:
            yield JobClaimed(task.next_key())
    for rules in state.rules:
        key = rules.starts(state)
        if key is not None and key.text() in ledger.jobs:
            yield JobClaimed(key)


def find_notices(state: State, ledger: Ledger, offset: int) -> Iterator[Notice]:
    """What happened to the jobs that run as far as the journal knows, which has the claims of `find_unclaimed`.

    The ledger is folded up to the keeper's hello, at `offset`; its last keeper is the one that lives now.
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
