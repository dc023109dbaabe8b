"""What the modules of the phases share: where a session's jobs are made, and what a phase makes of a job's end.

Here also is the supervisor's side of the table of the house: who makes the jobs of a phase, and what is done
around them.  What the process of a job does is the other half of the table, in `job`: the two must not import
each other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

import orjson

from sessionrun.agents.reading import Problem
from sessionrun.engine.task import TaskState
from sessionrun.house import HOUSE, Phase, Wrap, load
from sessionrun.model.asked import CACHE_TOKEN, uses_replicas
from sessionrun.model.checks import Checked, Note, ProofVerdict
from sessionrun.model.events import Event
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import DEPTH_VARIABLE, AgentSpec, Job, SessionSpec, TaskSpec
from sessionrun.session.executor import list_named
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import REQUEST, read_tail
from sessionrun.store.session import SessionDir

Moment = Literal["variables", "build", "ended", "problem", "judged", "lost"]

_INWARDS: Final = ("ended", "problem", "judged", "lost")
"""What was put around a job last is the first to see its end."""


def find_phase(name: str) -> Phase:
    """The row of a phase that is not the session's own."""
    return next(row for business in HOUSE for row in business.phases if row.name == name)


def import_makers(spec: SessionSpec) -> None:
    """Import what makes and judges the jobs of a session, before its first one.

    After an upgrade of the package a supervisor that lives must not take modules of another version.
    """
    tasks = spec.tasks if spec.template is None else (*spec.tasks, spec.template)
    for business in HOUSE:
        for phase in business.phases:
            load(phase.maker)
        for wrap in business.wraps:
            if any(_is_asked(wrap, spec, task) for task in tasks):
                for name in filter(None, (getattr(wrap, moment) for moment in get_args(Moment))):
                    load(name)


def list_wraps(moment: Moment, spec: SessionSpec, task: TaskSpec) -> list[Callable[..., Any]]:
    """What is done at a moment around the jobs of a task, in its order; of all else nothing is imported."""
    wraps = (wrap for business in HOUSE for wrap in business.wraps)
    names = [getattr(wrap, moment) for wrap in wraps if _is_asked(wrap, spec, task)]
    found = [load(name) for name in names if name]
    return found[::-1] if moment in _INWARDS else found


def _is_asked(wrap: Wrap, spec: SessionSpec, task: TaskSpec) -> bool:
    owner, _, field = wrap.of.partition(".")
    return bool(getattr(task if owner == "task" else spec, field))


def list_placed() -> list[str]:
    """The names of files in a job's folder that name places, beside its request."""
    return [load(name) for business in HOUSE for name in business.placed]


SHELL: Final = "/bin/sh"

PROGRAM: Final = str(Path(__file__).resolve().with_name("job.py"))


@frozen
class Judged:
    """What a phase makes of the end of its job; without a problem it passed.

    `place` says where the task's work is now.  `events` are what the job reports of other tasks.  A failed job
    with `can_repeat` counts as lost: to run it again does no harm, and may help.
    """

    problem: Problem | None = None
    place: Place | None = None
    proof: ProofVerdict | None = None
    audit: tuple[Note, ...] = ()
    can_repeat: bool = False
    checked: Checked | None = None
    events: tuple[Event, ...] = ()


def read_last_line(folder: Path) -> str:
    """The last line that a job of ours printed on standard error: its reason."""
    return read_tail(folder / "stderr").decode("utf-8", "replace").strip().split("\n")[-1]


def find_counterpart(path: str, top: str, other: str) -> str | None:
    """The directory that is to `other` what a path is to `top`; None: the path is not below that."""
    inside = os.path.relpath(os.path.realpath(path), os.path.realpath(top))
    outside = inside == os.pardir or inside.startswith(os.pardir + os.sep)
    return None if outside else os.path.normpath(os.path.join(other, inside))


@frozen
class Site:
    """Where the jobs of one session are made: its directory, and what was asked for."""

    session: SessionDir
    read_spec: Callable[[], SessionSpec]

    @property
    def spec(self) -> SessionSpec:
        """What was asked for, with what was added since."""
        return self.read_spec()

    def agent_of(self, state: TaskState) -> AgentSpec:
        return self.spec.agents[state.agent]

    def directory_of(self, task: TaskSpec, place: Place | None) -> str:
        """The task's directory; in a worktree, the counterpart of the directory in the user's checkout."""
        if task.upstream is not None and place is not None and place.worktree is not None:
            return os.path.normpath(os.path.join(place.worktree, task.cwd or ""))
        cwd = os.path.join(self.spec.cwd, task.cwd) if task.cwd else self.spec.cwd
        if place is None or place.worktree is None or self.spec.repository is None:
            return cwd
        return find_counterpart(cwd, self.spec.repository.top, place.worktree) or cwd

    def environment_outside(self, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
        """The same for a program of ours beside the walls of a task: by PATH or PYTHONPATH it could run what
        the task has planted.  Those that are given by name stay: the executor says if one is not set.
        """
        own = self.environment_of(task, key, place)
        return own if task.sandbox is None else list_named(own)

    def environment_of(self, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
        """The variables that a job of the task is given beside the session's own."""
        variables, repository = dict(task.env), repository_of(self.spec, task)
        if place is not None and repository is not None:
            variables |= {
                "SESSIONRUN_BRANCH": place.branch or "",
                "SESSIONRUN_WORKTREE": place.worktree or "",
                "SESSIONRUN_BASE_COMMIT": place.base_commit or "",
                "SESSIONRUN_REPOSITORY": repository.top,
            }
        for wrap in list_wraps("variables", self.spec, task):
            variables |= wrap(self, task, key, place)
        return {
            **variables,
            "SESSIONRUN_SESSION": self.spec.session_id,
            "SESSIONRUN_TASK": task.id,
            "SESSIONRUN_ATTEMPT": str(key.attempt),
            "SESSIONRUN_ROUND": str(key.round),
            DEPTH_VARIABLE: str(1 + (self.spec.parent.depth if self.spec.parent else 0)),
        }

    @property
    def cache(self) -> str:
        """The directory of what could be made again, where the jobs run."""
        if uses_replicas(self.spec.cluster):
            return CACHE_TOKEN
        if self.spec.cache is not None:
            return self.spec.cache.cache_dir
        from sessionrun.store.index import find_cache_folder  # most jobs have no need of it

        return str(find_cache_folder())

    def ask(self, key: JobKey, request: object, *, cwd: str, env: Mapping[str, str] | None = None) -> Job:
        """A job whose program is ours (see `job`); writes the request that it begins with."""
        return self._make_job(key, self._write_request(key, request, key.phase), cwd, env or {})

    def run_commands(self, state: TaskState, key: JobKey, argv: tuple[str, ...]) -> Job:
        """A job that is the user's shell commands, in the task's directory."""
        env = self.environment_outside(state.spec, key, state.place)
        return self._make_job(key, argv, self.directory_of(state.spec, state.place), env)

    def _make_job(self, key: JobKey, argv: tuple[str, ...], cwd: str, env: Mapping[str, str]) -> Job:
        folder = self.session.make_job_path(key)
        return Job(
            key=key, argv=argv, cwd=cwd, stdout=str(folder / "stdout"), stderr=str(folder / "stderr"), env=env
        )

    def wrap(self, job: Job, request: object) -> Job:
        """The same job begun by our program, which becomes the job's own when it has done what is asked."""
        return replace(job, argv=self._write_request(job.key, request, "begin"))

    def _write_request(self, key: JobKey, request: object, name: str) -> tuple[str, ...]:
        folder = self.session.make_job_path(key)
        replace_file(folder / REQUEST, orjson.dumps(request), durable=False)
        return (sys.executable, PROGRAM, name, os.fspath(folder))
