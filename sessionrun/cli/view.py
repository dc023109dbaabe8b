"""What is true of a session right now, from its files alone: used by every verb that reads.

The lock is probed first and the files are read after, so that a session which ends in between is seen as
ended and never as dead.
"""

from __future__ import annotations

from typing import Any

from sessionrun.store import SessionDir


def load_view(session: SessionDir) -> dict[str, Any]:
    """The object of status.json, corrected for what is alive.

    Raises:
        StoreError: the session's files are damaged.
    """
    alive = session.is_alive()
    status = session.load_status()
    if status is None or not (alive or status["ended_at"]):
        status = _rebuild(session)
    if not alive and not status["ended_at"]:
        status = _without_supervisor(session, status)
    return {**status, "results_dir": str(session.path.absolute())}


def load_summary_view(session: SessionDir) -> dict[str, Any]:
    """The same for the summary, without reading the task table of a session that ended or runs."""
    alive = session.is_alive()
    summary = session.load_summary()
    if summary is None or not (alive or summary["ended_at"]):
        from sessionrun.status import project_summary

        summary = project_summary(load_view(session))
    return {**summary, "results_dir": str(session.path.absolute())}


def _rebuild(session: SessionDir) -> dict[str, Any]:
    """Fold the logs, as a supervisor would."""
    from sessionrun.fold import apply, begin
    from sessionrun.status import project

    state = begin(session.load_spec())
    for entry in session.load_journal()[0]:
        apply(state, entry)
    return project(state)


def _without_supervisor(session: SessionDir, status: dict[str, Any]) -> dict[str, Any]:
    """Look which tasks of a session that nobody runs still have a process."""
    from sessionrun import processes
    from sessionrun.journal import read_log
    from sessionrun.ledger import fold_ledger
    from sessionrun.status import summarise

    ledger = fold_ledger(read_log(session.ledger_path).payloads)
    same_machine = ledger.boot_id == processes.boot_id() and ledger.pid_ns == processes.pid_namespace()
    living: set[str] = set()
    lost: dict[str, str] = {}
    for key, job in ledger.jobs.items():
        task = key.split("/")[0]
        lost.pop(task, None)
        living.discard(task)
        if not job.tried or job.errno is not None:
            continue
        if job.wait_status is not None:
            lost[task] = f"nobody was left to judge its end (wait status {job.wait_status})"
        elif same_machine and job.pid and processes.is_alive(processes.Identity(job.pid, job.started or 0)):
            living.add(task)
        else:
            lost[task] = "its process is gone and nobody saw it end"
    return summarise(status, alive=False, living=living, lost=lost)
