"""Which of a task's jobs run inside of walls, and with what: WORK, the commands of SETUP, CHECK and PROVE.

Here a task's policy and its place become a wish (`walls.wish`), which the job's own process fulfils (`raising`).
PREPARE, PARK, RELEASE and LAND are programs of ours and run outside.
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
from sessionrun.runtime.jobs.shared import PROGRAM, Site
from sessionrun.store.files import replace_file
from sessionrun.walls.wish import INSIDE, AgentWish, InsideStart, WallsWish


def wish_walls(
    site: Site,
    task: TaskSpec,
    key: JobKey,
    place: Place | None,
    *,
    env: Mapping[str, str],
    cwd: str = "",
    agent: AgentSpec | None = None,
    room: str | None = None,
    git: str | None = None,
    prompt: Path | None = None,
    on_stdin: bool = False,
    reports: bool = False,
    outlives_us: bool = False,
) -> WallsWish | None:
    """The walls inside of which programs of a job run; None: the task has none.

    Args:
        env: the variables of the job, beside those of the session.
        cwd: where the programs begin; a build says that itself.
        agent: whose state comes in; None: of no agent.
        room, git, prompt, on_stdin, reports, outlives_us: see `WallsWish`.

    Raises:
        OSError: the session directory cannot be written.
    """
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
        record=str(site.session.make_job_path(key).absolute()),
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
        agent=None if agent is None else AgentWish(agent.name, agent.argv),
        env=env,
        begins_in=cwd,
        room=room,
        git=git,
        prompt=None if prompt is None else str(prompt),
        on_stdin=on_stdin,
        reports=reports,
        outlives_us=outlives_us,
    )


def enclose_job(site: Site, task: TaskSpec, job: Job, place: Place | None, agent: AgentSpec, prompt: Path) -> Job:
    """A WORK job inside of its task's walls, if there are any; its standard input is then opened inside.

    Raises:
        OSError: the session directory cannot be written.
    """
    wish = wish_walls(
        site,
        task,
        job.key,
        place,
        env=job.env,
        cwd=job.cwd,
        agent=agent,
        prompt=prompt,
        on_stdin=job.stdin is not None,
        reports=True,
        outlives_us=True,
    )
    if wish is None:
        return job
    argv = begin_outside(wish, job.argv)
    return replace(job, argv=argv, env=site.environment_outside(task, job.key, place), stdin=None)


def wish_commands(site: Site, state: TaskState, key: JobKey, *, reports: bool = False) -> WallsWish:
    """The walls of the commands of a walled task's SETUP; see `wish_walls`."""
    env, cwd = site.environment_of(state.spec, key, state.place), site.directory_of(state.spec, state.place)
    wish = wish_walls(site, state.spec, key, state.place, env=env, cwd=cwd, reports=reports)
    assert wish is not None
    return wish


def begin_outside(wish: WallsWish, command: tuple[str, ...]) -> tuple[str, ...]:
    """Write down how a command goes on inside; the words of the program of ours that becomes it.

    Raises:
        OSError: the session directory cannot be written.
    """
    replace_file(Path(wish.record, INSIDE), orjson.dumps(InsideStart(command, wish)), durable=False)
    return sys.executable, PROGRAM, "inside", wish.record


def _find_answers(spec: SessionSpec, task: TaskSpec) -> Iterator[str]:
    """Where a task's hidden tests and later commits can be read: input, exports, a repository of this machine."""
    if not hides_tests(task):
        return
    yield os.path.realpath(os.path.join(spec.cwd, spec.source))
    for export in spec.exports:
        yield from list_places(export)
    if task.upstream is not None and os.path.isabs(task.upstream.repo):
        yield os.path.realpath(task.upstream.repo)
