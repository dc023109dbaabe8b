"""The small steps of a task, shared by all that changes the state: in, on to a phase, to an outcome, out.

They keep the index of the ready queue and the counters of needs true.  Why a step is taken is not known here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from zlib import crc32

from sessionrun.engine.state import CONTINUING, NEW, Rules, State, provider_of
from sessionrun.engine.task import NO_THREAD, UP_TO_WORK, RunningJob, TaskState, Thread
from sessionrun.engine.tokens import give, is_shut, span_tokens
from sessionrun.model.events import Stopping
from sessionrun.model.keys import Phase
from sessionrun.model.reasons import CONTEXT_FULL, NO_CONVERSATION
from sessionrun.model.spec import SLOT, Outcome, SessionSpec

RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 60.0

REFUSED_RETRY_S: Final = 1.0
"""When a start was refused while no job runs whose end could help: seconds until the next try."""

ENDS_CONVERSATION: Final = frozenset((CONTEXT_FULL, NO_CONVERSATION))
"""Reasons of an attempt after which its conversation cannot go on."""


def backoff_s(task_id: str, attempt: int) -> float:
    """Seconds to wait after a failed attempt: doubling, with a jitter of half that is the same at each replay."""
    full = min(RETRY_LAST_S, RETRY_FIRST_S * 2.0 ** min(attempt - 1, 30))
    jitter = crc32(f"{task_id}/{attempt}".encode()) / 0xFFFFFFFF
    return float(full * (0.5 + 0.5 * jitter))


def enlist(state: State, task: TaskState) -> None:
    """Count what a new task waits for; ready at once when that is nothing.

    A follow-up waits for nothing: the task has long got what its needs hand on.
    """
    if task.follow_ups:
        offer(state, task)
        return
    for need in dict.fromkeys(task.spec.needs):
        needed = state.tasks.get(need)
        if needed is None:
            decide_outcome(state, task, "skipped", "need", f"need: no task {need!r} in this session")
            return
        if needed.outcome is None:
            state.dependents.setdefault(need, {})[task.spec.id] = None
            task.unmet += 1
        elif needed.outcome != "succeeded":
            skip_for(state, task, needed)
            return
    if not task.unmet:
        offer(state, task)


def tell_dependents(state: State, task: TaskState) -> None:
    """The task has its outcome: a task that waits for it has one need less, or is skipped."""
    for dependent_id in state.dependents.pop(task.spec.id, ()):
        dependent = state.tasks[dependent_id]
        if dependent.decided is not None or dependent.outcome is not None:
            continue
        if task.outcome != "succeeded":
            skip_for(state, dependent, task)
            continue
        dependent.unmet -= 1
        if not dependent.unmet:
            offer(state, dependent)


def skip_for(state: State, task: TaskState, needed: TaskState) -> None:
    """The task is not tried, because one that it needs did not succeed."""
    reason = needed.reason  # of one that is skipped too it names the first cause
    if (needed.outcome, needed.reason_class) != ("skipped", "need"):
        ends = {"cancelled": "was cancelled", "skipped": "was skipped"}
        reason = f"need: {needed.spec.id!r} {ends.get(needed.outcome or '', 'did not succeed')}"
    decide_outcome(state, task, "skipped", "need", reason)


def _describe_halt(state: State) -> str:
    return f"max_failures: stopped after {state.failures} failed"


def halt(state: State) -> None:
    """As many tasks failed as may: nothing new starts.  What has begun goes on, unless all is to stop now."""
    state.halted, state.feed_open = True, False
    for task in state.tasks.values():
        if task.known_outcome is not None:
            continue
        if not task.active:
            give_up(state, task)
        elif state.spec.limits.halt == "now":
            cancel(state, task, why=_describe_halt(state))


def give_up(state: State, task: TaskState) -> None:
    """Nothing new starts any more: what an earlier attempt came to stays, all else is skipped."""
    if task.last_outcome is not None:
        decide_outcome(state, task, task.last_outcome, task.reason_class, task.reason)
    else:
        decide_outcome(state, task, "skipped", "max_failures", _describe_halt(state))


def cancel(state: State, task: TaskState, *, now: bool = False, why: str | None = None) -> None:
    """Once an attempt is decided its outcome stays, but there is no other attempt.

    RELEASE runs on, but for `now`: then it is ended, and the worktree stays.
    """
    task.cancelled, task.again, task.cancel_reason = True, False, why
    if task.job is not None and (now or task.decided is None):
        stop(state, task, task.job, "cancelled", now=now)
    elif task.decided is None:
        decide_outcome(state, task, "cancelled", "cancelled", "cancelled: on request")  # or its `cancel_reason`


def stop(state: State, task: TaskState, job: RunningJob, reason: Stopping, *, now: bool = False) -> None:
    """Have the running job stopped; with `now` without grace, also if it is being stopped already."""
    if job.stopping is None or (now and not job.now):
        job.stopping, job.now = job.stopping or reason, now
        state.queue.stops.append(task.spec.id)


def enter(state: State, task: TaskState, phase: Phase) -> None:
    """On to a phase, whose first job may start."""
    task.phase, task.start, task.tries, task.not_before = phase, 1, 0, 0.0
    if phase in UP_TO_WORK and state.providers and is_shut(state, provider_of(state, task), task):
        suspend(state, task)
    offer(state, task)


def offer(state: State, task: TaskState) -> None:
    """The task's next job may start, once its time has come."""
    rank = CONTINUING if task.active else NEW
    state.queue.push(rank, task.order, task.spec.id, task.not_before)


def decide_outcome(
    state: State, task: TaskState, outcome: Outcome, reason_class: str | None, reason: str | None
) -> None:
    """The outcome is known; RELEASE comes first where PREPARE was claimed."""
    if outcome == "cancelled" and task.cancel_reason is not None:
        reason = f"cancelled: {task.cancel_reason}"
    task.decided, task.outcome, task.reason_class, task.reason = outcome, None, reason_class, reason
    if task.prepared:
        enter(state, task, "release")
    else:
        state.queue.decided.append(task.spec.id)


def begin_attempt(task: TaskState, number: int) -> None:
    """The attempt of this number begins: no job of it was claimed, and none has found anything."""
    task.attempt, task.round, task.phase, task.start, task.tries = number, 1, None, 1, 0
    task.prepared = task.worked = task.overdue = False
    task.check_passed = task.proof = task.checked = task.best = task.node = task.failure = None
    task.audit, task.deadline, task.round_deadline = (), None, None


def close_attempt(state: State, task: TaskState) -> None:
    """The attempt is over: its tokens are free, and what comes next begins at the beginning.

    What the attempt came to stays to be shown; the caller says how it ended.
    """
    give(state, list(span_tokens(state, task)))
    task.phase, task.start, task.tries, task.prepared, task.suspended = None, 1, 0, False, False
    task.last_thread, task.thread = task.thread, NO_THREAD
    leave_seat(state, task)
    before = task.earlier_place
    if before is not None and (task.place is None or task.place.base_commit is None):
        task.place = before  # a PREPARE that failed has changed nothing
    resign(state, task)


def resign(state: State, task: TaskState) -> None:
    """If the task was the one that goes first after a limit, another one may."""
    provider = state.providers.get(provider_of(state, task)) if state.providers else None
    if provider is not None and provider.canary == task.spec.id:
        provider.canary, provider.canary_until = None, None
        state.queue.unpark(provider_of(state, task))


def leave_thread(task: TaskState) -> None:
    """What comes next begins a new conversation."""
    task.thread = task.thread._replace(conversation=None, usage=None)


def suspend(state: State, task: TaskState) -> None:
    """The task has to wait for its provider: others may have its slot meanwhile."""
    if not task.suspended:
        give(state, [token for token in span_tokens(state, task) if token[0] == SLOT])
        task.suspended = True


def begin(spec: SessionSpec, rows: tuple[Rules, ...]) -> State:
    """The state before anything happened, of a session with these rules."""
    state = State(spec=spec, free=dict(spec.resources), feed_open=spec.open_feed, rules=rows)
    for rules in rows:
        rules.begin(state)
    for num, task in enumerate(spec.tasks, 1):
        state.tasks[task.id] = TaskState(task, num)
    for known in state.tasks.values():
        enlist(state, known)
    return state


def leave_seat(state: State, task: TaskState) -> None:
    """The attempt is over: the next task may have its seat."""
    if task.seat is not None and state.seats.get(task.seat) == task.spec.id:
        del state.seats[task.seat]
    task.seat = None


def ease_holds(state: State, now: float, *, ended: bool) -> None:
    """The end of a job may free what a start was refused for; when none runs, only time can."""
    for name, hold in state.holds.items():
        if hold.until_exit and ended:
            state.holds[name] = replace(hold, until=now)
        elif hold.until_exit and hold.until is None and not state.running_jobs:
            state.holds[name] = replace(hold, until=now + REFUSED_RETRY_S)


def take_up(task: TaskState) -> None:
    """An attempt begins, by `retries` or because a user asks for it.

    After a follow-up it goes on in the conversation of the attempt before it.
    """
    if task.follow_ups:
        last = NO_THREAD if task.reason_class in ENDS_CONVERSATION else task.last_thread
        task.thread = Thread(last.conversation, last.usage, turn=len(task.spec.prompts))
