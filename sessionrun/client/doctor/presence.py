"""Checks of the session's own processes, of those of its jobs, and of requests that are not taken."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from sessionrun.client.cleaning.leftovers import Living, find_recorded
from sessionrun.client.doctor.evidence import Evidence
from sessionrun.client.doctor.finding import Finding
from sessionrun.client.reading.stopped import find_stopped
from sessionrun.model.events import JobFinished, JobLost
from sessionrun.store import processes
from sessionrun.store.ballast import describe_shortage, find_shortage
from sessionrun.store.damage import describe_rest
from sessionrun.store.locks import is_held

LINGERS_AFTER_S: Final = 60.0
"""A supervisor that has ended its session leaves within moments; a request is taken within moments."""


def check_disk(evidence: Evidence) -> Iterator[Finding]:
    """Whether the disk has room for a session that goes on."""
    shortage = None if evidence.ended or not evidence.begun else find_shortage(evidence.session.path)
    if shortage is None:
        return
    what = f"its disk is full: {describe_shortage(shortage)}: nothing new starts"
    plan = "make room; `cancel` and `hold` work meanwhile, and ends are recorded once there is room"
    yield Finding("disk", "error", str(evidence.session.path), what, plan)


def check_interrupted(evidence: Evidence) -> Iterator[Finding]:
    """Whether a process runs a session that has not ended."""
    if evidence.alive or evidence.ended or evidence.spec is None or not evidence.begun:
        return
    name = evidence.session.session_id
    what, plan = "it has not ended, and no process runs it", f"go on with it: sessionrun resume {name}"
    if not evidence.can_resume:
        what = "no process runs it, and it cannot go on: its logs cannot be used"
        plan = describe_rest(name)
    yield Finding("interrupted", "warning", str(evidence.session.path), what, plan)


def check_lingering(evidence: Evidence) -> Iterator[Finding]:
    """Whether a supervisor stays long after the end."""
    state = evidence.state
    if state is None or state.ended_at is None or evidence.now - state.ended_at < LINGERS_AFTER_S:
        return
    if not evidence.alive or not is_held(evidence.session.path / "lock"):
        return
    pid = state.supervisor.pid if state.supervisor else "?"
    plan = f"look at its supervisor.log and at the process: ps -p {pid}"
    what = f"the session has ended, but its lock is held; its last supervisor was process {pid}"
    yield Finding("lingering", "warning", str(evidence.session.path / "lock"), what, plan)


def check_stopped(evidence: Evidence) -> Iterator[Finding]:
    """Whether a process that runs the session is stopped."""
    known = (evidence.status or {}).get("processes")
    if not evidence.alive or evidence.ended:
        return
    for role in find_stopped(known):
        pid = known[role]["pid"] if known else 0
        what = f"its {role}, process {pid}, is stopped: nothing goes on"
        yield Finding("stopped", "warning", str(evidence.session.path), what, f"kill -CONT {pid}")


def check_processes(evidence: Evidence) -> Iterator[Finding]:
    """Whether a job's process lives although the job has ended, or although no process runs the session."""
    living = {survivor.process: survivor for survivor in find_recorded(evidence.ledger)}
    living |= {survivor.process: survivor for survivor in evidence.marked if survivor.ours}
    events = [entry.event for entry in evidence.entries]
    over = {event.key.text() for event in events if isinstance(event, (JobFinished, JobLost))}
    by_key: dict[str, list[Living]] = {}
    for survivor in living.values():
        orphan = not evidence.alive or survivor.key in over
        if orphan and processes.is_alive(survivor.process):  # it may have ended since we looked
            by_key.setdefault(survivor.key, []).append(survivor)
    for key, left in sorted(by_key.items()):
        pids = " ".join(sorted(str(survivor.process.pid) for survivor in left))
        plan = f"to stop it: kill -TERM {pids}"
        if evidence.can_resume and not (evidence.ended or key in over):
            plan += f"; to go on with the session: sessionrun resume {evidence.session.session_id}"
        why = "it has ended" if key in over else "no process runs the session"
        what = f"job {key}: {why}, but process {pids} lives"
        yield Finding("processes", "warning", str(evidence.session.path), what, plan)


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
        if evidence.alive and age_s < LINGERS_AFTER_S:
            continue
        remove = f"rm {shlex.quote(str(path))}"
        if evidence.ended:
            what, plan = "it came too late: the session has ended", f"remove it: {remove}"
        elif evidence.alive:
            what, plan = (
                "it was not taken for a minute",
                "see whether the supervisor is stopped or its disk is full",
            )
        elif not evidence.can_resume:
            what, plan = "it will not be taken: the session cannot go on", f"take it back: {remove}"
        else:
            resume = f"sessionrun resume {evidence.session.session_id}"
            what, plan = "it waits for a supervisor", f"{resume} carries it out; or take it back: {remove}"
        yield Finding("requests", "warning", str(path), what, plan)
