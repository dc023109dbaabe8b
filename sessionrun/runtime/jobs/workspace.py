"""PREPARE and RELEASE as jobs: their request and process, and what their answer and end mean.

What they do is in `workspaces`, as a process of its own.  What lies in their folders may have been changed by any
task: an answer that cannot be used is the failure of its job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.agents.verdict import format_reason
from sessionrun.engine.handed import find_handed
from sessionrun.engine.state import TaskState
from sessionrun.model.errors import JobFileError
from sessionrun.model.events import JobFinished, Verdict
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place
from sessionrun.model.spec import Job, SessionSpec, title_of
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import read_tail
from sessionrun.store.session import SessionDir
from sessionrun.workspaces.request import (
    ANSWER,
    NEEDS_CONFLICT,
    REQUEST,
    Request,
    command_line,
    load_answer,
    load_changed,
)
from sessionrun.workspaces.space import check_space

REASON_CLASSES: Final = {"prepare": "workspace_failed", "release": "release_failed"}


def build_workspace_job(
    session: SessionDir, spec: SessionSpec, state: TaskState, key: JobKey, tasks: Mapping[str, TaskState]
) -> Job:
    """The process of a PREPARE or RELEASE; writes its request.  `tasks` are all of the session, by id.

    Raises:
        OSError: the session directory cannot be written.
        NoSpace: a worktree is wanted and the disk is nearly full.
    """
    assert spec.repository is not None
    releasing = key.phase == "release"
    if not releasing:
        check_space(Path(spec.repository.worktree_dir))
    folder = session.make_job_path(key)
    request = Request(
        repository=spec.repository,
        session_id=spec.session_id,
        task=key.task,
        title=title_of(state.spec),
        links=state.spec.links,
        place=state.place if releasing else None,
        keep=spec.repository.keep,
        succeeded=state.end.decided == "succeeded",
        patch=str(session.patch_path(key)) if releasing else None,
        expect_change=state.spec.expect_change,
        branch=state.spec.workspace.branch,
        directory=state.spec.workspace.directory,
        needs=() if releasing else find_handed(state, tasks),
        limit_s=spec.limits.workspace_timeout_s,
    )
    replace_file(folder / REQUEST, orjson.dumps(request), durable=False)
    return Job(
        key=key,
        argv=command_line(key.phase, folder),
        cwd=spec.repository.top,
        stdout=str(folder / "stdout"),
        stderr=str(folder / "stderr"),
    )


def judge_workspace_job(session: SessionDir, state: TaskState, verdict: JobFinished) -> JobFinished:
    """What PREPARE made, or what RELEASE did with it; a RELEASE that failed leaves the worktree.

    Both can be done again, so one that was killed counts as lost: it may have been for want of memory.
    """
    folder = session.job_path(verdict.key)
    problem = None
    if verdict.verdict == "passed":
        try:
            return replace(verdict, place=_find_place(folder, verdict.key))
        except JobFileError as error:
            problem = f"its answer cannot be used: {error.why}"
    said = read_tail(folder / "stderr").decode("utf-8", "replace").strip().split("\n")[-1]
    conflict = verdict.key.phase == "prepare" and verdict.exit_code == NEEDS_CONFLICT
    reason_class = "needs_conflict" if conflict else REASON_CLASSES[verdict.key.phase]
    why = format_reason(reason_class, problem or said or (verdict.reason or "").partition(": ")[2])
    place = None if state.place is None else replace(state.place, kept=why)
    if place is not None and (changed := load_changed(folder)):
        place = replace(place, git_config_changed=changed)
    ended: Verdict = "lost" if verdict.signal is not None else "failed"
    return replace(verdict, verdict=ended, reason_class=reason_class, reason=why, place=place)


def _find_place(folder: Path, key: JobKey) -> Place:
    """What a finished job answered.

    Raises:
        JobFileError: it cannot be used, or a PREPARE made no worktree: its task would run in the user's checkout.
    """
    place = load_answer(folder)
    if place is None:
        raise JobFileError(folder / ANSWER, "there is none")
    if key.phase == "prepare" and None in (place.worktree, place.branch, place.base_commit):
        raise JobFileError(folder / ANSWER, "it is damaged: it names no worktree")
    return place
