"""Cleaning of the rooms in which gates ran: they stay for the next landing, and go when none needs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sessionrun.client.notices import notify
from sessionrun.client.reading.landed import has_landings
from sessionrun.model.errors import SessionrunError
from sessionrun.runtime.history import load_spec_now
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.model.places import Repository


def find_gated(sessions: Iterable[SessionDir]) -> list[tuple[SessionDir, Repository]]:
    """The sessions whose work a landing tried, with their repositories: gates may have run there."""
    gated = []
    for session in sessions:
        try:
            repository = load_spec_now(session).repository if has_landings(session) else None
        except (SessionrunError, OSError):
            continue  # what reads the session after us says so
        if repository is not None:
            gated.append((session, repository))
    return gated


def clean_gate_rooms(gated: Iterable[tuple[SessionDir, Repository]], *, dry_run: bool) -> Iterator[dict[str, Any]]:
    """Remove the rooms of gates that no landing uses, of any session; the records of what went, or stays."""
    from sessionrun.landing.gates import clean_rooms

    places: dict[tuple[str, str], tuple[SessionDir, Repository]] = {}
    for session, repository in gated:
        places.setdefault((repository.common_dir, repository.worktree_dir), (session, repository))
    for session, repository in places.values():
        try:
            for room in clean_rooms(repository, dry_run=dry_run):
                yield {
                    "session_id": session.session_id,
                    "repository": repository.top,
                    "what": "room",
                    "name": str(room.path),
                    "task": None,
                    "removed": room.removed,
                    "why": room.why,
                }
        except (SessionrunError, OSError) as error:
            notify(f"rooms of gates in {repository.worktree_dir}: {error}")
