"""The report of `doctor`: what is wrong with the environment and with sessions, what helps, what was repaired."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from sessionrun.client.doctor.checks import apply_fixes, examine, examine_environment, repair
from sessionrun.client.doctor.finding import Finding
from sessionrun.client.leftovers import Living, find_marked
from sessionrun.client.lookup import find_results_dir, open_session
from sessionrun.store.session import SessionDir, iterate_sessions


class Report(NamedTuple):
    """The findings as objects of ``doctor --json``, how many sessions were looked at, and what is still wrong."""

    findings: list[dict[str, Any]]
    sessions: int
    remaining: int


def diagnose(session_id: str | None = None, *, results_dir: Path | None = None, fix: bool = False) -> Report:
    """Examine one session or, without an id, the environment and all sessions of the results directory in use.

    With `fix`, do the repairs that have no risk: see sessionrun(1).

    Raises:
        SessionNotFound: the id names no session, or several.
        InputError: there is no such results directory.
    """
    folder = find_results_dir(results_dir)
    sessions = [open_session(results_dir, session_id)] if session_id else sorted_sessions(folder)
    records = [] if session_id else _check_environment(folder, fix=fix)
    marked = find_marked()
    for session in sessions:
        records += _check_session(session, marked.get(session.session_id, []), fix=fix)
    return Report(records, len(sessions), sum(not record["fixed"] for record in records))


def sorted_sessions(folder: Path) -> list[SessionDir]:
    """The sessions of a results directory, always in the same order."""
    return sorted(iterate_sessions(folder), key=lambda session: session.session_id)


def _check_environment(folder: Path, *, fix: bool) -> list[dict[str, Any]]:
    findings = examine_environment(folder)
    fixed = apply_fixes(findings) if fix else []
    left = examine_environment(folder) if fixed else findings
    return [*_describe(None, fixed, fixed=True), *_describe(None, left, fixed=False)]


def _check_session(session: SessionDir, marked: list[Living], *, fix: bool) -> list[dict[str, Any]]:
    findings = examine(session, marked)
    fixed = repair(session, marked) if fix and any(finding.fix for finding in findings) else []
    is_gone = not session.path.exists()  # the repair removed it, for it never began
    left = [] if is_gone else examine(session, marked) if fixed else findings
    name = session.session_id
    return [*_describe(name, fixed, fixed=True), *_describe(name, left, fixed=False)]


def _describe(session_id: str | None, findings: Iterable[Finding], *, fixed: bool) -> list[dict[str, Any]]:
    return [
        {
            "session_id": session_id,
            "check": finding.check,
            "severity": finding.severity,
            "where": finding.where,
            "what": finding.what,
            "plan": finding.plan,
            "fixable": finding.fix is not None,
            "fixed": fixed,
        }
        for finding in findings
    ]
