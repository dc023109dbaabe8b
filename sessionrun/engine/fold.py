"""Fold journal entries into the state: one function per event, found by a table.

Nothing here decides what to do next, reads a clock or touches a file; the same entries always give the same
state.  Where a task goes when its job ends, `transitions` says; what a business adds stands in its row of `rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Final

from sessionrun.engine import moves
from sessionrun.engine.money import account, describe_refusal, keep_work, reserve, settle
from sessionrun.engine.providers import begin_canary, change_agent, hear, lift
from sessionrun.engine.requests import add_task, add_tasks, apply_request, reopen
from sessionrun.engine.state import BUDGET, FAILURES, START_BATCH, Act, Rules, State, find_job
from sessionrun.engine.task import UP_TO_WORK, RunningJob, TaskState
from sessionrun.engine.transitions import AS_PHASE, count_try, end_job, find_keeper, keep_round, take_back
from sessionrun.model import events
from sessionrun.model.keys import WORKSPACE_PHASES, Phase
from sessionrun.model.spec import turn_deadline


def apply(state: State, entry: events.Entry) -> None:
    state.seq, state.wall_offset = entry.seq, entry.at - entry.mono
    kind = type(entry.event)
    acts = (
        _APPLY if kind in _APPLY else {other: act for rules in state.rules for other, act in rules.events.items()}
    )
    acts[kind](state, entry, entry.event)


def _rules_of(state: State, phase: Phase) -> Rules:
    """The rules of the business to which a phase belongs that is no task's."""
    return {rules.phase: rules for rules in state.rules}[phase]


def _on_session_started(state: State, entry: events.Entry, event: events.SessionStarted) -> None:
    state.boot_id, state.started_at = event.boot_id, entry.at


def _on_supervisor_started(state: State, entry: events.Entry, event: events.SupervisorStarted) -> None:
    if state.boot_id and state.boot_id != event.boot_id:
        rebase_clock(state, entry)
    at = state.spec.limits.starts_at
    # held until it is to begin, unless a user has released it before; for a second supervisor anew, because after
    # a restart of the machine its clock is another one
    if at is not None and at > entry.at and (not state.epoch or moves.START in state.holds):
        until = entry.mono + at - entry.at
        state.holds[moves.START] = events.HoldPlaced(moves.START, "the session begins later, as asked for", until)
    state.epoch, state.boot_id, state.supervisor = event.epoch, event.boot_id, event
    if state.started_at is None:
        state.started_at = entry.at


def _on_feed_closed(state: State, entry: events.Entry, event: events.FeedClosed) -> None:
    state.feed_open = False


def _on_job_claimed(state: State, entry: events.Entry, event: events.JobClaimed) -> None:
    task, reserved = state.tasks[event.key.task], None
    if event.key.phase in AS_PHASE:
        _begin_phase(state, entry, event, task)
        reserved = reserve(state, task, event.key.phase)
    else:
        _rules_of(state, event.key.phase).claimed(state, entry, event.key)
    task.job = RunningJob(event.key, find_keeper(state), reserved=reserved, node=event.node, epoch=event.epoch)
    task.node = event.node or task.node
    state.running_jobs += 1


def _begin_phase(state: State, entry: events.Entry, event: events.JobClaimed, task: TaskState) -> None:
    moves.take(state, list(moves.wanted_tokens(state, task)))
    task.phase = event.key.phase
    task.worked = task.worked or event.key.phase == "work"
    task.suspended, task.not_before = False, 0.0
    pause = state.spec.limits.stagger_s
    if pause and event.key.phase == "work":
        until = entry.mono + pause
        state.holds[moves.STAGGER] = events.HoldPlaced(
            moves.STAGGER, f"{pause:g} s between two starts of work", until
        )
    if state.providers and event.key.phase in UP_TO_WORK:
        begin_canary(state, task, None)
    if event.key.phase == "prepare":
        if task.follow_ups and task.place is not None and task.place.base_commit is not None:
            task.earlier_place = task.place  # it is asked to go on where the work lies now
        task.prepared, task.place = True, None
        # a second PREPARE of the attempt goes to the same seat
        if state.spec.seats is not None and task.spec.workspace.kind == "worktree" and task.seat is None:
            task.seat = next(number for number in count(1) if number not in state.seats)
            state.seats[task.seat] = task.spec.id


def _on_job_started(state: State, entry: events.Entry, event: events.JobStarted) -> None:
    task, job = find_job(state, event.key)
    if job is None:
        return
    job.pid, job.started = event.pid, event.started
    job.node, task.node = event.node or job.node, event.node or task.node
    state.start_batch = min(2 * state.start_batch, START_BATCH)
    if task.started_at is None:
        task.started_at, task.started_mono = entry.at, entry.mono
    if event.key.phase == "work":
        if state.providers:
            begin_canary(state, task, entry.mono)
        # the time of the attempt and of the round counts from the first WORK job
        if task.deadline is None and task.spec.timeout_s is not None:
            task.deadline = entry.mono + task.spec.timeout_s
        if task.round_deadline is None and task.spec.round_timeout_s is not None:
            task.round_deadline = entry.mono + task.spec.round_timeout_s
    job.deadline, job.timer = task.deadline_of(event.key.phase, entry.mono, state.spec.limits)
    state.queue.set_timer(job.deadline, task)
    _watch_output(state, task, job, entry.mono)


def _watch_output(state: State, task: TaskState, job: RunningJob, now: float) -> None:
    """The output of a WORK job is looked at again when the time has passed in which it may stay as it is."""
    if job.key.phase == "work" and task.spec.idle_timeout_s is not None:
        job.idle_at = now + task.spec.idle_timeout_s
        state.queue.set_timer(job.idle_at, task)


def _on_output_seen(state: State, entry: events.Entry, event: events.OutputSeen) -> None:
    task, job = find_job(state, event.key)
    if job is None:
        return
    job.output_size = event.size
    _watch_output(state, task, job, entry.mono)
    if event.key.phase in WORKSPACE_PHASES:
        job.deadline = turn_deadline(state.spec.limits, entry.mono, event.size)
        state.queue.set_timer(job.deadline, task)


def _on_timer_fired(state: State, entry: events.Entry, event: events.TimerFired) -> None:
    task, job = find_job(state, event.key)
    if job is not None:
        moves.stop(state, task, job, event.timer, now=event.timer == "disk_limit")


def _on_job_ended(state: State, entry: events.Entry, event: events.JobFinished | events.JobLost) -> None:
    task, job = find_job(state, event.key)
    if job is None:
        return
    task.job = None
    state.running_jobs -= 1
    if event.key.phase not in AS_PHASE:
        _rules_of(state, event.key.phase).job_ended(state, entry, job, event)
    else:
        if isinstance(event, events.JobFinished):
            _finish(state, event, task, job)
            end = event
        else:  # as one that was judged
            void = event.verdict == "void"
            if event.key.phase == "work":
                settle(state, task, job.reserved, None if void else account(state, task, None, None))
            why = "start_failed" if void else event.verdict
            end = events.JobFinished(event.key, event.verdict, why, f"{why}: {event.reason}")
        end_job(state, entry, task, job, end, count_try(state, job, event))
    moves.ease_holds(state, entry.mono, ended=event.verdict != "void")


def _finish(state: State, event: events.JobFinished, task: TaskState, job: RunningJob) -> None:
    if event.key.phase == "work":
        keep_work(task, event)
        ran = event.usage is not None or event.wait_status is not None or task.remark is not None
        settle(state, task, job.reserved, account(state, task, event.usage, event.model) if ran else None)
    if event.place is not None:
        task.place, seat = event.place, event.place.seat
        # another session, or work that is not ours, may have the task's seat: then its job has found the next one
        if seat is not None and task.seat is not None and seat != task.seat:
            moves.leave_seat(state, task)
            task.seat = seat
            state.seats[seat] = task.spec.id
    if event.key.phase == "release":
        take_back(task)
    if event.key.phase == "check":
        keep_round(task, event.checked, passed=event.verdict == "passed" and job.stopping is None)
    if event.proof is not None:
        task.proof, task.audit = event.proof, event.audit or ()


def _on_budget_refused(state: State, entry: events.Entry, event: events.BudgetRefused) -> None:
    task = state.tasks[event.task]
    begun = task.usage is not None or task.attempt > 1  # PREPARE and SETUP alone are not work
    moves.decide_outcome(state, task, "failed" if begun else "skipped", BUDGET, describe_refusal(state, task))


def _on_task_ended(state: State, entry: events.Entry, event: events.TaskEnded) -> None:
    task = state.tasks[event.task]
    moves.close_attempt(state, task)
    task.decided, task.outcome = None, event.outcome
    task.reason_class, task.reason = event.reason_class, event.reason
    state.outcomes[event.outcome] = state.outcomes.get(event.outcome, 0) + 1
    state.failed_mends += task.spec.mend is not None and event.outcome in FAILURES
    task.ended_seq, task.held = entry.seq, None
    if task.started_mono is not None:
        task.ended_at, task.duration_s = entry.at, max(0.0, entry.mono - task.started_mono)
    moves.tell_dependents(state, task)
    for rules in state.rules:
        rules.task_ended(state, task)
    if task.again:
        reopen(state, [task])
    elif state.exhausted and not state.halted:
        moves.halt(state)


def _on_task_retried(state: State, entry: events.Entry, event: events.TaskRetried) -> None:
    task = state.tasks[event.task]
    moves.close_attempt(state, task)
    moves.begin_attempt(task, task.attempt + 1)
    task.retried, task.backoffs, task.not_before, task.again = task.retried + 1, 0, event.not_before, False
    task.decided, task.last_outcome = None, event.outcome
    task.reason_class, task.reason = event.reason_class, event.reason
    moves.take_up(task)
    moves.offer(state, task)


def _on_agent_changed(state: State, entry: events.Entry, event: events.AgentChanged) -> None:
    task = state.tasks[event.task]
    change_agent(task)
    moves.offer(state, task)


def _on_hold_placed(state: State, entry: events.Entry, event: events.HoldPlaced) -> None:
    state.holds[event.resource] = event
    if event.until_exit:
        state.start_batch = 1
    moves.ease_holds(state, entry.mono, ended=False)


def _on_hold_lifted(state: State, entry: events.Entry, event: events.HoldLifted) -> None:
    if event.resource in state.providers:
        lift(state, event.resource, entry.mono)
        return
    state.holds.pop(event.resource, None)
    state.queue.unpark(event.resource)


def _on_session_ended(state: State, entry: events.Entry, event: events.SessionEnded) -> None:
    state.ended, state.ended_at = event, entry.at


_APPLY: Final[Mapping[type, Act]] = {
    events.SessionStarted: _on_session_started,
    events.SupervisorStarted: _on_supervisor_started,
    events.TaskAdded: add_task,
    events.TasksAdded: add_tasks,
    events.FeedClosed: _on_feed_closed,
    events.JobClaimed: _on_job_claimed,
    events.JobStarted: _on_job_started,
    events.JobFinished: _on_job_ended,
    events.JobLost: _on_job_ended,
    events.TimerFired: _on_timer_fired,
    events.OutputSeen: _on_output_seen,
    events.BudgetRefused: _on_budget_refused,
    events.TaskEnded: _on_task_ended,
    events.TaskRetried: _on_task_retried,
    events.AgentChanged: _on_agent_changed,
    events.HoldPlaced: _on_hold_placed,
    events.HoldLifted: _on_hold_lifted,
    events.LimitHeard: hear,
    events.RequestReceived: apply_request,
    events.SessionEnded: _on_session_ended,
}


def rebase_clock(state: State, entry: events.Entry) -> None:
    """After a reboot the monotonic clock counts anew: deadlines of before mean nothing."""
    now = entry.mono
    for task in state.tasks.values():
        if task.outcome is not None:
            continue
        task.deadline, task.round_deadline = None, None
        if task.started_at is not None:
            task.started_mono = now - (entry.at - task.started_at)
        if task.not_before:
            task.not_before = now
            moves.offer(state, task)
    for name, hold in state.holds.items():
        if hold.until is not None:  # it is over; but what a provider said in wall time holds on
            known = state.providers.get(name)
            ends_at = None if known is None or known.until_at is None else known.until_at - state.wall_offset
            state.holds[name] = replace(hold, until=now if ends_at is None else max(now, ends_at))
    for known in state.providers.values():
        if known.canary_until is not None:
            known.canary_until = now
