"""The supervisor as a process: puts the parts of one session together and runs it.

The keeper starts this, as often as need be.  It takes the session's lock, folds the logs and goes on where they
end; what the ledger tells and the journal does not know yet is the first thing that it hears.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

import orjson

from sessionrun import __version__
from sessionrun.engine.fold import apply
from sessionrun.engine.state import State
from sessionrun.house import HOUSE, load
from sessionrun.keeper.wire import EXIT_NO_ROOM, EXIT_REFUSED, EXIT_TAKEN, root_command, say
from sessionrun.model.errors import StoreError
from sessionrun.model.events import Entry, Event, JobClaimed, JobStarted, SupervisorStarted, to_record
from sessionrun.session.executor import KeeperGone, LocalExecutor, Notice, judge_job
from sessionrun.session.history import project_status, replay
from sessionrun.session.maker import JobMaker
from sessionrun.session.partners import Clock, LimitSharing, MachineWatch, Partners, SilenceWatch, Watch
from sessionrun.session.shared import import_makers
from sessionrun.session.supervisor import Supervisor
from sessionrun.store import locks, processes
from sessionrun.store.files import read_regular
from sessionrun.store.logs import AppendLog, Ledger, fold_ledger, parse_log
from sessionrun.store.processes import Identity
from sessionrun.store.session import SessionDir

LOCK_TIMEOUT_S: Final = 5.0
ORPHANED_TIMEOUT_S: Final = 10.0
ORPHANED_POLL_S: Final = 0.005
DEATH_TIMEOUT_S: Final = 1.0


def main() -> None:
    """Run the session in ``argv[1]``; ``argv[2]`` is the descriptor of the socket to the keeper."""
    gc.freeze()  # what was imported lives to the end
    gc.enable()
    session = SessionDir(Path(sys.argv[1]))
    end = socket.socket(fileno=int(sys.argv[2]))
    end.set_inheritable(False)
    lock_fd = locks.hold(session.path / "lock", timeout_s=LOCK_TIMEOUT_S)
    if lock_fd is None:  # such as the one before us, whose keeper is dead: it leaves when it sees that
        sys.exit(EXIT_TAKEN)
    keeper = None
    try:
        local = LocalExecutor(end)
        keeper = Identity(local.keeper_pid, local.keeper_started)
        _run(session, local)
    except KeeperGone:
        _leave_or_lead(session, lock_fd, keeper)
    except StoreError as error:
        say(error)
        sys.exit(EXIT_REFUSED)


def _run(session: SessionDir, local: LocalExecutor) -> None:
    state, journal = _load(session)
    pid = os.getpid()
    started = SupervisorStarted(
        epoch=state.epoch + 1,
        pid=pid,
        started=processes.start_time(pid) or 0,
        boot_id=processes.boot_id(),
        pid_ns=processes.pid_namespace(),
        version=__version__,
        keeper=local.keeper_pid,
        keeper_started=local.keeper_started,
    )
    _record(state, journal, started)
    ledger = fold_ledger(parse_log(read_regular(session.ledger_path)[: local.ledger_end]).payloads)
    for claim in list(find_unclaimed(state, ledger)):
        _record(state, journal, claim)
    notices = list(find_notices(state, ledger, local.ledger_end))
    import_makers(state.spec)
    jobs = JobMaker(session, lambda: state.spec)
    partners = _open_partners(session, state, local, jobs)
    Supervisor(session, state, journal, partners, jobs, Clock()).run(notices)


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


def _open_partners(session: SessionDir, state: State, local: LocalExecutor, jobs: JobMaker) -> Partners:
    """Open the session's own partners, then those of each business that the spec asks for."""
    spec, limits = state.spec, state.spec.limits
    watches: list[Watch] = [LimitSharing(spec, os.environ, say), SilenceWatch(jobs.site, session.contact_path)]
    if limits.max_load or limits.min_free_memory:
        watches.append(MachineWatch(limits))
    partners = Partners(local, watches=tuple(watches))
    if spec.exports:
        from sessionrun.session.exports import ExportWriter

        partners = partners._replace(exports=ExportWriter(session, spec))
    if spec.notify:
        from sessionrun.session.notifying import Notifying

        partners = partners._replace(notifier=Notifying(session, spec, say))
    for business in HOUSE:
        if business.partners:
            partners = load(business.partners)(partners, session, state)
    return partners


def _load(session: SessionDir) -> tuple[State, AppendLog]:
    """The state that the journal adds up to, and the journal, ready to be written.

    Raises:
        StoreError: it is damaged, or of a later version.
    """
    state, contents = replay(session)
    if state.epoch:  # else nothing has happened yet
        project_status(session, state)
    if contents.damage_at is not None:  # to write behind it would hide what it was
        raise StoreError(f"{session.journal_path} is damaged at byte {contents.damage_at}")
    journal = AppendLog(session.journal_path)
    journal.cut(contents.end)
    return state, journal


def _record(state: State, journal: AppendLog, event: Event) -> None:
    entry = Entry(state.seq + 1, time.time(), time.monotonic(), event)
    apply(state, entry)  # before it is written: what cannot be applied would stop all later supervisors
    try:
        journal.append([orjson.dumps(to_record(entry))])
    except StoreError as error:
        say(error)
        sys.exit(EXIT_NO_ROOM)


def _leave_or_lead(session: SessionDir, lock_fd: int, keeper: Identity | None) -> NoReturn:
    """The keeper is dead: the root starts another one, and that another of us.  Without a root we become it."""
    os.close(lock_fd)
    deadline = time.monotonic() + DEATH_TIMEOUT_S
    while keeper is not None and processes.is_alive(keeper) and time.monotonic() < deadline:
        time.sleep(ORPHANED_POLL_S)  # while it dies it holds its lock, as if another keeper lived
    deadline = time.monotonic() + ORPHANED_TIMEOUT_S
    while time.monotonic() < deadline:
        held = session.held_locks()
        if "keeper.lock" in held:
            sys.exit(0)
        if "root.lock" not in held:
            root_fd = locks.hold(session.path / "root.lock", timeout_s=0.0)
            if root_fd is not None:
                os.set_inheritable(root_fd, True)
                command = root_command(str(session.path), root_fd)
                os.execve(command[0], command, os.environb)
        time.sleep(ORPHANED_POLL_S)
    sys.exit(1)
