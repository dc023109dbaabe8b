"""The small steps of a task, shared by all that changes the state: tokens, in, on to a phase, to an outcome, out.

Tokens are what a task or a job holds while it runs.  The width is how many tasks may run at once: what a launch
writes into spec.json stays as it is there, `State.spec` is what holds now.  The pause between two starts follows
from the journal alone, so it outlives a restart of the supervisor; what the machine has to do is measured
elsewhere, and comes in as a hold (see `session.partners`).

The steps keep the index of the ready queue and the counters of needs true.  Why one is taken is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final
from zlib import crc32

from sessionrun.engine.money import find_wait
from sessionrun.engine.state import CONTINUING, NEW, Rules, State, provider_of
from sessionrun.engine.task import NO_THREAD, UP_TO_WORK, RunningJob, TaskState, Thread
from sessionrun.model.events import RequestReceived, Stopping
from sessionrun.model.keys import Phase
from sessionrun.model.spec import SLOT, WALLS_PREFIX, WORKTREE_SPACE, Outcome, SessionSpec, is_task_span
from sessionrun.model.words import CONTEXT_FULL, NO_CONVERSATION

STAGGER: Final = "stagger"
"""The name under which tasks wait until WORK may start again after the last start of one."""

MACHINE: Final = "machine"
"""The name under which tasks wait while the machine has too much to do, or too little memory."""

START: Final = "start"
"""The name under which all tasks wait until the time at which the session is to begin."""

PACED: Final = (STAGGER, MACHINE, START)
"""Holds that only slow a session down: no user has to do anything for it to go on."""

RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 60.0

REFUSED_RETRY_S: Final = 1.0
"""When a start was refused while no job runs whose end could help: seconds until the next try."""

ENDS_CONVERSATION: Final = frozenset((CONTEXT_FULL, NO_CONVERSATION))
"""Reasons of an attempt after which its conversation cannot go on."""


# --- tokens ---


def task_tokens(state: State, task: TaskState) -> Iterator[tuple[str, int]]:
    """The tokens held from a task's first job to its end, of those that are limited."""
    uses = task.spec.uses
    if SLOT in state.free and SLOT not in uses:
        yield SLOT, 1
    for name, amount in uses.items():
        if is_task_span(name):
            yield name, amount


def job_tokens(state: State, task: TaskState, phase: Phase) -> Iterator[tuple[str, int]]:
    """The tokens held for one job of `phase`.

    Never one that a task holds for its whole span: a task that holds some of it must not wait for more of it.
    """
    uses: Mapping[str, int] = {}
    if phase == "work":
        uses = task.spec.uses
        provider = provider_of(state, task)
        if provider in state.free and provider not in uses:
            yield provider, 1
    elif phase in ("check", "prove") and task.spec.check:
        uses = task.spec.check.uses
    for name, amount in uses.items():
        if not is_task_span(name):
            yield name, amount


def wanted_tokens(state: State, task: TaskState) -> Iterator[tuple[str, int]]:
    """The tokens of the task's next job that it does not hold yet."""
    if not task.active:
        yield from task_tokens(state, task)
    elif task.suspended:
        yield from (token for token in task_tokens(state, task) if token[0] == SLOT)
    yield from job_tokens(state, task, task.next_phase())


def held_tokens(state: State, task: TaskState) -> Iterator[tuple[str, int]]:
    yield from span_tokens(state, task)
    if task.job is not None:
        yield from job_tokens(state, task, task.job.key.phase)


def span_tokens(state: State, task: TaskState) -> Iterator[tuple[str, int]]:
    """The tokens that the task holds now until its end; its slot it may have given back meanwhile."""
    for token in task_tokens(state, task) if task.active else ():
        if token[0] != SLOT or not task.suspended:
            yield token


def lacking_tokens(state: State, task: TaskState) -> Iterator[str]:
    """What the task's next job cannot have, for a hold or because too little is free.

    The first is the one it waits for.
    """
    phase = task.next_phase()
    if SLOT in state.holds:  # it stops every start, also of a task that has a slot
        yield SLOT
    if state.providers and phase in UP_TO_WORK:
        provider = provider_of(state, task)
        if is_shut(state, provider, task):
            yield provider
    if state.holds and phase == "prepare":  # room for its worktree, and a node that can build its walls
        walls = task.spec.sandbox.needs if task.spec.sandbox is not None else ()
        needed = (WORKTREE_SPACE, *(f"{WALLS_PREFIX}{name}" for name in walls))
        yield from (name for name in needed if name in state.holds)
    if (money := find_wait(state, task)) is not None:
        yield money
    if START in state.holds:
        yield START
    if phase in UP_TO_WORK and MACHINE in state.holds:
        yield MACHINE
    if phase == "work" and STAGGER in state.holds:
        yield STAGGER
    for name, amount in wanted_tokens(state, task):
        if name in state.holds or state.free[name] < amount:
            yield name


def is_shut(state: State, provider: str, task: TaskState) -> bool:
    """Whether the provider is held, or tried by a task that is not this one."""
    if provider in state.holds:
        return True
    known = state.providers.get(provider)
    return known is not None and known.probing and known.canary not in (None, task.spec.id)


def take(state: State, tokens: Iterable[tuple[str, int]]) -> None:
    """Count tokens as held."""
    for name, amount in tokens:
        state.free[name] -= amount


def give(state: State, tokens: Iterable[tuple[str, int]]) -> None:
    """Count tokens as free again and offer them to the tasks that wait for them."""
    for name, amount in tokens:
        state.free[name] += amount
        state.queue.unpark(name)


def has_work_to_start(state: State) -> bool:
    """Whether a task would start its next job now, or waits for nothing but the machine."""
    if START in state.holds:
        return False
    return state.queue.is_parked(MACHINE) or state.queue.is_ready(state.last_rank)


def find_width_fault(state: State, event: RequestReceived) -> str | None:
    """Why the session cannot have this width: a task holds more slots than there would be."""
    width = event.max_parallel
    if width is None:
        return "set without max_parallel changes nothing"
    for task in state.tasks.values():
        slots = task.spec.uses.get(SLOT)
        if slots is not None and task.outcome is None and not 0 < slots <= width:
            return f"task {task.spec.id!r:.140} uses {slots} of {SLOT!r}"
    return None


def set_width(state: State, width: int) -> None:
    """So many tasks may run at once from now on, 0 = any number; what runs goes on, also if that is more."""
    resources = {name: amount for name, amount in state.spec.resources.items() if name != SLOT}
    state.spec = replace(state.spec, resources={**resources, SLOT: width} if width else resources)
    state.free.pop(SLOT, None)
    limit = find_limit(state, width)
    if limit is not None:
        state.free[SLOT] = limit  # before the sum: only what the session has is counted
        used = (token for task in state.tasks.values() for token in span_tokens(state, task))
        state.free[SLOT] -= sum(amount for name, amount in used if name == SLOT)
        state.queue.unpark(SLOT)
    else:
        state.queue.unpark_all(SLOT)


def find_limit(state: State, width: int) -> int | None:
    """How many tasks may run at once where `width` was asked for (0 = any number); None: any number."""
    if state.most_slots is None:
        return width or None
    return min(width, state.most_slots) if width else state.most_slots


# --- steps ---


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
