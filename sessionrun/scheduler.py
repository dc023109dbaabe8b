"""The scheduler: what to do next, decided from the state alone.  No clock, no I/O.

Theory.  `fold.apply(state, entry)` folds a journal entry into the state; `decide(state, now)` reads the state
and returns orders.  The caller records every order's event and applies it before it decides again, until
nothing is left but to wait.  So a state that is replayed from a journal goes on exactly where it was, wherever
the journal was cut off: what had been decided but not recorded is simply decided again.

A task is *waiting* (needs unmet), *ready*, *active* (its first job was claimed; it holds its task-span tokens:
the slot, a worktree) or *ended*.  An active task runs one job at a time.  When a job ends, the table in
`transitions` names the next phase or the outcome; an outcome of a task whose PREPARE was claimed leads through
RELEASE first.  Job-span tokens (a provider, the merge slot) are taken for one job, all at once, by a task that
asks for nothing else meanwhile: no circle of waiting can form.

Costs: O(log n) per event.  Only the cancel of a session, its stop after failures and a reboot look at all tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from zlib import crc32

from sessionrun.events import (
    CancelJob,
    EndSession,
    HoldLifted,
    Order,
    Record,
    SessionEnded,
    StartJob,
    TaskEnded,
    TaskRetried,
    TimerFired,
    WakeAt,
)
from sessionrun.model import SLOT, WORKTREE_SPACE, Outcome
from sessionrun.ready import NEW
from sessionrun.state import FAILURES, State, TaskState, job_tokens, task_tokens

RETRIED: Final[frozenset[Outcome]] = frozenset(("failed", "timed_out"))
"""Outcomes that `retries` may try again; never those where the work may still have been done."""

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_LAST_S: Final = 60.0


def decide(state: State, now: float) -> list[Order]:
    """What to do at monotonic time `now`.

    Orders but `WakeAt` must be carried out, and their events applied, before the next call.  A list that is
    empty or holds only `WakeAt` means: wait.
    """
    if state.ended:
        return []
    state.queue.undelay(now)
    orders: list[Order] = [*_lift_holds(state, now), *_fire_timers(state, now)]
    orders += [*_stop_jobs(state), *_end_tasks(state, now)]
    orders = orders or list(_start_jobs(state, now))
    if orders:
        return orders
    if not state.feed_open and state.completed == len(state.tasks):
        return [EndSession(_session_ended(state))]
    wake = _next_wake(state)
    return [] if wake is None else [WakeAt(wake)]


def _lift_holds(state: State, now: float) -> Iterator[Order]:
    for hold in state.holds.values():
        if hold.until is not None and hold.until <= now:
            yield Record(HoldLifted(hold.resource))


def _fire_timers(state: State, now: float) -> Iterator[Order]:
    fired = set()
    while (top := state.queue.first_timer()) is not None:
        deadline, task_id = top
        job = state.tasks[task_id].job
        stale = job is None or job.stopping is not None or job.deadline != deadline or task_id in fired
        if not stale and deadline > now:
            return
        state.queue.drop_timer()
        if job is not None and not stale:
            fired.add(task_id)
            yield Record(TimerFired(job.key, job.timer))


def _stop_jobs(state: State) -> Iterator[Order]:
    while state.queue.stops:
        job = state.tasks[state.queue.stops.popleft()].job
        if job is not None and job.stopping is not None:
            yield CancelJob(job.key, "cancelled" if job.stopping == "cancelled" else "timed_out")


def _end_tasks(state: State, now: float) -> Iterator[Order]:
    told: set[str] = set()
    limited = state.spec.limits.max_failures is not None
    while state.queue.decided:
        task = state.tasks[state.queue.decided.popleft()]
        if task.decided is None or task.outcome is not None or task.prepared or task.spec.id in told:
            continue
        told.add(task.spec.id)
        ending = _ending(state, task, now)
        yield Record(ending)
        if limited and isinstance(ending, TaskEnded) and ending.outcome in FAILURES:
            return  # it may be the last one allowed: what comes after it is decided anew


def _ending(state: State, task: TaskState, now: float) -> TaskEnded | TaskRetried:
    assert task.decided is not None
    retry = task.decided in RETRIED and task.attempt <= task.spec.retries
    if retry and not task.cancelled and not state.halted:
        not_before = now + backoff_s(task.spec.id, task.attempt)
        return TaskRetried(task.spec.id, task.decided, task.reason_class, task.reason, not_before)
    return TaskEnded(task.spec.id, task.decided, task.reason_class, task.reason)


def backoff_s(task_id: str, attempt: int) -> float:
    """Seconds to wait after a failed attempt: doubling, with a jitter of half that is the same at each replay."""
    full = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2.0 ** min(attempt - 1, 30))
    jitter = crc32(f"{task_id}/{attempt}".encode()) / 0xFFFFFFFF
    return float(full * (0.5 + 0.5 * jitter))


def _start_jobs(state: State, now: float) -> Iterator[Order]:
    """Start what its tokens allow, continuing tasks first, then by place in the plan.

    Nothing is applied while this runs, so `taken` counts what this batch has already promised.
    """
    if SLOT in state.holds:
        return  # every job waits for this one, so all may stay where they are
    taken: dict[str, int] = {}
    started: set[str] = set()
    while len(started) < state.start_batch:
        # without a free slot who has not begun need not even be looked at
        full = SLOT in state.free and state.free[SLOT] <= taken.get(SLOT, 0)
        entry = state.queue.pop(NEW if full else NEW + 1)
        if entry is None:
            return
        rank, num, task_id, offered = entry
        task = state.tasks[task_id]
        lacking = None
        if task_id not in started and _startable(task, now):
            lacking = _take_or_lack(state, task, taken)
            if lacking is None:
                started.add(task_id)
                yield StartJob(task.next_key())
            else:
                state.queue.park(lacking, rank, num, task_id)
        if offered and offered != lacking and state.free.get(offered, 1) > taken.get(offered, 0):
            state.queue.unpark(offered)


def _startable(task: TaskState, now: float) -> bool:
    """Whether an entry of the ready queue still means something."""
    if task.outcome is not None or task.job is not None or task.not_before > now:
        return False
    return task.decided is None or task.prepared


def _tokens(state: State, task: TaskState) -> Iterator[tuple[str, int]]:
    if not task.active:
        yield from task_tokens(state, task)
    yield from job_tokens(task, task.next_phase())


def _take_or_lack(state: State, task: TaskState, taken: dict[str, int]) -> str | None:
    """Count the tokens of this task's next job as `taken`, or name the first that cannot be had."""
    if WORKTREE_SPACE in state.holds and task.next_phase() == "prepare":
        return WORKTREE_SPACE
    tokens = list(_tokens(state, task))
    for name, amount in tokens:
        if name in state.holds or state.free[name] - taken.get(name, 0) < amount:
            return name
    for name, amount in tokens:
        taken[name] = taken.get(name, 0) + amount
    return None


def _session_ended(state: State) -> SessionEnded:
    all_good = state.outcomes.get("succeeded", 0) == len(state.tasks)
    return SessionEnded("cancelled" if state.cancelled else "completed", "succeeded" if all_good else "failed")


def _next_wake(state: State) -> float | None:
    times = [hold.until for hold in state.holds.values() if hold.until is not None]
    first = state.queue.next_time()
    if first is not None:
        times.append(first)
    return min(times) if times else None
