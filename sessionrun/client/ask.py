"""Asks a session for a change: a row for each kind of request, and the one way that all of them take.

The tasks are chosen, and what makes no sense is refused.  The request is written, as a file or, if the disk has no
room for one, as a line in the FIFO (see `store.requests`), and a supervisor takes it; if no process is left, the
session's processes are started again for it, or the request is kept.  The reply has the tasks as they were and as
they are then.

A task is named by its id, the beginning of that, or its number; without names the whole session is meant.

All raise InputError where the session has ended, or refuses what only the caller can mend; SessionGone where no
process of it is left, or can be started, and the request stays; StoreError where that cannot be written, or was
refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import orjson

from sessionrun.client.reading.view import choose_tasks, load_history, load_view
from sessionrun.client.reading.waiting import Deadline, Progress, View, has_ended, wait_until
from sessionrun.model.errors import InputError, SessionGone, SessionrunError, StoreError
from sessionrun.model.words import read_landing
from sessionrun.store import requests
from sessionrun.store.logs import find_shortage, fold_ledger, read_log
from sessionrun.store.session import REFUSED, SessionDir

if TYPE_CHECKING:
    from sessionrun.client.planning.additions import AskedChange
    from sessionrun.model.events import TasksAdded
    from sessionrun.model.spec import SessionSpec

TAKEN_TIMEOUT_S: Final = 60.0

Fate = Literal["taken", "moot", "late"]
"""What became of a request in time: it was taken, or withdrawn, or it still waits."""

MAX_RESUMES: Final = 3
"""How often a session is started for one request whose processes leave without taking it."""

SPEAK_AGAIN_S: Final = 1.0
"""When to repeat a request: its reader may have died before it was recorded.  Read twice, it is obeyed once."""

PATIENCE_S: Final = 3.0
"""How long a request that was read may take to be recorded and shown; on a full disk it never is."""


class Reply(NamedTuple):
    """What became of a request: whether it was done in time, its tasks before, the session and these tasks now."""

    taken: bool
    before: list[dict[str, Any]]
    view: View
    tasks: list[dict[str, Any]]


class Target(NamedTuple):
    """A session and the tasks that a request is about, as they are at one moment; `named`: not simply all."""

    session: SessionDir
    view: View
    tasks: list[dict[str, Any]]
    named: bool

    @property
    def ids(self) -> list[str]:
        """The ids of the tasks that were named; empty for all."""
        return [task["id"] for task in self.tasks] if self.named else []

    @property
    def is_completed(self) -> bool:
        return all(task["status"] == "completed" for task in self.tasks)

    def reload(self) -> Target:
        return select(self.session, self.ids, newest=True)


def select(session: SessionDir, names: Sequence[str] = (), *, newest: bool = False) -> Target:
    """What a request is about.  As a rule status.json says how that stands, and so no log has to be folded.

    In a large session it is seconds old: a request that is about how tasks ended wants the `newest` view.  So does
    any on a full disk, where status.json cannot be replaced.  It is ahead of a journal that is damaged: then
    nothing behind the damage counts.
    """
    view = load_view(session, merged=False)
    if newest or view["disk_full"] is not None:
        with suppress(SessionrunError, OSError):  # the request is done all the same
            if session.load_seq() > view["seq"]:
                view, _ = load_history(session, merged=False)
    return Target(session, view, choose_tasks(view, names), bool(names))


# --- the kinds ---


def _has_stopped(target: Target) -> bool:
    return has_ended(target.view) or (target.named and target.is_completed)


def _is_past(target: Target) -> bool:
    """Whether nothing is left that could be held or released: no task, no work that waits to land, no queue."""
    feeds = not target.named and bool((target.view.get("feed") or {}).get("open"))
    waits = (read_landing(task) in ("ready", "held", "mending") for task in target.tasks)
    return has_ended(target.view) or (target.is_completed and not (feeds or any(waits)))


class Kind(NamedTuple):
    """A kind of request: what it does if it cannot simply be taken."""

    is_moot: Callable[[Target], bool]
    """Whether nothing is left to be done: then nothing is asked, or the request is withdrawn."""

    resumes: bool = False
    """Whether the session's processes are started for it if none is left."""

    ended: str = ""
    """Why it is refused if it is moot; empty: it counts as done."""

    refused: str = ""
    """What the caller is told if the session refuses; empty: the refusal is a fault of the session."""

    waits: bool = False
    """Whether it is done only once it is moot, and not as soon as it is taken."""


KINDS: Final[Mapping[str, Kind]] = {
    "cancel": Kind(_has_stopped, resumes=True, waits=True),
    "hold": Kind(_is_past),
    "release": Kind(_is_past),
    "retry": Kind(lambda _: False, resumes=True, refused="session {id} refuses that"),
    "continue": Kind(lambda _: False, resumes=True, refused="task {tasks[0]!r} cannot be continued"),
    "set": Kind(
        lambda target: has_ended(target.view),
        ended="nothing of it runs any more",
        refused="session {id} cannot run {max_parallel} tasks at once",
    ),
    "add": Kind(
        lambda target: has_ended(target.view),
        ended="nothing was added: start a new one with sessionrun run FILE",
        refused="session {id} refused the tasks",
    ),
}


# --- a request is left, until it is taken ---


class Refused(StoreError):
    """The session refused a request; `why` is what it wrote into its log."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


def send(
    session: SessionDir,
    record: dict[str, Any],
    *,
    timeout_s: float | None,
    may_resume: bool = True,
    is_moot: Callable[[], bool] = lambda: False,
) -> Fate:
    """Leave a request and wait until it was taken or, if no process is left to take it, until `is_moot`.

    A request that is late stays, as where SessionGone says that no process is left; a moot one is withdrawn.

    Raises:
        StoreError: the request cannot be written, or was refused.
    """
    deadline, starts = Deadline(timeout_s), 0
    try:
        request_id, _ = requests.send_request(session, record)
    except requests.NoRoom:
        return _speak(session, record, deadline, is_moot)
    while requests.has_request(session, request_id):
        # the last process may have taken it, and left since
        if not session.is_alive() and requests.has_request(session, request_id):
            if is_moot():
                requests.drop_request(session, request_id)
                return "moot"
            starts += _resume(session, starts, may_resume=may_resume)
        if not deadline.pause():
            return "late"
    _look_for_refusal(session, request_id)
    return "taken"


def _resume(session: SessionDir, starts: int, *, may_resume: bool) -> int:
    """Start the session's processes for a request, for which that was done so often; whether they were started."""
    gone = f"no process of session {session.session_id} is left"
    if not may_resume:
        from sessionrun.session.history import find_damage

        damage = find_damage(session)
        raise SessionGone(
            f"{gone}, and {damage}" if damage else f"{gone}; the request waits until the session is resumed"
        )
    if starts == MAX_RESUMES:
        started = "the processes that were started for it ended at once"
        raise SessionGone(f"{gone}, and {started}; {session.log_path} says why")
    from sessionrun.session.launch import resume

    try:
        return resume(session)
    except StoreError as error:
        raise SessionGone(f"{gone}, and {error}") from error


def _look_for_refusal(session: SessionDir, request_id: str) -> None:
    try:
        (session.path / "requests" / request_id).with_suffix(REFUSED).unlink()
    except OSError:
        return
    begin, why = f"request '{request_id}.json' is refused: ", f"{session.log_path} says why"
    with suppress(OSError):
        lines = session.log_path.read_text("utf-8", "replace").splitlines()
        why = next((line.removeprefix(begin) for line in lines if line.startswith(begin)), why)
    raise Refused(f"session {session.session_id} refused the request; {session.log_path} says why", why)


def _speak(session: SessionDir, record: dict[str, Any], deadline: Deadline, is_moot: Callable[[], bool]) -> Fate:
    """The same by a line of the FIFO, where that stays while we have it open: until it was read, and again later.

    The request is taken once it is recorded and shown or, if the disk is full, at least read.
    """
    request_id, line = requests.spell_request(record)
    offset = session.journal_path.stat().st_size if session.journal_path.exists() else 0
    full = f"the disk is full, and no supervisor of session {session.session_id} takes the request"
    advice = f"{full}: make room on the disk of {session.path.parent}, then ask again"
    fd = spoken_at = read_at = None  # by the monotonic clock; None: not yet
    try:
        while True:
            is_alive, now = session.is_alive(), time.monotonic()
            seq, shown = requests.find_recorded(session, request_id, offset), 0
            with suppress(StoreError):
                shown = (session.load_summary() or {"seq": 0})["seq"]
            is_recorded = seq is not None and (shown >= seq or not is_alive)
            if is_recorded or (read_at is not None and now - read_at > PATIENCE_S):
                return "taken"
            if not is_alive:
                if is_moot():
                    return "moot"
                raise SessionGone(advice)
            fd = requests.open_wake(session) if fd is None else fd
            is_drained = fd is not None and requests.count_unread(fd) == 0
            if read_at is None and (seq is not None or (is_drained and spoken_at is not None)):
                read_at = now
            if fd is not None and is_drained and (spoken_at is None or now - spoken_at >= SPEAK_AGAIN_S):
                if requests.speak(fd, line):
                    spoken_at = now
                else:  # its reader has left
                    os.close(fd)
                    fd = None
            if not deadline.pause():
                if spoken_at is None:
                    raise StoreError(advice)
                return "late"
    finally:
        if fd is not None:
            os.close(fd)


# --- the way of all ---


def _ask(
    kind: str, target: Target, timeout_s: float | None, progress: Progress | None = None, **fields: Any
) -> Reply:
    """Make a request of these fields, and wait until it is done; the reply is about the target's tasks."""
    row, session_id = KINDS[kind], target.session.session_id
    record = {"kind": kind, **fields}

    def is_moot() -> bool:
        return row.is_moot(target.reload())

    fate: Fate = "moot"
    if row.is_moot(target):
        target = target.reload()  # status.json may lag: there may be something to do all the same
    try:
        if not row.is_moot(target):
            deadline = Deadline(timeout_s)
            fate = send(target.session, record, timeout_s=timeout_s, may_resume=row.resumes, is_moot=is_moot)
            if row.waits and fate == "taken":
                fate = _wait(row, target, deadline.left(), progress)
    except Refused as error:
        if not (row.ended and is_moot()):
            if not row.refused:
                raise
            raise InputError(f"{row.refused.format(id=session_id, **record)}: {error.why}") from None
    except SessionGone as error:
        pids = [str(task["pid"]) for task in target.view["tasks"] if task["status"] == "running" and task["pid"]]
        running = f"; still running without it: process groups {', '.join(pids)}" if pids else ""
        raise SessionGone(f"{error}{running}") from error
    if fate == "moot" and row.ended:
        raise InputError(f"session {session_id} has ended, and {row.ended}")
    now = target.reload()
    return Reply(fate != "late", target.tasks, now.view, now.tasks)


def _wait(row: Kind, target: Target, timeout_s: float | None, progress: Progress | None) -> Fate:
    """Wait until a request that was taken is done, or as far as it can be recorded on a full disk."""

    def is_over(view: View) -> bool:
        session, now = target.session, target._replace(view=view, tasks=choose_tasks(view, target.ids))
        if row.is_moot(now):
            return True
        if view["disk_full"] is None or find_shortage(session.path) is None:
            return False
        from sessionrun.client.evidence import find_recorded

        # the end of a task cannot be recorded before there is room: then no process of it may be left
        living = find_recorded(fold_ledger(read_log(session.ledger_path).payloads))
        return not any(not target.named or survivor.task in target.ids for survivor in living)

    seen = wait_until(lambda: load_view(target.session), is_over, timeout_s=timeout_s, progress=progress)
    return "late" if seen is None else "taken"


# --- what is asked ---


def cancel(
    session: SessionDir,
    tasks: Sequence[str] = (),
    *,
    now: bool = False,
    timeout_s: float | None = TAKEN_TIMEOUT_S,
    progress: Progress | None = None,
) -> Reply:
    """Stop a session or some of its tasks, and wait until they have ended; `now` kills without grace."""
    target = select(session, tasks)
    return _ask("cancel", target, timeout_s, progress, tasks=target.ids, now=now)


def cancel_all(
    sessions: Sequence[SessionDir],
    tasks: Sequence[str] = (),
    *,
    now: bool = False,
    nested: bool = False,
    timeout_s: float = TAKEN_TIMEOUT_S,
) -> list[SessionDir]:
    """Ask several sessions to stop side by side; `cancel` then waits for each, or says why it cannot be.

    With `nested` the sessions that these launched, or the named tasks of the only one, are cancelled, too, and
    returned.  They are looked for when what launched them has ended, for until then it may launch more.
    """
    from sessionrun.client.launch import find_nested

    ids = {task["id"] for session in sessions for task in choose_tasks(load_view(session), tasks)} if tasks else ()
    found: list[SessionDir] = []
    ending = list(sessions)
    while ending:
        for patience_s in (0.0, timeout_s) if nested else (0.0,):
            for session in ending:
                with suppress(SessionrunError):
                    cancel(session, () if session in found else tasks, now=now, timeout_s=patience_s)
        known = {session.session_id for session in found}
        inside = find_nested(sessions, ids) if nested else []
        ending = [session for session in inside if session.session_id not in known]
        found += ending
    return found


def hold(
    session: SessionDir,
    tasks: Sequence[str] = (),
    *,
    reason: str | None = None,
    timeout_s: float = TAKEN_TIMEOUT_S,
) -> Reply:
    """Start nothing more of a session, or of some of its tasks, until `release`."""
    target = select(session, tasks)
    return _ask("hold", target, timeout_s, tasks=target.ids, reason=reason)


def release(session: SessionDir, tasks: Sequence[str] = (), *, timeout_s: float = TAKEN_TIMEOUT_S) -> Reply:
    """Let a session, or some of its tasks, go on after `hold`."""
    target = select(session, tasks)
    return _ask("release", target, timeout_s, tasks=target.ids)


def set_width(session: SessionDir, width: int, *, timeout_s: float = TAKEN_TIMEOUT_S) -> Reply:
    """Let so many tasks of a session run at once from now on; 0 means no limit."""
    return _ask("set", select(session), timeout_s, max_parallel=width)


def retry(
    session: SessionDir,
    tasks: Sequence[str] = (),
    *,
    failed: bool = False,
    lost: bool = False,
    asked: AskedChange | None = None,
    ready: bool = True,
    timeout_s: float = TAKEN_TIMEOUT_S,
) -> Reply:
    """Try tasks again, see `choose_retried`; the reply has these tasks, or none if there is nothing to retry.

    With `asked` they change, but not those that come along; with `ready` a new agent is asked whether it is ready.
    """
    from sessionrun.client.planning.additions import choose_retried, settle_change

    target = select(session, tasks, newest=True)
    shown, named = target.view["tasks"], target.named
    tried, every, outcomes = choose_retried(shown, target.tasks, named=named, failed=failed, lost=lost)
    if not every:
        return Reply(True, [], target.view, [])
    change = None
    if asked is not None:
        state = load_history(session)[1].require()
        change = settle_change(state.spec, [state.tasks[name] for name in tried], asked, ready=ready)
    opened = target._replace(tasks=choose_tasks(target.view, every), named=True)
    return _ask("retry", opened, timeout_s, tasks=target.ids, outcomes=outcomes, change=change)


def continue_task(session: SessionDir, task: str, text: str, *, timeout_s: float = TAKEN_TIMEOUT_S) -> Reply:
    """Ask more of a task that has ended; a session that has ended lives again for that.

    A warning says so if the agent cannot go on with its conversation.
    """
    from sessionrun.client.planning.additions import check_follow_up

    target = select(session, (task,), newest=True)
    check_follow_up(target.view, load_history(session)[1].require(), target.tasks[0], text)
    return _ask("continue", target, timeout_s, tasks=target.ids, text=text)


def load_open(session: SessionDir) -> SessionSpec:
    """The spec of a session to which tasks can be added, as it is now."""
    if has_ended(load_view(session)):
        raise InputError(f"session {session.session_id} has ended, and {KINDS['add'].ended}")
    return load_history(session)[1].require().spec


def add(session: SessionDir, addition: TasksAdded, *, timeout_s: float = TAKEN_TIMEOUT_S) -> Reply:
    """Ask the session to take these tasks, and wait until it has."""
    from sessionrun.store.requests import MAX_BYTES

    names = ("tasks", "agents", "prices", "resources", "leavings")
    fields = {name: getattr(addition, name) for name in names}
    if len(orjson.dumps(fields)) > MAX_BYTES - 200:
        raise InputError(f"the tasks take more than {MAX_BYTES >> 20} MiB: add fewer at once")
    reply = _ask("add", select(session), timeout_s, **fields)
    added = {task.id for task in addition.tasks}
    return reply._replace(before=[], tasks=[task for task in reply.view["tasks"] if task["id"] in added])


def resume(session: SessionDir) -> bool:
    """Let a session without processes go on; False if a process lives, or if the session has ended.

    If the end was recorded, but status.json or the file of an export does not show it (a kill, a full disk), they
    start once more, publish it and leave.
    """
    from sessionrun.session import exports, launch

    if load_view(session)["ended_at"] is not None:
        is_shown = (session.load_status() or {}).get("ended_at") is not None
        if (not is_shown or exports.find_behind(session, session.load_spec())) and launch.resume(session):
            wait_until(lambda: load_view(session), has_ended, timeout_s=TAKEN_TIMEOUT_S)
        return False
    return launch.resume(session, even_ended=False)
