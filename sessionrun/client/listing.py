"""All sessions: of a results directory, or of every one that the user used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sessionrun.client.view import load_or_warn, load_summary_view
from sessionrun.store.session import SessionDir, iterate_sessions


def load_summaries(results_dir: Path, *, everywhere: bool = False) -> list[dict[str, Any]]:
    """The summaries of all sessions, the newest first; directories that hold no session are passed over.

    One that cannot be read is left out, with a warning.
    """
    from sessionrun.store import index

    sessions = index.sessions() if everywhere else iterate_sessions(results_dir.absolute())
    views = [view for session in sessions if (view := load_or_warn(session, _load_begun)) is not None]
    return sorted(views, key=lambda view: str(view["started_at"]), reverse=True)


def _load_begun(session: SessionDir) -> dict[str, Any]:
    """The summary of a session; what a launcher left that was killed before it began is as if it was not there.

    Raises:
        FileNotFoundError: nothing has begun here.
        SessionrunError, OSError: as `load_summary_view`.
    """
    from sessionrun.store.creation import has_begun

    view = load_summary_view(session)
    if view["status"] == "interrupted" and not has_begun(session):
        raise FileNotFoundError(session.path)
    return view
