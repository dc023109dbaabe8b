"""LAND in the supervisor: its request and process, and what its answer means for each task.

`merge` asks by the same request: whose work is to land, which of its commits, and in what surroundings its gates
run, all by the state of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sessionrun.agents.reading import Problem
from sessionrun.agents.verdict import split_status
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState, find_end
from sessionrun.landing.mends import find_first, is_to_land
from sessionrun.landing.records import Entry, Gates, LandRequest, Report, digest_target, room_path, shorten
from sessionrun.model.asked import Sandbox
from sessionrun.model.errors import JobFileError
from sessionrun.model.events import Event
from sessionrun.model.keys import JobKey
from sessionrun.model.landings import LAND_FAILED, LANDING_FOLDER, WorkBounced, WorkHeld, WorkLanded
from sessionrun.model.places import Place
from sessionrun.model.spec import Environment, Job, Landing, SessionSpec, TaskSpec, Workspace, title_of
from sessionrun.session.executor import Exit
from sessionrun.session.shared import Judged, Site, read_last_line
from sessionrun.store.index import find_cache_folder
from sessionrun.store.jobfiles import load_answer
from sessionrun.store.session import SessionDir
from sessionrun.walls.enclosing import wish_walls
from sessionrun.worktrees.request import ENVIRONMENTS, EnvironmentRequest


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
        asked,
        works,
        is_wanted=lambda task: task.landing is not None and task.landing.status == "ready",
        is_to_land=is_to_land,
    )
    gates = enclose_gates(site, request.gates, asked.target, asked.sandbox, key)
    request = replace(request, gates=gates, only_mend=whole.cancelled, by_person=False)
    return site.ask(key, request, cwd=repository.top)


def make_request(
    session: SessionDir,
    state: State,
    asked: Landing,
    works: Iterable[TaskState],
    *,
    is_wanted: Callable[[TaskState], bool],
    is_to_land: Callable[[TaskState], bool],
    trailers: bool = True,
) -> LandRequest:
    """Ask for the landing of the work of tasks, in this order.

    `is_to_land` says of a need whether it has work that lands before that of the task.
    """
    spec, tasks = state.spec, state.tasks
    assert spec.repository is not None
    entries = []
    for task in works:
        if (place := find_end(task)) is not None:
            has_ended = task.outcome == "succeeded"  # a follow-up goes on with the branch
            entry = Entry(
                task=task.spec.id,
                tip=place.commit or "",
                base=place.work_base or "",
                title=" ".join(title_of(task.spec).split()),
                needs=tuple(find_first(task, tasks, is_to_land)),
                wanted=is_wanted(task),
                trailers=_word_trailers(spec, task) if trailers else (),
                branch=(place.branch if has_ended else None) or "",
                walled=task.spec.sandbox is not None,
            )
            entries.append(entry)
    setups = (task.place.setup_commit for task in tasks.values() if task.place is not None)
    return LandRequest(
        repository=spec.repository,
        session_id=spec.session_id,
        folder=str(session.path.absolute() / LANDING_FOLDER / digest_target(asked.target)),
        target=asked.target,
        entries=tuple(entries),
        gates=_make_gates(asked, state),
        batch=asked.batch,
        setups=tuple(commit for commit in setups if commit is not None),
    )


def _word_trailers(spec: SessionSpec, task: TaskState) -> tuple[str, ...]:
    """The lines at the end of the message of a task's merge: whose work it is."""
    cost_usd = task.usage.cost_usd if task.usage is not None else None
    trailers = {
        "Task": task.spec.id,
        "Session": spec.session_id,
        "Agent": task.agent,
        "Model": task.last_model or task.asked_model,
        "Cost": None if cost_usd is None else f"{cost_usd:.4f} USD",
    }
    return tuple(f"Sessionrun-{name}: {' '.join(str(value).split())}" for name, value in trailers.items() if value)


def _make_gates(asked: Landing, state: State) -> Gates:
    """Gates in the surroundings that the tasks of a session have; those with a repository elsewhere do not count.

    If all that want an environment want the same, the gates have one, too: a copy of an entry of the cache, as
    a task has, and never one in which an agent worked.
    """
    spec, own = state.spec, [task.spec for task in state.tasks.values() if task.spec.upstream is None]
    links = tuple(dict.fromkeys(link for task in own for link in task.links))
    gates = Gates(asked.gates, asked.gate_timeout_s, links)
    wanted = {task.environment for task in own if task.environment is not None}
    if len(wanted) != 1 or not gates.commands or spec.repository is None:
        return gates
    room = str(room_path(spec.repository, asked.target))
    cache_dir = find_cache_folder() if spec.cache is None else spec.cache.cache_dir
    environment = EnvironmentRequest(
        top=room,
        directory=room,
        cache=f"{cache_dir}/{ENVIRONMENTS}",
        python=wanted.pop().python,
        require_cache=spec.cache is not None and spec.cache.require_cache,
    )
    return replace(gates, environment=environment)


def enclose_gates(site: Site, gates: Gates, target: str, sandbox: Sandbox | None, key: JobKey) -> Gates:
    """The gates of a branch with walls around their room, if there are any: the repository is read-only there."""
    if sandbox is None or not gates.commands:
        return gates
    here = replace(site.spec, cluster=None)  # gates run on the session's machine, whatever runs its tasks
    site = Site(site.session, lambda: here)
    assert site.spec.repository is not None
    room, wish = room_path(site.spec.repository, target), gates.environment
    task = TaskSpec(key.task, (), workspace=Workspace("worktree"), sandbox=sandbox)
    place, made = Place(worktree=str(room)), None if wish is None else wish.target
    if wish is not None:
        task, git = replace(task, environment=Environment(python=wish.python)), str(room / ".git")
        build = wish_walls(site, task, key, place, {}, environment=made, git=git)
        gates = replace(gates, environment=replace(wish, walls=build))
    return replace(gates, walls=wish_walls(site, task, key, place, {}, environment=made, room=str(room)))


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
    again, target = f"sessionrun retry {site.spec.session_id}", shorten(asked.target)
    events: list[Event] = []
    for fate in answer.fates:  # without an event a task waits for the work of another one
        reason_class = fate.reason_class or LAND_FAILED
        if fate.status == "landed":
            events.append(WorkLanded(fate.task, target, fate.commit, fate.reason or None))
        elif fate.status == "bounced":
            more = (tuple(fate.files), tuple(fate.against), fate.output or None)
            events.append(WorkBounced(fate.task, target, reason_class, fate.reason, *more))
        elif fate.status == "held":
            mend = f"{fate.mend}; then {again}" if fate.mend else again
            events.append(WorkHeld(fate.task, target, reason_class, fate.reason, mend))
    return tuple(events)
