"""Jobs that are the user's shell commands: SETUP, and a CHECK without a brief."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sessionrun.agents.verdict import Problem
from sessionrun.engine.state import TaskState
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Job
from sessionrun.runtime.jobs.shared import SHELL, Judged, Site

AND_THEN: Final = "\n(exit $?)\n"
"""Between commands: ``sh -e`` alone goes on after a failed ``a && b`` or ``! a``, and would call that passed."""

EACH: Final = 'for command; do "$0" -ec "$command" || exit; done'


def build_setup(site: Site, state: TaskState, key: JobKey) -> Job:
    """A SETUP: its commands in one shell, as lines of a script."""
    return _build(site, state, key, (SHELL, "-ec", AND_THEN.join(state.spec.setup)))


def build_check(site: Site, state: TaskState, key: JobKey) -> Job:
    """A CHECK of shell commands: each in a shell of its own, in their order, and the first that fails ends it."""
    commands: Sequence[str] = state.spec.check.commands if state.spec.check else ()
    argv = (SHELL, "-ec", commands[0]) if len(commands) == 1 else (SHELL, "-c", EACH, SHELL, *commands)
    return _build(site, state, key, argv)


def judge_setup(site: Site, key: JobKey, problem: Problem | None) -> Judged:
    """A SETUP that failed; only its folder has what it printed, so the reason names the file."""
    if problem is None:
        return Judged()
    printed = (site.session.job_path(key) / "stderr").relative_to(site.session.path)
    return Judged(Problem("setup_failed", f"{problem.text}, see {printed}"))


def _build(site: Site, state: TaskState, key: JobKey, argv: tuple[str, ...]) -> Job:
    folder = site.session.make_job_path(key)
    return Job(
        key=key,
        argv=argv,
        cwd=site.directory_of(state.spec, state.place),
        stdout=str(folder / "stdout"),
        stderr=str(folder / "stderr"),
        env=site.environment_of(state.spec, key, state.place),
    )
