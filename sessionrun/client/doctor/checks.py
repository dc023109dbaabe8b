"""`doctor`'s work: examining a session, or the environment, and the repairs that are provably safe.

A check is a function from evidence to findings; the tables below name them all.  A repair is done only while all
locks of the session are held, and only for what is found under them: no other process interferes.  Logs that are
damaged, processes and living sessions are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeAlias

from sessionrun.client.cleaning.leftovers import Living
from sessionrun.client.doctor import caches, clusters, environment, files, logs, mirrors, presence, trees
from sessionrun.client.doctor.evidence import Evidence, gather
from sessionrun.client.doctor.finding import Finding
from sessionrun.model.errors import SessionrunError, StoreError
from sessionrun.store.session import SessionDir

SessionCheck: TypeAlias = Callable[[Evidence], Iterator[Finding]]
EnvironmentCheck: TypeAlias = Callable[[Path], Iterator[Finding]]

SESSION_CHECKS: Final[Mapping[str, SessionCheck]] = {
    "disk": presence.check_disk,
    "spec": logs.check_spec,
    "journal": logs.check_journal,
    "ledger": logs.check_ledger,
    "sequence": logs.check_sequence,
    "records": logs.check_records,
    "status": caches.check_status,
    "summary": caches.check_summary,
    "views": caches.check_views,
    "interrupted": presence.check_interrupted,
    "lingering": presence.check_lingering,
    "stopped": presence.check_stopped,
    "processes": presence.check_processes,
    "requests": presence.check_requests,
    "kinds": files.check_kinds,
    "wake": files.check_wake,
    "modes": files.check_modes,
    "temporary": files.check_temporary,
    "outputs": files.check_outputs,
    "worktrees": trees.check_worktrees,
    "landings": trees.check_landings,
    "mirrors": mirrors.check_mirrors,
}

ENVIRONMENT_CHECKS: Final[Mapping[str, EnvironmentCheck]] = {
    "git": environment.check_git,
    "configuration": environment.check_configuration,
    "results": environment.check_results_dir,
    "network": environment.check_file_system,
    "flock": environment.check_locks,
    "space": environment.check_space,
    "index": environment.check_index,
    "limits": environment.check_limits,
    "trash": environment.check_trash,
    "replicas": clusters.check_replicas,
}

_LOCK_TIMEOUT_S: Final = 0.2


def examine(session: SessionDir, marked: Sequence[Living], *, locked: bool = False) -> list[Finding]:
    """The findings about one session; `marked` are the processes that carry its marker."""
    evidence = gather(session, marked, locked=locked)
    return [finding for check in SESSION_CHECKS.values() for finding in check(evidence)]


def examine_environment(results_dir: Path) -> list[Finding]:
    """The findings about what all sessions need: Python, git, disk, configuration."""
    return [finding for check in ENVIRONMENT_CHECKS.values() for finding in check(results_dir)]


def repair(session: SessionDir, marked: Sequence[Living]) -> list[Finding]:
    """Do the safe repairs, and return what was repaired; do nothing while a process of the session lives."""
    with ExitStack() as locks:
        try:
            locks.enter_context(session.hold_all_locks(timeout_s=_LOCK_TIMEOUT_S))
        except (StoreError, OSError):
            return []
        return apply_fixes(examine(session, marked, locked=True))


def apply_fixes(findings: Sequence[Finding]) -> list[Finding]:
    """Carry out the fixes of findings; return the findings whose fix was done."""
    done = []
    for finding in findings:
        if finding.fix is None:
            continue
        try:
            finding.fix()
        except (SessionrunError, OSError):
            continue  # it is found again, and shown as remaining
        done.append(finding)
    return done
