"""What the modules of the phases share: where a session's jobs are made, and what a phase makes of a job's end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import orjson

from sessionrun.agents.verdict import Problem
from sessionrun.engine.task import TaskState
from sessionrun.model.checks import Checked, Note
from sessionrun.model.cluster import CACHE_TOKEN, PATH_TOKEN, uses_replicas
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import DEPTH_VARIABLE, AgentSpec, Job, ProofVerdict, SessionSpec, TaskSpec
from sessionrun.runtime.executors.orders import list_named
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import REQUEST, read_tail
from sessionrun.store.session import SessionDir
from sessionrun.workspaces.environments.request import FOLDER as ENVIRONMENTS
from sessionrun.workspaces.environments.request import find_cache, find_target, name_variables
from sessionrun.workspaces.links import HIDDEN

SHELL: Final = "/bin/sh"

AND_THEN: Final = "\n(exit $?)\n"
"""Between commands: ``sh -e`` alone goes on after a failed ``a && b`` or ``! a``, and would call that passed."""

Tasks: TypeAlias = Mapping[str, TaskState]
"""All tasks of the session, by id."""

PROGRAM: Final = str(Path(__file__).resolve().with_name("job.py"))


@frozen
class Judged:
    """What a phase makes of the end of its job.

    Attributes:
        problem: why the job failed; None: it passed.
        place: what became of the task's workspace, if the job reports it.
        proof: what a proof found.
        audit: what its audit says of the work.
        can_repeat: the job failed, but a repetition does no harm and may help: the job counts as lost.
        checked: what a CHECK found out.
    """

    problem: Problem | None = None
    place: Place | None = None
    proof: ProofVerdict | None = None
    audit: tuple[Note, ...] = ()
    can_repeat: bool = False
    checked: Checked | None = None


def read_last_line(folder: Path) -> str:
    """The last line that a job of ours printed on standard error: its reason."""
    return read_tail(folder / "stderr").decode("utf-8", "replace").strip().split("\n")[-1]


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
        """The agent whose turn it is."""
        return self.spec.agents[state.agent]

    def directory_of(self, task: TaskSpec, place: Place | None) -> str:
        """The task's directory; in a worktree, the counterpart of the directory in the user's checkout."""
        if task.upstream is not None and place is not None and place.worktree is not None:
            return os.path.normpath(os.path.join(place.worktree, task.cwd or ""))
        cwd = os.path.join(self.spec.cwd, task.cwd) if task.cwd else self.spec.cwd
        if place is None or place.worktree is None or self.spec.repository is None:
            return cwd
        inside = os.path.relpath(os.path.realpath(cwd), os.path.realpath(self.spec.repository.top))
        outside = inside == os.pardir or inside.startswith(os.pardir + os.sep)
        return cwd if outside else os.path.normpath(os.path.join(place.worktree, inside))

    def environment_outside(self, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
        """The same for a program of ours beside the walls of a task: by PATH or PYTHONPATH it could run what
        the task has planted.  Those that are given by name stay: the executor says if one is not set.
        """
        own = self.environment_of(task, key, place)
        return own if task.sandbox is None else list_named(own)

    def environment_of(self, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
        """The variables that a job of the task is given beside the session's own."""
        return {
            **task.env,
            **self._describe_place(task, place),
            **self._describe_environment(task, key, place),
            **self._hide_links(task, key, place),
            "SESSIONRUN_SESSION": self.spec.session_id,
            "SESSIONRUN_TASK": task.id,
            "SESSIONRUN_ATTEMPT": str(key.attempt),
            "SESSIONRUN_ROUND": str(key.round),
            DEPTH_VARIABLE: str(1 + (self.spec.parent.depth if self.spec.parent else 0)),
        }

    def _describe_place(self, task: TaskSpec, place: Place | None) -> Mapping[str, str]:
        repository = repository_of(self.spec, task)
        if place is None or repository is None:
            return {}
        return {
            "SESSIONRUN_BRANCH": place.branch or "",
            "SESSIONRUN_WORKTREE": place.worktree or "",
            "SESSIONRUN_BASE_COMMIT": place.base_commit or "",
            "SESSIONRUN_REPOSITORY": repository.top,
        }

    def _describe_environment(self, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
        """The variables by which programs find the task's environment."""
        if task.environment is None or place is None:
            return {}
        folder = self.locate_environment(task, key, place)
        if uses_replicas(self.spec.cluster):
            return name_variables(folder, task.env.get("PATH") or PATH_TOKEN, {"PYTHONHOME": "perhaps"})
        return name_variables(folder, task.env.get("PATH") or os.environ.get("PATH") or os.defpath, os.environ)

    @property
    def environments(self) -> str:
        """The directory of all environments, where the jobs run."""
        if uses_replicas(self.spec.cluster):
            return f"{CACHE_TOKEN}/{ENVIRONMENTS}"
        return find_cache(self.spec.cache)

    def locate_environment(self, task: TaskSpec, key: JobKey, place: Place) -> str:
        """Where the task's environment is, or will be."""
        made = place.environment.path if place.environment else None
        return made or find_target(self.environments, self.spec.session_id, task.id, key.attempt)

    def _hide_links(self, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
        """What makes the task's git overlook links that lead out of the repository: they are no work."""
        if place is None or not task.links:
            return {}
        prepared = self.session.find_starts(key._replace(round=1, phase="prepare"))
        rules = next((path for folder in prepared if (path := folder / HIDDEN).exists()), None)
        if rules is None:
            return {}
        number = task.env.get("GIT_CONFIG_COUNT") or os.environ.get("GIT_CONFIG_COUNT") or "0"
        setting = {f"GIT_CONFIG_KEY_{number}": "core.excludesFile", f"GIT_CONFIG_VALUE_{number}": str(rules)}
        return {"GIT_CONFIG_COUNT": str(int(number) + 1), **setting} if number.isdecimal() else {}

    def ask(self, key: JobKey, request: object, *, cwd: str, env: Mapping[str, str] | None = None) -> Job:
        """A job whose program is ours (see `job`); writes the request that it begins with.

        Raises:
            OSError: the request cannot be written.
        """
        return self._make_job(key, self._write_request(key, request), cwd, env or {})

    def run_commands(self, state: TaskState, key: JobKey, argv: tuple[str, ...]) -> Job:
        """A job that is the user's shell commands, in the task's directory."""
        env = self.environment_outside(state.spec, key, state.place)
        return self._make_job(key, argv, self.directory_of(state.spec, state.place), env)

    def _make_job(self, key: JobKey, argv: tuple[str, ...], cwd: str, env: Mapping[str, str]) -> Job:
        """A job that prints into files of its own folder."""
        folder = self.session.make_job_path(key)
        return Job(
            key=key, argv=argv, cwd=cwd, stdout=str(folder / "stdout"), stderr=str(folder / "stderr"), env=env
        )

    def wrap(self, job: Job, request: object) -> Job:
        """The same job begun by our program, which becomes the job's own when it has done what is asked.

        Raises:
            OSError: the request cannot be written.
        """
        return replace(job, argv=self._write_request(job.key, request))

    def _write_request(self, key: JobKey, request: object) -> tuple[str, ...]:
        folder = self.session.make_job_path(key)
        replace_file(folder / REQUEST, orjson.dumps(request), durable=False)
        return (sys.executable, PROGRAM, key.phase, os.fspath(folder))
