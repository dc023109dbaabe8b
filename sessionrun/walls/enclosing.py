"""Which of a task's jobs run inside of walls, and with what: WORK, the commands of SETUP, CHECK and PROVE.

Here a task's policy and its place become a wish (`walls.wish`), which the job's own process fulfils (`build`).
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
from sessionrun.session.shared import PROGRAM, Site
from sessionrun.session.work import find_prompt_path
from sessionrun.store.files import replace_file
from sessionrun.walls.argv import PROMPT
from sessionrun.walls.wish import INSIDE, AgentWish, WallsWish


def wish_walls(
    site: Site,
    task: TaskSpec,
    key: JobKey,
    place: Place | None,
    env: Mapping[str, str] | None = None,
    agent: AgentSpec | None = None,
    *,
    environment: str | None = None,
    begins_in: str | None = None,
    room: str | None = None,
    git: str | None = None,
) -> WallsWish | None:
    """The walls around programs of a job of a task; None: the task has none.

    Args:
        env: the variables of the job, beside those of the session; None: the task's.
        agent: whose state comes in; None: of no agent.
        environment: where that of the task is, if it has one; None: where `env` says.
        begins_in: where the programs begin; None: in the task's directory.
        room, git: see `WallsWish`.
    """
    if task.sandbox is None:
        return None
    assert place is not None and place.worktree is not None
    spec, path = site.spec, site.session.path.absolute()
    repository = repository_of(spec, task, place.start)
    assert repository is not None
    env = site.environment_of(task, key, place) if env is None else env
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
        cache=site.cache,
        answers=tuple(_find_answers(spec, task)),
        links=task.links,
        is_mirror=task.upstream is not None,
        environment=None if task.environment is None else environment or env.get("VIRTUAL_ENV"),
        python=None if task.environment is None else task.environment.python,
        plain_env=task.env,
        agent=None if agent is None else AgentWish(agent.name, agent.argv),
        env=env,
        begins_in=site.directory_of(task, place) if begins_in is None else begins_in,
        room=room,
        git=git,
    )


def enclose_job(site: Site, state: TaskState, job: Job) -> Job:
    """A WORK job inside of its task's walls; its prompt has another place there, and it opens its own input."""
    if job.key.phase != "work":  # the processes of others build walls around what they run
        return job
    wish = wish_walls(site, state.spec, job.key, state.place, job.env, site.agent_of(state))
    assert wish is not None
    prompt = str(find_prompt_path(site, job.key))
    wish = replace(wish, prompt=prompt, on_stdin=job.stdin is not None, reports=True, outlives_us=True)
    argv = begin_outside(wish, tuple(word.replace(prompt, PROMPT) for word in job.argv))
    return replace(job, argv=argv, env=site.environment_outside(state.spec, job.key, state.place), stdin=None)


def begin_outside(wish: WallsWish, command: tuple[str, ...]) -> tuple[str, ...]:
    """Write down how a command goes on inside; the words of the program of ours that becomes it."""
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
