"""What requests do to the state: cancel, retry, continue, hold, release, set.

A request says what is wanted; which tasks that means is settled here, when it is applied, so that a task that
ended or began meanwhile does no harm.  Nothing here knows which client asked, or how.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from sessionrun.engine.budget import cost_of
from sessionrun.engine.changes import change_tasks, note_ran
from sessionrun.engine.follow_ups import ask_more, take_up
from sessionrun.engine.landing import cancel_landing, land_again, pause_landing
from sessionrun.engine.mending import give_up_mends
from sessionrun.engine.moves import begin_attempt, cancel, enlist, resign
from sessionrun.engine.pace import START
from sessionrun.engine.providers import lift
from sessionrun.engine.queue import CONTINUING, NEW
from sessionrun.engine.state import BUDGET, FAILURES, State
from sessionrun.engine.task import TaskState
from sessionrun.engine.width import set_width
from sessionrun.model.events import RequestReceived

ON_REQUEST: Final = "on request"
"""The reason of a hold for which none was given."""


def apply_request(state: State, event: RequestReceived) -> None:
    """Do what is asked for; a request that was taken before counts once."""
    if event.request_id not in state.requests:
        state.requests.add(event.request_id)
        _ACTS[event.kind](state, event)


def reopen(state: State, tasks: Sequence[TaskState]) -> None:
    """Take ended tasks back for another attempt, and those that were skipped for want of them alone.

    The session goes on, or lives again; failures of before no longer count against `max_failures`.
    """
    if not tasks:
        return
    needs = {task.spec.id: task.spec.needs for task in state.tasks.values() if _is_skipped_for_need(task)}
    names = [task.spec.id for task in tasks]
    reopened = [*names, *find_dependents(names, needs, lambda need: _is_hopeless(state, need))]
    opened = sorted((state.tasks[name] for name in reopened), key=lambda task: task.num)
    for task in opened:
        _reset(state, task)
    for task in opened:
        enlist(state, task)
    state.ended, state.ended_at = None, None
    state.cancelled, state.halted, state.forgiven = False, False, state.failures


def find_dependents(
    chosen: Collection[str], skipped: Mapping[str, Sequence[str]], is_hopeless: Callable[[str], bool]
) -> list[str]:
    """Those of `skipped` (id to needs) that have no hopeless need left once `chosen` are tried again."""
    waiting: dict[str, list[str]] = {}
    for name, needs in skipped.items():
        for need in needs:
            waiting.setdefault(need, []).append(name)
    opened, queue = set(chosen), list(chosen)
    for opening in queue:  # grows while it is walked
        for name in waiting.get(opening, ()):
            if name not in opened and all(need in opened or not is_hopeless(need) for need in skipped[name]):
                opened.add(name)
                queue.append(name)
    return queue[len(chosen) :]


def _cancel(state: State, event: RequestReceived) -> None:
    if state.ended is not None:
        return  # it came too late, and must not hit what a retry starts later
    if not event.tasks:
        state.cancelled, state.feed_open, state.held = True, False, None
    for task in _named(state, event.tasks):
        if task.outcome is None:
            cancel(state, task, now=event.now, why=event.reason)
    if not event.tasks:
        cancel_landing(state, now=event.now)
        give_up_mends(state)


def _retry(state: State, event: RequestReceived) -> None:
    chosen = list_chosen(state, event)
    if event.change is not None:
        change_tasks(state, chosen, event.change)
    for task in chosen:
        if task.outcome is None:  # its RELEASE comes first
            task.again, task.cancelled = True, False
    reopen(state, [task for task in chosen if task.outcome is not None])
    if event.tasks or "failed" in event.outcomes:
        land_again(state, [task.spec.id for task in _named(state, event.tasks)])


def _continue(state: State, event: RequestReceived) -> None:
    for task in _named(state, event.tasks[:1]) if event.tasks else ():
        if task.outcome is not None and event.text:
            ask_more(task, event.text)
            pause_landing(state, task)
            reopen(state, [task])


def list_chosen(state: State, event: RequestReceived) -> list[TaskState]:
    """The tasks that a retry names or chooses; others may come along."""
    return [task for task in _named(state, event.tasks) if _is_chosen(task, event)]


def _is_chosen(task: TaskState, event: RequestReceived) -> bool:
    outcome = task.known_outcome
    is_old_mend = task.spec.mend is not None and not event.tasks  # a retry of its owner begins new ones
    if outcome is None or outcome == "succeeded" or is_old_mend:
        return False
    return outcome in event.outcomes if event.outcomes else bool(event.tasks)


def _hold(state: State, event: RequestReceived) -> None:
    if state.ended is not None:
        return
    reason = event.reason or ON_REQUEST
    if not event.tasks:
        state.held = reason
    for task in _named(state, event.tasks):
        if task.outcome is None:
            task.held = reason
            if task.job is None or task.job.key.phase != "work":
                resign(state, task)  # else the tasks behind it would wait for its release, too


def _release(state: State, event: RequestReceived) -> None:
    if not event.tasks:
        state.held = None
        state.holds.pop(START, None)
        for provider in state.providers:
            if provider in state.holds:
                lift(state, provider, 0.0)
        _lift_budget(state)
    if state.ended is None:
        land_again(state, [task.spec.id for task in _named(state, event.tasks)], bounced=False)
    for task in _named(state, event.tasks):
        if task.held is None:
            continue
        task.held = None
        if task.outcome is None and task.job is None and not task.unmet:
            state.queue.push(CONTINUING if task.active else NEW, task.order, task.spec.id)


def _set(state: State, event: RequestReceived) -> None:
    if event.max_parallel is not None:
        set_width(state, event.max_parallel)


def _lift_budget(state: State) -> None:
    """The user goes on although the soft budget is spent: it does not hold this session again."""
    if state.holds.pop(BUDGET, None) is not None:
        state.money.lifted = True
        state.queue.unpark(BUDGET)


_ACTS: Final[Mapping[str, Callable[[State, RequestReceived], None]]] = {
    "cancel": _cancel,
    "retry": _retry,
    "hold": _hold,
    "release": _release,
    "set": _set,
    "continue": _continue,
}


def _named(state: State, names: Iterable[str]) -> Iterator[TaskState]:
    for name in dict.fromkeys(names) or tuple(state.tasks):
        if name in state.tasks:
            yield state.tasks[name]


def _is_skipped_for_need(task: TaskState) -> bool:
    return task.known_outcome == "skipped" and task.reason_class == "need"


def _is_hopeless(state: State, name: str) -> bool:
    """Whether a task that needs this one would be skipped: it is unknown, or it ended without success."""
    task = state.tasks.get(name)
    return task is None or task.known_outcome not in (None, "succeeded")


def _reset(state: State, task: TaskState) -> None:
    """As if it was never tried but for what earlier attempts left: their number, usage, workspace, last reason."""
    if task.outcome is not None:
        state.outcomes[task.outcome] -= 1
        if not state.outcomes[task.outcome]:
            del state.outcomes[task.outcome]
        state.failed_mends -= task.spec.mend is not None and task.outcome in FAILURES
    keeps_agent = bool(task.follow_ups)  # the one that knows the conversation
    if task.fallbacks and not keeps_agent:
        note_ran(task)
        task.fallbacks = 0
    if task.known_outcome == "skipped":  # it never began, so this is not a further attempt
        begin_attempt(task, task.attempt)
        task.reason_class = task.reason = None
    else:
        begin_attempt(task, task.attempt + 1)
        task.last_outcome = task.outcome
    task.decided = task.outcome = None
    task.unmet, task.cancelled, task.cancel_reason, task.again, task.held = 0, False, None, False, state.held
    task.retried, task.backoffs, task.suspended, task.not_before = 0, 0, False, 0.0
    task.started_at = task.started_mono = task.ended_at = task.duration_s = task.ended_seq = None
    task.forgiven = cost_of(task)
    take_up(task)
