"""`doctor`: what is wrong with this machine and with sessions, what helps, and what was repaired.

A repair is done only while all locks of the session are held, and only for what is found under them: no other
process interferes.  Logs that are damaged, processes and living sessions are never touched.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from sessionrun.client.doctor import condition
from sessionrun.client.evidence import Living, find_marked, gather
from sessionrun.client.findings import Finding, Findings, error, load_findings, warning
from sessionrun.client.lookup import find_results_dir, open_session
from sessionrun.model.errors import InputError, NoSpace, SessionrunError, StoreError
from sessionrun.store.session import SessionDir, iterate_sessions

# --- what all sessions need ---


def check_git(_: Path) -> Iterator[Finding]:
    """Whether git is there and new enough for worktrees."""
    from sessionrun.git import git

    plan = f"install git {'.'.join(map(str, git.MINIMUM))} or newer; only --worktree needs it"
    try:
        version = git.version(Path("/"))
    except SessionrunError as fault:
        yield warning("git", str(fault), plan)
        return
    if version < git.MINIMUM:
        yield warning("git", f"this is {'.'.join(map(str, version))}", plan)


def check_configuration(_: Path) -> Iterator[Finding]:
    """Whether the configuration can be read, so that a launch from here can work."""
    from sessionrun.input.config import load_config

    try:
        load_config(Path.cwd(), os.environ)
    except InputError as fault:
        plan = "mend it: man 5 sessionrun-input, CONFIGURATION; until then no session can be launched"
        yield error("configuration", str(fault), plan)


def check_results_dir(results_dir: Path) -> Iterator[Finding]:
    """Whether we, and no other user, can make sessions."""
    wanted = results_dir.absolute()
    place = next(place for place in (wanted, *wanted.parents) if os.path.lexists(place))
    another = "choose another one: --results-dir"
    if not place.is_dir():
        yield error(place, "it is not a directory", another)
        return
    if not os.access(place, os.W_OK | os.X_OK):
        yield error(place, "it cannot be written", another)
    mode, quoted = place.stat().st_mode, shlex.quote(str(place))
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        what = "every user may write in it, and remove or replace sessions"
        yield error(place, what, f"chmod o-w {quoted}, or chmod +t {quoted}")


def check_space(results_dir: Path) -> Iterator[Finding]:
    """Whether the disk has room left."""
    from sessionrun.store import space

    try:
        space.check_space(results_dir)
    except NoSpace as fault:
        yield warning(results_dir, str(fault), "make room; sessionrun clean --older-than 7d")


def check_trash(results_dir: Path) -> Iterator[Finding]:
    """Whether a removal of sessions was broken off."""
    from sessionrun.client.clean import delete, find_trash

    for path in find_trash(results_dir):
        yield warning(path, "a session whose removal was broken off", "--fix deletes it", partial(delete, path))


# --- the whole report ---

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
        "git": check_git,
        "configuration": check_configuration,
        "results": check_results_dir,
        "space": check_space,
        "trash": check_trash,
    },
)
"""What the core finds; what businesses find comes after it."""

_LOCK_TIMEOUT_S: Final = 0.2


def diagnose(
    session_id: str | None = None, *, results_dir: Path | None = None, fix: bool = False
) -> dict[str, Any]:
    """The object of ``doctor --json``: of one session or, without an id, of this machine and all sessions here.

    With `fix`, do the repairs that have no risk: see sessionrun(1).
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
    remaining = sum(not record["fixed"] for record in records)
    return {"findings": records, "session_count": len(sessions), "remaining": remaining}


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
