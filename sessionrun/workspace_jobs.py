"""PREPARE and RELEASE as jobs: what they are asked, and what their answer means.

What they do is in `workspaces`; when they run is the scheduler's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun import agents
from sessionrun.events import JobFinished, Verdict
from sessionrun.handed import find_handed
from sessionrun.model import Job, JobKey, SessionSpec, title_of
from sessionrun.outcome import format_reason
from sessionrun.state import TaskState
from sessionrun.store import SessionDir, replace_file
from sessionrun.workspaces import NEEDS_CONFLICT, REQUEST, Request, command_line, load_answer, load_request
from sessionrun.workspaces.space import check_space

_WORKSPACE_CLASSES: Final = {"prepare": "workspace_failed", "release": "release_failed"}


def build_workspace(
    session: SessionDir, spec: SessionSpec, state: TaskState, key: JobKey, tasks: Mapping[str, TaskState]
) -> Job:
    """PREPARE or RELEASE: our own code in a process of its own; `tasks` are all of the session."""
    assert spec.repository is not None
    if key.phase == "prepare":
        check_space(Path(spec.repository.worktree_dir))
    folder = session.make_job_path(key)
    request = Request(
        repository=spec.repository,
        session_id=spec.session_id,
        task=key.task,
        title=title_of(state.spec),
        links=state.spec.links,
        place=state.place if key.phase == "release" else None,
        keep=spec.repository.keep,
        succeeded=state.decided == "succeeded",
        patch=str(session.patch_path(key)) if key.phase == "release" else None,
        expect_change=state.spec.expect_change,
        branch=state.spec.workspace.branch,
        directory=state.spec.workspace.directory,
        needs=find_handed(state, tasks) if key.phase == "prepare" else (),
    )
    replace_file(folder / REQUEST, orjson.dumps(request), durable=False)
    return Job(
        key=key,
        argv=command_line(key.phase, folder),
        cwd=spec.repository.top,
        stdout=str(folder / "stdout"),
        stderr=str(folder / "stderr"),
    )


def judge_workspace(session: SessionDir, verdict: JobFinished) -> JobFinished:
    """What PREPARE made, or what RELEASE did with it; a RELEASE that failed leaves the worktree.

    Both can be done again, so one that was killed counts as lost: it may have been for want of memory.
    """
    folder = session.job_path(verdict.key)
    answer = load_answer(folder) if verdict.verdict == "passed" else None
    if answer is not None:  # without one the task would run in the user's checkout
        return replace(verdict, place=answer)
    said = agents.read_tail(folder / "stderr").decode("utf-8", "replace").strip().split("\n")[-1]
    conflict = verdict.key.phase == "prepare" and verdict.exit_code == NEEDS_CONFLICT
    reason_class = "needs_conflict" if conflict else _WORKSPACE_CLASSES[verdict.key.phase]
    why = format_reason(reason_class, said or (verdict.reason or "").partition(": ")[2])
    place = load_request(folder).place
    place = replace(place, kept=why) if place is not None else None
    ended: Verdict = "lost" if verdict.signal is not None else "failed"
    return replace(verdict, verdict=ended, reason_class=reason_class, reason=why, place=place)
