"""Tokens: what a task or a job holds while it runs, and what the next job lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sessionrun.engine.budget import find_first_wait, is_waiting_for_money
from sessionrun.engine.pace import paced_by
from sessionrun.engine.state import BUDGET, CANARY, State, provider_of
from sessionrun.engine.task import UP_TO_WORK, TaskState
from sessionrun.model.keys import Phase
from sessionrun.model.spec import SLOT, WALLS_PREFIX, WORKTREE_SPACE, is_task_span


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


def workspace_needs(task: TaskState) -> tuple[str, ...]:
    """What a PREPARE needs that is no token: room for its worktree, a node that can build its walls."""
    sandbox = task.spec.sandbox
    return (WORKTREE_SPACE, *(f"{WALLS_PREFIX}{name}" for name in (sandbox.needs if sandbox is not None else ())))


def lacking_tokens(state: State, task: TaskState, taken: Mapping[str, int]) -> Iterator[str]:
    """What the task's next job cannot have, for a hold or because too little is free beside what is `taken`.

    The first is the one it waits for.
    """
    if state.providers and task.next_phase() in UP_TO_WORK:
        provider = provider_of(state, task)
        if is_shut(state, provider, task, taken):
            yield provider
    if state.holds and task.next_phase() == "prepare":
        yield from (name for name in workspace_needs(task) if name in state.holds)
    if is_waiting_for_money(state, task, taken.get(BUDGET, 0)):
        yield BUDGET
    elif (first := find_first_wait(state, task, taken)) is not None:
        yield first
    yield from paced_by(state, task.next_phase(), taken)
    for name, amount in wanted_tokens(state, task):
        if name in state.holds or state.free[name] - taken.get(name, 0) < amount:
            yield name


def is_shut(state: State, provider: str, task: TaskState, taken: Mapping[str, int]) -> bool:
    """Whether the provider is held, or tried by a task that is not this one."""
    if provider in state.holds:
        return True
    known = state.providers.get(provider)
    if known is None or not known.probing or known.canary == task.spec.id:
        return False
    return known.canary is not None or CANARY + provider in taken


def take(state: State, tokens: Iterable[tuple[str, int]]) -> None:
    """Count tokens as held."""
    for name, amount in tokens:
        state.free[name] -= amount


def give(state: State, tokens: Iterable[tuple[str, int]]) -> None:
    """Count tokens as free again and offer them to the tasks that wait for them."""
    for name, amount in tokens:
        state.free[name] += amount
        state.queue.unpark(name)
