"""What keeps the next job of a task from starting: tokens, the session's width, and how fast it starts work.

Tokens are what a task or a job holds while it runs.  The width is how many tasks may run at once: what a launch
writes into spec.json stays as it is there, `State.spec` is what holds now.  The pause between two starts follows
from the journal alone, so it outlives a restart of the supervisor; what the machine has to do is measured
elsewhere, and comes in as a hold (see `session.partners`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from sessionrun.engine.money import find_wait
from sessionrun.engine.state import State, provider_of
from sessionrun.engine.task import UP_TO_WORK, TaskState
from sessionrun.model.events import RequestReceived
from sessionrun.model.keys import Phase
from sessionrun.model.spec import SLOT, WALLS_PREFIX, WORKTREE_SPACE, is_task_span

STAGGER: Final = "stagger"
"""The name under which tasks wait until WORK may start again after the last start of one."""

MACHINE: Final = "machine"
"""The name under which tasks wait while the machine has too much to do, or too little memory."""

START: Final = "start"
"""The name under which all tasks wait until the time at which the session is to begin."""

PACED: Final = (STAGGER, MACHINE, START)
"""Holds that only slow a session down: no user has to do anything for it to go on."""


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
    """The tokens that the task holds now."""
    yield from span_tokens(state, task)
    if task.job is not None:
        yield from job_tokens(state, task, task.job.key.phase)


def span_tokens(state: State, task: TaskState) -> Iterator[tuple[str, int]]:
    """The tokens that the task holds now until its end; its slot it may have given back meanwhile."""
    if task.active and not task.suspended:
        yield from task_tokens(state, task)
    elif task.active:
        yield from (token for token in task_tokens(state, task) if token[0] != SLOT)


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
