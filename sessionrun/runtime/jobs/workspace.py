"""PREPARE and RELEASE as jobs: their request and process, and what their answer and end mean.

What they do is in `workspaces`.  What lies in their folders may have been changed by any task: an answer that
cannot be used is the failure of its job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.agents.verdict import Problem, format_reason, split_status
from sessionrun.engine.handed import find_handed
from sessionrun.engine.state import TaskState
from sessionrun.model.errors import JobFileError
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import Job, title_of
from sessionrun.runtime.executors.protocol import Exit
from sessionrun.runtime.jobs.shared import Judged, Site
from sessionrun.store.jobfiles import ANSWER, read_tail
from sessionrun.workspaces.request import (
    NeedsConflict,
    RepositoryFailed,
    WorkspaceRequest,
    load_changed,
    load_place,
)
from sessionrun.workspaces.space import check_space

REASON_CLASSES: Final = {"prepare": "workspace_failed", "release": "release_failed"}


def build_workspace(site: Site, state: TaskState, key: JobKey, tasks: Mapping[str, TaskState]) -> Job:
    """The process of a PREPARE or RELEASE; `tasks` are all of the session, by id.

    Raises:
        OSError: the session directory cannot be written.
        NoSpace: a worktree is wanted and the disk is nearly full.
    """
    spec, task = site.spec, state.spec
    releasing = key.phase == "release"
    start = state.place.start if releasing and state.place else None
    repository = repository_of(spec, task, start)
    assert repository is not None
    if not releasing:
        check_space(Path(repository.worktree_dir))
    request = WorkspaceRequest(
        repository=repository,
        session_id=spec.session_id,
        task=key.task,
        title=title_of(task),
        links=task.links,
        place=state.place if releasing else None,
        keep=repository.keep,
        succeeded=state.end.decided == "succeeded",
        patch=str(site.session.patch_path(key)) if releasing else None,
        expect_change=task.expect_change,
        branch=task.workspace.branch,
        directory=task.workspace.directory,
        needs=() if releasing else find_handed(state, tasks),
        limit_s=spec.limits.workspace_timeout_s,
        upstream=task.upstream,
        require_cache=spec.mirrors is not None and spec.mirrors.require_cache,
        start=start,
    )
    return site.ask(key, request, cwd=str(site.session.path.absolute()) if task.upstream else repository.top)


def judge_workspace(site: Site, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
    """What PREPARE made, or what RELEASE did with it; a RELEASE that failed leaves the worktree.

    Both can be done again, so one that was killed counts as lost: it may have been for want of memory.
    """
    folder = site.session.job_path(ended.key)
    if problem is None:
        try:
            return Judged(place=_find_place(folder, ended.key))
        except JobFileError as error:
            text = f"its answer cannot be used: {error.why}"
    else:
        text = read_tail(folder / "stderr").decode("utf-8", "replace").strip().split("\n")[-1] or problem.text
    exit_code, signal = split_status(ended.wait_status)
    code = exit_code if ended.key.phase == "prepare" else None
    conflict, missing = code == NeedsConflict.job_code, code == RepositoryFailed.job_code
    other = REASON_CLASSES[ended.key.phase]
    named = Problem("needs_conflict" if conflict else "repository_failed" if missing else other, text)
    place = None
    if state.place is not None:
        place = replace(state.place, kept=format_reason(*named))
        if changed := load_changed(folder):
            place = replace(place, git_config_changed=changed)
    return Judged(named, place, can_repeat=signal is not None)


def _find_place(folder: Path, key: JobKey) -> Place:
    """What a finished job answered.

    Raises:
        JobFileError: it cannot be used, or a PREPARE made no worktree: its task would run in the user's checkout.
    """
    place = load_place(folder)
    if place is None:
        raise JobFileError(folder / ANSWER, "there is none")
    if key.phase == "prepare" and None in (place.worktree, place.branch, place.base_commit):
        raise JobFileError(folder / ANSWER, "it is damaged: it names no worktree")
    return place
