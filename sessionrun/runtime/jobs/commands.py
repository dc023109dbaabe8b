"""Jobs that are the user's shell commands: SETUP, and a CHECK without a brief.

If a task has a worktree, a program of ours follows its SETUP, in the same job: it commits what the commands left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sessionrun.agents.verdict import Problem
from sessionrun.engine.task import TaskState
from sessionrun.model.errors import JobFileError
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Job
from sessionrun.runtime.jobs.check.known import SetupRequest, name_known
from sessionrun.runtime.jobs.shared import SHELL, Judged, Site
from sessionrun.runtime.jobs.workspace_request import make_request
from sessionrun.workspaces.request import load_place

AND_THEN: Final = "\n(exit $?)\n"
"""Between commands: ``sh -e`` alone goes on after a failed ``a && b`` or ``! a``, and would call that passed."""

AND_SETTLE: Final = '"$0" -ec "$1" || exit; shift; exec "$@"'
"""A script, and if it passes a program, which sees nothing of what the script did to its shell."""

INSIDE_AND_SETTLE: Final = '"$0" "$1" "$2" "$3" || exit; shift 3; exec "$@"'
"""The same with a script inside of walls, which a program of ours builds."""

EACH: Final = 'for command; do "$0" -ec "$command" || exit; done'


def build_setup(site: Site, state: TaskState, key: JobKey) -> Job:
    """A SETUP: its commands in one shell, as lines of a script, and then what commits what they left.

    Raises:
        OSError: the session directory cannot be written.
    """
    script = AND_THEN.join(state.spec.setup)
    if state.place is None or state.place.worktree is None:
        return _build(site, state, key, (SHELL, "-ec", script))
    known = name_known(state.spec)
    request = SetupRequest(make_request(site, state, key), known if known and known.pass_to_pass else None)
    if state.spec.sandbox is None:
        words = (SHELL, "-c", AND_SETTLE, SHELL, script, *site.ask(key, request, cwd="").argv)
        return _build(site, state, key, words)
    from sessionrun.runtime.jobs.enclosing import begin_outside, wish_commands  # only walled tasks need it

    wish = wish_commands(site, state, key)
    inside = begin_outside(replace(wish, reports=True), (SHELL, "-ec", script))
    settling = site.ask(key, replace(request, walls=wish), cwd="")
    return _build(site, state, key, (SHELL, "-c", INSIDE_AND_SETTLE, *inside, *settling.argv))


def build_check(site: Site, state: TaskState, key: JobKey) -> Job:
    """A CHECK of shell commands: each in a shell of its own, in their order, and the first that fails ends it."""
    commands: Sequence[str] = state.spec.check.commands if state.spec.check else ()
    argv = (SHELL, "-ec", commands[0]) if len(commands) == 1 else (SHELL, "-c", EACH, SHELL, *commands)
    return _build(site, state, key, argv)


def judge_setup(site: Site, key: JobKey, problem: Problem | None) -> Judged:
    """A SETUP that failed; only its folder has what it printed, so the reason names the file."""
    folder = site.session.job_path(key)
    if problem is None:
        try:
            return Judged(place=load_place(folder))
        except JobFileError as error:
            return Judged(Problem("setup_failed", f"its answer cannot be used: {error.why}"))
    printed = (folder / "stderr").relative_to(site.session.path)
    return Judged(Problem("setup_failed", f"{problem.text}, see {printed}"))


def _build(site: Site, state: TaskState, key: JobKey, argv: tuple[str, ...]) -> Job:
    folder = site.session.make_job_path(key)
    return Job(
        key=key,
        argv=argv,
        cwd=site.directory_of(state.spec, state.place),
        stdout=str(folder / "stdout"),
        stderr=str(folder / "stderr"),
        env=site.environment_outside(state.spec, key, state.place),
    )
