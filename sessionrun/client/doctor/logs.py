"""Checks of what must not be lost: spec, journal and ledger.  Only a torn tail is repaired."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from sessionrun.client.doctor.evidence import Evidence, Log
from sessionrun.client.doctor.finding import Finding
from sessionrun.model.events import JobFinished, JobStarted
from sessionrun.store.creation import discard_session
from sessionrun.store.files import open_regular
from sessionrun.store.journal import parse_log

LEDGER_KINDS: Final = frozenset("KCTSXZFLG")


def check_spec(evidence: Evidence) -> Iterator[Finding]:
    """Whether the spec can be read and is this session's."""
    session, path = evidence.session, str(evidence.session.spec_path)
    if not evidence.begun:
        if not evidence.alive:  # else the launcher is still writing it
            what = "its launcher was killed before the session began: nothing ran"
            yield Finding("spec", "warning", path, what, "--fix removes it", partial(discard_session, session))
        return
    if evidence.spec is None:
        plan = "without it nothing can be shown or run; keep the directory, and start the tasks anew"
        yield Finding("spec", "error", path, f"it cannot be read: {evidence.spec_fault}", plan)
    elif evidence.spec.session_id != session.session_id:
        plan = f"rename the directory to session-{evidence.spec.session_id}"
        yield Finding("spec", "error", path, f"it is the spec of session {evidence.spec.session_id}", plan)


def check_journal(evidence: Evidence) -> Iterator[Finding]:
    """Whether the journal is whole."""
    yield from _check_log("journal", evidence.journal, alive=evidence.alive)


def check_ledger(evidence: Evidence) -> Iterator[Finding]:
    """Whether the ledger is whole, and at least as long as the journal, which was read before, says."""
    log = evidence.ledger_log
    yield from _check_log("ledger", log, alive=evidence.alive)
    events = [entry.event for entry in evidence.entries]
    known = [event.ledger or 0 for event in events if isinstance(event, (JobStarted, JobFinished))]
    if log.parsed.damage_at is None and log.parsed.end < max(known, default=0):
        what = f"it ends at byte {log.parsed.end}, but the journal knows of byte {max(known)}: records are lost"
        yield Finding("ledger", "error", str(log.path), what, _keep_a_copy(log.path))


def check_sequence(evidence: Evidence) -> Iterator[Finding]:
    """Whether the journal's entries count up by one."""
    for expected, record in enumerate(evidence.records, 1):
        number = record.get("seq") if isinstance(record, dict) else None
        if number != expected:
            what = f"entry {expected} has the number {number}: entries are missing or doubled"
            plan = _keep_a_copy(evidence.journal.path)
            yield Finding("sequence", "error", str(evidence.journal.path), what, plan)
            return


def check_records(evidence: Evidence) -> Iterator[Finding]:
    """Whether this version knows all records and they fit each other."""
    if evidence.journal_fault is not None:
        plan = "a newer version may have written it: use that one; else " + _keep_a_copy(evidence.journal.path)
        yield Finding("records", "error", str(evidence.journal.path), evidence.journal_fault, plan)
    kinds = {payload[:1].decode("latin-1") for payload in evidence.ledger_log.parsed.payloads}
    if kinds - LEDGER_KINDS:
        what = f"records of unknown kinds: {', '.join(sorted(kinds - LEDGER_KINDS))}"
        plan = "a newer version may have written them: use that one"
        yield Finding("records", "warning", str(evidence.ledger_log.path), what, plan)


def _check_log(name: str, log: Log, *, alive: bool) -> Iterator[Finding]:
    parsed, where = log.parsed, str(log.path)
    if parsed.damage_at is not None:
        behind = sum(len(parse_log(line).payloads) for line in log.content[parsed.damage_at :].splitlines(True))
        what = f"damaged at byte {parsed.damage_at}; {behind} good records behind it do not count"
        yield Finding(name, "error", where, what, _keep_a_copy(log.path))
        return
    tail = log.content[parsed.end :]
    if not tail or alive:  # a living process may just be writing
        return
    if b"\n" in tail:
        what = f"the last {len(tail)} bytes, from byte {parsed.end} on, are damaged"
        yield Finding(name, "error", where, what, _keep_a_copy(log.path))
        return
    what = f"a torn last line of {len(tail)} bytes at byte {parsed.end}, as a crash leaves it"
    plan = "--fix cuts it off; so does resume"
    yield Finding(name, "warning", where, what, plan, lambda: _cut(log))


def _cut(log: Log) -> None:
    """Cut off the torn tail; the file is still as it was read, for its writers are locked out."""
    fd = open_regular(log.path, os.O_RDWR)
    try:
        if os.fstat(fd).st_size == len(log.content):
            os.ftruncate(fd, log.parsed.end)
            os.fsync(fd)
    finally:
        os.close(fd)


def _keep_a_copy(path: Path) -> str:
    words = shlex.join(["cp", "-p", str(path), f"{path}.damaged"])
    return f"nothing repairs it; keep a copy: {words}"
