"""The environment of a task: the first part of its SETUP, which has one exit code with the user's commands."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Final

import orjson

from sessionrun.agents.verdict import Problem
from sessionrun.engine.task import TaskState
from sessionrun.model.errors import JobFileError
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import Job, TaskSpec
from sessionrun.runtime.jobs.shared import PROGRAM, SHELL, Judged, Site
from sessionrun.store.files import replace_file
from sessionrun.workspaces.environments.request import (
    WISH,
    EnvironmentRequest,
    Tenant,
    find_target,
    load_report,
    show,
)

FIRST: Final = '"$1" "$2" environment "$3" || exit; shift 3; exec "$@"'
"""A program of ours, and if it passes what was to run anyway."""


def begin_with_environment(site: Site, state: TaskState, job: Job) -> Job:
    """The SETUP of a task that wants an environment makes it before anything else; other jobs are as they were.

    Raises:
        OSError: the session directory cannot be written.
    """
    task, place = state.spec, state.place
    if task.environment is None or place is None or place.worktree is None:
        return job
    folder, repository = site.session.make_job_path(job.key), repository_of(site.spec, task, place.start)
    wish = wish_environment(
        site, task, job.key, top=place.worktree, directory=site.directory_of(task, place), commit=place.base_commit
    )
    wish = replace(wish, repository=repository)
    if task.sandbox is not None:
        is_new = job.key.start == 1 and place.seat is None and place.taken_up is None
        pristine = is_new and repository is not None and place.base_commit == repository.base_commit
        wish = replace(wall_build(site, wish, task, job.key, place), pristine=pristine)
    replace_file(folder / WISH, orjson.dumps(wish), durable=False)
    return replace(job, argv=(SHELL, "-c", FIRST, SHELL, sys.executable, PROGRAM, str(folder), *job.argv))


def wall_build(
    site: Site, request: EnvironmentRequest, task: TaskSpec, key: JobKey, place: Place, git: str | None = None
) -> EnvironmentRequest:
    """The request with the walls inside of which the environment is built, if any.

    `git` is the repository of the room in which the project lies; None: it is in the task's worktree.
    """
    if task.sandbox is None:
        return request
    from sessionrun.runtime.jobs.enclosing import wish_walls  # only walled tasks need it

    env = site.environment_of(replace(task, environment=None), key, place)
    return replace(request, walls=replace(wish_walls(site, task, key, place, env), git=git))


def wish_environment(
    site: Site,
    task: TaskSpec,
    key: JobKey,
    *,
    top: str,
    directory: str,
    commit: str | None,
    in_room: bool = False,
) -> EnvironmentRequest:
    """What is asked for an environment of a task, for a checkout at `top` of `commit`, or of work above it.

    `in_room` is as of `find_target`.
    """
    assert task.environment is not None
    spec, cache, upstream = site.spec, site.environments, task.upstream
    return EnvironmentRequest(
        top=top,
        directory=directory,
        cache=cache,
        target=find_target(cache, spec.session_id, task.id, key.attempt, in_room=in_room),
        python=task.environment.python,
        require_cache=spec.cache is not None and spec.cache.require_cache,
        tenant=Tenant(str(site.session.path.absolute()), spec.session_id, task.id, key.attempt, in_room),
        commit=commit or "HEAD",
        mirror=upstream.mirror if upstream is not None and upstream.history is not None else None,
    )


def judge_environment(site: Site, state: TaskState, key: JobKey, judged: Judged) -> Judged:
    """What a SETUP came to, with its environment: a failure to make one is the machine's, not the commands'."""
    if state.spec.environment is None:
        return judged
    folder = site.session.job_path(key)
    try:
        report = load_report(folder)
    except JobFileError as error:
        return Judged(Problem("environment_failed", f"its report cannot be used: {error.why}"))
    if report is None:
        why = judged.problem.text if judged.problem else "there is no report"
        return Judged(Problem("environment_failed", why))
    place = replace(judged.place or state.place or Place(), environment=show(report))
    if report.problem is None:
        return replace(judged, place=place)
    printed = folder.relative_to(site.session.path)
    return Judged(Problem("environment_failed", f"{report.problem}, see {printed}"), place)
