"""Rounds in a worktree, as the jobs of their phases are asked to look after them."""

from __future__ import annotations

from sessionrun.engine.task import TaskState
from sessionrun.model.keys import JobKey
from sessionrun.model.repositories import has_worktree
from sessionrun.model.spec import Job, TaskSpec
from sessionrun.runtime.jobs.shared import Site
from sessionrun.runtime.jobs.workspace_request import make_request
from sessionrun.workspaces.request import Loop, WorkRequest

REPLACED: str = "a{}-replaced.patch"
"""In a task's folder: what the best round's work took the place of, by the number of the attempt."""


def has_rounds(task: TaskSpec) -> bool:
    """Whether what each round came to is kept: there may be several, and git can keep it."""
    return task.rounds > 1 and has_worktree(task)


def resets_hard(task: TaskSpec) -> bool:
    """Whether a further round begins with the files with which WORK began."""
    return has_rounds(task) and task.check is not None and task.check.reset == "hard"


def make_loop(site: Site, state: TaskState, key: JobKey) -> Loop:
    """The round of a key, for the jobs that work on its worktree."""
    return Loop(make_request(site, state, key), key.attempt, key.round)


def take_back_first(site: Site, state: TaskState, job: Job) -> Job:
    """A WORK job that sets the worktree back before its agent starts, if it belongs to a further round.

    Raises:
        OSError: the request cannot be written.
    """
    key = job.key
    if key.round == 1 or not resets_hard(state.spec):
        return job
    before = key._replace(round=key.round - 1, start=1)
    request = WorkRequest(
        loop=make_loop(site, state, before),
        argv=job.argv,
        first=str(site.session.make_job_path(key._replace(start=1))),
        before=str(site.session.make_job_path(before)),
    )
    return site.wrap(job, request)
