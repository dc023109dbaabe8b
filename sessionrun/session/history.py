"""Folds spec and journal to a session's state, as a supervisor would, and to what status.json shows.

Records that are good one by one may still not fit each other.  That is damage, too, and becomes one error that
names the record, for readers, for `resume` and for the supervisor.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sessionrun.engine import moves
from sessionrun.engine.fold import apply
from sessionrun.engine.state import Rules, State
from sessionrun.engine.status import project
from sessionrun.house import HOUSE, describe_missing, find_asked, load
from sessionrun.model.errors import BusinessMissing, StoreError
from sessionrun.model.events import Entry
from sessionrun.model.spec import SessionSpec
from sessionrun.store.logs import Ledger, LogContents, read_log, told_as_damage
from sessionrun.store.session import SessionDir


def begin(spec: SessionSpec) -> State:
    """The state before anything happened, with the rules of the businesses that the session has.

    Raises:
        BusinessMissing: one of these businesses was taken out.
    """
    missing = describe_missing(spec)
    if missing:
        raise BusinessMissing(f"session {spec.session_id}: {missing}")
    rows = [row.rules for row in HOUSE if row.rules and find_asked(spec, row.name)]
    rules: list[Rules] = [load(name) for name in rows]
    return moves.begin(spec, tuple(rules))


def replay(session: SessionDir, until: int | None = None) -> tuple[State, LogContents]:
    """The state, and the journal as it was read; no record counts behind the number `until`."""
    spec = session.load_spec()
    entries, contents = session.load_journal()
    if until is not None:
        entries = [entry for entry in entries if entry.seq <= until]
    return fold_entries(session, spec, entries), contents


def fold_entries(session: SessionDir, spec: SessionSpec, entries: Iterable[Entry]) -> State:
    with told_as_damage(session.spec_path):
        state = begin(spec)
    done = 0
    with told_as_damage(session.journal_path, lambda: f" at record {done + 1}"):
        for entry in entries:
            apply(state, entry)
            done += 1
    return state


def load_spec_now(session: SessionDir) -> SessionSpec:
    """The spec with what was added and changed since the launch; without that where the journal cannot be read."""
    try:
        return replay(session)[0].spec
    except (StoreError, OSError):
        return session.load_spec()


def find_damage(session: SessionDir) -> str | None:
    """Which of its logs is damaged, and at which byte; such a session cannot go on.  None: both are whole."""
    for path in (session.journal_path, session.ledger_path):
        damage_at = read_log(path).damage_at
        if damage_at is not None:
            return describe_damage(path, damage_at)
    return None


def describe_damage(path: Path, offset: int) -> str:
    return f"{path.absolute()} is damaged at byte {offset}: nothing can be decided from it"


def describe_failure(session: SessionDir, ledger: Ledger) -> str | None:
    """Why its keeper left it, and where more of that stands; None: it did not."""
    if ledger.gave_up is None:
        return None
    from sessionrun.agents.verdict import split_status

    count, status = ledger.gave_up
    code, signal = split_status(status) if status >= 0 else (None, None)
    how = f"ended with exit code {code}" if code is not None else f"was ended by signal {signal}"
    last = how if status >= 0 else "could not be started"
    starts = f"{count} start{'s' if count != 1 else ''}"
    what = f"{starts} of its supervisor came to nothing, and" if count else "no supervisor can lead it:"
    return f"{what} the last one {last}; what they printed is in {session.log_path.absolute()}"


def project_status(session: SessionDir, state: State) -> dict[str, Any]:
    """The object of status.json for this state.

    Raises:
        StoreError: the journal holds what cannot be shown.
    """
    with told_as_damage(session.journal_path, lambda: f" in its first {state.seq} records"):
        return project(state)
