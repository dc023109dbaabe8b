"""Folds spec and journal to a session's state, as a supervisor would, and to what status.json shows.

Records that are good one by one may still not fit each other.  That is damage, too, and becomes one error that
names the record, for readers, for `resume` and for the supervisor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessionrun.damage import told_as_damage
from sessionrun.fold import apply, begin
from sessionrun.status import project

if TYPE_CHECKING:
    from sessionrun.events import Entry
    from sessionrun.journal import LogContents
    from sessionrun.state import State
    from sessionrun.store import SessionDir


def replay(session: SessionDir) -> tuple[State, list[Entry], LogContents]:
    """The state, the entries it was folded from, and the journal as it was read.

    Raises:
        StoreError: spec or journal are damaged, or a newer version's.
    """
    spec = session.load_spec()
    with told_as_damage(session.spec_path):
        state = begin(spec)
    entries, contents = session.load_journal()
    done = 0
    with told_as_damage(session.journal_path, lambda: f" at record {done + 1}"):
        for entry in entries:
            apply(state, entry)
            done += 1
    return state, entries, contents


def project_status(session: SessionDir, state: State) -> dict[str, Any]:
    """The object of status.json for this state.

    Raises:
        StoreError: the journal holds what cannot be shown.
    """
    with told_as_damage(session.journal_path, lambda: f" in its first {state.seq} records"):
        return project(state)
