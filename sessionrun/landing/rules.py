"""The rules of landing in the engine: whose work a LAND job takes, and what becomes of it.

Pure.  The work of a task that succeeded enters the queue when its outcome is recorded: its worktree is released
by then.  One LAND job at a time takes all that is ready, in the name of the first of these tasks.  Before the end
of that job the journal says of each task what became of its work.  A LAND job that was broken off is followed by
another one, which mends what it left, also in a session that was cancelled: then it lands nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sessionrun.engine.moves import stop
from sessionrun.engine.state import Rules, State
from sessionrun.engine.task import RunningJob, TaskState
from sessionrun.engine.transitions import MAX_TRIES, count_try
from sessionrun.landing import mends
from sessionrun.model.events import Entry, JobFinished, JobLost, RequestReceived
from sessionrun.model.keys import JobKey
from sessionrun.model.landings import LAND_FAILED, WorkBounced, WorkHeld, WorkLanded
from sessionrun.model.places import LandEntry
from sessionrun.model.shown import Landing
from sessionrun.model.words import LandWord, format_time

AGAIN: Final = "sessionrun retry"
"""What a user does after a LAND job failed."""

FOLLOW_UP: Final = "follow_up"
"""Why work is not in the queue: a follow-up of its task has not succeeded yet."""


def next_landing(state: State) -> JobKey | None:
    """The key of the next LAND job; None: one runs, or there is nothing to land."""
    land = mends.land_of(state)
    if land.lander is not None or (state.cancelled and not land.owed) or not land.ready:
        return None
    first = state.tasks[next(iter(land.ready))]
    return JobKey(first.spec.id, first.attempt, first.round, "land", land.turns + 1)


def is_landing(state: State) -> bool:
    """Whether a LAND job runs or is to run, or a mend of bounced work is owed."""
    land = mends.land_of(state)
    owed = bool(land.to_mend) and not state.cancelled
    return owed or land.lander is not None or next_landing(state) is not None


def enter_landing(state: State, task: TaskState) -> None:
    """The task has its outcome: what it left may land.

    What could not land before is tried once more with it.  After a follow-up the work is in the queue once more,
    and what waits for it may be ready with it.
    """
    land, place, landing = mends.land_of(state), task.place, task.landing
    if task.outcome != "succeeded":
        if landing is not None and landing.reason_class == FOLLOW_UP:  # its work stays out until it does
            mend = f"{AGAIN} {state.spec.session_id} {task.spec.id}"
            task.landing = LandEntry("held", FOLLOW_UP, "its follow-up did not succeed", mend=mend)
        return
    if place is None or not mends.holds_work(task):
        return
    before, has_landed = task.handed_place, landing is not None and landing.status == "landed"
    if has_landed and before is not None and before.commit == place.commit:
        return  # the follow-up has added nothing
    if place.rescue is not None or place.commit is None:
        where = place.rescue or place.worktree or place.branch
        task.landing = LandEntry("held", "rescued", f"a part of its work is in {where}: look at it first")
    elif state.cancelled:
        _hold_cancelled(state, [task.spec.id])
    else:  # nothing in the queue waits for it at its first end: a task that needs it ends later
        waiting = land.waiting if land.held or task.follow_ups else ()
        mends.sort_out(state, [*land.held, task.spec.id, *waiting])


def pause_landing(state: State, task: TaskState) -> None:
    """A follow-up begins: work of the task that has not landed waits for the end of it."""
    mends.land_of(state).to_mend.pop(task.spec.id, None)
    if task.landing is not None and task.landing.status != "landed":
        mends.leave_queue(state, task.spec.id, LandEntry("waiting", FOLLOW_UP, "its follow-up has not ended"))
        mends.requeue_waiting(state)


def land_again(state: State, names: Iterable[str], *, bounced: bool = True) -> None:
    """Try again to land what could not land, of these tasks; a session that has ended lives again for that."""
    wanted = ("held", "bounced") if bounced else ("held",)
    named, chosen = dict.fromkeys(names), []
    owners = {name: task.spec.mend.task for name, task in state.tasks.items() if task.spec.mend is not None}
    for name in dict.fromkeys([*named, *(name for name, owner in owners.items() if owner in named)]):
        task, owner = state.tasks[name], owners.get(name)
        if task.landing is None or task.outcome != "succeeded":
            continue
        if owner is not None and (task.landing.status != "held" or not mends.is_mending(state.tasks[owner])):
            continue  # its owner begins new ones
        if task.landing.status in wanted and task.landing.reason_class != "rescued":
            chosen.append(task.spec.id)
            mends.land_of(state).mends.pop(task.spec.id, None)
    if chosen:
        state.ended, state.ended_at, state.cancelled = None, None, False
        mends.sort_out(state, [*chosen, *mends.land_of(state).waiting])


def cancel_landing(state: State, *, now: bool) -> None:
    """The session is cancelled: a LAND job is stopped, what it has not landed stays, and no mend is owed."""
    land = mends.land_of(state)
    job = None if land.lander is None else state.tasks[land.lander].job
    if land.lander is not None and job is not None:
        stop(state, state.tasks[land.lander], job, "cancelled", now=now)
    elif not land.owed:
        _hold_cancelled(state, [*land.ready, *land.waiting])
    for task in [state.tasks[name] for name in land.to_mend]:
        if task.landing is not None:
            task.landing = task.landing._replace(status="bounced", seq=state.seq)
    land.to_mend.clear()


def begin_landing(state: State, entry: Entry, key: JobKey) -> None:
    """A LAND job is claimed: it takes all that is ready."""
    land = mends.land_of(state)
    land.turns, land.lander, land.taken = key.start, key.task, tuple(land.ready)


def end_landing(state: State, entry: Entry, job: RunningJob, event: JobFinished | JobLost) -> None:
    """A LAND job is over; what it landed was told before."""
    land = mends.land_of(state)
    taken, land.taken, land.lander = land.taken, (), None
    given_up: tuple[str, ...] = ()
    has_answered = event.verdict == "passed" or (event.verdict == "failed" and job.stopping is None)
    if not has_answered:
        land.owed = land.owed or event.verdict != "void"
        land.tries += count_try(state, job, event)
    if has_answered or land.tries >= MAX_TRIES:
        land.tries, land.owed, given_up = 0, False, taken
    if state.cancelled and not land.owed:
        _hold_cancelled(state, [*land.ready, *land.waiting])
    mends.requeue_waiting(state)
    # nothing is known of the work that is still in the queue; it is not tried again by itself
    reason = event.reason or "its LAND job does not tell what became of it"
    reason = reason if reason.startswith(LAND_FAILED) else f"{LAND_FAILED}: {reason}"
    held = LandEntry("held", LAND_FAILED, reason, mend=f"{AGAIN} {state.spec.session_id}", at=entry.at)
    for name in [name for name in given_up if name in land.ready]:
        mends.leave_queue(state, name, held)
    mends.requeue_waiting(state)


def hold_work(state: State, entry: Entry, event: WorkHeld) -> None:
    """The work of a task cannot land now, for a reason that is not its own."""
    held = LandEntry("held", event.reason_class, event.reason, None, event.mend, at=entry.at)
    mends.leave_queue(state, event.task, held)
    mends.land_of(state).held[event.task] = None


def _hold_cancelled(state: State, names: Iterable[str]) -> None:
    mend = f"sessionrun merge {state.spec.session_id}"
    for name in names:
        mends.leave_queue(state, name, LandEntry("held", "cancelled", "cancelled: on request", mend=mend))


def _begin(state: State) -> None:
    state.parts[mends.LandQueue] = mends.LandQueue()


def _end_task(state: State, task: TaskState) -> None:
    enter_landing(state, task)
    mends.note_end(state, task)


def _do_request(state: State, event: RequestReceived) -> None:
    """What a request for these tasks, or for all, means for their work: one that came after the end means nothing.

    To retry what failed is to try again what bounced.
    """
    names = [name for name in event.tasks or state.tasks if name in state.tasks]
    if event.kind == "retry" and (event.tasks or "failed" in event.outcomes):
        land_again(state, names)
    elif event.kind == "release" and state.ended is None:
        land_again(state, names, bounced=False)
    elif event.kind == "cancel" and not event.tasks and state.ended is None:
        cancel_landing(state, now=event.now)


def _find_fault(state: State, task: TaskState) -> str | None:
    """Work that a LAND job has taken, or has left half landed, stays as it is."""
    land, name = mends.land_of(state), task.spec.id
    is_landing = name in land.taken or (land.owed and name in land.ready)
    return f"the work of task {name!r:.140} is landing: continue it when it has landed" if is_landing else None


def _find_stage(state: State, task: TaskState) -> LandWord | None:
    if task.landing is None:
        return None
    lands = task.landing.status == "ready" and task.spec.id in mends.land_of(state).taken
    return "landing" if lands else task.landing.status


def _show(state: State, task: TaskState) -> Mapping[str, object] | None:
    landing, asked = task.landing, state.spec.landing
    if landing is None or asked is None:
        return None
    known = {
        **landing._asdict(),
        "status": _find_stage(state, task) or landing.status,
        "target": asked.target.removeprefix("refs/heads/"),
        "files": list(landing.files),
        "against": list(landing.against),
        "at": format_time(landing.at),
    }
    return {"landing": {key: known[key] for key in Landing.__annotations__}}


RULES: Final = Rules(
    begin=_begin,
    events={WorkHeld: hold_work, WorkBounced: mends.note_bounced, WorkLanded: mends.note_landed},
    phase="land",
    claimed=begin_landing,
    job_ended=end_landing,
    starts=next_landing,
    owed=mends.next_mend,
    is_open=is_landing,
    task_added=mends.note_mend,
    task_ended=_end_task,
    task_continued=pause_landing,
    requested=_do_request,
    find_fault=_find_fault,
    find_stage=_find_stage,
    show=_show,
)
