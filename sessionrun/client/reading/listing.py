"""Lists all sessions of a results directory, or of every results directory that the user used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sessionrun.client.lookup import resolve_results_dir
from sessionrun.client.reading.view import load_or_warn, load_summary_view
from sessionrun.model.errors import SessionNotFound
from sessionrun.store.session import SessionDir, iterate_sessions


def load_summaries(results_dir: Path | None = None, *, everywhere: bool = False) -> list[dict[str, Any]]:
    """The summaries of all sessions, the newest first; directories without a session are left out.

    A session that cannot be read is left out, too, with a warning.

    Args:
        results_dir: where the sessions are, else the results directory in use.
        everywhere: those of the user's index instead, wherever they are.
    """
    sessions = find_listed(resolve_results_dir(results_dir), everywhere=everywhere)
    views = [view for session in sessions if (view := load_or_warn(session, _load_begun)) is not None]
    return sorted(views, key=lambda view: str(view["started_at"]), reverse=True)


def find_listed(results_dir: Path, *, everywhere: bool) -> Iterable[SessionDir]:
    """The sessions of a results directory, or of the user's index."""
    from sessionrun.store import index

    return index.sessions() if everywhere else iterate_sessions(results_dir.absolute())


def _load_begun(session: SessionDir) -> dict[str, Any]:
    """The summary of a session.  A session whose launcher was killed before the beginning counts as missing.

    Raises:
        SessionNotFound: nothing has begun here.
        SessionrunError, OSError: as `load_summary_view`.
    """
    from sessionrun.store.creation import has_begun

    view = load_summary_view(session)
    if view["status"] == "interrupted" and not has_begun(session):
        raise SessionNotFound(f"no session has begun in {session.path}")
    return view


def arrange(views: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, each session that a job launched behind the session of that job, if that is among them."""
    known = {view["session_id"] for view in views}
    inside: dict[str, list[dict[str, Any]]] = {}
    outer = []
    for view in views:
        parent = _parent_of(view)
        if parent in known and parent != view["session_id"]:
            inside.setdefault(parent, []).append(view)
        else:
            outer.append(view)
    arranged, left = [], outer[::-1]
    while left:
        arranged.append(left.pop())
        left += inside.pop(arranged[-1]["session_id"], [])[::-1]
    return [*arranged, *(view for views in inside.values() for view in views)]


def find_depths(views: Sequence[dict[str, Any]]) -> list[int]:
    """How many sessions of those arranged are around each."""
    depths: dict[str, int] = {}
    for view in views:
        depths[view["session_id"]] = depths.get(_parent_of(view), -1) + 1
    return [depths[view["session_id"]] for view in views]


def _parent_of(view: Mapping[str, Any]) -> str:
    return str((view.get("parent") or {}).get("session_id", ""))
