"""Asking a session's supervisor for something, and seeing it taken: what all verbs of control share.

Where nobody is left to take a request, the session's processes are started again for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sessionrun.cli.follow import POLL_FIRST_S, POLL_GROWTH, POLL_LAST_S, Progress, View, has_ended, wait_until
from sessionrun.cli.options import Duration, choose_tasks, open_session
from sessionrun.cli.spoken import has_stopped
from sessionrun.cli.view import load_history, load_view
from sessionrun.errors import SessionGone, SessionrunError, StoreError
from sessionrun.inbox import NoRoom
from sessionrun.store import REFUSED, SessionDir

DEFAULT_TIMEOUT_S: Final = 60.0
EXIT_TIMEOUT: Final = 124
NOT_TAKEN: Final = "asked for, but nobody has taken the request yet"
MAX_STARTS: Final = 3
"""How often a session is started for one request, should its processes leave without taking it."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def control_options(command: _Command) -> _Command:
    """`ID [TASK]...` and `--timeout`, of every verb that asks for something to be done."""
    command = click.option(
        "--timeout",
        type=Duration(),
        default=DEFAULT_TIMEOUT_S,
        metavar="TIME",
        help="How long to wait until it is done: 90, 10m; 0 = only ask.  [default: 60]",
    )(command)
    command = click.argument("tasks", nargs=-1, metavar="[TASK]...")(command)
    return click.argument("session_id", metavar="ID")(command)


def ask(
    session: SessionDir,
    record: dict[str, Any],
    *,
    timeout_s: float | None,
    may_resume: bool = True,
    is_moot: Callable[[], bool] = lambda: False,
) -> bool:
    """Leave a request and wait until it was taken, or until `is_moot` where nobody is left to take it.

    Returns False when the time (seconds) is up before that.  Such a request stays; a moot one is withdrawn.

    Raises:
        SessionGone: nobody is left, and the session must not or cannot be started again; the request stays.
        StoreError: it cannot be left, or was refused.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        request_id, _ = session.send_request(record)
    except NoRoom:
        from sessionrun.cli.spoken import ask_spoken

        return ask_spoken(session, record, timeout_s=timeout_s, is_moot=is_moot)
    interval, starts = POLL_FIRST_S, 0
    while session.has_request(request_id):
        if not session.is_alive() and session.has_request(request_id):
            if is_moot():
                session.drop_request(request_id)
                break
            starts = _resume(session, starts, may_resume=may_resume)
        left = POLL_LAST_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(interval, left))
        interval = min(interval * POLL_GROWTH, POLL_LAST_S)
    _look_for_refusal(session, request_id)
    return True


def request_cancel(
    session: SessionDir,
    tasks: list[str],
    is_done: Callable[[View], bool],
    *,
    now: bool = False,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> View | None:
    """Ask the supervisor to stop these tasks, all when none is named, and look until `is_done`.

    Raises:
        SessionGone: see `ask` and `wait_until`; the request stays for whoever resumes the session.
    """
    begun = time.monotonic()
    record = {"kind": "cancel", "tasks": tasks, "now": now}
    taken = ask(session, record, timeout_s=timeout_s, is_moot=lambda: has_ended(load_view(session)))
    left = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - begun))
    if not taken and left == 0:
        return None

    def is_over(view: View) -> bool:
        return is_done(view) or (view["disk_full"] is not None and has_stopped(session, tasks))

    return wait_until(lambda: load_view(session), is_over, timeout_s=left, progress=progress)


class Target:
    """The session and the tasks that a verb of control is about, as they were when it began."""

    def __init__(self, results_dir: Path | None, session_id: str, tasks: tuple[str, ...]) -> None:
        self.session = open_session(results_dir, session_id)
        self.view = _load_latest(self.session)
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


def _load_latest(session: SessionDir) -> View:
    """The session's view, from the logs if they are further: a disk that is full may keep status.json behind."""
    view = load_view(session)
    try:
        told, _, _ = load_history(session)
    except (SessionrunError, OSError):  # what was asked for is done all the same
        return view
    return told if told["seq"] > view["seq"] else view


def count_words(counts: Iterable[tuple[int, str]]) -> str:
    """Those counts that are not 0, for people."""
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def _resume(session: SessionDir, starts: int, *, may_resume: bool) -> int:
    """Start the session's processes for our request; how often that was done."""
    gone = f"nobody runs session {session.session_id} any more"
    if not may_resume:
        from sessionrun.replay import find_damage

        damage = find_damage(session)
        raise SessionGone(f"{gone}, and {damage}" if damage else f"{gone}; the request waits until it is resumed")
    if starts == MAX_STARTS:
        raise SessionGone(f"{gone}, and whoever was started left at once; {session.log_path} says why")
    from sessionrun.detach import resume

    try:
        return starts + resume(SessionDir(session.path.absolute()))  # they leave our directory
    except StoreError as error:
        raise SessionGone(f"{gone}, and {error}") from error


def _look_for_refusal(session: SessionDir, request_id: str) -> None:
    try:
        (session.path / "requests" / request_id).with_suffix(REFUSED).unlink()
    except OSError:
        return
    raise StoreError(f"session {session.session_id} refused the request; {session.log_path} says why")
