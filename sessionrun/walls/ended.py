"""The end of a job inside of walls: what `inner` reported of it, where the keeper saw only bubblewrap's end."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.agents.verdict import Problem
from sessionrun.engine.task import TaskState
from sessionrun.model.asked import uses_replicas
from sessionrun.model.events import JobLost
from sessionrun.model.keys import JobKey
from sessionrun.model.units import format_size
from sessionrun.session.executor import Exit
from sessionrun.session.shared import Site
from sessionrun.store.files import read_regular, replace_file
from sessionrun.store.jobfiles import read_tail
from sessionrun.walls.agent_state import LOGINS, take_back
from sessionrun.walls.groups import FULL, GROUPS, drop_groups, was_full
from sessionrun.walls.report import FILLED, REPORT, agree, parse_report

NOT_EXECUTED: Final = 127
"""The exit code of `inner` where the program could not be executed."""

_MAX_REPORT: Final = 1 << 16
_MAX_NAME: Final = 4096


def settle(folder: Path) -> None:
    """When a job has ended on this machine, or was lost: what it renewed of log-ins is kept, its groups go."""
    take_back(folder / LOGINS)
    with suppress(OSError):
        name = os.fsdecode(read_regular(folder / GROUPS, _MAX_NAME))
        if was_full(name):
            replace_file(folder / FULL, b"", durable=False)
        drop_groups(name)
        os.unlink(folder / GROUPS)


def settle_lost(site: Site, state: TaskState, lost: JobLost) -> None:
    """The same for a job whose end was not seen, and of which nothing is left."""
    if lost.gone:
        settle(site.session.job_path(lost.key))


def name_full(site: Site, state: TaskState, key: JobKey, problem: Problem) -> Problem:
    """The problem of a walled job that has ended, if the limit of its memory is the reason."""
    memory = state.spec.sandbox.memory if state.spec.sandbox is not None else None
    if memory is None or not os.path.lexists(site.session.job_path(key) / FULL):
        return problem
    return Problem("oom", f"its walls let it have {memory >> 20} MiB of memory, and it wanted more")


def take_report(site: Site, state: TaskState, ended: Exit) -> tuple[Exit, Problem | None]:
    """The end of a walled job as it was inside, and what was wrong with its walls; others are as they were.

    What it leaves on this machine is settled first.  If its node has ended it for the limit of
    the disk, that is the problem; where the session is, this limit is a timer of the engine.
    """
    folder = site.session.job_path(ended.key)
    if not uses_replicas(site.spec.cluster):  # a node does that itself, with log-ins of its own
        settle(folder)
    if os.path.lexists(folder / FILLED):
        most = format_size((state.spec.sandbox.disk if state.spec.sandbox is not None else None) or 0)
        return ended, Problem("disk_limit", f"what it can write came to more than {most}")
    path = folder / REPORT
    if ended.wait_status is None or not os.path.lexists(path):
        return ended, None
    try:
        report = parse_report(read_regular(path, _MAX_REPORT))
    except OSError:
        return ended, None
    if not report.started:
        failed = os.WIFEXITED(ended.wait_status) and os.WEXITSTATUS(ended.wait_status) != 0
        return ended, Problem("sandbox_failed", _find_words(site, ended.key)) if failed else None
    if report.errno is not None and report.status is None and agree(NOT_EXECUTED << 8, ended.wait_status):
        return replace(ended, wait_status=None, errno=report.errno), None
    if report.status is None or not agree(report.status, ended.wait_status):
        return ended, None
    return replace(ended, wait_status=report.status, cpu_s=report.cpu_s), None


def _find_words(site: Site, key: JobKey) -> str:
    """What bubblewrap said."""
    path = site.session.error_path(key.task) if key.phase == "work" else site.session.job_path(key) / "stderr"
    lines = read_tail(path).decode("utf-8", "replace").splitlines()
    messages = [line.removeprefix("bwrap: ") for line in lines if line.startswith("bwrap: ")]
    return f"bwrap cannot build its walls: {messages[-1] if messages else 'it does not say why'}"
