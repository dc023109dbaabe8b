"""A PROVE: its request and process, and what its answer means."""

from __future__ import annotations

import os
from dataclasses import replace

from sessionrun.agents.reading import Problem
from sessionrun.agents.verdict import split_status
from sessionrun.checks.checking import find_setup
from sessionrun.checks.requests import ProveRequest
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.git.rooms import room_path
from sessionrun.model.keys import JobKey
from sessionrun.model.reports import ProveReport
from sessionrun.model.spec import Check, Job
from sessionrun.session.executor import Exit
from sessionrun.session.shared import Judged, Site, read_last_line
from sessionrun.store.jobfiles import load_answer
from sessionrun.walls.enclosing import wish_walls
from sessionrun.worktrees.phases import find_cwd, make_request, wish_environment


def build(site: Site, state: TaskState, key: JobKey, whole: State) -> Job:
    """The process of a PROVE."""
    task, place, asked = state.spec, state.place, make_request(site, state, key)
    assert place is not None and place.worktree is not None
    assert task.prove is not None
    directory = os.path.relpath(site.directory_of(task, place), place.worktree)
    room, outside = room_path(asked.repository, asked.owner), replace(task, environment=None)
    env = site.environment_of(outside, key, place)  # the task's own environment is not used here
    wish = None
    if task.environment is not None:
        inside, git = str(room / directory), str(room / ".git")
        wish = wish_environment(site, task, key, place, top=str(room), directory=inside, git=git)
    walls = wish_walls(
        *(site, task, key, place, env), environment=None if wish is None else wish.target, room=str(room)
    )
    request = ProveRequest(
        workspace=asked,
        directory=directory,
        setup=task.setup,
        check=task.check or Check(()),
        prove=task.prove,
        setup_timeout_s=task.setup_timeout_s,
        environment=wish,
        walls=walls,
        before=find_setup(site, key),
    )
    return site.ask(key, request, cwd=find_cwd(site, asked), env=site.environment_outside(outside, key, place))


def judge(site: Site, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
    """What the proof found; one that was killed can be done again."""
    folder = site.session.job_path(ended.key)
    report = load_answer(folder, ProveReport)
    if report is None:
        why = read_last_line(folder) or (problem.text if problem else "its report is gone")
        _, signal = split_status(ended.wait_status)
        return Judged(Problem("unproved", f"the proof could not be made: {why}"), can_repeat=signal is not None)
    reason_class = report.reason_class or report.verdict
    found = None if report.problem is None else Problem(reason_class, report.problem)
    return Judged(found, proof=report.verdict, audit=report.audit)
