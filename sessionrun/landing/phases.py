"""LAND in the supervisor: its request and process, and what its answer means for each task."""

from __future__ import annotations

from dataclasses import replace

from sessionrun.agents.reading import Problem
from sessionrun.agents.verdict import split_status
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.landing.asking import make_request
from sessionrun.landing.mends import is_to_land
from sessionrun.landing.records import Gates, Report, room_path, shorten
from sessionrun.model.asked import Sandbox
from sessionrun.model.errors import JobFileError
from sessionrun.model.events import Event
from sessionrun.model.keys import JobKey
from sessionrun.model.landings import LAND_FAILED, WorkBounced, WorkHeld, WorkLanded
from sessionrun.model.places import Place
from sessionrun.model.spec import Environment, Job, TaskSpec, Workspace
from sessionrun.session.executor import Exit
from sessionrun.session.shared import Judged, Site, read_last_line
from sessionrun.store.jobfiles import load_answer
from sessionrun.walls.enclosing import wish_walls


def build(site: Site, state: TaskState, key: JobKey, whole: State) -> Job:
    """The process of a LAND, which is of all tasks; in a cancelled session it lands nothing new."""
    asked, repository = site.spec.landing, site.spec.repository
    assert asked is not None and repository is not None
    statuses = ("ready", "landed", "mending")  # the work that it takes, and that which it may find in the branch
    works = [task for task in whole.tasks.values() if task.landing is not None and task.landing.status in statuses]
    works.sort(key=lambda task: (task.ended_at or 0.0, task.num))
    request = make_request(
        site.session,
        whole,
        asked.target,
        Gates(asked.gates, asked.gate_timeout_s),
        works,
        is_wanted=lambda task: task.landing is not None and task.landing.status == "ready",
        is_to_land=is_to_land,
        batch=asked.batch,
    )
    gates = enclose_gates(site, request.gates, asked.target, asked.sandbox, key)
    request = replace(request, gates=gates, only_mend=whole.cancelled, by_person=False)
    return site.ask(key, request, cwd=repository.top)


def enclose_gates(site: Site, gates: Gates, target: str, sandbox: Sandbox | None, key: JobKey) -> Gates:
    """The gates of a branch with walls around their room, if there are any: the repository is read-only there."""
    if sandbox is None or not gates.commands:
        return gates
    assert site.spec.repository is not None
    room, wish = room_path(site.spec.repository, target), gates.environment
    task = TaskSpec(key.task, (), workspace=Workspace("worktree"), sandbox=sandbox)
    place, made = Place(worktree=str(room)), None if wish is None else wish.target
    if wish is not None:
        task, git = replace(task, environment=Environment(python=wish.python)), str(room / ".git")
        build = wish_walls(site, task, key, place, {}, environment=made, git=git)
        gates = replace(gates, environment=replace(wish, walls=build))
    walls = wish_walls(site, task, key, place, {}, environment=made, room=str(room))
    return replace(gates, walls=walls, sandbox=sandbox)


def judge(site: Site, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
    """Whether a LAND came to its end, and what became of the work of each task.

    One that was killed is followed by another.
    """
    folder = site.session.job_path(ended.key)
    try:
        answer = load_answer(folder, Report)
    except JobFileError:
        if problem is None:
            raise
        answer = None
    events = _list_fates(site, answer)
    if problem is None:
        return Judged(Problem(LAND_FAILED, "its answer is gone") if answer is None else None, events=events)
    _, signal = split_status(ended.wait_status)
    failed = Problem(LAND_FAILED, read_last_line(folder) or problem.text)
    return Judged(failed, can_repeat=signal is not None, events=events)


def _list_fates(site: Site, answer: Report | None) -> tuple[Event, ...]:
    asked = site.spec.landing
    if answer is None or asked is None:
        return ()
    again, hold, target = f"sessionrun retry {site.spec.session_id}", answer.hold, shorten(asked.target)
    mend = f"{hold.mend}; then {again}" if hold and hold.mend else again
    events: list[Event] = []
    for fate in answer.fates:  # without an event a task waits for the work of another one
        reason_class = fate.reason_class or LAND_FAILED
        if fate.status == "landed":
            events.append(WorkLanded(fate.task, target, fate.commit, fate.reason or None))
        elif fate.status == "bounced":
            more = (tuple(fate.files), tuple(fate.against), fate.output or None)
            events.append(WorkBounced(fate.task, target, reason_class, fate.reason, *more))
        elif fate.status == "held":
            events.append(WorkHeld(fate.task, target, reason_class, fate.reason, mend))
    return tuple(events)
