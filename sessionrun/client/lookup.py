"""Finds what a caller means: the results directory in use, a session, tasks of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sessionrun.client.notices import notify
from sessionrun.model.errors import InputError, SessionNotFound, SessionrunError, name_some
from sessionrun.store.lookup import LAST as LAST
from sessionrun.store.lookup import find_session, match_sessions
from sessionrun.store.session import SessionDir

DEFAULT_RESULTS_DIR = "results"

KNOWN_IDS = 5
"""How many ids of tasks a message names if the wanted task does not exist."""


def resolve_results_dir(given: Path | None) -> Path:
    """The results directory in use: flag, environment, configuration, `./results`."""
    if given is not None:
        return given
    from sessionrun.client.config import load_results_dir

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
            some = ", ".join(task["id"] for task in begun[:KNOWN_IDS]) + " ..." * (len(begun) > KNOWN_IDS)
            raise InputError(f"{name!r} begins the ids of {len(begun)} tasks ({some}): give more of the id")
    missing = [name for name, found in zip(wanted, matches, strict=True) if not found]
    if missing:
        ids = [task["id"] for task in status["tasks"]]
        known = name_some(ids, KNOWN_IDS)
        from sessionrun.model.errors import suggest

        meant = suggest(missing[0], ids)
        raise InputError(
            f"no task {missing[0]!r} in session {status['session_id']}{meant}; it has: {known or 'none'}"
        )
    return [*{task["id"]: task for (task,) in matches}.values()]
