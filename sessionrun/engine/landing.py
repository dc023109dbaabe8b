"""The landing queue of a session: whose work a LAND job takes, and what becomes of it.

Pure.  The work of a task that succeeded enters the queue when its outcome is recorded: its worktree is released
by then.  One LAND job at a time takes all that is ready, in the name of the first of these tasks.  Before the end
of that job the journal says of each task what became of its work.  A LAND job that was broken off is followed by
another one, which mends what it left, also in a session that was cancelled: then it lands nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sessionrun.engine.moves import ease_holds, stop
from sessionrun.engine.state import State
from sessionrun.engine.task import READY, LandEntry, LandStatus, RunningJob, TaskState
from sessionrun.engine.transitions import MAX_TRIES, count_try, find_keeper
from sessionrun.model.events import Entry, JobFinished, JobLost
from sessionrun.model.keys import JobKey
from sessionrun.model.landings import LAND_FAILED, WorkHeld

AGAIN: Final = "sessionrun retry"
"""What a user does after a LAND job failed."""

FOLLOW_UP: Final = "follow_up"
"""Why work is not in the queue: a follow-up of its task has not succeeded yet."""


HELD_FIRST_S: Final = 60.0
HELD_DOUBLINGS: Final = 6
"""Held work is tried again after a minute, and each time after twice as long: at last after about an hour."""


def next_landing(state: State, now: float | None = None) -> JobKey | None:
    """The key of the next LAND job; None: one runs, or there is nothing to land.

    With `now` (monotonic) also of one that tries held work again, if it is time for that.
    """
    land = state.land
    if land.lander is not None or (state.cancelled and not land.owed):
        return None
    queue = land.ready or (land.held if now is not None and _is_due(state, now) else None)
    if not queue:
        return None
    first = state.tasks[next(iter(queue))]
    return JobKey(first.spec.id, first.attempt, first.round, "land", land.turns + 1)


def held_again_at(state: State) -> float | None:
    """When held work is tried again by itself (monotonic); None: it is not, or a LAND job runs."""
    land = state.land
    return land.again_at if land.held and land.lander is None and not state.cancelled else None


def is_turn(state: State, key: JobKey) -> bool:
    """Whether a job is a LAND for the work of many tasks."""
    return key.phase == "land" and state.spec.landing is not None


def is_landing(state: State) -> bool:
    """Whether a LAND job runs or is to run, or a mend of bounced work is owed."""
    owed = bool(state.land.to_mend) and not state.cancelled
    return owed or state.land.lander is not None or next_landing(state) is not None


def enter_landing(state: State, task: TaskState) -> None:
    """The task has its outcome: what it left may land, if the session was asked for that.

    What could not land before is tried once more with it.  After a follow-up the work is in the queue once more,
    and what waits for it may be ready with it.
    """
    place = task.place
    if task.outcome != "succeeded":
        _hold_unfinished(state, task)
        return
    if state.spec.landing is None or task.spec.upstream is not None or _has_landed_whole(task):
        return
    if place is None or place.base_commit is None or place.holds_no_work:
        return
    if place.rescue is not None or place.commit is None:
        where = place.rescue or place.worktree or place.branch
        task.landing = LandEntry("held", "rescued", f"a part of its work is in {where}: look at it first")
    elif state.cancelled:
        _hold_cancelled(state, [task.spec.id])
    elif state.land.held:
        _requeue(state, [*state.land.held, task.spec.id])
    else:  # nothing in the queue waits for it at its first end: a task that needs it ends later
        _sort_out(state, [task.spec.id, *(state.land.waiting if task.follow_ups else ())])


def pause_landing(state: State, task: TaskState) -> None:
    """A follow-up begins: work of the task that has not landed waits for the end of it."""
    state.land.to_mend.pop(task.spec.id, None)
    if task.landing is not None and task.landing.status != "landed":
        leave_queue(state, task.spec.id, LandEntry("waiting", FOLLOW_UP, "its follow-up has not ended"))
        _sort_out(state, [*state.land.ready, *state.land.waiting])


def is_being_landed(state: State, task: TaskState) -> bool:
    """Whether a LAND job has taken the task's work, or has left it half landed."""
    land = state.land
    return task.spec.id in land.taken or (land.owed and task.spec.id in land.ready)


def land_again(state: State, names: Iterable[str], *, bounced: bool = True) -> None:
    """Try again to land what could not land, of these tasks; a session that has ended lives again for that."""
    wanted = ("held", "bounced") if bounced else ("held",)
    chosen = []
    for task in _with_mends(state, names):
        if task.landing is None or task.outcome != "succeeded":
            continue
        mend = task.spec.mend
        if mend is not None and (task.landing.status != "held" or not is_mending(state.tasks[mend.task])):
            continue  # its owner begins new ones
        if task.landing.status in wanted and task.landing.reason_class != "rescued":
            chosen.append(task.spec.id)
            state.land.mends.pop(task.spec.id, None)
    if chosen:
        state.ended, state.ended_at, state.cancelled = None, None, False
        _requeue(state, chosen)


def is_mending(owner: TaskState) -> bool:
    """Whether mends of a task's work still count: after a follow-up it has other work."""
    return owner.landing is not None and owner.landing.status == "mending"


def _with_mends(state: State, names: Iterable[str]) -> list[TaskState]:
    """These tasks, and the mends of their work."""
    named = dict.fromkeys(names)
    mends = [
        one.spec.id for one in state.tasks.values() if one.spec.mend is not None and one.spec.mend.task in named
    ]
    return [state.tasks[name] for name in dict.fromkeys([*named, *mends])]


def cancel_landing(state: State, *, now: bool) -> None:
    """The session is cancelled: a LAND job is stopped, and what it has not landed stays where it is."""
    land = state.land
    job = None if land.lander is None else state.tasks[land.lander].job
    if land.lander is not None and job is not None:
        stop(state, state.tasks[land.lander], job, "cancelled", now=now)
    elif not land.owed:
        _hold_cancelled(state, [*land.ready, *land.waiting])


def begin_landing(state: State, entry: Entry, key: JobKey) -> None:
    """A LAND job is claimed: it takes all that is ready, and what is held if it is time for that."""
    land = state.land
    if land.held and _is_due(state, entry.mono):
        _requeue(state, list(land.held))
    land.turns, land.lander, land.taken = key.start, key.task, tuple(land.ready)
    state.tasks[key.task].job = RunningJob(key, find_keeper(state))
    state.running_jobs += 1


def end_landing(state: State, entry: Entry, job: RunningJob, event: JobFinished | JobLost) -> None:
    """A LAND job is over; what it landed was told before."""
    land, state.tasks[event.key.task].job = state.land, None
    state.running_jobs -= 1
    taken, land.taken, land.lander = land.taken, (), None
    land.in_vain = land.in_vain + 1 if land.held else 0
    void = event.verdict == "void"
    given_up: tuple[str, ...] = ()
    if event.verdict == "passed" or (event.verdict == "failed" and job.stopping is None):
        land.tries, land.owed, given_up = 0, False, taken
    else:
        land.owed = land.owed or not void
        land.tries += count_try(state, job, event)
        if land.tries >= MAX_TRIES:
            land.tries, land.owed, given_up = 0, False, taken
    if state.cancelled and not land.owed:
        _hold_cancelled(state, [*land.ready, *land.waiting])
    _sort_out(state, [*land.ready, *land.waiting])
    _hold(state, given_up, event.reason or "its LAND job does not tell what became of it", entry.at)
    _sort_out(state, [*land.ready, *land.waiting])
    ease_holds(state, entry.mono, ended=not void)


def hold_work(state: State, entry: Entry, event: WorkHeld) -> None:
    """The work of a task cannot land now, for a reason that is not its own."""
    land = state.land
    held = LandEntry("held", event.reason_class, event.reason, None, event.mend, at=entry.at)
    leave_queue(state, event.task, held)
    land.held[event.task] = None
    land.again_at = entry.mono + HELD_FIRST_S * 2.0 ** min(land.in_vain, HELD_DOUBLINGS)


def _is_due(state: State, now: float) -> bool:
    return not state.cancelled and now >= state.land.again_at


def requeue_waiting(state: State) -> None:
    """See whether what waits for other work may land now."""
    _sort_out(state, [*state.land.ready, *state.land.waiting])


def leave_queue(state: State, name: str, landing: LandEntry) -> None:
    """The work of a task is not in the queue any more: `landing` says why."""
    for queue in (state.land.ready, state.land.waiting, state.land.held):
        queue.pop(name, None)
    state.tasks[name].landing = landing._replace(seq=state.seq)


def _hold(state: State, names: Iterable[str], reason: str, at: float) -> None:
    """Nothing is known of the work of those tasks that are still in the queue; it is not tried again by itself."""
    reason = reason if reason.startswith(LAND_FAILED) else f"{LAND_FAILED}: {reason}"
    for name in [name for name in names if name in state.land.ready]:
        mend = f"{AGAIN} {state.spec.session_id}"
        leave_queue(state, name, LandEntry("held", LAND_FAILED, reason, mend=mend, at=at))


def _hold_cancelled(state: State, names: Iterable[str]) -> None:
    for name in names:
        mend = f"sessionrun merge {state.spec.session_id}"
        leave_queue(state, name, LandEntry("held", "cancelled", "cancelled: on request", mend=mend))


def _hold_unfinished(state: State, task: TaskState) -> None:
    """The follow-up did not succeed: work that has not landed stays out of the branch until it does."""
    if task.landing is not None and task.landing.reason_class == FOLLOW_UP:
        mend = f"{AGAIN} {state.spec.session_id} {task.spec.id}"
        task.landing = LandEntry("held", FOLLOW_UP, "its follow-up did not succeed", mend=mend)


def _has_landed_whole(task: TaskState) -> bool:
    """Whether the follow-up has added nothing to work that has landed."""
    before, place = task.handed_place, task.place
    has_landed = task.landing is not None and task.landing.status == "landed"
    return has_landed and before is not None and place is not None and before.commit == place.commit


def _requeue(state: State, names: list[str]) -> None:
    """Put the work of these tasks at the end of the queue, and let that come along which waited for it."""
    for name in names:
        leave_queue(state, name, READY)
        state.land.ready[name] = None
    _sort_out(state, [*names, *state.land.waiting])


def _sort_out(state: State, names: Iterable[str]) -> None:
    """Find which work is ready: its needs have landed, or are ready too and land before it."""
    left = list(dict.fromkeys(names))
    for name in left:
        state.land.waiting.pop(name, None)
        state.land.ready[name] = None
        state.tasks[name].landing = READY
    while left:  # what waits makes others wait
        lacking = {name: need for name in left if (need := _find_lacking(state, state.tasks[name])) is not None}
        for name, need in lacking.items():
            state.land.ready.pop(name)
            state.land.waiting[name] = None
            state.tasks[name].landing = LandEntry("waiting", "needs", f"it needs {need!r}, not landed")
        left = [name for name in left if name not in lacking] if lacking else []


def _find_lacking(state: State, task: TaskState) -> str | None:
    """A task whose work has to land first, and is neither in the branch nor ready."""
    return next(
        (name for name, landing in find_first(task, state.tasks) if landing not in ("landed", "ready")), None
    )


def find_first(task: TaskState, tasks: Mapping[str, TaskState]) -> Iterator[tuple[str, LandStatus]]:
    """Yield the tasks whose work has to land before that of a task, and where that work is.

    A need without work stands for its own needs.  A mend has the needs of the task whose work it mends.
    """
    seen, queue = {task.spec.id}, [task]
    for at in queue:  # grows while it is walked
        mend = at.spec.mend
        for need in at.spec.needs if mend is None else tasks[mend.task].spec.needs:
            needed = tasks.get(need)
            if needed is None or need in seen:
                continue
            seen.add(need)
            if needed.landing is None:
                queue.append(needed)
            else:
                yield need, needed.landing.status
