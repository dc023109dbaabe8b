"""Finding the session that a verb means: by id, by the beginning of an id, by name, or as the newest.

Without an id only the results directory in use counts: a script must not get the newest session of another project
by accident.  What is named is looked for in that directory first, then in the user's index; in each of them an id
goes before the beginning of one, and that before a name.  A whole id is never looked for among the names, which
stand in one file for each session: a poll by id costs nothing more for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionNotFound, SessionrunError, name_some, suggest
from sessionrun.store import index
from sessionrun.store.session import PREFIX, SessionDir, iterate_sessions

LAST: Final = "last"
_WHOLE_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAMED: Final = 3
"""How many sessions an error names."""


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
    named = (session for session, name in _load_names(sessions, wanted) if name == wanted)
    return _match_ids(sessions, wanted) or [*named]


def _find_newest(results_dir: Path) -> SessionDir:
    here = [session for session in iterate_sessions(results_dir) if session.spec_path.exists()]
    if here:
        return max(here, key=lambda session: _age(session.spec_path))
    away = index.sessions()
    if not away:
        raise SessionNotFound(f"there is no session in {results_dir} or in your index yet")
    place = f"{away[-1].session_id} in {away[-1].path.parent}"
    raise SessionNotFound(
        f"there is no session in {results_dir}; the newest in your index is {place}: name it by its id "
        f"(`sessionrun list --all` shows all)"
    )


def _match_ids(sessions: Iterable[SessionDir], wanted: str) -> list[SessionDir]:
    """Those of this id or, where there is none, those whose id begins so."""
    beginning = wanted.removeprefix(PREFIX)
    if not beginning:
        return []
    matches = [session for session in sessions if session.session_id.startswith(beginning)]
    exact = [session for session in matches if session.session_id == beginning]
    return [session for session in exact or matches if session.spec_path.exists()]


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
        ids = ", ".join(sorted(session.session_id for session in sessions)[:_NAMED])
        more = " ..." if len(sessions) > _NAMED else ""
        return f"{wanted!r} matches {len(sessions)} sessions ({ids}{more}): give more of the id"
    starts = (_load_either(session, "started_at", "created_at") or "?" for session in sessions)
    newest = sorted(zip(starts, (session.session_id for session in sessions), strict=True), reverse=True)
    named = name_some([f"{session_id} of {started}" for started, session_id in newest], _NAMED)
    return f"{len(sessions)} sessions have the name {wanted!r}: {named}; give an id"


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
