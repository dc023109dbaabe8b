"""Finds what a caller means: the results directory in use, a session, tasks of it.

A session is looked for in that directory first, then in the user's index; in each of them an id goes before the
beginning of one, and that before a name.  `last` looks in the directory alone: a script must not get the newest
session of another project by accident.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sessionrun.client.notices import notify
from sessionrun.model.errors import InputError, SessionNotFound, SessionrunError, name_some, suggest
from sessionrun.store import index
from sessionrun.store.session import PREFIX, SessionDir, iterate_sessions

DEFAULT_RESULTS_DIR: Final = "results"
LAST: Final = "last"
_WHOLE_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAMED: Final = 5
"""How many sessions or tasks an error names."""


def find_session(results_dir: Path, wanted: str) -> SessionDir:
    """Find a session.

    Args:
        wanted: an id, an unambiguous beginning of one, a name that only one has, or ``last``.

    Raises:
        SessionNotFound: none, or several.
    """
    matches = match_sessions(results_dir, wanted)
    if not matches:
        here = list(iterate_sessions(results_dir))
        # as much of an id as was typed; of a launch that was killed there is a directory, but no session
        begins = {session.session_id[: len(wanted)] for session in here} - {wanted}
        names = (name for _, name in _load_names(here, wanted) if name)
        meant = suggest(wanted, [LAST, *names, *sorted(begins)])
        raise SessionNotFound(
            f"no session {wanted!r} in {results_dir} or elsewhere{meant}; `sessionrun list --all` shows all"
        )
    if len(matches) > 1:
        raise SessionNotFound(_describe_choice(wanted, matches))
    return matches[0]


def match_sessions(results_dir: Path, wanted: str) -> list[SessionDir]:
    """All sessions that `find_session` would have to choose from.

    Raises:
        SessionNotFound: there is no last one.
    """
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


def _describe_choice(wanted: str, sessions: Sequence[SessionDir]) -> str:
    if all(session.session_id.startswith(wanted.removeprefix(PREFIX)) for session in sessions):
        ids = name_some(sorted(session.session_id for session in sessions), _NAMED)
        return f"{wanted!r} matches {len(sessions)} sessions ({ids}): give more of the id"
    starts = (_load_either(session, "started_at", "created_at") or "?" for session in sessions)
    newest = sorted(zip(starts, (session.session_id for session in sessions), strict=True), reverse=True)
    named = name_some([f"{session_id} of {started}" for started, session_id in newest], _NAMED)
    return f"{len(sessions)} sessions have the name {wanted!r}: {named}; give an id"


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


def match_tasks(tasks: Sequence[dict[str, Any]], names: Sequence[str]) -> list[list[dict[str, Any]]]:
    """For each name the task of this id, else of this number or, without either, those whose id begins so."""
    exact = {str(task["num"]): task for task in tasks} | {task["id"]: task for task in tasks}
    return [
        [exact[name]] if name in exact else [task for task in tasks if name and task["id"].startswith(name)]
        for name in names
    ]


def choose_tasks(status: dict[str, Any], wanted: Sequence[str]) -> list[dict[str, Any]]:
    """The tasks of a status object; of `wanted` ones, each by its id, the beginning of that, or its number.

    Raises:
        InputError: a name that is not a task of the session, or begins several ids.
    """
    if not wanted:
        return list(status["tasks"])
    matches = match_tasks(status["tasks"], wanted)
    for name, begun in zip(wanted, matches, strict=True):
        if len(begun) > 1:
            some = name_some([task["id"] for task in begun], _NAMED)
            raise InputError(f"{name!r} begins the ids of {len(begun)} tasks ({some}): give more of the id")
    missing = [name for name, found in zip(wanted, matches, strict=True) if not found]
    if missing:
        ids = [task["id"] for task in status["tasks"]]
        known = f"{suggest(missing[0], ids)}; it has: {name_some(ids, _NAMED) or 'none'}"
        raise InputError(f"no task {missing[0]!r} in session {status['session_id']}{known}")
    return [*{task["id"]: task for (task,) in matches}.values()]
