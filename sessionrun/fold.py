"""Fold journal entries into the state: one function per event, found by a table.

Nothing here decides what to do next, reads a clock or touches a file; the same entries always give the same
state.  Where a rule about phases is needed it is looked up in `transitions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    Verdict,
)
from sessionrun.model import Outcome, Phase, SessionSpec
from sessionrun.ready import CONTINUING, NEW
from sessionrun.state import (
    START_BATCH,
    RunningJob,
    State,
    TaskState,
    find_job,
    give,
    job_tokens,
    take,
    task_tokens,
)
from sessionrun.transitions import (
    AS_OUTCOME,
    AS_PHASE,
    MAX_STARTS,
    TRANSITIONS,
    WHEN_AGAIN_ENDS,
    Stopping,
    Target,
    describe_stop,
    judge_stopped,
)

REFUSED_RETRY_S: Final = 1.0
"""When a start was refused while no job runs whose end could help: seconds until the next try."""


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
    state.seq, state.wall_offset = entry.seq, entry.at - entry.mono
    _APPLY[type(entry.event)](state, entry, entry.event)


def _on_supervisor_started(state: State, entry: Entry, event: SupervisorStarted) -> None:
    if state.boot_id and state.boot_id != event.boot_id:
        _rebase_clock(state, entry)
    state.epoch, state.boot_id = event.epoch, event.boot_id
    if state.started_at is None:
        state.started_at = entry.at


def _on_task_added(state: State, entry: Entry, event: TaskAdded) -> None:
    if event.task.id in state.tasks:
        return  # a feed may bring again what it brought before a crash
    task = TaskState(event.task, len(state.tasks) + 1)
    _enlist(state, task)
    state.tasks[event.task.id] = task
    if task.decided is None and state.cancelled:
        _cancel(state, task)
    elif task.decided is None and state.halted:
        _give_up(state, task)


def _on_feed_closed(state: State, entry: Entry, event: FeedClosed) -> None:
    state.feed_open = False


def _on_job_claimed(state: State, entry: Entry, event: JobClaimed) -> None:
    task = state.tasks[event.key.task]
    if task.phase is None:
        task.phase = event.key.phase
        take(state, task_tokens(state, task))
    take(state, job_tokens(task, event.key.phase))
    if event.key.phase == "prepare":
        task.prepared, task.place = True, None
    task.job = RunningJob(event.key)
    state.running_jobs += 1


def _on_job_started(state: State, entry: Entry, event: JobStarted) -> None:
    task, job = find_job(state, event.key)
    if job is None:
        return
    job.pid, job.started = event.pid, event.started
    state.start_batch = min(2 * state.start_batch, START_BATCH)
    if task.started_at is None:
        task.started_at, task.started_mono = entry.at, entry.mono
    if event.key.phase == "work" and task.deadline is None and task.spec.timeout_s is not None:
        task.deadline = entry.mono + task.spec.timeout_s
    job.deadline, job.timer = task.deadline_of(event.key.phase, entry.mono)
    if job.deadline is not None:
        state.queue.set_timer(job.deadline, task.num, task.spec.id)


def _on_timer_fired(state: State, entry: Entry, event: TimerFired) -> None:
    task, job = find_job(state, event.key)
    if job is not None:
        _stop(state, task, job, event.timer)


def _on_job_finished(state: State, entry: Entry, event: JobFinished) -> None:
    task, job = find_job(state, event.key)
    if job is None:
        return
    if event.key.phase == "work":
        task.exit_code, task.signal = event.exit_code, event.signal
        task.conversation = event.conversation or task.conversation
        task.model = event.model or task.model
        task.usage = task.usage.plus(event.usage) if task.usage and event.usage else event.usage or task.usage
    if event.place is not None:
        task.place = event.place
    if event.key.phase == "check":
        task.check_passed = event.verdict == "passed" and job.stopping is None
    _job_over(state, task, job, event.verdict, event.reason_class, event.reason)
    _ease_holds(state, entry.mono, ended=True)


def _on_job_lost(state: State, entry: Entry, event: JobLost) -> None:
    task, job = find_job(state, event.key)
    if job is None:
        return
    void = event.verdict == "void"
    task.tries -= void and not event.counts
    reason_class = "start_failed" if void else event.verdict
    _job_over(state, task, job, event.verdict, reason_class, f"{reason_class}: {event.reason}")
    _ease_holds(state, entry.mono, ended=not void)


def _on_task_ended(state: State, entry: Entry, event: TaskEnded) -> None:
    task = state.tasks[event.task]
    _close_attempt(state, task)
    task.outcome = event.outcome
    task.reason_class, task.reason = event.reason_class, event.reason
    state.outcomes[event.outcome] = state.outcomes.get(event.outcome, 0) + 1
    if task.started_at is not None and task.started_mono is not None:
        task.ended_at, task.duration_s = entry.at, max(0.0, entry.mono - task.started_mono)
    _tell_dependents(state, task)
    if state.exhausted and not state.halted:
        _halt(state)


def _on_task_retried(state: State, entry: Entry, event: TaskRetried) -> None:
    task = state.tasks[event.task]
    _close_attempt(state, task)
    task.attempt, task.round = task.attempt + 1, 1
    task.last_outcome, task.reason_class, task.reason = event.outcome, event.reason_class, event.reason
    task.check_passed, task.deadline = None, None
    task.not_before = event.not_before
    state.queue.delay(event.not_before, task.num, task.spec.id)


def _on_hold_placed(state: State, entry: Entry, event: HoldPlaced) -> None:
    state.holds[event.resource] = event
    if event.until_exit:
        state.start_batch = 1
    _ease_holds(state, entry.mono, ended=False)


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
        if task is not None and task.outcome is None:
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


def _halt(state: State) -> None:
    state.halted, state.feed_open = True, False
    for task in state.tasks.values():
        if not task.active and task.outcome is None and task.decided is None:
            _give_up(state, task)


def _give_up(state: State, task: TaskState) -> None:
    """Nothing new starts any more: what an earlier attempt came to stays, all else is skipped."""
    if task.last_outcome is not None:
        _decide_outcome(state, task, task.last_outcome, task.reason_class, task.reason)
    else:
        reason = f"max_failures: stopped after {state.failures} failed"
        _decide_outcome(state, task, "skipped", "max_failures", reason)


def _cancel(state: State, task: TaskState) -> None:
    """Once an attempt is decided its outcome stays (RELEASE runs on), but there is no other attempt."""
    task.cancelled = True
    if task.job is not None and task.decided is None:
        _stop(state, task, task.job, "cancelled")
    elif task.decided is None:
        _decide_outcome(state, task, "cancelled", "cancelled", "cancelled: on request")


def _stop(state: State, task: TaskState, job: RunningJob, reason: Stopping) -> None:
    if job.stopping is None:
        job.stopping = reason
        state.queue.stops.append(task.spec.id)


def _job_over(
    state: State, task: TaskState, job: RunningJob, verdict: Verdict, reason_class: str | None, reason: str | None
) -> None:
    task.job = None
    state.running_jobs -= 1
    phase = job.key.phase
    give(state, job_tokens(task, phase))
    stopped = judge_stopped(phase, job.stopping, verdict)
    if stopped is not None and job.stopping is not None:
        verdict, (reason_class, reason) = stopped, describe_stop(task.spec, job.stopping)
    target = TRANSITIONS[phase, verdict, task.round < task.spec.rounds]
    if target == "again":
        task.tries += 1
        if task.tries < MAX_STARTS and job.stopping is None:
            task.start += 1
            state.queue.push(CONTINUING, task.num, task.spec.id)
            return
        target = WHEN_AGAIN_ENDS[phase]
    _go_to(state, task, target, reason_class, reason)


def _go_to(state: State, task: TaskState, target: Target, reason_class: str | None, reason: str | None) -> None:
    """Enter the phase that the table names, passing those the task does not have, or decide the outcome."""
    phase = AS_PHASE.get(target)
    while phase is not None and not task.has_phase(phase):
        target = TRANSITIONS[phase, "passed", task.round < task.spec.rounds]
        phase = AS_PHASE.get(target)
    if phase is not None:
        task.round += task.phase == "check" and phase == "work"
        _enter(state, task, phase)
    elif target == "succeeded":
        _decide_outcome(state, task, "succeeded", None, None)
    elif target == "keep":
        task.prepared = False
        state.queue.decided.append(task.spec.id)
    else:
        _decide_outcome(state, task, AS_OUTCOME[target], reason_class, reason)


def _enter(state: State, task: TaskState, phase: Phase) -> None:
    task.phase, task.start, task.tries = phase, 1, 0
    state.queue.push(CONTINUING, task.num, task.spec.id)


def _decide_outcome(
    state: State, task: TaskState, outcome: Outcome, reason_class: str | None, reason: str | None
) -> None:
    """The outcome is known; RELEASE comes first where PREPARE was claimed."""
    task.decided, task.reason_class, task.reason = outcome, reason_class, reason
    if task.prepared:
        _enter(state, task, "release")
    else:
        state.queue.decided.append(task.spec.id)


def _close_attempt(state: State, task: TaskState) -> None:
    if task.active:
        give(state, task_tokens(state, task))
    task.phase, task.start, task.tries = None, 1, 0
    task.prepared, task.decided = False, None


def _ease_holds(state: State, now: float, *, ended: bool) -> None:
    """The end of a job may free what a start was refused for; when none runs, only time can."""
    for name, hold in state.holds.items():
        if hold.until_exit and ended:
            state.holds[name] = replace(hold, until=now)
        elif hold.until_exit and hold.until is None and not state.running_jobs:
            state.holds[name] = replace(hold, until=now + REFUSED_RETRY_S)


def _rebase_clock(state: State, entry: Entry) -> None:
    """After a reboot the monotonic clock counts anew: deadlines of before mean nothing."""
    now = entry.mono
    for task in state.tasks.values():
        if task.outcome is not None:
            continue
        task.deadline = None
        if task.started_at is not None:
            task.started_mono = now - (entry.at - task.started_at)
        if task.not_before:
            task.not_before = now
            state.queue.delay(now, task.num, task.spec.id)
    for name, hold in state.holds.items():
        if hold.until is not None:
            state.holds[name] = replace(hold, until=now)
