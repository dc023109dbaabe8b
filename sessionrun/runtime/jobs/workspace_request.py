"""What the jobs of a workspace are asked: PREPARE, the end of a SETUP, PARK, PROVE, RELEASE, and rounds in it."""

from __future__ import annotations

from typing import Final

from sessionrun.agents.verdict import Problem
from sessionrun.engine.task import TaskState
from sessionrun.engine.transitions import demands_change
from sessionrun.model.keys import JobKey
from sessionrun.model.repositories import repository_of, resets_hard
from sessionrun.model.spec import Job, title_of
from sessionrun.runtime.jobs.shared import Site
from sessionrun.store.jobfiles import NOT_BEGUN, read_tail
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


def make_loop(site: Site, state: TaskState, key: JobKey) -> Loop:
    """The round of a key, for the jobs that work on its worktree."""
    return Loop(make_request(site, state, key), key.attempt, key.round)


def take_back_first(site: Site, state: TaskState, job: Job) -> Job:
    """A WORK job that sets the worktree back before its agent starts, if it belongs to a further round.

    Raises:
        OSError: the request cannot be written.
    """
    key = job.key
    if key.phase != "work" or key.round == 1 or not resets_hard(state.spec):
        return job
    before = key._replace(round=key.round - 1, start=1)
    request = WorkRequest(
        loop=make_loop(site, state, before),
        argv=job.argv,
        first=str(site.session.make_job_path(key._replace(start=1))),
        before=str(site.session.make_job_path(before)),
    )
    return site.wrap(job, request)


def name_not_begun(site: Site, state: TaskState, key: JobKey, problem: Problem) -> Problem:
    """The problem of a WORK job whose worktree could not be set back."""
    path = site.session.job_path(key) / NOT_BEGUN
    if key.phase != "work" or problem.reason_class == "start_failed" or not path.exists():
        return problem
    why = read_tail(path).decode("utf-8", "replace")
    return Problem("workspace_failed", f"the worktree cannot be set back: {why}")
