"""What `doctor` finds around a session: its disk, its processes and those of its jobs, requests that wait.

Nothing here is changed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from sessionrun.client.evidence import Evidence, find_recorded
from sessionrun.client.findings import Finding, error, warning
from sessionrun.client.reading.view import find_stopped
from sessionrun.model.events import JobFinished, JobLost
from sessionrun.session.history import describe_failure
from sessionrun.store import processes
from sessionrun.store.ballast import describe_shortage, find_shortage
from sessionrun.store.journal import describe_rest

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
        failure = describe_failure(evidence.session, evidence.ledger)
        why = f": {failure}" if failure else ""
        what, plan = f"it has not ended, and no process runs it{why}", f"go on with it: {_resume(evidence)}"
    else:
        what = "no process runs it, and it cannot go on: its logs cannot be used"
        plan = describe_rest(evidence.session.session_id)
    yield warning(evidence.session.path, what, plan)


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
