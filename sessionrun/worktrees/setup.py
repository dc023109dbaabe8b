"""SETUP: the environment of a task, its commands, and what commits what these left; all of it is one job.

The commands are the user's, in a shell.  Before them a program of ours makes the environment, if the task wants
one; behind them another one settles the worktree, if the task has one.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.agents.verdict import Problem
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.model.errors import JobFileError
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import AND_THEN, Job, TaskSpec
from sessionrun.session.executor import Exit
from sessionrun.session.shared import PROGRAM, SHELL, Judged, Site
from sessionrun.store.files import replace_file
from sessionrun.walls.enclosing import begin_outside, wish_walls
from sessionrun.worktrees.env_request import WISH, EnvironmentRequest, find_target, load_report, show
from sessionrun.worktrees.phases import find_environments, make_request
from sessionrun.worktrees.request import load_place

FIRST: Final = '"$1" "$2" environment "$3" || exit; shift 3; exec "$@"'
"""A program of ours, and if it passes what was to run anyway."""

AND_SETTLE: Final = '"$0" -ec "$1" || exit; shift; exec "$@"'
"""A script, and if it passes a program, which sees nothing of what the script did to its shell."""

_INSIDE_AND_SETTLE: Final = '"$0" "$1" "$2" "$3" || exit; shift 3; exec "$@"'
"""The same with a script inside of walls, which a program of ours builds."""


def build(site: Site, state: TaskState, key: JobKey, whole: State) -> Job:
    """The process of a SETUP."""
    words, place = _word_commands(site, state, key), state.place
    if state.spec.environment is not None and place is not None and place.worktree is not None:
        folder = site.session.make_job_path(key)
        replace_file(
            folder / WISH, orjson.dumps(_wish_of_task(site, state, key, place, place.worktree)), durable=False
        )
        words = (SHELL, "-c", FIRST, SHELL, sys.executable, PROGRAM, str(folder), *words)
    return site.run_commands(state, key, words)


def _word_commands(site: Site, state: TaskState, key: JobKey) -> tuple[str, ...]:
    """The commands in one shell, as lines of a script, and then what commits what they left."""
    script = AND_THEN.join(state.spec.setup)
    if state.place is None or state.place.worktree is None:
        return SHELL, "-ec", script
    settling = site.ask(key, make_request(site, state, key), cwd="").argv
    wish = wish_walls(site, state.spec, key, state.place)
    if wish is None:
        return SHELL, "-c", AND_SETTLE, SHELL, script, *settling
    inside = begin_outside(replace(wish, reports=True), (SHELL, "-ec", script))
    return SHELL, "-c", _INSIDE_AND_SETTLE, *inside, *settling


def _wish_of_task(site: Site, state: TaskState, key: JobKey, place: Place, top: str) -> EnvironmentRequest:
    """What is asked for the environment of a task in its worktree, with its walls."""
    task = state.spec
    repository = repository_of(site.spec, task, place.start)
    directory = site.directory_of(task, place)
    wish = wish_environment(site, task, key, place, top=top, directory=directory)
    is_new = key.start == 1 and place.seat is None and place.taken_up is None
    pristine = is_new and repository is not None and place.base_commit == repository.base_commit
    return replace(wish, repository=repository, pristine=pristine and task.sandbox is not None)


def wish_environment(
    site: Site,
    task: TaskSpec,
    key: JobKey,
    place: Place,
    *,
    top: str,
    directory: str,
    in_room: bool = False,
    git: str | None = None,
) -> EnvironmentRequest:
    """What is asked for an environment of a task, with the walls inside of which it is built, if any.

    Args:
        place: of the task, with the commit that is checked out at `top`, or above which work lies there.
        top, directory: as of `EnvironmentRequest`.
        in_room: as of `find_target`.
        git: the repository of the room in which the project lies; None: it is in the task's worktree.
    """
    assert task.environment is not None
    spec, upstream = site.spec, task.upstream
    target = find_target(find_environments(site), spec.session_id, task.id, key.attempt, in_room=in_room)
    env = site.environment_of(replace(task, environment=None), key, place)
    return EnvironmentRequest(
        top=top,
        directory=directory,
        target=target,
        python=task.environment.python,
        require_cache=spec.cache is not None and spec.cache.require_cache,
        commit=place.base_commit or "HEAD",
        mirror=upstream.mirror if upstream is not None and upstream.history is not None else None,
        walls=wish_walls(site, task, key, place, env, environment=target, begins_in="", git=git),
    )


def judge(site: Site, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
    """What a SETUP came to: a failure to make the environment is the machine's, not the commands'.

    Only the job's folder has what it printed, so the reason names a file.
    """
    folder = site.session.job_path(ended.key)
    printed = folder.relative_to(site.session.path)
    if problem is None:
        judged = _judge_settled(folder)
    else:
        judged = Judged(Problem("setup_failed", f"{problem.text}, see {printed / 'stderr'}"))
    if state.spec.environment is None:
        return judged
    try:
        report = load_report(folder)
    except JobFileError as error:
        return Judged(Problem("environment_failed", f"its report cannot be used: {error.why}"))
    if report is None:
        return Judged(
            Problem("environment_failed", judged.problem.text if judged.problem else "there is no report")
        )
    place = replace(judged.place or state.place or Place(), environment=show(report))
    if report.problem is None:
        return replace(judged, place=place)
    return Judged(Problem("environment_failed", f"{report.problem}, see {printed}"), place)


def _judge_settled(folder: Path) -> Judged:
    try:
        return Judged(place=load_place(folder))
    except JobFileError as error:
        return Judged(Problem("setup_failed", f"its answer cannot be used: {error.why}"))
