"""The scheduler: what to do next, decided from the state alone.  No clock, no I/O.

Theory.  `fold.apply(state, entry)` folds a journal entry into the state; `decide(state, now)` reads the state
and yields orders.  The caller records an order's event and applies it before it takes the next order, and decides
again until nothing is left but to wait.  So each order is decided on the state that the ones before it have led
to, and a state that is replayed from a journal goes on exactly where it was, wherever the journal was cut off.

A task is *waiting* (needs unmet), *ready*, *active* (its first job was claimed; it holds its task-span tokens:
the slot, a worktree) or *ended*.  An active task runs one job at a time.  When a job ends, the table in
`transitions` names the next phase or the outcome; an outcome of a task whose PREPARE was claimed leads through
RELEASE first.  Job-span tokens (a provider, the merge slot) are taken for one job, all at once, by a task that
asks for nothing else meanwhile: no circle of waiting can form.

Costs: O(log n) per event.  Only requests, the stop of a session after failures and a reboot look at all tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop
from typing import Literal, TypeAlias

from sessionrun.engine.money import describe_used_up, is_hopeless, is_used_up, soft_budget_spent
from sessionrun.engine.moves import START, backoff_s, lacking_tokens
from sessionrun.engine.providers import prefers_fallback
from sessionrun.engine.state import BUDGET, State
from sessionrun.engine.task import TaskState
from sessionrun.model import events
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import RETRY_FAILED, SLOT
from sessionrun.model.words import NEVER_RETRIED, name_tries


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
    timer: events.Timer


@frozen
class Record:
    """Append this event to the journal and apply it: a decision that needs no process.

    After `SessionEnded` publish, and leave.
    """

    event: events.Event


Order: TypeAlias = StartJob | CancelJob | CheckOutput | Record


def decide(state: State, now: float) -> Iterator[Order]:
    """What to do at monotonic time `now`; nothing: wait, see `find_wake`.

    An order must be carried out, and its event applied, before the next one is taken.  What is due comes first;
    only when that is nothing, jobs are started.
    """
    if state.ended:
        return
    state.queue.undelay(now)
    for step in (_find_due, _start_jobs, _end_session):
        waits = True
        for order in step(state, now):
            waits = False
            yield order
        if not waits:
            return


def _find_due(state: State, now: float) -> Iterator[Order]:
    for hold in [*state.holds.values()]:
        if hold.until is not None and hold.until <= now:
            yield Record(events.HoldLifted(hold.resource))
    for name, known in state.providers.items():
        if known.canary_until is not None and known.canary_until <= now:
            yield Record(events.HoldLifted(name))
    yield from _fire_timers(state, now)
    yield from _stop_jobs(state)
    while state.queue.decided:
        task = state.tasks[state.queue.decided.popleft()]
        if task.decided is not None and task.outcome is None and not task.prepared:
            yield Record(_ending(state, task, now))
            yield from _stop_jobs(state)  # it may be the last failure that is allowed
    if (reason := soft_budget_spent(state)) is not None:
        yield Record(events.HoldPlaced(BUDGET, reason))
    for rules in state.rules:
        if (event := rules.owed(state)) is not None:
            yield Record(event)


def _fire_timers(state: State, now: float) -> Iterator[Order]:
    timers = state.queue.timers
    while timers:
        time, _, task_id = timers[0]
        job, timer = state.tasks[task_id].job, None
        if job is not None and job.stopping is None:
            if time == job.deadline:
                timer = job.timer
            elif time == job.idle_at:
                timer = "idle_timeout"
        if timer is not None and time > now:
            return
        heappop(timers)
        if job is not None and timer is not None:
            looks = timer in ("idle_timeout", "workspace_timeout")
            yield CheckOutput(job.key, timer) if looks else Record(events.TimerFired(job.key, timer))


def _stop_jobs(state: State) -> Iterator[Order]:
    while state.queue.stops:
        job = state.tasks[state.queue.stops.popleft()].job
        if job is not None and job.stopping is not None:
            yield CancelJob(job.key, "cancelled" if job.stopping == "cancelled" else "timed_out", now=job.now)


def _ending(state: State, task: TaskState, now: float) -> events.TaskEnded | events.TaskRetried:
    assert task.decided is not None
    # never one whose work may still have been done
    retry = task.decided in RETRY_FAILED and task.retried < task.spec.retries
    retry = retry and task.reason_class not in NEVER_RETRIED
    if retry and task.reason_class != BUDGET and is_used_up(state, task):
        return events.TaskEnded(task.spec.id, "failed", BUDGET, describe_used_up(state, task))
    if retry and not task.cancelled and not state.halted:
        not_before = now + backoff_s(task.spec.id, task.retried + 1)
        return events.TaskRetried(task.spec.id, task.decided, task.reason_class, task.reason, not_before)
    return events.TaskEnded(task.spec.id, task.decided, task.reason_class, task.reason)


def _start_jobs(state: State, now: float) -> Iterator[Order]:
    """Start what its tokens allow, continuing tasks first, then by priority and place in the plan."""
    if SLOT in state.holds or START in state.holds:
        return  # every job waits for this one, so all may stay where they are
    for rules in state.rules if state.held is None else ():
        key = rules.starts(state)
        if key is not None:
            yield StartJob(key)
    started = 0
    while started < state.start_batch:
        entry = state.queue.pop(state.last_rank)
        if entry is None:
            return
        rank, num, task_id, offered = entry
        task = state.tasks[task_id]
        lacking = None
        if _startable(task, now):
            lacking = next(lacking_tokens(state, task), None)
            if lacking is None:
                started += 1
                yield StartJob(task.next_key())
            elif prefers_fallback(state, task, lacking):
                yield Record(events.AgentChanged(task_id, state.holds[lacking].reason))
            elif lacking == BUDGET and is_hopeless(state, task):
                state.queue.unpark(BUDGET)
                yield Record(events.BudgetRefused(task_id))
            else:
                state.queue.park(lacking, rank, num, task_id)
        # how much money is enough, only the next one knows
        has_more = offered == BUDGET or state.free.get(offered, 1) > 0
        if offered and offered != lacking and has_more:
            state.queue.unpark(offered)


def _startable(task: TaskState, now: float) -> bool:
    """Whether an entry of the ready queue still means something."""
    if task.outcome is not None or task.job is not None or task.not_before > now or task.is_held:
        return False
    return task.decided is None or task.prepared


def _end_session(state: State, now: float) -> Iterator[Order]:
    """The end.  No mends decide the outcome, and of a task of a queue the last attempt does."""
    is_done = not state.feed_open and state.completed == len(state.tasks)
    if not is_done or any(rules.is_open(state) for rules in state.rules):
        return
    feeds, last = state.spec.feed is not None, dict[str | None, TaskState]()
    for task in state.tasks.values():
        last[name_tries(task.spec.id, task.spec.labels, mends=task.spec.mend is not None, feeds=feeds)] = task
    last.pop(None, None)
    all_good = all(
        task.outcome == "succeeded" and (task.landing is None or task.landing.status == "landed")
        for task in last.values()
    )
    yield Record(
        events.SessionEnded("cancelled" if state.cancelled else "completed", "succeeded" if all_good else "failed")
    )


def find_wake(state: State) -> float | None:
    """The monotonic time until which there is nothing to do, unless an event comes first; None: only then."""
    if state.ended:
        return None
    times = [hold.until for hold in state.holds.values()]
    times += [provider.canary_until for provider in state.providers.values()]
    times.append(state.queue.next_time())
    return min((time for time in times if time is not None), default=None)
