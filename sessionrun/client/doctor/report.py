"""The report of `doctor`: what is wrong with the environment and with sessions, what helps, what was repaired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sessionrun.client.cleaning.leftovers import Living, find_marked
from sessionrun.client.doctor.checks import apply_fixes, examine, examine_environment, repair
from sessionrun.client.doctor.clusters import find_named, look_at
from sessionrun.client.doctor.finding import Finding
from sessionrun.client.lookup import find_results_dir, open_session
from sessionrun.store.session import SessionDir, iterate_sessions


class _Found(NamedTuple):
    """A finding, of which session (None: of none, or of several), and whether it was repaired."""

    session_id: str | None
    finding: Finding
    fixed: bool


class Report(NamedTuple):
    """The findings as objects of ``doctor --json``, how many sessions were looked at, and what is still wrong.

    `clusters` are those that the configuration or living sessions name, as they show themselves.
    """

    findings: list[dict[str, Any]]
    sessions: int
    remaining: int
    clusters: list[dict[str, Any]]


def diagnose(session_id: str | None = None, *, results_dir: Path | None = None, fix: bool = False) -> Report:
    """Examine one session or, without an id, the environment and all sessions of the results directory in use.

    With `fix`, do the repairs that have no risk: see sessionrun(1).

    Raises:
        SessionNotFound: the id names no session, or several.
        InputError: there is no such results directory.
    """
    folder = find_results_dir(results_dir)
    sessions = [open_session(results_dir, session_id)] if session_id else sorted_sessions(folder)
    found = [] if session_id else _check_environment(folder, fix=fix)
    marked = find_marked()
    for session in sessions:
        found += _check_session(session, marked.get(session.session_id, []), fix=fix)
    looked = [look_at(named) for named in find_named(sessions, with_config=session_id is None)]
    found += [_Found(None, finding, False) for _, findings in looked for finding in findings]
    records = [_describe(one) for one in _merge_shared(found)]
    remaining = sum(not record["fixed"] for record in records)
    return Report(records, len(sessions), remaining, [shown for shown, _ in looked])


def sorted_sessions(folder: Path) -> list[SessionDir]:
    """The sessions of a results directory, always in the same order."""
    return sorted(iterate_sessions(folder), key=lambda session: session.session_id)


def _check_environment(folder: Path, *, fix: bool) -> list[_Found]:
    findings = examine_environment(folder)
    fixed = apply_fixes(findings) if fix else []
    left = examine_environment(folder) if fixed else findings
    return [*_collect(None, fixed, fixed=True), *_collect(None, left, fixed=False)]


def _check_session(session: SessionDir, marked: list[Living], *, fix: bool) -> list[_Found]:
    findings = examine(session, marked)
    fixed = repair(session, marked) if fix and any(finding.fix for finding in findings) else []
    is_gone = not session.path.exists()  # the repair removed it, for it never began
    left = [] if is_gone else examine(session, marked) if fixed else findings
    name = session.session_id
    return [*_collect(name, fixed, fixed=True), *_collect(name, left, fixed=False)]


def _collect(session_id: str | None, findings: Iterable[Finding], *, fixed: bool) -> Iterator[_Found]:
    return (_Found(session_id, finding, fixed) for finding in findings)


def _merge_shared(found: Sequence[_Found]) -> Iterator[_Found]:
    """A finding that several sessions share comes once, of no session, and says how many share it."""
    left = Counter(one.finding for one in found if one.finding.shared)
    for one in found:
        sessions = left.pop(one.finding, 0) if one.finding.shared else 1
        if sessions == 1:
            yield one
        elif sessions:
            what = f"{one.finding.what}; {sessions} sessions have tasks of it"
            yield _Found(None, replace(one.finding, what=what), one.fixed)


def _describe(found: _Found) -> dict[str, Any]:
    named = {name: getattr(found.finding, name) for name in ("check", "severity", "where", "what", "plan")}
    return {
        "session_id": found.session_id,
        **named,
        "fixable": found.finding.fix is not None,
        "fixed": found.fixed,
    }
