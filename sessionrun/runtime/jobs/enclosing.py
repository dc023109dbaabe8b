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
from sessionrun.runtime.jobs.shared import PROGRAM, Site
from sessionrun.store.files import replace_file
from sessionrun.walls.wish import INSIDE, AgentWish, WallsWish


def wish_walls(
    site: Site,
    task: TaskSpec,
    key: JobKey,
    place: Place | None,
    env: Mapping[str, str],
    agent: AgentSpec | None = None,
) -> WallsWish:
    """The walls of a walled task, without what is special to the programs of a job: see `WallsWish`.

    Args:
        env: the variables of the job, beside those of the session.
        agent: whose state comes in; None: of no agent.

    Raises:
        OSError: the session directory cannot be written.
    """
    assert task.sandbox is not None and place is not None and place.worktree is not None
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
    )


def enclose_job(site: Site, task: TaskSpec, job: Job, place: Place | None, agent: AgentSpec, prompt: Path) -> Job:
    """A WORK job inside of its task's walls; its standard input is opened inside.

    Raises:
        OSError: the session directory cannot be written.
    """
    wish = replace(
        wish_walls(site, task, job.key, place, job.env, agent),
        begins_in=job.cwd,
        prompt=str(prompt),
        on_stdin=job.stdin is not None,
        reports=True,
        outlives_us=True,
    )
    argv = begin_outside(wish, job.argv)
    return replace(job, argv=argv, env=site.environment_outside(task, job.key, place), stdin=None)


def wish_commands(site: Site, state: TaskState, key: JobKey) -> WallsWish:
    """The walls of the commands of a walled task's SETUP; see `wish_walls`."""
    env = site.environment_of(state.spec, key, state.place)
    wish = wish_walls(site, state.spec, key, state.place, env)
    return replace(wish, begins_in=site.directory_of(state.spec, state.place))


def begin_outside(wish: WallsWish, command: tuple[str, ...]) -> tuple[str, ...]:
    """Write down how a command goes on inside; the words of the program of ours that becomes it.

    Raises:
        OSError: the session directory cannot be written.
    """
    replace_file(Path(wish.record, INSIDE), orjson.dumps(replace(wish, command=command)), durable=False)
    return sys.executable, PROGRAM, "inside", wish.record


def _find_answers(spec: SessionSpec, task: TaskSpec) -> Iterator[str]:
    """Where a task's hidden tests and later commits can be read: input, exports, a repository of this machine."""
    if not hides_tests(task):
        return
    yield os.path.realpath(os.path.join(spec.cwd, spec.source))
    for export in spec.exports:
        yield from export.places.values()
    if task.upstream is not None and os.path.isabs(task.upstream.repo):
        yield os.path.realpath(task.upstream.repo)
