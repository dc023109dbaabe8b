"""Leaves a request for a session's supervisor, and waits until it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sessionrun.client.asking.spoken import has_stopped
from sessionrun.client.reading.view import load_view
from sessionrun.client.reading.waiting import Deadline, Progress, View, has_ended, wait_until
from sessionrun.model.errors import InputError, SessionGone, StoreError
from sessionrun.store.inbox import NoRoom, drop_request, has_request, send_request
from sessionrun.store.requests import MAX_TEXT
from sessionrun.store.session import REFUSED, SessionDir


class Refused(StoreError):
    """The session refused a request; `why` is what it wrote into its log."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


MAX_RESUMES: Final = 3
"""How often a session is started for one request whose processes leave without taking it."""


def ask(
    session: SessionDir,
    record: dict[str, Any],
    *,
    timeout_s: float | None,
    may_resume: bool = True,
    is_moot: Callable[[], bool] = lambda: False,
) -> bool:
    """Leave a request and wait until it was taken or, if no process is left to take it, until `is_moot`.

    Returns False when the time (seconds) is up before that.  Such a request stays; a moot one is withdrawn.

    Raises:
        SessionGone: no process is left, and the session must not or cannot be started again; the request stays.
        StoreError: the request cannot be written, or was refused.
    """
    deadline = Deadline(timeout_s)
    try:
        request_id, _ = send_request(session, record)
    except NoRoom:
        from sessionrun.client.asking.spoken import ask_spoken

        return ask_spoken(session, record, timeout_s=timeout_s, is_moot=is_moot)
    starts = 0
    while has_request(session, request_id):
        if not session.is_alive() and has_request(session, request_id):
            if is_moot():
                drop_request(session, request_id)
                break
            starts = _resume(session, starts, may_resume=may_resume)
        if not deadline.pause():
            return False
    _look_for_refusal(session, request_id)
    return True


def ask_open(session: SessionDir, record: dict[str, Any], *, timeout_s: float) -> bool:
    """As `ask`, for what only a session that runs can do: none is started for it, and its end makes it moot."""
    return ask(
        session, record, timeout_s=timeout_s, may_resume=False, is_moot=lambda: has_ended(load_view(session))
    )


def request_cancel(
    session: SessionDir,
    tasks: list[str],
    is_done: Callable[[View], bool],
    *,
    now: bool = False,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> View | None:
    """Ask the supervisor to stop these tasks, or all if none is named, and wait until `is_done`.

    Raises:
        SessionGone: see `ask` and `wait_until`; the request stays until the session is resumed.
    """
    deadline = Deadline(timeout_s)
    record = {"kind": "cancel", "tasks": tasks, "now": now}
    taken = ask(session, record, timeout_s=timeout_s, is_moot=lambda: has_ended(load_view(session)))
    left = deadline.left()
    if not taken and left == 0:
        return None

    def is_over(view: View) -> bool:
        return is_done(view) or (view["disk_full"] is not None and has_stopped(session, tasks))

    return wait_until(lambda: load_view(session), is_over, timeout_s=left, progress=progress)


def check_size(what: str, text: str) -> None:
    """Check that a text has room in a request.

    Raises:
        InputError: it is too long, or no UTF-8.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InputError(f"{what} is not UTF-8; write it as UTF-8") from None
    if size > MAX_TEXT:
        raise InputError(f"{what} has {size} bytes, and may have {MAX_TEXT}: put it into a file and name that")


def _resume(session: SessionDir, starts: int, *, may_resume: bool) -> int:
    """Start the session's processes for our request; how often that was done."""
    gone = f"no process of session {session.session_id} is left"
    if not may_resume:
        from sessionrun.runtime.history import find_damage

        damage = find_damage(session)
        raise SessionGone(
            f"{gone}, and {damage}" if damage else f"{gone}; the request waits until the session is resumed"
        )
    if starts == MAX_RESUMES:
        started = "the processes that were started for it ended at once"
        raise SessionGone(f"{gone}, and {started}; {session.log_path} says why")
    from sessionrun.runtime.launch import resume

    try:
        return starts + resume(SessionDir(session.path.absolute()))  # they leave our current directory
    except StoreError as error:
        raise SessionGone(f"{gone}, and {error}") from error


def _look_for_refusal(session: SessionDir, request_id: str) -> None:
    try:
        (session.path / "requests" / request_id).with_suffix(REFUSED).unlink()
    except OSError:
        return
    raise Refused(
        f"session {session.session_id} refused the request; {session.log_path} says why",
        _read_why(session, request_id),
    )


def _read_why(session: SessionDir, request_id: str) -> str:
    """What the log says of a request that was refused."""
    begin = f"request '{request_id}.json' is refused: "
    try:
        lines = session.log_path.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    return next((line.removeprefix(begin) for line in lines if line.startswith(begin)), f"see {session.log_path}")
