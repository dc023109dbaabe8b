"""Which of a task's jobs run inside of walls, and with what: WORK, the commands of SETUP, CHECK and PROVE.

Here a task's policy and its place become a wish (`walls.wish`), which the job's own process fulfils (`build`).
PREPARE, PARK, RELEASE and LAND are programs of ours and run outside.  What the end of a walled job means is what
`inner` reported of it, where the keeper saw only bubblewrap's end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.agents.reading import Problem
from sessionrun.engine.task import TaskState
from sessionrun.model.asked import uses_replicas
from sessionrun.model.events import JobLost
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import AgentSpec, Job, SessionSpec, TaskSpec, hides_tests
from sessionrun.model.units import format_size
from sessionrun.session.executor import Exit
from sessionrun.session.shared import PROGRAM, Site
from sessionrun.store.files import read_regular, replace_file
from sessionrun.store.jobfiles import read_tail
from sessionrun.walls.agent_state import LOGINS, take_back
from sessionrun.walls.argv import PROMPT
from sessionrun.walls.groups import FULL, GROUPS, drop_groups, was_full
from sessionrun.walls.wish import FILLED, INSIDE, REPORT, AgentWish, WallsWish, agree, parse_report


def wish_walls(
    site: Site,
    task: TaskSpec,
    key: JobKey,
    place: Place | None,
    env: Mapping[str, str] | None = None,
    agent: AgentSpec | None = None,
    *,
    environment: str | None = None,
    room: str | None = None,
    git: str | None = None,
) -> WallsWish | None:
    """The walls around programs of a job of a task; None: the task has none.

    Args:
        env: the variables of the job, beside those of the session; None: the task's.
        agent: whose state comes in; None: of no agent.
        environment: where that of the task is, if it has one; None: where `env` says.
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
        environment=None if task.environment is None else environment or env.get("VIRTUAL_ENV"),
        python=None if task.environment is None else task.environment.python,
        plain_env=task.env,
        agent=None if agent is None else AgentWish(agent.name, agent.argv),
        env=env,
        begins_in=site.directory_of(task, place),
        room=room,
        git=git,
    )


def enclose_job(site: Site, state: TaskState, job: Job) -> Job:
    """A WORK job inside of its task's walls; its prompt has another place there, and it opens its own input."""
    if job.key.phase != "work":  # the processes of others build walls around what they run
        return job
    wish = wish_walls(site, state.spec, job.key, state.place, job.env, site.agent_of(state))
    assert wish is not None
    prompt = str(site.session.prompt_path(job.key))
    wish = replace(wish, prompt=prompt, on_stdin=job.stdin is not None, outlives_us=True)
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
        if not os.WIFEXITED(ended.wait_status) or os.WEXITSTATUS(ended.wait_status) == 0:
            return ended, None
        errors = site.session.error_path(ended.key.task) if ended.key.phase == "work" else folder / "stderr"
        lines = read_tail(errors).decode("utf-8", "replace").splitlines()
        words = [line.removeprefix("bwrap: ") for line in lines if line.startswith("bwrap: ")]
        why = f"bwrap cannot build its walls: {words[-1] if words else 'it does not say why'}"
        return ended, Problem("sandbox_failed", why)
    if report.errno is not None and report.status is None and agree(NOT_EXECUTED << 8, ended.wait_status):
        return replace(ended, wait_status=None, errno=report.errno), None
    if report.status is None or not agree(report.status, ended.wait_status):
        return ended, None
    return replace(ended, wait_status=report.status, cpu_s=report.cpu_s), None
