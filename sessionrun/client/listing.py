"""Lists all sessions of a results directory, or of every results directory that the user used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sessionrun.client.view import load_or_warn, load_summary_view
from sessionrun.store.session import SessionDir, iterate_sessions


def load_summaries(results_dir: Path, *, everywhere: bool = False) -> list[dict[str, Any]]:
    """The summaries of all sessions, the newest first; directories without a session are left out.

    A session that cannot be read is left out, too, with a warning.
    """
    from sessionrun.store import index

    sessions = index.sessions() if everywhere else iterate_sessions(results_dir.absolute())
    views = [view for session in sessions if (view := load_or_warn(session, _load_begun)) is not None]
    return sorted(views, key=lambda view: str(view["started_at"]), reverse=True)


def _load_begun(session: SessionDir) -> dict[str, Any]:
    """The summary of a session.  A session whose launcher was killed before the beginning counts as missing.

    Raises:
        FileNotFoundError: nothing has begun here.
        SessionrunError, OSError: as `load_summary_view`.
    """
    from sessionrun.store.creation import has_begun

    view = load_summary_view(session)
    if view["status"] == "interrupted" and not has_begun(session):
        raise FileNotFoundError(session.path)
    return view
