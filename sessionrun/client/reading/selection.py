"""The sessions that a verb is about: all of a directory, those of which something is true, or those named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.lookup import (
    LAST,
    choose_tasks,
    find_newest_of,
    find_results_dir,
    match_sessions,
    match_tasks,
    open_session,
    resolve_results_dir,
)
from sessionrun.client.notices import notify
from sessionrun.client.reading.view import load_or_warn, load_summary_view, load_view
from sessionrun.model.errors import InputError, SessionNotFound
from sessionrun.model.units import format_time, parse_time
from sessionrun.store import index
from sessionrun.store.session import SessionDir, iterate_sessions

STATES: Final = (
    *("running", "recovering", "completed", "cancelled", "interrupted", "succeeded", "failed"),
    *("held", "stopped", "ended", "bounced"),
)
"""What `--state` takes: statuses, states and results of a session (see `is_in_state`)."""

_LEAST: Final = 6
"""Of a session's id a word behind the first has so much: a shorter one may be a mistyped task."""

_SURE: Final = 8
"""So much of a session's id is no name of a task by accident."""


class Wanted(NamedTuple):
    """What has to be true of a session: all these labels, one of these states, a start not before `since`."""

    labels: tuple[tuple[str, str], ...] = ()
    states: tuple[str, ...] = ()
    since: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it takes every session."""
        return self == ANY

    def takes(self, view: Mapping[str, Any]) -> bool:
        """Whether it is true of a session, given its summary."""
        return (
            all(view["labels"].get(key) == value for key, value in self.labels)
            and (not self.states or is_in_state(view, self.states))
            and (self.since is None or parse_time(view["started_at"]) >= self.since)
        )

    def describe(self) -> str:
        """The same as a caller asks for it on the command line."""
        words = [f"--label {key}={value}" for key, value in self.labels]
        words += [f"--state {','.join(self.states)}"] if self.states else []
        words += [f"--since {format_time(self.since)}"] if self.since is not None else []
        return " ".join(words)


ANY: Final = Wanted()


class Chosen(NamedTuple):
    """Sessions as the words name them or the newest first, tasks of the only one; whether several may be meant."""

    sessions: list[SessionDir]
    tasks: tuple[str, ...]
    several: bool


def is_in_state(view: Mapping[str, Any], states: Sequence[str]) -> bool:
    """Whether a session is in one of the states; `failed`, `held` or `bounced` is one that has such a task."""
    counts = view["counts"]
    has_such = any(counts[word] for word in ("held", "bounced") if word in states)
    is_failed = "failed" in states and view["failed"] > 0
    return has_such or is_failed or not {view["status"], view["state"], view["result"]}.isdisjoint(states)


def find_views(results_dir: Path | None, wanted: Wanted, *, everywhere: bool = False) -> list[dict[str, Any]]:
    """The summaries of the sessions of which `wanted` is true, the newest first."""
    views = load_summaries(find_results_dir(results_dir), everywhere=everywhere)
    return [view for view in views if wanted.takes(view)]


def find_sessions(results_dir: Path | None, names: Sequence[str], wanted: Wanted = ANY) -> list[SessionDir]:
    """The named sessions, each once, or all of the results directory, as far as `wanted` is true of them."""
    if not names:
        return [SessionDir(Path(view["results_dir"])) for view in find_views(results_dir, wanted)]
    return _keep([open_session(results_dir, name) for name in names], wanted)


def choose_sessions(
    results_dir: Path | None,
    words: Sequence[str],
    wanted: Wanted = ANY,
    *,
    reads: bool = False,
    only_open: bool = False,
) -> Chosen:
    """The sessions that a verb with `[ID] [TASK]...` is about; never none.

    Args:
        words: a session and tasks of it, or several sessions.
        wanted: what has to be true of them; without words this alone chooses.
        reads: without an ID the newest session is meant, also for words that are tasks of it.
        only_open: leave out sessions that have ended, unless they are named.

    Raises:
        SessionNotFound: a word means no session, or several, or `wanted` is true of none.
        InputError: neither chooses, or a word is no task of the session, or may be a task as well as a session.
    """
    if not words and wanted.is_empty:
        if not reads:
            raise InputError("say which session: an ID, or choose by --label, --state or --since")
        words = (LAST,)
    named, tasks = _sort_words(results_dir, words, reads=reads) if words else ([], ())
    sessions = _keep(named, wanted) if words else find_sessions(results_dir, (), wanted)
    if only_open and not words:
        sessions = [one for one in sessions if load_summary_view(one)["ended_at"] is None]
    if not sessions:
        runs = "that has not ended " if only_open and not words else ""
        where = f"of {', '.join(words)}" if words else f"in {find_results_dir(results_dir)}"
        raise SessionNotFound(f"no session {runs}{where} matches {wanted.describe()}; `sessionrun list` shows all")
    return Chosen(sessions, tasks, len(named) != 1 or not wanted.is_empty)


def _keep(sessions: Sequence[SessionDir], wanted: Wanted) -> list[SessionDir]:
    once = {session.path.absolute(): session for session in sessions}.values()
    return [session for session in once if wanted.is_empty or wanted.takes(load_summary_view(session))]


def _sort_words(
    results_dir: Path | None, words: Sequence[str], *, reads: bool
) -> tuple[list[SessionDir], tuple[str, ...]]:
    """The sessions among the words, and the tasks of the first session: either of them, besides that one."""
    try:
        first = open_session(results_dir, words[0])
    except SessionNotFound:
        newest = find_newest_of(find_results_dir(results_dir), words[0]) if reads else None
        if newest is None:
            raise
        return [newest], tuple(words)
    is_sure = words[0] == LAST or (len(words[0]) >= _SURE and first.session_id.startswith(words[0]))
    if reads and not is_sure and find_newest_of(find_results_dir(results_dir), words[0]):
        both = f"{words[0]!r} is session {first.session_id}, and a task of the newest session"
        notify(f"{both}: the session is meant; for the task write last before it")
    behind = words[1:]
    if reads and all(word.isdecimal() and len(word) < _LEAST for word in behind):
        return [first], tuple(behind)  # numbers of tasks: a poll need not read these to see it
    view = load_view(first)
    others = {word: _find_other(results_dir, word, view, reads=reads) for word in behind}
    sessions = [session for session in others.values() if session is not None]
    if not sessions:
        return [first], tuple(behind)
    if len(sessions) < len(others):
        choose_tasks(view, [word for word, session in others.items() if session is None])  # one may be mistyped
        raise InputError(f"name several sessions, or tasks of one session, not both: {' '.join(words)}")
    return [first, *sessions], ()


def _find_other(results_dir: Path | None, word: str, view: Mapping[str, Any], *, reads: bool) -> SessionDir | None:
    """The session that a word behind the first means; None: it is a task of the first one, whose view this is."""
    (tasks,) = match_tasks(view["tasks"], [word])
    is_task = any(word in (task["id"], str(task["num"])) for task in tasks)
    if is_task and (reads or word.isdecimal()):
        return None  # to look at the names of all sessions is dear for a poll
    found = match_sessions(find_results_dir(results_dir), word)
    sure = [session for session in found if len(word) >= _LEAST or not session.session_id.startswith(word)]
    if is_task:
        if sure:
            both = f"{word!r} is a task of session {view['session_id']}, and a session"
            notify(f"{both}: the task is meant; for the session put it first, or give its id")
        return None
    if sure and tasks:
        whose = f"begins a task's id of {view['session_id']}"
        raise InputError(f"{word!r} is a session, and {whose}: give more of the id")
    if found and not (sure or tasks):
        begins = f"{word!r} begins the id of session {found[0].session_id}: give {_LEAST} characters of it"
        raise InputError(f"no task {word!r} in session {view['session_id']}; {begins}")
    return open_session(results_dir, word) if sure else None


# --- lists ---


def load_summaries(results_dir: Path | None = None, *, everywhere: bool = False) -> list[dict[str, Any]]:
    """The summaries of all sessions, the newest first, of the directory or, `everywhere`, of the user's index.

    One that cannot be read is left out, with a warning; so is a directory without a session.
    """
    from sessionrun.store.creation import has_begun

    def load(session: SessionDir) -> dict[str, Any]:
        view = load_summary_view(session)
        if view["status"] == "interrupted" and not has_begun(session):  # its launcher was killed
            raise SessionNotFound(f"no session has begun in {session.path}")
        return view

    place = resolve_results_dir(results_dir).absolute()
    return load_many(index.sessions() if everywhere else iterate_sessions(place), load)


def load_many(
    sessions: Iterable[SessionDir], load: Callable[[SessionDir], dict[str, Any]]
) -> list[dict[str, Any]]:
    """The views of sessions, the newest first; one that cannot be read is left out, with a warning."""
    views = [view for session in sessions if (view := load_or_warn(session, load)) is not None]
    return sorted(views, key=lambda view: str(view["started_at"]), reverse=True)


def arrange(views: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """The same, each session that a job launched behind the session of that job, if that is among them.

    Beside each stands how many of these sessions are around it.
    """
    known = {view["session_id"] for view in views}
    inside: dict[str, list[dict[str, Any]]] = {}
    for view in views:
        parent = str((view.get("parent") or {}).get("session_id", ""))
        inside.setdefault(parent if parent in known else "", []).append(view)
    arranged: list[tuple[int, dict[str, Any]]] = []
    left = [(0, view) for view in inside.pop("", [])[::-1]]
    while left:
        depth, view = left.pop()
        arranged.append((depth, view))
        left += [(depth + 1, each) for each in inside.pop(view["session_id"], [])[::-1]]
    # a circle of sessions is forged; they are listed all the same
    return [*arranged, *((0, view) for views in inside.values() for view in views)]
