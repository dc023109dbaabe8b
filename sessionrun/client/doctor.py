"""`doctor`: what is wrong with this machine and with sessions, what helps, and what was repaired.

Of a session it looks at its files, its disk, its processes and those of its jobs, and requests that wait.  A
business's own checks stand in its room.

A repair is done only while all locks of the session are held, and only for what is found under them: no other
process interferes.  Of what must not be lost only a torn tail is repaired.  What can be made anew from the logs is
made anew.  Logs that are damaged, processes and living sessions are never touched.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from sessionrun.client.evidence import Evidence, Living, find_marked, find_recorded, gather
from sessionrun.client.findings import Finding, Findings, error, load_findings, warning
from sessionrun.client.lookup import find_results_dir, open_session
from sessionrun.client.reading.view import describe_shortage, find_stopped
from sessionrun.engine.status import project, project_summary
from sessionrun.model.errors import BusinessMissing, InputError, NoSpace, SessionrunError, StoreError
from sessionrun.model.events import JobFinished, JobLost, JobStarted
from sessionrun.session.exports import find_left
from sessionrun.store import locks, processes
from sessionrun.store.creation import discard_session, has_records
from sessionrun.store.files import read_regular, remove_left
from sessionrun.store.logs import BEGAN, GAVE_UP, OF_JOBS, AppendLog, LogContents, find_shortage, parse_log
from sessionrun.store.session import SessionDir, iterate_sessions

_REGULAR: Final = ("spec.json", "journal", "ledger", "status.json", "summary", "supervisor.log", *locks.NAMES)
_FOLDERS: Final = ("requests", "prompts", "jobs")
_TASK_FILE: Final = re.compile(r"task-.+\.(txt|err|raw)")
_WORDS: Final = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFLNK: "a link",
    stat.S_IFSOCK: "a socket",
}


# --- what must not be lost ---


def check_spec(evidence: Evidence) -> Iterator[Finding]:
    session, path = evidence.session, evidence.session.spec_path
    if not has_records(evidence.session):
        if not evidence.alive:  # else the launcher is still writing it
            what = "its launcher was killed before the session began: nothing ran"
            yield warning(path, what, "--fix removes it", partial(discard_session, session))
    elif evidence.spec is None:
        plan = "without it nothing can be shown or run; keep the directory, and start the tasks anew"
        yield error(path, f"it cannot be read: {evidence.spec_fault}", plan)
    elif evidence.spec.session_id != session.session_id:
        plan = f"rename the directory to session-{evidence.spec.session_id}"
        yield error(path, f"it is the spec of session {evidence.spec.session_id}", plan)


def check_ledger(evidence: Evidence) -> Iterator[Finding]:
    """Whether the ledger is whole, and at least as long as the journal, which was read before, says."""
    path, log = evidence.session.ledger_path, evidence.ledger_log
    yield from _check_log(path, log, alive=evidence.alive)
    events = [entry.event for entry in evidence.entries]
    known = max((event.ledger or 0 for event in events if isinstance(event, (JobStarted, JobFinished))), default=0)
    if log.damage_at is None and log.end < known:
        what = f"it ends at byte {log.end}, but the journal knows of byte {known}: records are lost"
        yield error(path, what, _keep_a_copy(path))


def check_sequence(evidence: Evidence) -> Iterator[Finding]:
    """Whether the journal's entries count up by one."""
    numbers = enumerate((entry.seq for entry in evidence.entries), 1)
    expected, number = next((pair for pair in numbers if pair[0] != pair[1]), (0, 0))
    if expected:
        what = f"entry {expected} has the number {number}: entries are missing or doubled"
        yield error(evidence.session.journal_path, what, _keep_a_copy(evidence.session.journal_path))


def check_records(evidence: Evidence) -> Iterator[Finding]:
    """Whether this version knows all records and they fit each other."""
    path = evidence.session.journal_path
    if isinstance(evidence.journal_fault, BusinessMissing):
        plan = "nothing of it is damaged: the whole program shows it, and lets it go on"
        yield warning(evidence.session.path, str(evidence.journal_fault), plan)
    elif evidence.journal_fault is not None and _is_regular(path):
        plan = "a newer version may have written it: use that one; else " + _keep_a_copy(path)
        yield error(path, str(evidence.journal_fault).replace(str(path), "it", 1), plan)
    kinds = {payload[:1].decode("latin-1") for payload in evidence.ledger_log.payloads}
    unknown = kinds - {BEGAN, GAVE_UP, *OF_JOBS}
    if unknown:
        what = f"records of unknown kinds: {', '.join(sorted(unknown))}"
        yield warning(evidence.session.ledger_path, what, "a newer version may have written them: use that one")


def _check_log(path: Path, log: LogContents, *, alive: bool) -> Iterator[Finding]:
    content = read_regular(path) if _is_regular(path) else b""
    if log.damage_at is not None:
        behind = sum(len(parse_log(line).payloads) for line in content[log.damage_at :].splitlines(True))
        what = f"damaged at byte {log.damage_at}; {behind} good records behind it do not count"
        yield error(path, what, _keep_a_copy(path))
        return
    tail = content[log.end :]
    if not tail or alive:  # a living process may just be writing
        return
    if b"\n" in tail:
        what = f"the last {len(tail)} bytes, from byte {log.end} on, are damaged"
        yield error(path, what, _keep_a_copy(path))
        return
    what = f"a torn last line of {len(tail)} bytes at byte {log.end}, as a crash leaves it"
    yield warning(path, what, "--fix cuts it off; so does resume", partial(_cut, path, log.end))


def _cut(path: Path, end: int) -> None:
    log = AppendLog(path)
    log.cut(end)
    log.sync()
    log.close()


def _keep_a_copy(path: Path) -> str:
    words = shlex.join(["cp", "-p", str(path), f"{path}.damaged"])
    return f"nothing repairs it; keep a copy: {words}"


# --- what the logs hold, too ---


def check_cache(evidence: Evidence, *, summary: bool) -> Iterator[Finding]:
    """Whether status.json, or the summary, is there and says what the logs say."""
    session, state = evidence.session, evidence.state
    path = session.summary_path if summary else session.status_path
    cached = evidence.summary if summary else evidence.status
    if evidence.alive or evidence.spec is None or not has_records(evidence.session):
        return  # the living supervisor replaces it in time
    if state is None:
        if cached is None:
            yield error(path, "missing or damaged", "it cannot be made anew while the logs are damaged")
        return
    if _number(cached) > state.seq:
        what = f"it counts {_number(cached)} journal entries, and the journal has only {state.seq}: that lost some"
        plan = "keep a copy of the whole directory; the outcomes that only this file has are in no log"
        yield error(path, what, plan)
        return
    status: dict[str, Any] = orjson.loads(orjson.dumps(project(state)))
    status["view_problems"] = (evidence.status or status).get("view_problems", [])  # they are in no log
    expected = project_summary(status) if summary else status
    if cached is None:
        fault: str | None = "missing or damaged"
    elif _number(cached) < state.seq:
        fault = f"stale: it counts {cached.get('seq')} of {state.seq} journal entries"
    else:
        fault = None if cached.items() >= expected.items() else "it is not what the logs say"
    if fault is not None:
        plan = "--fix makes it anew from the logs; until then the verbs read these where they can tell"
        # both are written, but not while one is ahead of the logs: its content is nowhere else
        is_safe = max(_number(evidence.status), _number(evidence.summary)) <= state.seq
        replace = partial(evidence.session.replace_status, status, project_summary(status), durable=True)
        yield warning(path, fault, plan, replace if is_safe else None)


def _number(cached: dict[str, Any] | None) -> int:
    number = (cached or {}).get("seq")
    return number if isinstance(number, int) else 0


# --- the directory ---


def check_kinds(evidence: Evidence) -> Iterator[Finding]:
    """Whether each of our names in the directory has the right kind: file, directory or FIFO."""
    top = evidence.session.path
    names = [name for name in _list(top) if _TASK_FILE.fullmatch(name)]
    expected = {top / name: stat.S_IFREG for name in (*_REGULAR, *names)}
    expected |= {top / name: stat.S_IFDIR for name in _FOLDERS} | {top / "wake": stat.S_IFIFO}
    expected |= {top / "requests" / name: stat.S_IFREG for name in _list(top / "requests")}
    for path, kind in expected.items():
        inode = _stat(path)
        if inode is not None and stat.S_IFMT(inode.st_mode) != kind:
            what = f"{_WORDS.get(stat.S_IFMT(inode.st_mode), 'a device')} in the place of {_WORDS[kind]}"
            aside = shlex.join(["mv", str(path), f"{path}.planted"])
            yield error(path, what, f"another program put it there, perhaps a task; move it away: {aside}")


def check_temporary(evidence: Evidence) -> Iterator[Finding]:
    """Whether temporary files lie beside exports, of a process that died while it wrote them."""
    for path in () if evidence.alive or evidence.spec is None else find_left(evidence.spec.exports):
        what, plan = "left by a process that died while it wrote", "--fix removes it"
        yield warning(path, what, plan, partial(remove_left, path))


def _list(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path)) if not path.is_symlink() else []
    except OSError:
        return []


def _is_regular(path: Path) -> bool:
    """Whether a file is in this place; `check_kinds` says it if anything else is."""
    inode = _stat(path)
    return inode is not None and stat.S_ISREG(inode.st_mode)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


# --- who lives ---

LINGERS_AFTER_S: Final = 60.0
"""A supervisor that has ended its session leaves within moments; a request is taken within moments."""


def check_disk(evidence: Evidence) -> Iterator[Finding]:
    """Whether the disk has room for a session that goes on."""
    goes_on = has_records(evidence.session) and not evidence.ended
    shortage = find_shortage(evidence.session.path) if goes_on else None
    if shortage is not None:
        what = f"its disk is full: {describe_shortage(shortage)}: nothing new starts"
        plan = "make room; `cancel` and `hold` work meanwhile, and ends are recorded once there is room"
        yield error(evidence.session.path, what, plan)


def check_interrupted(evidence: Evidence) -> Iterator[Finding]:
    if evidence.alive or evidence.ended or evidence.spec is None or not has_records(evidence.session):
        return
    yield warning(evidence.session.path, *evidence.tell_gone(name_damage=False))  # which is a finding of its own


def check_stopped(evidence: Evidence) -> Iterator[Finding]:
    known = (evidence.status or {}).get("processes")
    for role in find_stopped(known) if evidence.alive and not evidence.ended else ():
        pid = known[role]["pid"] if known else 0
        what = f"its {role}, process {pid}, is stopped: nothing goes on"
        yield warning(evidence.session.path, what, f"kill -CONT {pid}")


def check_processes(evidence: Evidence) -> Iterator[Finding]:
    """Whether a job's process lives although the job has ended, or although no process runs the session."""
    events = (entry.event for entry in evidence.entries)
    over = {event.key.text() for event in events if isinstance(event, (JobFinished, JobLost))}
    ours = (survivor for survivor in evidence.marked if survivor.ours)
    by_key: dict[str, set[str]] = {}
    for survivor in (*find_recorded(evidence.ledger), *ours):
        is_orphan = not evidence.alive or survivor.key in over
        if is_orphan and processes.is_alive(survivor.process):  # it may have ended since we looked
            by_key.setdefault(survivor.key, set()).add(str(survivor.process.pid))
    for key, left in sorted(by_key.items()):
        pids = " ".join(sorted(left))
        plan = f"to stop it: kill -TERM {pids}"
        if evidence.can_resume and not (evidence.ended or key in over):
            plan += f"; to go on with the session: {_resume(evidence)}"
        why = "it has ended" if key in over else "no process runs the session"
        yield warning(evidence.session.path, f"job {key}: {why}, but process {pids} lives", plan)


def check_requests(evidence: Evidence) -> Iterator[Finding]:
    folder = evidence.session.path / "requests"
    for path in (folder / name for name in _list(folder) if not name.startswith(".")):
        inode = _stat(path)
        if inode is None or (evidence.alive and evidence.now - inode.st_mtime < LINGERS_AFTER_S):
            continue  # taken just now, or soon
        what, plan = "it waits for a supervisor", f"take it back: rm {shlex.quote(str(path))}"
        if evidence.ended:
            what = "it came too late: the session has ended"
        elif evidence.alive:
            what = "it was not taken for a minute"
            plan = "see whether the supervisor is stopped or its disk is full"
        elif not evidence.can_resume:
            what = "it will not be taken: the session cannot go on"
        else:
            plan = f"{_resume(evidence)} carries it out; or {plan}"
        yield warning(path, what, plan)


def _resume(evidence: Evidence) -> str:
    return f"sessionrun resume {evidence.session.session_id}"


# --- what all sessions need ---


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
    """Whether the disk has room for a further worktree."""
    from sessionrun.store import space

    try:
        space.check_space(results_dir)
    except NoSpace as fault:
        yield warning(results_dir, str(fault), "make room; sessionrun clean --older-than 7d")


def check_trash(results_dir: Path) -> Iterator[Finding]:
    from sessionrun.client.clean import delete, find_trash

    for path in find_trash(results_dir):
        yield warning(path, "a session whose removal was broken off", "--fix deletes it", partial(delete, path))


# --- the whole report ---

OWN: Final = Findings(
    session_checks={
        "disk": check_disk,
        "spec": check_spec,
        "journal": lambda of: _check_log(of.session.journal_path, of.journal, alive=of.alive),
        "ledger": check_ledger,
        "sequence": check_sequence,
        "records": check_records,
        "status": partial(check_cache, summary=False),
        "summary": partial(check_cache, summary=True),
        "interrupted": check_interrupted,
        "stopped": check_stopped,
        "processes": check_processes,
        "requests": check_requests,
        "kinds": check_kinds,
        "temporary": check_temporary,
    },
    machine_checks={
        "configuration": check_configuration,
        "results": check_results_dir,
        "space": check_space,
        "trash": check_trash,
    },
)
"""What the core finds; what businesses find comes after it."""


def diagnose(
    session_id: str | None = None, *, results_dir: Path | None = None, fix: bool = False
) -> dict[str, Any]:
    """The object of ``doctor --json``: of one session or, without an id, of this machine and all sessions here.

    With `fix`, do the repairs that have no risk: see sessionrun(1).
    """
    folder = find_results_dir(results_dir)
    records: list[dict[str, Any]] = []

    def look(about: str | None, find: Callable[[], list[Finding]], mend: Callable[[], list[Finding]]) -> None:
        left = find()
        fixed = mend() if fix and any(finding.fix for finding in left) else []
        records.extend(_describe(about, finding, fixed=True) for finding in fixed)
        records.extend(_describe(about, finding, fixed=False) for finding in (find() if fixed else left))

    if session_id:
        sessions = [open_session(results_dir, session_id)]
    else:
        sessions = sorted(iterate_sessions(folder), key=lambda session: session.session_id)
        find = partial(check, "machine_checks", folder)
        look(None, find, lambda: apply_fixes(find()))
    marked = find_marked()
    for session in sessions:
        here = marked.get(session.session_id, [])
        look(session.session_id, partial(examine, session, here), partial(repair, session, here))
    for business in load_findings():
        wrong = business.check_clusters(sessions, session_id is None)
        records += [_describe(None, replace(finding, check="cluster"), fixed=False) for finding in wrong]
    remaining = sum(not record["fixed"] for record in records)
    return {"findings": records, "session_count": len(sessions), "remaining": remaining}


def examine(session: SessionDir, marked: Sequence[Living], *, locked: bool = False) -> list[Finding]:
    """The findings about one session; `marked` are the processes that carry its marker."""
    if not session.path.exists():
        return []  # it was removed meanwhile: by another process or, since it never began, by a repair
    return check("session_checks", gather(session, marked, locked=locked))


def check(column: Literal["session_checks", "machine_checks"], about: Evidence | Path) -> list[Finding]:
    """What the checks of the core, then those of businesses, find of a session or of the results directory."""
    rows = (row for part in (OWN, *load_findings()) for row in getattr(part, column).items())
    return [replace(found, check=name) for name, find in rows for found in find(about)]


def repair(session: SessionDir, marked: Sequence[Living]) -> list[Finding]:
    """Do the safe repairs, and return what was repaired; do nothing while a process of the session lives."""
    try:
        with session.hold_all_locks():
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


def _describe(session_id: str | None, finding: Finding, *, fixed: bool) -> dict[str, Any]:
    """A finding as an object; of no session, or of several: None."""
    keys = ("check", "severity", "where", "what", "plan")
    shown = {key: getattr(finding, key) for key in keys}
    return {"session_id": session_id, **shown, "fixable": finding.fix is not None, "fixed": fixed}
