"""Providers that are short of something, and what becomes of the tasks that met that.

A usage limit, too many requests or a lack of capacity says nothing about the task: it concerns every task of
that account.  So the provider is held, no task's retries are used up, and a task that met it waits in WORK, with
its worktree but without its slot.  When the hold's time is over one task goes first, the *canary*.  Does it meet
the limit again, the provider is held for longer; does it not, or has it worked for a while, the others follow,
spread over some seconds.  A task that names other agents (`fallback`) goes on with the next of them instead.

What other sessions of the user met comes in as events (`LimitHeard`); see `session.partners`.

Nothing here reads a clock: times come from the entries.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from sessionrun.engine.money import is_used_up
from sessionrun.engine.moves import backoff_s, is_shut, leave_thread, offer, suspend
from sessionrun.engine.state import Provider, State, provider_of
from sessionrun.engine.task import UP_TO_WORK, TaskState
from sessionrun.model.events import Entry, HoldPlaced, JobFinished, LimitHeard
from sessionrun.model.words import FALLBACK_ON, NO_CONVERSATION, Effect, effect_of, goes_on

LIMIT_FIRST_S: Final = 300.0
LIMIT_LAST_S: Final = 3600.0
CAPACITY_FIRST_S: Final = 15.0
CAPACITY_LAST_S: Final = 600.0
LONGEST_S: Final = 8 * 86400.0
"""No limit that is known of lasts longer than a week; a time beyond that was misread."""

SAME_S: Final = 0.5
"""Two ends of a limit that lie so near each other are the same."""

MARGIN_S: Final = 2.0
"""So much later than the provider says: its clock is not ours."""

MAX_BACKOFFS: Final = 8
"""So often a task waits for capacity; then that failure is its own."""

CANARY_S: Final = 60.0
"""A task that has worked this long did not meet a limit at its start, as tasks do that meet one."""

SPREAD_S: Final = 5.0
"""Over so many seconds those that waited are spread."""


def keep_in_work(state: State, entry: Entry, task: TaskState, failure: JobFinished) -> bool:
    """Keep a task whose WORK job failed in WORK, to go on later or with another agent; whether there is a way."""
    effect = effect_of(failure.reason_class)
    if effect != "none":
        reason = failure.reason or str(failure.reason_class)
        hold(state, entry, provider_of(state, task), effect, reason, failure.resets_at)
    if task.cancelled or is_used_up(state, task) or not _take_way(state, entry, task, failure.reason_class):
        return False
    task.start, task.tries, task.deadline, task.round_deadline = task.start + 1, 0, None, None
    # of a lost conversation it stays what broke that one off
    if failure.reason_class != NO_CONVERSATION and (task.thread.conversation or task.fallbacks):
        task.thread = task.thread._replace(broken_off=failure.reason)
    if is_shut(state, provider_of(state, task), task):
        suspend(state, task)
    offer(state, task)
    return True


def _take_way(state: State, entry: Entry, task: TaskState, reason_class: str | None) -> bool:
    """Take the first way there is: a new conversation, another agent, a wait that costs nothing, a retry."""
    effect = effect_of(reason_class)
    agent = state.spec.agents.get(task.agent)
    can_go_on = agent is not None and bool(agent.continue_args) and task.thread.conversation is not None
    if reason_class == NO_CONVERSATION and can_go_on:
        leave_thread(task)  # so this cannot happen again before another conversation was begun
        return True
    if _wants_fallback(task, reason_class):
        change_agent(task)
        return True
    if effect == "limit" or (effect == "backoff" and task.backoffs < MAX_BACKOFFS):
        task.backoffs += effect == "backoff"
        suspend(state, task)
        return True
    may_retry = task.retried < task.spec.retries and not state.halted and effect == "none"
    if may_retry and can_go_on and goes_on(reason_class):
        suspend(state, task)
        task.retried += 1
        task.not_before = entry.mono + backoff_s(task.spec.id, task.retried)
        return True
    return False


def hold(state: State, entry: Entry, provider: str, effect: Effect, reason: str, resets_at: float | None) -> None:
    """Stop starts on this provider for a while; a task beside the first to meet a limit adds no strike."""
    known = state.providers.setdefault(provider, Provider())
    placed = state.holds.get(provider)
    if placed is None:
        known.strikes += 1
    elif known.effect == "limit" and (effect == "backoff" or resets_at is None):
        return  # it is known better already
    if placed is None or known.effect != effect:
        state.queue.unpark_all(provider)  # some may take another agent rather than wait for this one
    until = _until(entry, effect, known.strikes, resets_at)
    if placed is not None and placed.until is not None:
        until = max(until, placed.until)
    is_later = until + state.wall_offset > (known.until_at or 0.0) + SAME_S
    # else those that met it beside the first say the same
    if placed is None or effect != known.effect or is_later:
        known.heard, known.met_at = None, entry.at
    _shut(state, provider, effect, reason, until)


def hear(state: State, entry: Entry, event: LimitHeard) -> None:
    """As if it had been met here, but that its end is as told, earlier or later than what was known."""
    known = state.providers.setdefault(event.provider, Provider())
    if event.provider not in state.holds or known.effect != event.effect:
        state.queue.unpark_all(event.provider)
    known.strikes = max(1, known.strikes, event.strikes)
    known.heard, known.met_at = event.session, event.met_at
    until = entry.mono + min(LONGEST_S, max(0.0, event.until_at - entry.at))
    _shut(state, event.provider, event.effect, event.reason, until)


def lift(state: State, provider: str, now: float) -> None:
    """The hold is over: one task goes first.  Said again of a provider that is tried: it is open to all."""
    known = state.providers[provider]
    if state.holds.pop(provider, None) is not None:
        known.probing, known.canary, known.canary_until = True, None, None
        state.queue.unpark(provider)
    elif known.probing:
        _open(state, provider, now)


def begin_canary(state: State, task: TaskState, now: float | None) -> None:
    """A job of the task was claimed (`now` None) or its WORK began: it may be the one that goes first."""
    known = state.providers.get(provider_of(state, task))
    if known is None or not known.probing:
        return
    known.canary = known.canary or task.spec.id
    if known.canary == task.spec.id and now is not None:
        known.canary_until = now + CANARY_S


def end_canary(state: State, task: TaskState, now: float) -> None:
    """A WORK job of the task ended otherwise than by a limit of its provider."""
    provider = provider_of(state, task)
    known = state.providers.get(provider)
    if known is not None and known.probing and known.canary == task.spec.id:
        _open(state, provider, now)


def prefers_fallback(state: State, task: TaskState, provider: str) -> bool:
    """Whether a task that would have to wait for its provider takes another agent instead."""
    known = state.providers.get(provider)
    is_limit = known is not None and known.effect == "limit" and provider in state.holds
    return is_limit and task.next_phase() in UP_TO_WORK and _wants_fallback(task, "usage_limit")


def change_agent(task: TaskState) -> None:
    """The next alternative's turn: it knows nothing of what the last one said."""
    task.fallbacks, task.backoffs = task.fallbacks + 1, 0
    task.last_conversation = task.last_model = None
    leave_thread(task)


def _wants_fallback(task: TaskState, reason_class: str | None) -> bool:
    chosen = task.spec.fallback_on or FALLBACK_ON
    return task.fallbacks < len(task.spec.fallback) and reason_class in chosen


def _until(entry: Entry, effect: Effect, strikes: int, resets_at: float | None) -> float:
    """Monotonic time of the end: what the provider said, else a guess that doubles.

    A provider that says "in a second" again and again is not asked each second.
    """
    if resets_at is not None and resets_at - entry.at < LONGEST_S:
        patience = _double(CAPACITY_FIRST_S, CAPACITY_LAST_S, strikes - 1) if strikes > 1 else 0.0
        return entry.mono + max(patience, max(0.0, resets_at - entry.at) + MARGIN_S)
    first, last = (LIMIT_FIRST_S, LIMIT_LAST_S) if effect == "limit" else (CAPACITY_FIRST_S, CAPACITY_LAST_S)
    return entry.mono + _double(first, last, strikes)


def _double(first: float, last: float, count: int) -> float:
    return float(min(last, first * 2.0 ** min(count - 1, 30)))


def _shut(state: State, provider: str, effect: Effect, reason: str, until: float) -> None:
    """Place the hold; no task tries the provider any more.  Without `auto_release` it has no end of its own."""
    known = state.providers[provider]
    known.effect, known.until_at = effect, until + state.wall_offset
    known.probing, known.canary, known.canary_until = False, None, None
    is_for_ever = effect == "limit" and not state.spec.auto_release
    state.holds[provider] = HoldPlaced(provider, reason, None if is_for_ever else until)


def _open(state: State, provider: str, now: float) -> None:
    """All may go; those that waited do not go at once."""
    known = state.providers[provider]
    known.strikes, known.effect, known.until_at, known.heard = 0, "none", None, None
    known.probing, known.canary, known.canary_until = False, None, None
    # the order is the queue's alone: a replay need not know it
    for rank, num, name in state.queue.drain(provider):
        share = crc32(f"{state.seq}/{name}".encode()) / 0xFFFFFFFF
        state.queue.push(rank, num, name, now + SPREAD_S * share)
