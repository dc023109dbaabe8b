"""What requests do to the state: cancel, retry, continue, hold, release, set, add; and which are refused.

A request says what is wanted; which tasks that means is settled here, when it is applied, so that a task that
ended or began meanwhile does no harm.  Why a session cannot do what is asked is found before the record: a
request that is refused leaves no trace in the journal.  Nothing here knows which client asked, or how, or which
programs are there.

What a launch writes into spec.json stays as it is there; `State.spec` is what holds now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sessionrun.engine import moves
from sessionrun.engine.money import cost_of
from sessionrun.engine.providers import lift
from sessionrun.engine.state import BUDGET, FAILURES, State
from sessionrun.engine.task import Ran, TaskState
from sessionrun.model.errors import InputError
from sessionrun.model.events import Change, Entry, RequestReceived, TaskAdded, TasksAdded, change_task, takes_model
from sessionrun.model.repositories import has_worktree, ignore_leavings, repository_of
from sessionrun.model.spec import PROVIDER_PREFIX, SLOT, AgentSpec, SessionSpec, TaskSpec
from sessionrun.model.validation import validate_tasks, validate_uses, validate_wishes


def apply_request(state: State, entry: Entry, event: RequestReceived) -> None:
    """Do what is asked for; a request that was taken before counts once."""
    if event.request_id not in state.requests:
        state.requests.add(event.request_id)
        _ACTS[event.kind](state, event)
        for rules in state.rules:
            rules.requested(state, event)


def reopen(state: State, tasks: Sequence[TaskState]) -> None:
    """Take ended tasks back for another attempt, and those that were skipped for want of them alone.

    The session goes on, or lives again; failures of before no longer count against `max_failures`.
    """
    if not tasks:
        return

    def is_hopeless(need: str) -> bool:  # a task that needs it would be skipped
        task = state.tasks.get(need)
        return task is None or task.known_outcome not in (None, "succeeded")

    needs = {
        task.spec.id: task.spec.needs
        for task in state.tasks.values()
        if (task.known_outcome, task.reason_class) == ("skipped", "need")
    }
    names = [task.spec.id for task in tasks]
    reopened = [*names, *find_dependents(names, needs, is_hopeless)]
    opened = sorted((state.tasks[name] for name in reopened), key=lambda task: task.num)
    for task in opened:
        _reset(state, task)
    for task in opened:
        moves.enlist(state, task)
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
            moves.cancel(state, task, now=event.now, why=event.reason)


def _retry(state: State, event: RequestReceived) -> None:
    chosen = list_chosen(state, event)
    if event.change is not None:
        change_tasks(state, chosen, event.change)
    for task in chosen:
        if task.outcome is None:  # its RELEASE comes first
            task.again, task.cancelled = True, False
    reopen(state, [task for task in chosen if task.outcome is not None])


def _continue(state: State, event: RequestReceived) -> None:
    for task in _named(state, event.tasks[:1]) if event.tasks else ():
        if task.outcome is not None and event.text:
            task.follow_ups, task.follow_up_attempt = (*task.follow_ups, event.text), task.attempt + 1
            if task.outcome == "succeeded":
                task.handed_place = task.place
            for rules in state.rules:
                rules.task_continued(state, task)
            reopen(state, [task])


def list_chosen(state: State, event: RequestReceived) -> list[TaskState]:
    """The tasks that a retry names or chooses; others may come along."""
    chosen = []
    for task in _named(state, event.tasks):
        outcome = task.known_outcome
        is_old_mend = task.spec.mend is not None and not event.tasks  # a retry of its owner begins new ones
        is_asked_for = outcome in event.outcomes if event.outcomes else bool(event.tasks)
        if is_asked_for and outcome not in (None, "succeeded") and not is_old_mend:
            chosen.append(task)
    return chosen


def _hold(state: State, event: RequestReceived) -> None:
    if state.ended is not None:
        return
    reason = event.reason or "on request"
    if not event.tasks:
        state.held = reason
    for task in _named(state, event.tasks):
        if task.outcome is None:
            task.held = reason
            if task.job is None or task.job.key.phase != "work":
                moves.resign(state, task)  # else the tasks behind it would wait for its release, too


def _release(state: State, event: RequestReceived) -> None:
    if not event.tasks:
        state.held = None
        state.holds.pop(moves.START, None)
        for provider in state.providers:
            if provider in state.holds:
                lift(state, provider, 0.0)
        if state.holds.pop(BUDGET, None) is not None:  # the soft budget does not hold this session again
            state.money.lifted = True
            state.queue.unpark(BUDGET)
    for task in _named(state, event.tasks):
        if task.held is None:
            continue
        task.held = None
        if task.outcome is None and task.job is None and not task.unmet:
            moves.offer(state, task)


def _set(state: State, event: RequestReceived) -> None:
    if event.max_parallel is not None:
        moves.set_width(state, event.max_parallel)


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
        moves.begin_attempt(task, task.attempt)
        task.reason_class = task.reason = None
    else:
        moves.begin_attempt(task, task.attempt + 1)
        task.last_outcome = task.outcome
    task.decided = task.outcome = None
    task.unmet, task.cancelled, task.cancel_reason, task.again, task.held = 0, False, None, False, state.held
    task.retried, task.backoffs, task.suspended, task.not_before = 0, 0, False, 0.0
    task.started_at = task.started_mono = task.ended_at = task.duration_s = task.ended_seq = None
    task.forgiven = cost_of(task)
    moves.take_up(task)


def find_fault(state: State, request: RequestReceived | TasksAdded) -> str | None:
    """Why a request cannot be done; None: it can, or it was recorded before and is only to be acknowledged."""
    if request.request_id in state.requests:
        return None
    if isinstance(request, TasksAdded):
        if state.ended is not None:
            return "the session has ended"
        if state.cancelled:
            return "the session is being cancelled"
        if state.halted:
            return "too many tasks failed (max_failures), and the session starts nothing more"
        return find_clash(state.spec, request)
    if request.kind == "set":
        return moves.find_width_fault(state, request)
    unknown = next((name for name in request.tasks if name not in state.tasks), None)
    if unknown is not None:
        return f"there is no task {unknown!r:.140}"
    if request.change is not None:
        return find_change_fault(list_chosen(state, request), request.change, state.spec.agents)
    return find_follow_up_fault(state, request) if request.kind == "continue" else None


def find_change_fault(tasks: Sequence[TaskState], change: Change, known: Mapping[str, AgentSpec]) -> str | None:
    """Why the chosen tasks, which would be tried again, cannot be changed so; None: they can."""
    if not tasks:
        return "there is no task to try again"
    if change.prompt is not None and len(tasks) > 1:
        return f"a prompt is for one task, and {len(tasks)} would be tried again: name one"
    agents = {**change.agents, **known}
    if change.agent is not None and change.agent not in agents:
        return f"the session does not know the agent {change.agent!r:.80}"
    faults = (_find_fault(task, change, agents) for task in tasks)
    return next((fault for fault in faults if fault is not None), None)


def change_tasks(state: State, tasks: Sequence[TaskState], change: Change) -> None:
    """Change what is asked of these tasks; the attempts so far keep the agent and model that they had."""
    state.spec = widen_spec(state.spec, TasksAdded("", (), change.agents, change.prices, leavings=change.leavings))
    changed = {}
    for task in tasks:
        moves.resign(state, task)
        before, spec = (task.agent, task.asked_model), change_task(task.spec, change)
        if before != (spec.agent, spec.model):
            note_ran(task)
        if task.agent != spec.agent:
            task.last_conversation = None
            moves.leave_thread(task)
        if not task.follow_ups:  # else it stays with the agent that knows the conversation
            task.fallbacks = 0
        task.spec = changed[spec.id] = spec
    state.spec = replace(state.spec, tasks=tuple(changed.get(task.id, task) for task in state.spec.tasks))


def note_ran(task: TaskState) -> None:
    """The next attempt has another agent or model: note what those so far had."""
    if task.known_outcome != "skipped":  # else its attempt is still to come
        task.ran = (*task.ran, Ran(task.attempt, task.agent, task.last_model or task.asked_model))
    task.last_model = None


def find_ran(task: TaskState, attempt: int) -> Ran:
    now = Ran(attempt, task.agent, task.last_model or task.asked_model)
    return next((ran for ran in task.ran if attempt <= ran.attempt), now)


def _find_fault(task: TaskState, change: Change, agents: Mapping[str, AgentSpec]) -> str | None:
    name, spec = f"task {task.spec.id!r:.140}", change_task(task.spec, change)
    agent = agents[spec.agent]
    if task.follow_ups:
        if change.prompt is not None:
            return f"{name} goes on with a follow-up, not with its prompt: use sessionrun continue"
        if task.fallbacks or spec.agent != task.agent:
            whose = f"its conversation with {task.agent!r:.80}"
            return f"{name} goes on in {whose}, of which another agent knows nothing"
    if change.model is not None and not takes_model(agent):
        return f"agent {agent.name!r:.80} of {name} takes no model"
    turns = spec.prompt_mode == "continue" and len(spec.prompts) > 1
    if turns and agent.prompt_kind == "text" and not agent.continue_args:
        return f"{name} has several prompts, and agent {agent.name!r:.80} cannot go on with a conversation"
    return None


def find_follow_up_fault(state: State, request: RequestReceived) -> str | None:
    """Why the task of a request cannot be continued; None: it can."""
    if len(request.tasks) != 1 or not (request.text or "").strip():
        return "it has to name one task and a text"
    task = state.tasks[request.tasks[0]]
    name = f"task {task.spec.id!r:.140}"
    if state.ended is None and state.cancelled:
        return "the session is being cancelled"
    if task.spec.mend is not None:
        return f"{name} mends the work of {task.spec.mend.task!r:.140}: continue that one"
    if task.outcome is None:
        return f"{name} has not ended: wait for it, or cancel it first"
    if task.spec.upstream is not None:
        return f"{name} worked in a repository of its own, which may be gone: start a new session"
    if task.started_at is None:
        return f"{name} has not begun: there is nothing to go on with; use sessionrun retry"
    faults = (rules.find_fault(state, task) for rules in state.rules)
    return next((fault for fault in faults if fault is not None), None)


def add_task(state: State, entry: Entry, event: TaskAdded) -> None:
    """Append the task that a feed brought, or that was owed."""
    for rules in state.rules:
        rules.task_added(state, event.task)
    if event.task.id in state.tasks:
        return  # a feed may bring again what it brought before a crash
    task = TaskState(event.task, len(state.tasks) + 1, held=state.held)
    moves.enlist(state, task)
    state.tasks[event.task.id] = task
    state.spec = replace(state.spec, tasks=(*state.spec.tasks, event.task))
    if task.decided is None and state.cancelled:
        moves.cancel(state, task)
    elif task.decided is None and state.halted:
        moves.give_up(state, task)


def add_tasks(state: State, entry: Entry, event: TasksAdded) -> None:
    """Append the tasks of a request; a request that was taken before counts once."""
    if event.request_id in state.requests:
        return
    state.requests.add(event.request_id)
    for name, amount in event.resources.items():
        state.free.setdefault(name, amount)
    state.spec = widen_spec(state.spec, event)
    added = [TaskState(task, num, held=state.held) for num, task in enumerate(event.tasks, len(state.tasks) + 1)]
    state.tasks.update((task.spec.id, task) for task in added)
    for task in added:
        moves.enlist(state, task)


def widen_spec(spec: SessionSpec, event: TasksAdded) -> SessionSpec:
    """The spec with what came; what the session has by the same name stays as it was launched."""
    return replace(
        spec,
        tasks=(*spec.tasks, *event.tasks),
        agents={**event.agents, **spec.agents},
        prices={**event.prices, **spec.prices},
        resources={**event.resources, **spec.resources},
        repository=spec.repository
        and replace(spec.repository, excludes=ignore_leavings(spec.repository.excludes, event.leavings)),
        mirrors=spec.mirrors
        and replace(spec.mirrors, excludes=ignore_leavings(spec.mirrors.excludes, event.leavings)),
    )


def find_clash(spec: SessionSpec, event: TasksAdded) -> str | None:
    """What of the tasks does not fit the session that was asked for so far; None: all does."""
    if not event.tasks:
        return "there are no tasks"
    for name, amount in event.resources.items():
        if name not in spec.resources and (name in (SLOT, BUDGET) or name.startswith(PROVIDER_PREFIX)):
            return f"the resource {name!r:.140} counts from a session's launch on: leave it out"
        if spec.resources.get(name, amount) != amount:
            return f"the session has {spec.resources[name]} of the resource {name!r:.140}, not {amount}"
    taken = {task.id.casefold(): task.id for task in spec.tasks}
    for task in event.tasks:
        twin = taken.get(task.id.casefold())
        if twin is not None:
            same = "" if twin == task.id else f" ({twin!r:.140}; ids differ in more than case)"
            return f"the session has a task {task.id!r:.140} already{same}"
    wide = widen_spec(spec, event)
    for task in event.tasks:
        problem = _find_lack(wide, task)
        if problem is not None:
            return f"task {task.id!r:.140} {problem}"
    try:
        validate_tasks(event.tasks, frozenset(taken.values()))
        validate_uses(replace(wide, tasks=event.tasks))
        validate_wishes(replace(wide, tasks=event.tasks))
    except InputError as error:
        return str(error)
    return None


def _find_lack(spec: SessionSpec, task: TaskSpec) -> str | None:
    """What the task needs that a session gets at its launch alone, or that came without it; or has by itself."""
    if task.mend is not None:  # later events look up the tasks that it names: one that is not there would stop us
        return "has a mend: a session adds its mends by itself"
    for name in (task.agent, *(other.agent for other in task.fallback)):
        if name not in spec.agents:
            return f"has the agent {name!r:.80}, which the session does not know"
    if has_worktree(task) and repository_of(spec, task) is None:
        return "wants a worktree, but the session was started without a repository"
    if task.sandbox is not None and not has_worktree(task):
        return "has walls, which need a worktree"
    if task.upstream is not None and spec.mirrors is None:
        return "has a repository of its own, but the session was started without such tasks"
    if task.environment is not None and spec.cache is None:
        return "wants an environment, but the session was started without such tasks"
    return None
