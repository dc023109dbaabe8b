"""All that the checks of one session look at, read once and in an order that makes it comparable.

status.json is read before the logs: its writer appends to the logs first, so a sound status.json is never ahead of
logs that are read later.  Nothing here raises because of damaged files: damage is evidence.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from sessionrun.client.cleaning.leftovers import Living
from sessionrun.engine.fold import apply, begin
from sessionrun.engine.state import State
from sessionrun.engine.status import project
from sessionrun.model.errors import SessionNotFound, SessionrunError
from sessionrun.model.events import Entry
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import SessionSpec
from sessionrun.store.creation import has_records
from sessionrun.store.damage import FAULTS, describe_fault
from sessionrun.store.files import read_regular
from sessionrun.store.journal import LogContents, parse_log
from sessionrun.store.ledger import Ledger, fold_ledger
from sessionrun.store.records import iterate_entries
from sessionrun.store.session import SessionDir


@frozen
class Log:
    """One log as it was read; `content` is empty if there is no file, or not a regular one."""

    path: Path
    content: bytes
    parsed: LogContents


@frozen
class Evidence:
    """All that the checks know of one session.

    `spec` and `state` are None if they cannot be read, with the reason in `spec_fault` and `journal_fault`;
    `state` is folded from an undamaged journal only.  `records` are the journal's objects, those of unknown
    kinds too.  `marked` are processes that carried the session's marker a moment before.
    """

    session: SessionDir
    alive: bool
    now: float
    spec: SessionSpec | None
    spec_fault: str | None
    status: dict[str, Any] | None
    summary: dict[str, Any] | None
    journal: Log
    records: list[Any]
    journal_fault: str | None
    entries: list[Entry]
    state: State | None
    ledger_log: Log
    ledger: Ledger
    marked: Sequence[Living]

    @property
    def begun(self) -> bool:
        """Whether one of its logs holds anything; else no part of the session ever ran."""
        return has_records(self.session)

    @property
    def can_resume(self) -> bool:
        """Whether `resume` could go on with it: both logs are whole, and the journal's records fit each other."""
        return self.state is not None and self.ledger_log.parsed.damage_at is None

    @property
    def ended(self) -> bool:
        """Whether the session has ended, by its journal or, if that cannot be read, by status.json."""
        if self.state is not None:
            return self.state.ended is not None
        return self.status is not None and self.status.get("ended_at") is not None


def gather(session: SessionDir, marked: Sequence[Living], *, locked: bool) -> Evidence:
    """Read one session; `locked`: we hold its locks, so no other process runs it."""
    alive = not locked and session.is_alive()
    status, summary = _load_cache(session.load_status), _load_cache(session.load_summary)
    spec, spec_fault = _load_spec(session)
    journal = _load_log(session.journal_path)
    ledger_log = _load_log(session.ledger_path)
    records, entries, journal_fault = _read_entries(journal)
    state = None
    if spec is not None and journal_fault is None and journal.parsed.damage_at is None:
        state, journal_fault = _fold(spec, entries)
    return Evidence(
        session=session,
        alive=alive,
        now=time.time(),
        spec=spec,
        spec_fault=spec_fault,
        status=status,
        summary=summary,
        journal=journal,
        records=records,
        journal_fault=journal_fault,
        entries=entries,
        state=state,
        ledger_log=ledger_log,
        ledger=fold_ledger(ledger_log.parsed.payloads),
        marked=marked,
    )


def _load_cache(load: Any) -> dict[str, Any] | None:
    try:
        cache: dict[str, Any] | None = load()
    except (SessionrunError, OSError):
        return None
    return cache


def _load_spec(session: SessionDir) -> tuple[SessionSpec | None, str | None]:
    try:
        return session.load_spec(), None
    except SessionNotFound:
        return None, "there is none"
    except (SessionrunError, OSError) as error:
        return None, str(error)


def _load_log(path: Path) -> Log:
    try:
        content = read_regular(path)
    except OSError:
        content = b""
    return Log(path, content, parse_log(content))


def _read_entries(journal: Log) -> tuple[list[Any], list[Entry], str | None]:
    records: list[Any] = []
    entries: list[Entry] = []
    for payload in journal.parsed.payloads:
        try:
            records.append(orjson.loads(payload))
        except ValueError:
            records.append(None)
    try:
        entries.extend(iterate_entries(journal.parsed.payloads))
    except FAULTS as error:
        return records, entries, f"record {len(entries) + 1}: {describe_fault(error)}"
    return records, entries, None


def _fold(spec: SessionSpec, entries: list[Entry]) -> tuple[State | None, str | None]:
    done = 0
    try:
        state = begin(spec)
        for entry in entries:
            apply(state, entry)
            done += 1
    except FAULTS as error:
        return None, f"record {done + 1} does not fit the records before it: {describe_fault(error)}"
    try:
        project(state)
    except FAULTS as error:
        return None, f"what it says cannot be shown: {describe_fault(error)}"
    return state, None
