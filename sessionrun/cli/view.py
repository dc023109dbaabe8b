"""What is true of a session right now, from its files alone: used by every verb that reads.

The lock is probed first and the files are read after, so that a session which ends in between is seen as
ended and never as dead.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sessionrun.store import SessionDir

if TYPE_CHECKING:
    from sessionrun.state import State
    from sessionrun.status import Gone


def load_view(session: SessionDir) -> dict[str, Any]:
    """The object of status.json, corrected for what is alive.

    Raises:
        StoreError: the session's files are damaged.
    """
    alive = session.is_alive()
    status = session.load_status()
    if status is None or not (alive or status["ended_at"]):
        from sessionrun.status import project

        state = _fold_journal(session)
        status = project(state)
        if not alive and not status["ended_at"]:
            status = _without_supervisor(session, state, status)
    return {**status, "results_dir": str(session.path.absolute())}


def read_view(session: SessionDir) -> tuple[memoryview, bytes] | None:
    """`load_view` as JSON in two parts, unparsed, where status.json needs no correction; else None.

    The tasks of a large session take far longer to parse than all else that a poll does.
    """
    alive = session.is_alive()
    summary = session.load_summary()
    if summary is None or not (alive or summary["ended_at"]):
        return None
    content = session.read_status()
    if content is None:
        return None
    results_dir = json.dumps(str(session.path.absolute()))
    return memoryview(content)[:-2], f',"results_dir":{results_dir}}}\n'.encode()


def load_summary_view(session: SessionDir) -> dict[str, Any]:
    """The same for the summary, without reading the task table of a session that ended or runs."""
    summary = session.load_summary()
    if summary is None or not summary["ended_at"]:  # an end is final, whoever lives
        alive = session.is_alive()
        summary = session.load_summary()
        if summary is None or not (alive or summary["ended_at"]):
            from sessionrun.status import project_summary

            summary = project_summary(load_view(session))
    return {**summary, "results_dir": str(session.path.absolute())}


def _fold_journal(session: SessionDir) -> State:
    """The state as a supervisor would have it."""
    from sessionrun.fold import apply, begin

    state = begin(session.load_spec())
    entries, contents = session.load_journal()
    for entry in entries:
        apply(state, entry)
    if contents.damage_at is not None:
        from sessionrun.cli.render import warn

        warn(f"{session.journal_path} is damaged at byte {contents.damage_at}: what came later is not shown")
    return state


def _without_supervisor(session: SessionDir, state: State, status: dict[str, Any]) -> dict[str, Any]:
    """Look which tasks of a session that nobody runs still have a process.

    Only a job whose end the journal does not tell can be alive or lost: a task between two jobs just waits.
    """
    from sessionrun import processes
    from sessionrun.journal import read_log
    from sessionrun.ledger import fold_ledger
    from sessionrun.status import summarise

    ledger = fold_ledger(read_log(session.ledger_path).payloads)
    same_boot = ledger.boot_id == processes.boot_id()
    same_machine = same_boot and ledger.pid_ns == processes.pid_namespace()
    living: set[str] = set()
    gone: dict[str, Gone] = {}
    for key in [task.job.key for task in state.tasks.values() if task.job]:
        job = ledger.jobs.get(key.text())
        if job is None or not job.tried or job.errno is not None:
            continue
        if same_machine and job.pid and processes.is_alive(processes.Identity(job.pid, job.started or 0)):
            living.add(key.task)
        elif key.phase in ("setup", "work"):  # the other phases are simply run again
            gone[key.task] = _explain(job.wait_status, same_boot=same_boot, same_machine=same_machine)
    return summarise(status, alive=False, living=living, gone=gone)


def _explain(wait_status: int | None, *, same_boot: bool, same_machine: bool) -> Gone:
    if wait_status is not None:
        return "lost", f"nobody was left to judge its end (wait status {wait_status})"
    if not same_boot:
        return "interrupted", "the machine was restarted while it ran"
    if not same_machine:
        return "lost", "it was started in another container, and its process cannot be seen from here"
    return "lost", "its process is gone and nobody saw it end"
