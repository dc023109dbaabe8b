"""What the jobs of a workspace are asked: PREPARE, the end of a SETUP, PARK, PROVE, RELEASE, and rounds in it."""

from __future__ import annotations

from sessionrun.engine.task import TaskState
from sessionrun.engine.transitions import demands_change
from sessionrun.model.keys import JobKey
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import title_of
from sessionrun.runtime.jobs.shared import Site
from sessionrun.workspaces.request import WorkspaceRequest


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
