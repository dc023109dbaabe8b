"""Waits for a session by reading its files again and again, so that no process has to send a message."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.reading.view import choose_tasks, load_summary_view, load_view
from sessionrun.model.errors import SessionGone
from sessionrun.model.words import BAD, HELD, IN_LANDING, Standing, is_stuck, read_landing, stand
from sessionrun.store.session import SessionDir

POLL_FIRST_S: Final = 0.01
POLL_LAST_S: Final = 0.2
POLL_GROWTH: Final = 1.25
GONE_AFTER_S: Final = 1.0
"""A session's processes are gone if two looks this far apart find none: living ones restart each other."""

View = dict[str, Any]


Progress = Callable[[View], None]
"""Shows how far a session is, given its view or its summary."""


class Waited(NamedTuple):
    """How a wait ended: in time or not, and `done` or with only tasks left that are held without a known time.

    `view` is the session now, `tasks` those that were waited for.
    """

    view: View
    tasks: list[dict[str, Any]]
    in_time: bool
    done: bool


class NextEnd(NamedTuple):
    """What ended behind the cursor, in the order of the ends; how many of those waited for are left, or only held.

    `cursor` is for the next call.  `in_time` is false if the time was up.
    """

    view: View
    tasks: list[dict[str, Any]]
    left: int
    cursor: int
    in_time: bool
    held: bool


class Watch:
    """Distinguishes a session whose processes are gone from a session that is just being restarted."""

    def __init__(self) -> None:
        self.missed_at: float | None = None
        """When the first of the looks was that found no process; None: the last look has found one."""

    def is_gone(self, view: View) -> bool:
        """Whether no look has found a process for long enough, this look included."""
        if view["status"] != "interrupted":
            self.missed_at = None
            return False
        now = time.monotonic()
        self.missed_at = now if self.missed_at is None else self.missed_at
        return now - self.missed_at >= GONE_AFTER_S


def wait(
    session: SessionDir,
    tasks: Sequence[str] = (),
    *,
    through_holds: bool = False,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> Waited:
    """Block until tasks have ended: the named ones or all of the session.

    What is held without a known time is waited for only with `through_holds`, or while something else goes on.

    Raises:
        SessionGone: the session's processes are gone and it has not ended.
    """
    if tasks:  # an unknown one is an error at once
        choose_tasks(load_view(session), tasks)

    def load() -> View:
        return load_view(session) if tasks else load_summary_view(session)

    def are_done(view: View) -> bool:
        return has_ended(view) or bool(tasks and all(map(is_done, choose_tasks(view, tasks))))

    def is_over(view: View) -> bool:
        return are_done(view) or (not through_holds and is_held(view, tasks))

    seen = wait_until(load, is_over, timeout_s=timeout_s, progress=progress)
    view = load_view(session)
    done = seen is not None and are_done(seen)
    return Waited(view, choose_tasks(view, tasks), seen is not None, done)


def wait_for_next(
    session: SessionDir,
    tasks: Sequence[str] = (),
    *,
    since: int = 0,
    failed: bool = False,
    through_holds: bool = False,
    timeout_s: float | None = None,
) -> NextEnd:
    """Block until one of these tasks has ended after `since`, or none is left that could; held ones as in `wait`.

    Args:
        since: the cursor of the call before; 0: from the beginning.
        failed: only tasks that did not succeed, or whose work did not land.

    Raises:
        SessionGone: the session's processes are gone and it has not ended.
    """

    over = has_failed if failed else is_done

    def find(view: View) -> list[dict[str, Any]]:
        chosen = choose_tasks(view, tasks)
        ended = [task for task in chosen if over(task) and (not since or (task["ended_seq"] or 0) > since)]
        return sorted(ended, key=lambda task: (task["ended_seq"] or 0, task["num"]))

    def count_left(view: View) -> int:
        return 0 if has_ended(view) else sum(not is_done(task) for task in choose_tasks(view, tasks))

    def is_over(view: View) -> bool:
        return bool(find(view)) or not count_left(view) or (not through_holds and is_held(view, tasks))

    seen = wait_until(lambda: load_view(session), is_over, timeout_s=timeout_s)
    view = seen or load_view(session)
    ended, left = find(view), count_left(view)
    return NextEnd(view, ended, left, view["seq"], seen is not None, bool(seen and left and not ended))


def wait_for_any(
    sessions: Sequence[SessionDir], *, through_holds: bool = False, timeout_s: float | None = None
) -> list[SessionDir]:
    """Block until one of several sessions has ended, or is left without a process; those of which that is true.

    All of them if each is held without a known time, but for `through_holds`.  The list is empty if the time
    (seconds) is up.
    """
    deadline, watches = Deadline(timeout_s), [Watch() for _ in sessions]
    while True:
        views = [load_summary_view(session) for session in sessions]
        looked = zip(sessions, watches, views, strict=True)
        over = [session for session, watch, view in looked if has_ended(view) or watch.is_gone(view)]
        if not over and not through_holds and all(is_held(view, ()) for view in views):
            return list(sessions)
        if over or not deadline.pause(even_late=any(watch.missed_at is not None for watch in watches)):
            return over


class Deadline:
    """A time (seconds) that several waits may share, and the pauses in it; None: as long as it takes."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s
        self._pause_s = POLL_FIRST_S

    def left(self) -> float | None:
        """What is left (seconds)."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def pause(self, *, even_late: bool = False) -> bool:
        """Sleep until the next look, each time longer; False at once if the time is up, but for `even_late`."""
        left = self.left()
        if left == 0 and not even_late:
            return False
        time.sleep(min(self._pause_s, left or self._pause_s))
        self._pause_s = min(self._pause_s * POLL_GROWTH, POLL_LAST_S)
        return True


def wait_until(
    load: Callable[[], View],
    is_done: Callable[[View], bool],
    *,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> View | None:
    """Look again and again until `is_done`; None when the time (seconds) is up.

    If no process is found then, it looks a second longer, so that a caller that waits in short slices also learns
    that the processes are gone.

    Raises:
        SessionGone: the session's processes are gone and it has not ended.
    """
    deadline, watch = Deadline(timeout_s), Watch()
    while True:
        view = load()
        if progress is not None:
            progress(view)
        if is_done(view):
            return view
        if watch.is_gone(view):
            raise SessionGone(gone_words(view))
        if not deadline.pause(even_late=watch.missed_at is not None):
            return None


def gone_words(view: View) -> str:
    """The message that no process of the session is left, and what helps."""
    from sessionrun.client.evidence import read_evidence

    why, plan = read_evidence(SessionDir(Path(view["results_dir"]))).tell_gone()
    return f"session {view['session_id']}: {why}; {plan}"


def has_ended(view: View) -> bool:
    return view["ended_at"] is not None


def choose_decisive(view: View, tasks: Sequence[View]) -> list[View]:
    """Those of the tasks that decide the outcome: no mends, and for each task of the queue the last attempt."""
    last = {standing.tries: task for standing, task in zip(_stand(view, tasks), tasks, strict=True)}
    return [task for name, task in last.items() if name is not None]


def _stand(view: View, tasks: Sequence[View]) -> list[Standing]:
    return [stand(task, feeds=view["feed"] is not None) for task in tasks]


def has_landed(task: Mapping[str, Any]) -> bool:
    """Whether nothing of a task's work is left that was to land."""
    return not task.get("landing") or task["landing"]["status"] == "landed"


def has_failed(task: Mapping[str, Any]) -> bool:
    """Whether a task ended and its word is bad, or its work was to land and did not."""
    return is_done(task) and (task["word"] in BAD or (task["outcome"] == "succeeded" and not has_landed(task)))


def is_done(task: Mapping[str, Any]) -> bool:
    """Whether a task has ended, and its work is not about to land."""
    return task["status"] == "completed" and read_landing(task) not in IN_LANDING


def is_held(view: View, tasks: Sequence[str]) -> bool:
    """Whether all that is left is held without a known time, of the named tasks or of the session.

    Of the session its summary is enough; tasks are held as long as a process could release them.
    """
    if not tasks:
        return bool(view["state"] == HELD and not view["held_until"])
    names = {task["id"] for task in choose_tasks(view, tasks)}
    return view["status"] != "interrupted" and is_stuck(_stand(view, view["tasks"]), names)
