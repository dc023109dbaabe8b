"""Which of a task's jobs run inside of walls, and with what: WORK, the commands of SETUP, CHECK and PROVE.

Here a task's policy and its place become a wish (`walls.wish`).  It is fulfilled at once where the session's jobs
run on its machine, and on the node where they run on a cluster (`raising`).  PREPARE, PARK, RELEASE and LAND are
programs of ours and run outside.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import orjson

from sessionrun.engine.task import TaskState
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import AgentSpec, Job, SessionSpec, TaskSpec, hides_tests
from sessionrun.runtime.export_places import list_places
from sessionrun.runtime.jobs.inside import INSIDE, REPORT, InsideStart
from sessionrun.runtime.jobs.raising import OpenDoor, raise_for_build, raise_walls
from sessionrun.runtime.jobs.shared import PROGRAM, Site
from sessionrun.store.files import replace_file
from sessionrun.walls.argv import Enclosure
from sessionrun.walls.wish import AgentWish, WallsWish
from sessionrun.workspaces.environments.request import EnvironmentRequest


def enclose(
    site: Site,
    task: TaskSpec,
    key: JobKey,
    place: Place | None,
    *,
    agent: AgentSpec | None,
    env: Mapping[str, str],
    cwd: str,
    room: str | None = None,
    prompt: Path | None = None,
    on_stdin: bool = False,
    reports: bool = False,
    outlives_us: bool = False,
) -> Enclosure | None:
    """How the programs of a job are started inside; None: the task has no walls.

    Args:
        site: the session.
        task: the task.
        key: the job.
        place: the task's worktree.
        agent: whose state comes in; None: of no agent.
        env: the variables of the job, beside those of the session.
        cwd: where the programs begin.
        room, prompt, on_stdin, reports, outlives_us: see `WallsWish`.

    Raises:
        SessionrunError: bubblewrap is not installed.
        OSError: the session directory cannot be written.
    """
    wish = _wish(site, task, key, place, env)
    if wish is None:
        return None
    if agent is not None:
        site.session.make_job_path(key)  # for the record of its log-ins
    wish = replace(
        wish,
        agent=None if agent is None else AgentWish(agent.name, agent.argv),
        begins_in=cwd,
        room=room,
        prompt=None if prompt is None else str(prompt),
        on_stdin=on_stdin,
        reports=reports,
        outlives_us=outlives_us,
    )
    return Enclosure((), wish=wish) if site.is_elsewhere(key) else raise_walls(wish, find_door(site, key))


def wish_build(
    site: Site,
    task: TaskSpec,
    key: JobKey,
    place: Place,
    *,
    env: Mapping[str, str],
    git: str | None = None,
) -> WallsWish | None:
    """The walls inside of which a task's environment is built; None: the task has none.

    Args:
        site: the session.
        task: the task.
        key: the job that builds.
        place: the task's worktree.
        env: as of `enclose`.
        git: see `WallsWish`.

    Raises:
        OSError: the session directory cannot be written.
    """
    wish = _wish(site, task, key, place, env)
    return None if wish is None else replace(wish, git=git)


def build_inside(
    site: Site, key: JobKey, request: EnvironmentRequest, wish: WallsWish | None
) -> EnvironmentRequest:
    """The request with the walls of a wish, or with the wish, if it is built on a node.

    Raises:
        SessionrunError, OSError: as `enclose`.
    """
    if wish is None or site.is_elsewhere(key):
        return replace(request, walls_wish=wish)
    return replace(request, walls=raise_for_build(wish, find_door(site, key)))


def enclose_job(site: Site, task: TaskSpec, job: Job, place: Place | None, agent: AgentSpec, prompt: Path) -> Job:
    """A WORK job inside of its task's walls, if there are any; its standard input is then opened inside.

    Raises:
        SessionrunError, OSError: as `enclose`.
    """
    walls = enclose(
        site,
        task,
        job.key,
        place,
        agent=agent,
        env=job.env,
        cwd=job.cwd,
        prompt=prompt,
        on_stdin=job.stdin is not None,
        reports=True,
        outlives_us=True,
    )
    if walls is None:
        return job
    folder = site.session.make_job_path(job.key).absolute()
    if walls.wish is None:
        return replace(job, argv=walls.wrap(*job.argv), env=walls.env, stdin=None, report=str(folder / REPORT))
    write_start(folder, walls, job.argv)
    return replace(job, argv=(sys.executable, PROGRAM, "inside", str(folder)), env={}, stdin=None)


def enclose_commands(site: Site, state: TaskState, key: JobKey, *, reports: bool = False) -> Enclosure:
    """How the commands of a walled task's SETUP are started inside; arguments as of `enclose`.

    Raises:
        SessionrunError, OSError: as `enclose`.
    """
    env, cwd = site.environment_of(state.spec, key, state.place), site.directory_of(state.spec, state.place)
    walls = enclose(site, state.spec, key, state.place, agent=None, env=env, cwd=cwd, reports=reports)
    assert walls is not None
    return walls


def ask_inside(site: Site, state: TaskState, key: JobKey, command: tuple[str, ...]) -> tuple[str, ...]:
    """Write down how a command of a walled task is started inside, for a program of ours that becomes it.

    Returns:
        The interpreter, the program, and the job's folder.

    Raises:
        SessionrunError, OSError: as `enclose`.
    """
    folder = site.session.make_job_path(key).absolute()
    write_start(folder, enclose_commands(site, state, key, reports=True), command)
    return sys.executable, PROGRAM, str(folder)


def write_start(folder: Path, walls: Enclosure, command: tuple[str, ...]) -> None:
    """Write down how a command is started inside.

    Raises:
        OSError: the session directory cannot be written.
    """
    words = command if walls.wish is not None else walls.wrap(*command)
    start = InsideStart(words, walls.env, str(folder / REPORT), walls.wish)
    replace_file(folder / INSIDE, orjson.dumps(start), durable=False)


def find_door(site: Site, key: JobKey) -> OpenDoor | None:
    """What opens a way into the network for a job where the session is."""
    proxying = site.proxying
    return None if proxying is None else lambda rules: proxying.open(key, rules)


def _wish(
    site: Site, task: TaskSpec, key: JobKey, place: Place | None, env: Mapping[str, str]
) -> WallsWish | None:
    """What all jobs of a task ask for; None: it has no walls."""
    if task.sandbox is None or place is None or place.worktree is None:
        return None
    spec, path = site.spec, site.session.path.absolute()
    repository = repository_of(spec, task, place.start)
    assert repository is not None
    return WallsWish(
        session_id=spec.session_id,
        job=key.text(),
        sandbox=task.sandbox,
        repository=repository,
        worktree=place.worktree,
        folder=str(site.session.walls_path(key)),
        record=str(site.session.job_path(key).absolute()),
        session=str(path),
        results=str(path.parent),
        cwd=spec.cwd,
        cache=site.environments,
        answers=tuple(_find_answers(spec, task)),
        links=task.links,
        is_mirror=task.upstream is not None,
        environment=None if task.environment is None else site.locate_environment(task, key, place),
        python=None if task.environment is None else task.environment.python,
        plain_env=task.env,
        env=env,
    )


def _find_answers(spec: SessionSpec, task: TaskSpec) -> Iterator[str]:
    """Where a task's hidden tests and later commits can be read: input, exports, a repository of this machine."""
    if not hides_tests(task):
        return
    yield os.path.realpath(os.path.join(spec.cwd, spec.source))
    for export in spec.exports:
        yield from list_places(export)
    if task.upstream is not None and os.path.isabs(task.upstream.repo):
        yield os.path.realpath(task.upstream.repo)
