"""What the jobs of a workspace are asked: PREPARE, the end of a SETUP, PARK, PROVE, RELEASE, and rounds in it."""

from __future__ import annotations

from typing import Final

from sessionrun.engine.task import TaskState
from sessionrun.engine.transitions import demands_change
from sessionrun.model.keys import JobKey
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.spec import Job, TaskSpec, title_of
from sessionrun.runtime.jobs.shared import Site
from sessionrun.workspaces.request import Loop, WorkRequest, WorkspaceRequest

REPLACED: Final = "a{}-replaced.patch"
"""In a task's folder: what the best round's work took the place of, by the number of the attempt."""


def make_request(site: Site, state: TaskState, key: JobKey) -> WorkspaceRequest:
    """What all jobs of a workspace are asked.

    Args:
        site: the session.
        state: the key's task, which has a workspace in git.
        key: the job; a PREPARE is asked for a new place, all others for what was made of it.
    """
    spec, task = site.spec, state.spec
    place = None if key.phase == "prepare" else state.place
    known = task.upstream.start if task.upstream else None
    start = place.start if place else known
    repository = repository_of(spec, task, start)
    assert repository is not None
    return WorkspaceRequest(
        repository=repository,
        session_id=spec.session_id,
        task=key.task,
        title=title_of(task),
        links=task.links,
        place=place,
        keep=repository.keep,
        succeeded=state.decided == "succeeded",
        worked=state.worked,
        expect_change=demands_change(state),
        branch=task.workspace.branch,
        directory=task.workspace.directory,
        limit_s=spec.limits.workspace_timeout_s,
        upstream=task.upstream,
        require_cache=spec.mirrors is not None and spec.mirrors.require_cache,
        start=start,
        seats=spec.seats if task.workspace.kind == "worktree" else None,
        seat=state.seat,
        walls=None if task.sandbox is None else str(site.session.walls_path(key)),
    )


def find_cwd(site: Site, request: WorkspaceRequest) -> str:
    """Where such a job runs: in the user's checkout, or in the session's directory if there is only a mirror."""
    return str(site.session.path.absolute()) if request.upstream else request.repository.top


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
