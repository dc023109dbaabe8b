"""Fold journal entries into the state: one function per event, found by a table.

Nothing here decides what to do next, reads a clock or touches a file; the same entries always give the same
state.  Where a rule about phases is needed it is looked up in `transitions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from sessionrun.events import (
    Entry,
    FeedClosed,
    HoldLifted,
    HoldPlaced,
    JobClaimed,
    JobFinished,
    JobLost,
    JobStarted,
    RequestReceived,
    SessionEnded,
    SupervisorStarted,
    TaskAdded,
    TaskEnded,
    TaskRetried,
    TimerFired,
    Usage,
    Verdict,
)
from sessionrun.model import PHASES, Outcome, Phase, SessionSpec
from sessionrun.ready import CONTINUING, NEW
from sessionrun.state import RunningJob, State, Stopping, TaskState, job_tokens, task_tokens
from sessionrun.transitions import MAX_STARTS, TRANSITIONS, WHEN_AGAIN_ENDS, Target


def begin(spec: SessionSpec) -> State:
    """The state before anything happened."""
    state = State(spec=spec, free=dict(spec.resources), feed_open=spec.open_feed)
    for num, task in enumerate(spec.tasks, 1):
        state.tasks[task.id] = TaskState(task, num)
    for known in state.tasks.values():
        _enlist(state, known)
    return state


def apply(state: State, entry: Entry) -> None:
    """Fold one journal entry into the state."""
    state.seq = entry.seq
    _APPLY[type(entry.event)](state, entry, entry.event)


def _on_supervisor_started(state: State, entry: Entry, event: SupervisorStarted) -> None:
    if state.boot_id and state.boot_id != event.boot_id:
        _rebase_clock(state, entry.mono)
    state.epoch, state.boot_id = event.epoch, event.boot_id
    if state.started_at is None:
        state.started_at = entry.at


def _on_task_added(state: State, entry: Entry, event: TaskAdded) -> None:
    task = TaskState(event.task, len(state.tasks) + 1)
    state.tasks[event.task.id] = task
    _enlist(state, task)
    if state.cancelled and task.decided is None:
        _decide_outcome(state, task, "cancelled", "cancelled", "cancelled: the session was cancelled")


def _on_feed_closed(state: State, entry: Entry, event: FeedClosed) -> None:
    state.feed_open = False


def _on_job_claimed(state: State, entry: Entry, event: JobClaimed) -> None:
    task = state.tasks[event.key.task]
    if task.phase is None:
        task.phase = event.key.phase
        _take(state, task_tokens(state, task))
    _take(state, job_tokens(task, event.key.phase))
    task.prepared |= event.key.phase == "prepare"
    task.job = RunningJob(event.key)


def _on_job_started(state: State, entry: Entry, event: JobStarted) -> None:
    task = state.tasks[event.key.task]
    if task.job is None or task.job.key != event.key:
        return
    task.job.pid, task.job.started = event.pid, event.started
    if task.started_at is None:
        task.started_at, task.started_mono = entry.at, entry.mono
    if event.key.phase == "work" and task.deadline is None and task.spec.timeout_s is not None:
        task.deadline = entry.mono + task.spec.timeout_s
    _set_deadline(task, event.key.phase, entry.mono)
    if task.job.deadline is not None:
        state.queue.set_timer(task.job.deadline, task.num, task.spec.id)


def _on_timer_fired(state: State, entry: Entry, event: TimerFired) -> None:
    _stop(state, state.tasks[event.key.task], event.timer)


def _on_job_finished(state: State, entry: Entry, event: JobFinished) -> None:
    task = state.tasks[event.key.task]
    if task.job is None or task.job.key != event.key:
        return
    if event.key.phase == "work":
        task.exit_code, task.signal = event.exit_code, event.signal
        task.conversation = event.conversation or task.conversation
        task.model = event.model or task.model
        task.usage = _add_usage(task.usage, event.usage)
    if event.key.phase == "check":
        task.check_passed = event.verdict == "passed" and task.job.stopping is None
    for name, hold in state.holds.items():
        if hold.until_exit:  # a process ended: what was refused may succeed now
            state.holds[name] = replace(hold, until=entry.mono)
    _job_over(state, task, *_explain_stop(task, event))


def _on_job_lost(state: State, entry: Entry, event: JobLost) -> None:
    task = state.tasks[event.key.task]
    if task.job is None or task.job.key != event.key:
        return
    if task.job.stopping and event.verdict == "void":
        _job_over(state, task, "cancelled", "cancelled", "cancelled: before it started")
        return
    if event.verdict == "void":
        task.tries -= not event.counts
        _job_over(state, task, "void", "start_failed", f"start_failed: {event.reason}")
    else:
        _job_over(state, task, event.verdict, event.verdict, f"{event.verdict}: {event.reason}")


def _on_task_ended(state: State, entry: Entry, event: TaskEnded) -> None:
    task = state.tasks[event.task]
    _close_attempt(state, task)
    task.outcome = event.outcome
    task.reason_class, task.reason = event.reason_class, event.reason
    state.outcomes[event.outcome] = state.outcomes.get(event.outcome, 0) + 1
    if task.started_at is not None and task.started_mono is not None:
        task.ended_at, task.duration_s = entry.at, max(0.0, entry.mono - task.started_mono)
    _tell_dependents(state, task)
    limit = state.spec.limits.max_failures
    if limit is not None and state.failures >= limit and not state.halted:
        _halt(state, f"max_failures: {state.failures} tasks failed")


def _on_task_retried(state: State, entry: Entry, event: TaskRetried) -> None:
    task = state.tasks[event.task]
    _close_attempt(state, task)
    task.attempt, task.round = task.attempt + 1, 1
    task.reason_class, task.reason = event.reason_class, event.reason
    task.check_passed, task.deadline = None, None
    task.not_before = event.not_before
    state.queue.delay(event.not_before, task.num, task.spec.id)


def _on_hold_placed(state: State, entry: Entry, event: HoldPlaced) -> None:
    state.holds[event.resource] = event


def _on_hold_lifted(state: State, entry: Entry, event: HoldLifted) -> None:
    state.holds.pop(event.resource, None)
    state.queue.unpark(event.resource)


def _on_request_received(state: State, entry: Entry, event: RequestReceived) -> None:
    if event.request_id in state.requests:
        return
    state.requests.add(event.request_id)
    if not event.tasks:
        state.cancelled, state.feed_open = True, False
    for task_id in event.tasks or tuple(state.tasks):
        task = state.tasks.get(task_id)
        if task is not None and task.outcome is None and task.decided is None:
            _cancel(state, task)


def _on_session_ended(state: State, entry: Entry, event: SessionEnded) -> None:
    state.ended, state.ended_at = event, entry.at


_APPLY: Final[Mapping[type, Callable[[State, Entry, Any], None]]] = {
    SupervisorStarted: _on_supervisor_started,
    TaskAdded: _on_task_added,
    FeedClosed: _on_feed_closed,
    JobClaimed: _on_job_claimed,
    JobStarted: _on_job_started,
    JobFinished: _on_job_finished,
    JobLost: _on_job_lost,
    TimerFired: _on_timer_fired,
    TaskEnded: _on_task_ended,
    TaskRetried: _on_task_retried,
    HoldPlaced: _on_hold_placed,
    HoldLifted: _on_hold_lifted,
    RequestReceived: _on_request_received,
    SessionEnded: _on_session_ended,
}


def _enlist(state: State, task: TaskState) -> None:
    """Count what a new task waits for; ready at once when that is nothing."""
    for need in task.spec.needs:
        needed = state.tasks.get(need)
        if needed is None:
            _decide_outcome(state, task, "skipped", "need", f"need: no task {need!r} in this session")
            return
        if needed.outcome is None:
            state.dependents.setdefault(need, []).append(task.spec.id)
            task.unmet += 1
        elif needed.outcome != "succeeded":
            _skip_for(state, task, needed)
            return
    if not task.unmet:
        state.queue.push(NEW, task.num, task.spec.id)


def _tell_dependents(state: State, task: TaskState) -> None:
    for dependent_id in state.dependents.get(task.spec.id, ()):
        dependent = state.tasks[dependent_id]
        if dependent.decided is not None or dependent.outcome is not None:
            continue
        if task.outcome != "succeeded":
            _skip_for(state, dependent, task)
            continue
        dependent.unmet -= 1
        if not dependent.unmet:
            state.queue.push(NEW, dependent.num, dependent_id)


def _skip_for(state: State, task: TaskState, needed: TaskState) -> None:
    was = {"cancelled": "was cancelled", "skipped": "was skipped"}.get(needed.outcome or "", "did not succeed")
    _decide_outcome(state, task, "skipped", "need", f"need: {needed.spec.id!r} {was}")


def _halt(state: State, reason: str) -> None:
    state.halted = True
    for task in state.tasks.values():
        if not task.active and task.outcome is None and task.decided is None:
            _decide_outcome(state, task, "skipped", "max_failures", reason)


def _cancel(state: State, task: TaskState) -> None:
    if task.job is None:
        _decide_outcome(state, task, "cancelled", "cancelled", "cancelled: on request")
    elif task.phase != "release":
        _stop(state, task, "cancelled")


def _stop(state: State, task: TaskState, reason: Stopping) -> None:
    if task.job is not None and task.job.stopping is None:
        task.job.stopping = reason
        state.queue.stops.append(task.spec.id)


def _explain_stop(task: TaskState, event: JobFinished) -> tuple[Verdict, str | None, str | None]:
    """A job that was being stopped ended for that reason, whatever its exit code says."""
    stopping = task.job.stopping if task.job else None
    if stopping == "cancelled":
        return "cancelled", "cancelled", "cancelled: on request"
    if stopping == "timeout":
        return "timed_out", "timeout", f"timeout: not done after {task.spec.timeout_s:g} s"
    if stopping == "check_timeout" and task.spec.check:
        return "failed", "check_timeout", f"check_timeout: not done after {task.spec.check.timeout_s:g} s"
    return event.verdict, event.reason_class, event.reason


def _job_over(
    state: State, task: TaskState, verdict: Verdict, reason_class: str | None, reason: str | None
) -> None:
    phase = task.next_phase()
    task.job = None
    _give(state, job_tokens(task, phase))
    target = TRANSITIONS[phase, verdict, task.round < task.spec.rounds]
    if target == "again":
        task.tries += 1
        if task.tries < MAX_STARTS:
            task.start += 1
            state.queue.push(CONTINUING, task.num, task.spec.id)
            return
        target = WHEN_AGAIN_ENDS[phase]
    _go_to(state, task, target, reason_class, reason)


def _go_to(state: State, task: TaskState, target: Target, reason_class: str | None, reason: str | None) -> None:
    while target in PHASES and not task.has_phase(_as_phase(target)):
        target = TRANSITIONS[_as_phase(target), "passed", task.round < task.spec.rounds]
    if target == "keep":
        state.queue.decided.append(task.spec.id)
    elif target in PHASES:
        task.round += task.phase == "check" and target == "work"
        _enter(state, task, _as_phase(target))
    elif target != "again":
        passed = target == "succeeded"
        _decide_outcome(state, task, target, None if passed else reason_class, None if passed else reason)  # type: ignore[arg-type]


def _as_phase(target: Target) -> Phase:
    return target  # type: ignore[return-value]


def _enter(state: State, task: TaskState, phase: Phase) -> None:
    task.phase, task.start, task.tries = phase, 1, 0
    state.queue.push(CONTINUING, task.num, task.spec.id)


def _decide_outcome(
    state: State, task: TaskState, outcome: Outcome, reason_class: str | None, reason: str | None
) -> None:
    """The outcome is known; RELEASE comes first where PREPARE was claimed."""
    task.decided, task.reason_class, task.reason = outcome, reason_class, reason
    if task.prepared and task.phase != "release":
        _enter(state, task, "release")
    else:
        state.queue.decided.append(task.spec.id)


def _close_attempt(state: State, task: TaskState) -> None:
    if task.active:
        _give(state, task_tokens(state, task))
    task.phase, task.start, task.tries = None, 1, 0
    task.prepared, task.decided = False, None


def _set_deadline(task: TaskState, phase: Phase, now: float) -> None:
    """The attempt's deadline holds for WORK and CHECK; a check may have an earlier one of its own."""
    assert task.job is not None
    if phase in ("work", "check"):
        task.job.deadline, task.job.timer = task.deadline, "timeout"
    check = task.spec.check
    if phase == "check" and check and check.timeout_s is not None:
        own = now + check.timeout_s
        if task.job.deadline is None or own < task.job.deadline:
            task.job.deadline, task.job.timer = own, "check_timeout"


def _rebase_clock(state: State, now: float) -> None:
    """After a reboot the monotonic clock counts anew: deadlines of before mean nothing."""
    for task in state.tasks.values():
        task.deadline = None
        if task.not_before and task.outcome is None:
            task.not_before = now
            state.queue.delay(now, task.num, task.spec.id)
    for name, hold in state.holds.items():
        if hold.until is not None:
            state.holds[name] = replace(hold, until=now)


def _take(state: State, tokens: Iterator[tuple[str, int]]) -> None:
    for name, amount in tokens:
        state.free[name] -= amount


def _give(state: State, tokens: Iterator[tuple[str, int]]) -> None:
    for name, amount in tokens:
        state.free[name] += amount
        state.queue.unpark(name, amount)


def _add_usage(before: Usage | None, more: Usage | None) -> Usage | None:
    if before is None or more is None:
        return more or before
    return Usage(
        _add(before.input_tokens, more.input_tokens),
        _add(before.output_tokens, more.output_tokens),
        None if before.cost_usd is None and more.cost_usd is None else _sum(before.cost_usd, more.cost_usd),
    )


def _add(a: int | None, b: int | None) -> int | None:
    return None if a is None and b is None else (a or 0) + (b or 0)


def _sum(a: float | None, b: float | None) -> float:
    return (a or 0.0) + (b or 0.0)
