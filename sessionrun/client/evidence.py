"""All that is known of one session: its locks, its spec, both logs and what they fold to, and its processes.

`doctor`, `explain` and the view of a session whose processes are gone read it here, once and in one
order.  Reading does not raise because of damaged files: damage is evidence.  Where a session has to be sound,
`require` is called.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sessionrun.engine.state import State
from sessionrun.model.errors import SessionrunError
from sessionrun.model.events import Entry, JobClaimed, JobFinished, JobLost, JobStarted, TimerFired
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import SessionSpec
from sessionrun.session.history import describe_damage, describe_failure, fold_entries, project_status
from sessionrun.store import processes
from sessionrun.store.logs import Ledger, LogContents, describe_rest, fold_ledger, read_log
from sessionrun.store.processes import Identity
from sessionrun.store.session import SessionDir

_Read = TypeVar("_Read")
_NO_LOG = LogContents([], 0)


# --- processes of jobs ---


@frozen
class Living:
    """A living process of a job, by its key; `ours`: of this user and pid namespace, where its pid counts."""

    key: str
    process: Identity
    ours: bool = True

    @property
    def task(self) -> str:
        return self.key.partition("/")[0]


def find_marked() -> dict[str, list[Living]]:
    """The living processes that carry the marker of a job, by session: of those whose environment we may read."""
    import psutil

    own = os.geteuid(), processes.pid_namespace()
    by_session: dict[str, list[Living]] = {}
    for process in psutil.process_iter():
        identity = processes.identify(process.pid)
        if identity is None:
            continue
        try:
            marker = process.environ().get(processes.JOB_MARKER, "")
            ours = (process.uids().effective, processes.pid_namespace(process.pid)) == own
        except (psutil.Error, OSError, UnicodeDecodeError):
            continue
        session_id, _, key = marker.partition("/")
        if key and processes.is_alive(identity):
            by_session.setdefault(session_id, []).append(Living(key, identity, ours))
    return by_session


def find_recorded(ledger: Ledger) -> Iterator[Living]:
    """Living processes that the ledger recorded, without an end, on this boot and in this pid namespace."""
    for key, job in ledger.jobs.items():
        if job.pid is None or not job.started or job.wait_status is not None:
            continue
        if processes.lives(job.boot_id, job.pid_ns, job.pid, job.started):
            yield Living(key, Identity(job.pid, job.started))


# --- when jobs ran ---


@dataclass
class Run:
    """A job: the entries of its start and of its end, and the limit that ended it; None: there is none."""

    key: JobKey
    begin: Entry | None = None
    end: Entry | None = None
    timer: str | None = None


def find_runs(entries: Iterable[Entry]) -> dict[JobKey, Run]:
    """All jobs, in the order in which they were claimed: what a story and a report are made of."""
    runs: dict[JobKey, Run] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, (JobClaimed, JobStarted)):
            run = runs.setdefault(event.key, Run(event.key))
            run.begin = entry if isinstance(event, JobStarted) else run.begin
        elif isinstance(event, (JobFinished, JobLost)) and event.key in runs:
            runs[event.key].end = entry
        elif isinstance(event, TimerFired) and event.key in runs:
            runs[event.key].timer = event.timer
    return runs


# --- a session ---


@frozen
class Evidence:
    """What the files of a session, and the system, say of it; what cannot be read is None or empty.

    `alive` is whether a process of its chain lives, `led` whether that is a supervisor.  The last three are for
    `doctor` alone: see `gather`.
    """

    session: SessionDir
    alive: bool
    led: bool
    now: float
    spec: SessionSpec | None
    spec_fault: Exception | None
    journal: LogContents
    journal_fault: Exception | None
    entries: list[Entry]
    state: State | None
    ledger_log: LogContents
    ledger_fault: Exception | None
    ledger: Ledger
    status: dict[str, Any] | None = None
    summary: dict[str, Any] | None = None
    marked: Sequence[Living] = ()

    @property
    def fault(self) -> Exception | None:
        """Why it cannot be used as it is."""
        return self.spec_fault or self.ledger_fault or self.journal_fault

    def require(self) -> State:
        """The state, as a supervisor would have it.

        Raises:
            SessionNotFound: the session has no spec.
            StoreError: a file is damaged, or a newer version's.
        """
        if self.fault is not None:
            raise self.fault
        assert self.state is not None
        return self.state

    @property
    def damage(self) -> str | None:
        """Which of its logs is damaged, and where; such a session cannot go on.  None: both are whole."""
        logs = (self.session.journal_path, self.journal), (self.session.ledger_path, self.ledger_log)
        places = (describe_damage(path, log.damage_at) for path, log in logs if log.damage_at is not None)
        return next(places, None)

    @property
    def can_resume(self) -> bool:
        """Whether `resume` could go on with it: both logs are whole, and the journal's records fit each other."""
        return self.state is not None and self.damage is None

    def tell_gone(self, *, name_damage: bool = True) -> tuple[str, str]:
        """Why no process runs the session, which has not ended; and what helps."""
        session_id, gone = self.session.session_id, "no process runs the session"
        if not self.can_resume:
            why = (name_damage and self.damage) or "its logs cannot be used"
            return f"{gone}, and it cannot go on: {why}", describe_rest(session_id)
        failure = describe_failure(self.session, self.ledger)
        return f"{gone}: {failure}" if failure else gone, f"to go on with it: sessionrun resume {session_id}"

    @property
    def ended(self) -> bool:
        """Whether the session has ended, by its journal or, if that cannot be read, by status.json."""
        if self.state is not None:
            return self.state.ended is not None
        return self.status is not None and self.status.get("ended_at") is not None


def read_evidence(session: SessionDir) -> Evidence:
    """Read one session: its locks first, so that one which ends meanwhile is seen as ended, and never as dead."""
    held = session.held_locks()
    spec, spec_fault = _attempt(session.load_spec)
    loaded, journal_fault = _attempt(session.load_journal)
    entries, journal = loaded or ([], _attempt(lambda: read_log(session.journal_path))[0] or _NO_LOG)
    state = None
    if spec is not None and loaded is not None:
        state, journal_fault = _attempt(lambda: fold_entries(session, spec, entries))
    ledger_log, ledger_fault = _attempt(lambda: read_log(session.ledger_path))
    ledger_log = ledger_log or _NO_LOG
    return Evidence(
        session=session,
        alive=bool(held),
        led="lock" in held,
        now=time.time(),
        spec=spec,
        spec_fault=spec_fault,
        journal=journal,
        journal_fault=journal_fault,
        entries=entries,
        state=state,
        ledger_log=ledger_log,
        ledger_fault=ledger_fault,
        ledger=fold_ledger(ledger_log.payloads),
    )


def gather(session: SessionDir, marked: Sequence[Living], *, locked: bool) -> Evidence:
    """Read one session for `doctor`, with status.json and the summary; its state only if its journal is whole.

    Both are read before the logs: their writer appends to the logs first, so they are never ahead of logs that are
    read later.  `marked` carried its marker a moment before; `locked`: we hold its locks, so no other one runs it.
    """
    status, summary = _attempt(session.load_status)[0], _attempt(session.load_summary)[0]
    evidence = read_evidence(session)
    state, fault = evidence.state, evidence.journal_fault
    if state is not None:
        _, fault = _attempt(lambda: project_status(session, state))
    return replace(
        evidence,
        alive=evidence.alive and not locked,
        journal_fault=fault,
        state=None if fault is not None or evidence.journal.damage_at is not None else state,
        status=status,
        summary=summary,
        marked=marked,
    )


def _attempt(read: Callable[[], _Read]) -> tuple[_Read | None, Exception | None]:
    try:
        return read(), None
    except (SessionrunError, OSError) as error:
        return None, error
