"""Changes that a user asks for: cancel, hold, release, retry, set, and to let a session go on.

Each names a session and, if only some of its tasks are meant, these by id or number.  A session's supervisor takes
the request; if no process is left, the session's processes are started again for it, or the request is kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sessionrun.client.asking.requests import Refused, ask, ask_open, request_cancel
from sessionrun.client.lookup import choose_tasks
from sessionrun.client.notices import notify
from sessionrun.client.reading.view import fold_journal, load_history, load_view
from sessionrun.client.reading.waiting import View, has_ended, wait_until
from sessionrun.model.errors import InputError, SessionGone, SessionrunError
from sessionrun.model.words import read_landing
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.client.asking.changing import AskedChange

TAKEN_TIMEOUT_S: Final = 60.0

_NOT_GOOD: Final = ("failed", "timed_out", "lost", "interrupted", "cancelled", "skipped")


class Reply(NamedTuple):
    """What became of a request.

    `taken` is whether it was done in time.  `before` are the tasks of the request as they were before it, `tasks`
    the same tasks now, and `view` is the session now.
    """

    taken: bool
    before: list[dict[str, Any]]
    view: View
    tasks: list[dict[str, Any]]


class Retried(NamedTuple):
    """Ids of tasks: those that are tried again because they are chosen, and these with all that come along."""

    tried: list[str]
    every: list[str]


class Target:
    """The session and the tasks that a request is about, as they were when it began."""

    def __init__(self, session: SessionDir, tasks: Sequence[str] = ()) -> None:
        self.session = session
        self.view = _load_latest(session)
        self.named = tasks
        self.tasks = choose_tasks(self.view, tasks)

    @property
    def ids(self) -> list[str]:
        """The ids of the tasks that were named, by whichever name; empty for all."""
        return [task["id"] for task in self.tasks] if self.named else []

    def reload(self) -> tuple[View, list[dict[str, Any]]]:
        """The session's view and the same tasks now."""
        view = _load_latest(self.session)
        return view, choose_tasks(view, self.named)

    def reply(self, *, taken: bool) -> Reply:
        """The reply to a request about these tasks."""
        return Reply(taken, self.tasks, *self.reload())


def cancel(
    session: SessionDir, tasks: Sequence[str] = (), *, now: bool = False, timeout_s: float = TAKEN_TIMEOUT_S
) -> Reply:
    """Stop a session or some of its tasks, and wait until they have ended; `now` kills without grace.

    Raises:
        InputError: a name that is not a task of the session.
        SessionGone: no process of the session is left; the request stays.
        StoreError: the request cannot be written, or was refused.
    """
    target = Target(session, tasks)

    def has_ended(view: View) -> bool:
        if not tasks:
            return view["ended_at"] is not None
        return all(task["status"] == "completed" for task in choose_tasks(view, tasks))

    if has_ended(target.view):
        return target.reply(taken=True)
    try:
        seen = request_cancel(session, target.ids, has_ended, now=now, timeout_s=timeout_s)
    except SessionGone as error:
        raise SessionGone(f"{error}{_list_running(target.view)}") from error
    return target.reply(taken=seen is not None)


def request_all(sessions: Sequence[SessionDir], *, now: bool = False) -> None:
    """Ask several sessions to stop side by side; `cancel` then waits for each, or says why it cannot be."""
    for session in sessions:
        with suppress(SessionrunError):
            cancel(session, now=now, timeout_s=0.0)


def cancel_nested(
    sessions: Sequence[SessionDir],
    tasks: Sequence[str] = (),
    *,
    now: bool = False,
    timeout_s: float = TAKEN_TIMEOUT_S,
) -> list[SessionDir]:
    """Cancel sessions, or tasks of the only one, and then all sessions that these launched; the latter.

    They are looked for when what launched them has ended, for until then it may launch more.
    """
    from sessionrun.client.launching.nesting import find_nested

    ids = {task["id"] for session in sessions for task in choose_tasks(load_view(session), tasks)} if tasks else ()
    nested: list[SessionDir] = []
    ending = list(sessions)
    while ending:
        for session in ending:
            with suppress(SessionrunError):
                cancel(session, () if session in nested else tasks, now=now, timeout_s=timeout_s)
        known = {session.session_id for session in nested}
        ending = [session for session in find_nested(sessions, ids) if session.session_id not in known]
        nested += ending
    return nested


def hold(
    session: SessionDir,
    tasks: Sequence[str] = (),
    *,
    reason: str | None = None,
    timeout_s: float = TAKEN_TIMEOUT_S,
) -> Reply:
    """Start nothing more of a session, or of some of its tasks, until `release`.

    Raises:
        InputError: a name that is not a task of the session.
        SessionGone: no process of the session is left; the request stays.
        StoreError: the request cannot be written, or was refused.
    """
    target = Target(session, tasks)
    return _ask_open(target, {"kind": "hold", "tasks": target.ids, "reason": reason}, timeout_s)


def release(session: SessionDir, tasks: Sequence[str] = (), *, timeout_s: float = TAKEN_TIMEOUT_S) -> Reply:
    """Let a session, or some of its tasks, go on after `hold`.

    Raises:
        InputError: a name that is not a task of the session.
        SessionGone: no process of the session is left; the request stays.
        StoreError: the request cannot be written, or was refused.
    """
    target = Target(session, tasks)
    return _ask_open(target, {"kind": "release", "tasks": target.ids}, timeout_s)


def set_width(session: SessionDir, width: int, *, timeout_s: float = TAKEN_TIMEOUT_S) -> Reply:
    """Let so many tasks of a session run at once from now on; 0 means no limit.

    Raises:
        InputError: the session has ended, or a task uses more slots than that.
        SessionGone: no process of the session is left; the request stays.
        StoreError: the request cannot be written.
    """
    target = Target(session)
    if target.view["ended_at"] is not None:
        raise InputError(f"session {session.session_id} has ended, and nothing of it runs any more")
    try:
        taken = ask_open(session, {"kind": "set", "max_parallel": width}, timeout_s=timeout_s)
    except Refused as error:
        raise InputError(f"session {session.session_id} cannot run {width} tasks at once: {error.why}") from None
    return target.reply(taken=taken)


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

    With `asked` they get another agent, model or prompt, but not those that come along.  With `ready` such an
    agent is asked first whether it is ready.

    Raises:
        InputError: a named task does not exist, or cannot be tried again, or not with what is asked.
        SessionGone: the session's processes are gone and cannot be started again; the request stays.
        StoreError: the request cannot be written, or was refused.
    """
    target = Target(session, tasks)
    outcomes = _list_outcomes(target, failed=failed, lost=lost)
    tried, every = _choose_retried(target, outcomes)
    chosen = set(every)
    if not chosen:
        return Reply(True, [], target.view, [])
    record: dict[str, Any] = {"kind": "retry", "tasks": target.ids, "outcomes": list(outcomes)}
    if asked is not None:
        from sessionrun.client.asking.changing import settle_change

        state, _ = fold_journal(session)
        record["change"] = settle_change(state.spec, [state.tasks[name] for name in tried], asked, ready=ready)
    try:
        taken = ask(session, record, timeout_s=timeout_s)
    except Refused as error:
        if asked is None:
            raise
        raise InputError(f"session {session.session_id} refuses that: {error.why}") from None
    view, _ = target.reload()
    before, after = ([task for task in shown["tasks"] if task["id"] in chosen] for shown in (target.view, view))
    return Reply(taken, before, view, after)


def choose_retried(
    session: SessionDir, tasks: Sequence[str] = (), *, failed: bool = False, lost: bool = False
) -> Retried:
    """The tasks that would be tried again now.

    Without names and flags these are all tasks that failed, timed out, were lost or interrupted.  Named tasks may
    also have been cancelled or skipped.  Tasks that were skipped because of a retried task come along.

    Raises:
        InputError: a named task does not exist, or cannot be tried again.
    """
    target = Target(session, tasks)
    return _choose_retried(target, _list_outcomes(target, failed=failed, lost=lost))


def resume(session: SessionDir) -> bool:
    """Let a session without processes go on; False if a process lives, or if the session has ended.

    If all processes were killed after the end was recorded and before status.json showed it, they start once more,
    publish it and leave.

    A warning names each agent whose program is gone.  Another names each agent for which PATH now leads to a
    different program.

    Raises:
        StoreError: the logs are damaged or from a newer version, or the processes did not come up.
    """
    from sessionrun.runtime import launch

    if load_view(session)["ended_at"] is not None:
        if (session.load_status() or {}).get("ended_at") is None and launch.resume(session):
            wait_until(lambda: load_view(session), has_ended, timeout_s=TAKEN_TIMEOUT_S)
        return False
    if not launch.resume(session, even_ended=False):
        return False
    _warn_of_other_programs(session)
    return True


def _warn_of_other_programs(session: SessionDir) -> None:
    """Warn of agents whose name on PATH is now another program: a session keeps the program of its launch."""
    import shutil

    from sessionrun.runtime.history import load_spec_now

    for agent in load_spec_now(session).agents.values():
        program = agent.argv[0]
        here = shutil.which(os.path.basename(program))
        if not os.access(program, os.X_OK):
            gone = f"{program}, with which the session was started, cannot be executed any more"
            notify(f"agent {agent.name}: {gone}")
        elif here is not None and not os.path.samefile(here, program):
            notify(f"agent {agent.name}: the session goes on with {program}; PATH has {here} now")


def _load_latest(session: SessionDir) -> View:
    """The session's own view, from the logs if they are ahead: on a full disk status.json may be behind."""
    view = load_view(session, merged=False)
    try:
        logged, _, _ = load_history(session, merged=False)
    except (SessionrunError, OSError):  # the request is done all the same
        return view
    return logged if logged["seq"] > view["seq"] else view


def _ask_open(target: Target, record: dict[str, Any], timeout_s: float) -> Reply:
    """Make a request about tasks that have not ended, if there are any."""
    is_open = not target.named and bool((target.view.get("feed") or {}).get("open"))
    ended = all(task["status"] == "completed" and not _is_held(task) for task in target.tasks)
    taken = (ended and not is_open) or ask_open(target.session, record, timeout_s=timeout_s)
    return target.reply(taken=taken)


def _list_running(view: View) -> str:
    pids = [str(task["pid"]) for task in view["tasks"] if task["status"] == "running" and task["pid"]]
    return f"; still running without it: process groups {', '.join(pids)}" if pids else ""


def _list_outcomes(target: Target, *, failed: bool, lost: bool) -> tuple[str, ...]:
    """The outcomes by which tasks are chosen; empty: every outcome but success, of the named tasks."""
    from sessionrun.model.spec import RETRY_FAILED, RETRY_LOST

    if not failed and not lost:
        failed = lost = not target.named
    return (*(RETRY_FAILED if failed else ()), *(RETRY_LOST if lost else ()))


def _choose_retried(target: Target, outcomes: tuple[str, ...]) -> Retried:
    from sessionrun.engine.requests import find_dependents

    by_id = {task["id"]: task for task in target.view["tasks"]}
    stuck = [task["id"] for task in target.tasks if _can_land_again(task, target.view["tasks"])]
    if not target.named and "failed" not in outcomes:
        stuck = []
    good = (task for task in target.tasks if task["outcome"] == "succeeded" and task["id"] not in stuck)
    if target.named and (refused := next(good, None)):
        raise InputError(f"task {refused['id']!r} succeeded and is not tried again; leave it out")
    bad = [task for task in target.tasks if task["outcome"] in (outcomes or _NOT_GOOD)]
    if target.named and (mend := next((task for task in bad if task.get("mends")), None)):
        raise InputError(f"task {mend['id']!r} mends {mend['mends']!r}: name that one, and new tasks mend it")
    tried = [task["id"] for task in bad if not task.get("mends")]
    chosen = tried + stuck
    skipped = {task["id"]: task["needs"] for task in by_id.values() if task["reason_class"] == "need"}

    def is_hopeless(name: str) -> bool:
        return name not in by_id or by_id[name]["outcome"] not in (None, "succeeded")

    opened = [*dict.fromkeys(chosen), *find_dependents(chosen, skipped, is_hopeless)]
    for name in chosen:
        for need in by_id[name]["needs"]:
            if need not in opened and is_hopeless(need):
                raise InputError(f"task {name!r} needs {need!r}, which did not succeed: name that one too")
    return Retried(tried, sorted(opened, key=lambda name: int(by_id[name]["num"])))


def _is_held(task: dict[str, Any]) -> bool:
    """Whether the work of a task waits, and a release lets it land."""
    return read_landing(task) in ("ready", "held", "mending")


def _can_land_again(task: dict[str, Any], tasks: Sequence[dict[str, Any]]) -> bool:
    """Whether the work of a task, or a mend of it, could not land and may be tried again; `tasks` are all."""
    landing = task.get("landing") or {}
    if landing.get("status") == "mending":
        return any(_can_land_again(one, tasks) for one in tasks if one.get("mends") == task["id"])
    wanted = ("held",) if task.get("mends") else ("held", "bounced")
    return landing.get("status") in wanted and landing["reason_class"] != "rescued"
