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

Costs: O(log n) per event.  Only requests, the stop of a session after failures and a reboot look at all tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from sessionrun.engine.money import (
    describe_used_up,
    find_unknown,
    is_hopeless,
    is_used_up,
    soft_budget_spent,
    wanted_money,
)
from sessionrun.engine.moves import backoff_s
from sessionrun.engine.providers import prefers_fallback
from sessionrun.engine.state import BUDGET, CANARY, FAILURES, NEW, State, provider_of
from sessionrun.engine.task import UP_TO_WORK, TaskState
from sessionrun.engine.tokens import STAGGER, START, lacking_tokens, wanted_tokens
from sessionrun.model.events import (
    AgentChanged,
    BudgetRefused,
    Event,
    HoldLifted,
    HoldPlaced,
    SessionEnded,
    TaskEnded,
    TaskRetried,
    Timer,
    TimerFired,
)
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.reasons import NEVER_RETRIED
from sessionrun.model.spec import RETRY_FAILED, SLOT
from sessionrun.model.words import name_tries


@frozen
class StartJob:
    """Claim and start this job."""

    key: JobKey


@frozen
class CancelJob:
    """Stop this job's process tree; with `now` at once, also when it is being stopped already."""

    key: JobKey
    reason: Literal["timed_out", "cancelled"]
    now: bool = False


@frozen
class CheckOutput:
    """Look at what this job has printed: record `OutputSeen` if it has changed, else that `timer` has fired."""

    key: JobKey
    timer: Timer


@frozen
class Record:
    """Append this event to the journal and apply it: a decision that needs no process.

    After `SessionEnded` publish, and leave.
    """

    event: Event


@frozen
class WakeAt:
    """Nothing to do until this monotonic time, unless an event comes first."""

    mono: float


Order: TypeAlias = StartJob | CancelJob | CheckOutput | Record | WakeAt


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
    if (reason := soft_budget_spent(state)) is not None:
        orders.append(Record(HoldPlaced(BUDGET, reason)))
    orders += [Record(event) for rules in state.rules if (event := rules.owed(state)) is not None]
    orders = orders or list(_start_jobs(state, now))
    if orders:
        return orders
    is_done = not state.feed_open and state.completed == len(state.tasks)
    if is_done and not any(rules.is_open(state) for rules in state.rules):
        return [Record(_end_session(state))]
    wake = _next_wake(state)
    return [] if wake is None else [WakeAt(wake)]


def _lift_holds(state: State, now: float) -> Iterator[Order]:
    for hold in state.holds.values():
        if hold.until is not None and hold.until <= now:
            yield Record(HoldLifted(hold.resource))
    for name, known in state.providers.items():
        if known.canary_until is not None and known.canary_until <= now:
            yield Record(HoldLifted(name))


def _fire_timers(state: State, now: float) -> Iterator[Order]:
    fired = set()
    while (top := state.queue.first_timer()) is not None:
        time, task_id = top
        job = state.tasks[task_id].job
        timer = None if job is None or top in fired else job.timer_at(time)
        if timer is not None and time > now:
            return
        state.queue.drop_timer()
        if job is not None and timer is not None:
            fired.add(top)
            looks = timer in ("idle_timeout", "workspace_timeout")
            yield CheckOutput(job.key, timer) if looks else Record(TimerFired(job.key, timer))


def _stop_jobs(state: State) -> Iterator[Order]:
    while state.queue.stops:
        job = state.tasks[state.queue.stops.popleft()].job
        if job is not None and job.stopping is not None:
            yield CancelJob(job.key, "cancelled" if job.stopping == "cancelled" else "timed_out", now=job.now)


def _end_tasks(state: State, now: float) -> Iterator[Order]:
    ended: set[str] = set()
    limited = state.spec.limits.max_failures is not None
    while state.queue.decided:
        task = state.tasks[state.queue.decided.popleft()]
        is_due = task.decided is not None and task.outcome is None and not task.prepared
        if not is_due or task.spec.id in ended:
            continue
        ended.add(task.spec.id)
        ending = _ending(state, task, now)
        yield Record(ending)
        if limited and isinstance(ending, TaskEnded) and ending.outcome in FAILURES:
            return  # it may be the last one allowed: what comes after it is decided anew


def _ending(state: State, task: TaskState, now: float) -> TaskEnded | TaskRetried:
    assert task.decided is not None
    # never one whose work may still have been done
    retry = task.decided in RETRY_FAILED and task.retried < task.spec.retries
    retry = retry and task.reason_class not in NEVER_RETRIED
    if retry and task.reason_class != BUDGET and is_used_up(state, task):
        return TaskEnded(task.spec.id, "failed", BUDGET, describe_used_up(state, task))
    if retry and not task.cancelled and not state.halted:
        not_before = now + backoff_s(task.spec.id, task.retried + 1)
        return TaskRetried(task.spec.id, task.decided, task.reason_class, task.reason, not_before)
    return TaskEnded(task.spec.id, task.decided, task.reason_class, task.reason)


def _start_jobs(state: State, now: float) -> Iterator[Order]:
    """Start what its tokens allow, continuing tasks first, then by priority and place in the plan.

    Nothing is applied while this runs, so `taken` counts what this batch has already promised.
    """
    if SLOT in state.holds or START in state.holds:
        return  # every job waits for this one, so all may stay where they are
    for rules in state.rules if state.held is None else ():
        key = rules.starts(state)
        if key is not None:
            yield StartJob(key)
    taken: dict[str, int] = {}
    started: set[str] = set()
    while len(started) < state.start_batch:
        # without a free slot a task that has not begun need not even be looked at
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
            elif prefers_fallback(state, task, lacking):
                started.add(task_id)
                yield Record(AgentChanged(task_id, state.holds[lacking].reason))
            elif lacking == BUDGET and is_hopeless(state, task, taken.get(BUDGET, 0)):
                state.queue.unpark(BUDGET)
                yield Record(BudgetRefused(task_id))
            else:
                state.queue.park(lacking, rank, num, task_id)
        # how much money is enough, only the next one knows
        has_more = offered == BUDGET or state.free.get(offered, 1) > taken.get(offered, 0)
        if offered and offered != lacking and has_more:
            state.queue.unpark(offered)


def _startable(task: TaskState, now: float) -> bool:
    """Whether an entry of the ready queue still means something."""
    if task.outcome is not None or task.job is not None or task.not_before > now or task.is_held:
        return False
    return task.decided is None or task.prepared


def _take_or_lack(state: State, task: TaskState, taken: dict[str, int]) -> str | None:
    """Count the tokens of this task's next job as `taken`, or name the first that cannot be had."""
    lacking = next(lacking_tokens(state, task, taken), None)
    if lacking is None:
        for name, amount in wanted_tokens(state, task):
            taken[name] = taken.get(name, 0) + amount
        if state.providers and task.next_phase() in UP_TO_WORK:
            taken[CANARY + provider_of(state, task)] = 1
        if task.next_phase() == "work":
            if state.spec.limits.stagger_s:  # then no other WORK may start together with one
                taken[STAGGER] = 1
            taken[BUDGET] = taken.get(BUDGET, 0) + wanted_money(state, task)
            if (unknown := find_unknown(state, task)) is not None:
                taken[unknown] = 1
    return lacking


def _end_session(state: State) -> SessionEnded:
    """The end.  No mends decide the outcome, and of a task of a queue the last attempt does."""
    feeds, last = state.spec.feed is not None, dict[str | None, TaskState]()
    for task in state.tasks.values():
        last[name_tries(task.spec.id, task.spec.labels, mends=task.spec.mend is not None, feeds=feeds)] = task
    last.pop(None, None)
    all_good = all(
        task.outcome == "succeeded" and (task.landing is None or task.landing.status == "landed")
        for task in last.values()
    )
    return SessionEnded("cancelled" if state.cancelled else "completed", "succeeded" if all_good else "failed")


def _next_wake(state: State) -> float | None:
    times = [hold.until for hold in state.holds.values() if hold.until is not None]
    times += [provider.canary_until for provider in state.providers.values() if provider.canary_until is not None]
    first = state.queue.next_time()
    if first is not None:
        times.append(first)
    return min(times) if times else None
