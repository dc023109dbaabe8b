"""`doctor`: what is wrong with this machine and with sessions, what helps, and what was repaired.

A repair is done only while all locks of the session are held, and only for what is found under them: no other
process interferes.  Logs that are damaged, processes and living sessions are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.doctor import condition, machine
from sessionrun.client.evidence import Living, find_marked, gather
from sessionrun.client.findings import Finding, Findings, load_findings
from sessionrun.client.lookup import find_results_dir, open_session
from sessionrun.model.errors import SessionrunError, StoreError
from sessionrun.store.session import SessionDir, iterate_sessions

OWN: Final = Findings(
    session_checks={
        "disk": condition.check_disk,
        "spec": condition.check_spec,
        "journal": condition.check_journal,
        "ledger": condition.check_ledger,
        "sequence": condition.check_sequence,
        "records": condition.check_records,
        "status": partial(condition.check_cache, summary=False),
        "summary": partial(condition.check_cache, summary=True),
        "interrupted": condition.check_interrupted,
        "stopped": condition.check_stopped,
        "processes": condition.check_processes,
        "requests": condition.check_requests,
        "kinds": condition.check_kinds,
        "temporary": condition.check_temporary,
    },
    machine_checks={
        "git": machine.check_git,
        "configuration": machine.check_configuration,
        "results": machine.check_results_dir,
        "network": machine.check_file_system,
        "space": machine.check_space,
        "trash": machine.check_trash,
    },
)
"""What the core finds; what businesses find comes after it."""

_LOCK_TIMEOUT_S: Final = 0.2


class Report(NamedTuple):
    """The findings as objects of ``doctor --json``, how many sessions were looked at, and what is still wrong."""

    findings: list[dict[str, Any]]
    sessions: int
    remaining: int


def diagnose(session_id: str | None = None, *, results_dir: Path | None = None, fix: bool = False) -> Report:
    """Examine one session or, without an id, this machine and all sessions of the results directory in use.

    With `fix`, do the repairs that have no risk: see sessionrun(1).

    Raises:
        SessionNotFound: the id names no session, or several.
        InputError: there is no such results directory.
    """
    folder = find_results_dir(results_dir)
    records: list[dict[str, Any]] = []
    if session_id:
        sessions = [open_session(results_dir, session_id)]
    else:
        sessions = sorted(iterate_sessions(folder), key=lambda session: session.session_id)
        look = partial(examine_machine, folder)
        records += _look(None, look, lambda: apply_fixes(look()), fix=fix)
    marked = find_marked()
    for session in sessions:
        about = session, marked.get(session.session_id, [])
        records += _look(session.session_id, partial(examine, *about), partial(repair, *about), fix=fix)
    for business in load_findings():
        wrong = business.check_clusters(sessions, session_id is None)
        records += [_describe(None, replace(finding, check="cluster")) for finding in wrong]
    return Report(records, len(sessions), sum(not record["fixed"] for record in records))


def examine(session: SessionDir, marked: Sequence[Living], *, locked: bool = False) -> list[Finding]:
    """The findings about one session; `marked` are the processes that carry its marker."""
    if not session.path.exists():
        return []  # it was removed meanwhile: by another process or, since it never began, by a repair
    evidence = gather(session, marked, locked=locked)
    checks = (row for part in (OWN, *load_findings()) for row in part.session_checks.items())
    return [replace(found, check=name) for name, check in checks for found in check(evidence)]


def examine_machine(results_dir: Path) -> list[Finding]:
    """The findings about what all sessions need: git, disk, configuration."""
    checks = (row for part in (OWN, *load_findings()) for row in part.machine_checks.items())
    return [replace(found, check=name) for name, check in checks for found in check(results_dir)]


def repair(session: SessionDir, marked: Sequence[Living]) -> list[Finding]:
    """Do the safe repairs, and return what was repaired; do nothing while a process of the session lives."""
    try:
        with session.hold_all_locks(timeout_s=_LOCK_TIMEOUT_S):
            return apply_fixes(examine(session, marked, locked=True))
    except (StoreError, OSError):
        return []


def apply_fixes(findings: Sequence[Finding]) -> list[Finding]:
    """Carry out the fixes of findings; return the findings whose fix was done."""
    done = []
    for finding in findings:
        with suppress(SessionrunError, OSError):  # it is found again, and shown as remaining
            if finding.fix is not None:
                finding.fix()
                done.append(finding)
    return done


def _look(
    session_id: str | None, look: Callable[[], list[Finding]], mend: Callable[[], list[Finding]], *, fix: bool
) -> list[dict[str, Any]]:
    """What is found, or what is left after a repair of what can be repaired."""
    findings = look()
    fixed = mend() if fix and any(finding.fix for finding in findings) else []
    left = look() if fixed else findings
    done = [_describe(session_id, finding, fixed=True) for finding in fixed]
    return done + [_describe(session_id, finding) for finding in left]


def _describe(session_id: str | None, finding: Finding, *, fixed: bool = False) -> dict[str, Any]:
    """The finding as an object; of no session, or of several, if `session_id` is None."""
    named = {name: getattr(finding, name) for name in ("check", "severity", "where", "what", "plan")}
    return {"session_id": session_id, **named, "fixable": finding.fix is not None, "fixed": fixed}
