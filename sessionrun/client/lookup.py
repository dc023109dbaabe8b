"""Finds what a caller means: the results directory in use, a session, tasks of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sessionrun.client.notices import notify
from sessionrun.model.errors import InputError
from sessionrun.store.lookup import LAST as LAST
from sessionrun.store.lookup import find_session
from sessionrun.store.session import SessionDir

DEFAULT_RESULTS_DIR = "results"

KNOWN_IDS = 5
"""How many ids of tasks a message names if the wanted task does not exist."""


def resolve_results_dir(given: Path | None) -> Path:
    """The results directory in use: flag, environment, configuration, `./results`."""
    if given is not None:
        return given
    from sessionrun.client.config import load_results_dir

    chosen = load_results_dir(Path.cwd(), os.environ)
    if chosen.problem:
        notify(f"{chosen.problem} (nothing can be launched until that is mended)")
    return chosen.results_dir or Path(DEFAULT_RESULTS_DIR)


def find_results_dir(given: Path | None) -> Path:
    """The results directory in use, for verbs that do not make it: a given directory must exist.

    Raises:
        InputError: the given directory does not exist.
    """
    if given is not None and not given.is_dir():
        raise InputError(f"--results-dir: there is no directory {given}")
    return resolve_results_dir(given)


def open_session(results_dir: Path | None, session_id: str) -> SessionDir:
    """Find the session that a verb is about.

    Raises:
        SessionNotFound: the id names no session, or several.
    """
    return find_session(find_results_dir(results_dir), session_id)


def choose_tasks(status: dict[str, Any], wanted: Sequence[str]) -> list[dict[str, Any]]:
    """The tasks of a status object that are named by id or number; all if none is named.

    Raises:
        InputError: a name that is not a task of the session.
    """
    if not wanted:
        return list(status["tasks"])
    by_name = {str(task["num"]): task for task in status["tasks"]}
    by_name |= {task["id"]: task for task in status["tasks"]}
    missing = [name for name in wanted if name not in by_name]
    if missing:
        ids = [task["id"] for task in status["tasks"]]
        known = ", ".join(ids[:KNOWN_IDS]) + (f" and {len(ids) - KNOWN_IDS} more" if len(ids) > KNOWN_IDS else "")
        from sessionrun.model.suggestions import suggest

        meant = suggest(missing[0], ids)
        raise InputError(
            f"no task {missing[0]!r} in session {status['session_id']}{meant}; it has: {known or 'none'}"
        )
    return [by_name[name] for name in wanted]
