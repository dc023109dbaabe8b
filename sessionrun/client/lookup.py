"""Finds what a caller means: the results directory in use, a session, tasks of it, several sessions, or all.

A session is looked for in that directory first, then in the user's index; in each of them an id goes before the
beginning of one, and that before a name.  `last` looks in the directory alone: a script must not get the newest
session of another project by accident.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.notices import notify
from sessionrun.client.reading.view import (
    NAMED,
    choose_tasks,
    load_or_warn,
    load_summary_view,
    load_view,
    match_tasks,
)
from sessionrun.model.errors import InputError, SessionNotFound, SessionrunError, name_some, suggest
from sessionrun.model.words import format_time, parse_time
from sessionrun.store import index
from sessionrun.store.session import DEFAULT_RESULTS_DIR, PREFIX, SessionDir, iterate_sessions

LAST: Final = "last"
_WHOLE_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

STATES: Final = (
    *("running", "recovering", "completed", "cancelled", "interrupted", "succeeded", "failed"),
    *("held", "stopped", "ended", "bounced"),
)
"""What `--state` takes: statuses, states and results of a session (see `is_in_state`)."""

_LEAST: Final = 6
"""Of a session's id a word behind the first has so much: a shorter one may be a mistyped task."""

_SURE: Final = 8
"""So much of a session's id is no name of a task by accident."""


# --- a session ---


def find_session(results_dir: Path, wanted: str) -> SessionDir:
    """Find a session.

    Args:
        wanted: an id, an unambiguous beginning of one, a name that only one has, or ``last``.

    Raises:
        SessionNotFound: none, or several.
    """
    matches = match_sessions(results_dir, wanted)
    if len(matches) == 1:
        return matches[0]
    if not matches:
        here = list(iterate_sessions(results_dir))
        # as much of an id as was typed; of a launch that was killed there is a directory, but no session
        begins = {session.session_id[: len(wanted)] for session in here} - {wanted}
        names = (name for _, name in _load_names(here, wanted) if name)
        meant = suggest(wanted, [LAST, *names, *sorted(begins)])
        raise SessionNotFound(
            f"no session {wanted!r} in {results_dir} or elsewhere{meant}; `sessionrun list --all` shows all"
        )
    if all(session.session_id.startswith(wanted.removeprefix(PREFIX)) for session in matches):
        ids = name_some(sorted(session.session_id for session in matches), NAMED)
        raise SessionNotFound(f"{wanted!r} matches {len(matches)} sessions ({ids}): give more of the id")
    starts = (_load_either(session, "started_at", "created_at") or "?" for session in matches)
    newest = sorted(zip(starts, (session.session_id for session in matches), strict=True), reverse=True)
    named = name_some([f"{session_id} of {started}" for started, session_id in newest], NAMED)
    raise SessionNotFound(f"{len(matches)} sessions have the name {wanted!r}: {named}; give an id")


def match_sessions(results_dir: Path, wanted: str) -> list[SessionDir]:
    """All sessions that `find_session` would have to choose from; SessionNotFound: there is no last one."""
    if wanted == LAST:
        return [_find_newest(results_dir)]
    here = list(iterate_sessions(results_dir))
    return _match(here, wanted) or _match(index.sessions(), wanted)


def _match(sessions: list[SessionDir], wanted: str) -> list[SessionDir]:
    """Those of this id; else those whose id begins so; else those of this name."""
    beginning = wanted.removeprefix(PREFIX)
    matches = [session for session in sessions if beginning and session.session_id.startswith(beginning)]
    exact = [session for session in matches if session.session_id == beginning]
    found = [session for session in exact or matches if session.spec_path.exists()]
    return found or [session for session, name in _load_names(sessions, wanted) if name == wanted]


def _find_newest(results_dir: Path) -> SessionDir:
    begun: list[tuple[float, str, SessionDir]] = []
    for session in iterate_sessions(results_dir):
        with suppress(OSError):  # it has not begun, or was removed while we looked
            begun.append((session.spec_path.stat().st_mtime, session.session_id, session))
    if begun:
        return max(begun)[2]
    away = index.sessions()
    if not away:
        raise SessionNotFound(f"there is no session in {results_dir} or in your index yet")
    place = f"{away[-1].session_id} in {away[-1].path.parent}"
    raise SessionNotFound(
        f"there is no session in {results_dir}; the newest in your index is {place}: name it by its id "
        f"(`sessionrun list --all` shows all)"
    )


def _load_names(sessions: Iterable[SessionDir], wanted: str) -> list[tuple[SessionDir, str | None]]:
    """Sessions with their names, if the wanted word may be a name; None: one that cannot be read, or has none."""
    if not wanted or _WHOLE_ID.fullmatch(wanted.removeprefix(PREFIX)):
        return []
    return [(session, _load_either(session, "name", "name")) for session in sessions]


def _load_either(session: SessionDir, key: str, field: str) -> str | None:
    """What the summary has by this key, or else the spec as this field; None: neither says it."""
    try:
        summary = session.load_summary()
        found: str | None = getattr(session.load_spec(), field) if summary is None else summary[key]
    except (SessionrunError, OSError):
        return None
    return found


def resolve_results_dir(given: Path | None) -> Path:
    """The results directory in use: flag, environment, configuration, `./results`."""
    if given is not None:
        return given
    from sessionrun.input.config import load_results_dir

    chosen, problem = load_results_dir(Path.cwd(), os.environ)
    if problem:
        notify(f"{problem} (nothing can be launched until that is mended)")
    return chosen or Path(DEFAULT_RESULTS_DIR)


def find_results_dir(given: Path | None) -> Path:
    """The results directory in use, for verbs that do not make it: a given directory must exist."""
    if given is not None and not given.is_dir():
        raise InputError(f"--results-dir: there is no directory {given}")
    return resolve_results_dir(given)


def open_session(results_dir: Path | None, session_id: str) -> SessionDir:
    """Find the session that a verb is about; SessionNotFound says that there is none, or several."""
    place = find_results_dir(results_dir)
    try:
        return find_session(place, session_id)
    except SessionNotFound as error:
        newest = find_newest_of(place, session_id)
        if newest is None:
            raise
        task = f"{session_id!r} is a task of session {newest.session_id}, the newest"
        raise SessionNotFound(f"{error}; {task}: write last before it") from None


def name_for_command(view: Mapping[str, Any]) -> str:
    """What names a session on a command line: its name, if that is short and no other's, else its digits."""
    from sessionrun.model.wording import SHORT_ID  # a poll for JSON needs no words

    name, path = view["name"] or "", Path(view["results_dir"])
    found: list[SessionDir] = []
    if re.fullmatch(r"\w[\w.,:+-]{0,29}", name, re.ASCII):
        with suppress(SessionrunError):  # a directory that cannot be read says nothing of other names
            found = match_sessions(path.parent, name)
    return str(name) if [each.path.absolute() for each in found] == [path] else str(view["session_id"])[:SHORT_ID]


def find_newest_of(place: Path, name: str) -> SessionDir | None:
    """The newest session of a results directory, if one of its tasks has this name."""
    try:
        newest = find_session(place, LAST)
        status = newest.load_status()
    except (SessionrunError, OSError):
        return None
    return newest if status is not None and match_tasks(status["tasks"], [name]) != [[]] else None


# --- several sessions ---


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
