"""Money and tokens: budgets of a session and of its tasks, what is reserved for jobs that run, what was used up.

Pure.  Amounts are whole nanodollars, so that sums are exact.  Before a WORK job starts, what it may cost is
reserved; when it ends, what it did cost takes that place.  Nothing starts that would bring the sum of both over
the session's hard budget; so with reservations that hold, such as a task's budget that the agent itself keeps to,
the budget holds too.  The reservation is what is left of the task's budget; without one it is what jobs of this
agent and model cost on average so far, or else those of the session.  A job whose cost is not known counts as what
was reserved.

Before anything is known of an agent and model, one job of theirs runs alone, and others wait under a name of their
own (`FIRST`): so no more is overspent than what these first jobs cost.  Where nothing can be known nothing waits:
an agent that prints only text never says, one that tells tokens without a price says as much the next time, and so
does one of which several jobs in a row ended without a word.

The soft budget is a hold of the name `BUDGET`, which the user lifts.  PREPARE and SETUP, which lead to work, wait
with it; CHECK, LAND and RELEASE cost nothing.

What a job cost was settled when it was judged and stands in the journal; here are the running totals by task and
by model, so that no reader adds up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sessionrun.engine.state import BUDGET, Rate, State
from sessionrun.engine.task import NO_THREAD, UP_TO_WORK, TaskState, Thread
from sessionrun.model.events import JobFinished
from sessionrun.model.keys import Phase
from sessionrun.model.spec import Limits, TaskSpec
from sessionrun.model.usage import Usage
from sessionrun.model.words import NO_CONVERSATION, effect_of

FIRST: Final = "budget "
"""Before an agent and its model: under this name their tasks wait until a first job has shown what one costs."""

FIRST_TRIES: Final = 3
"""After so many jobs that ended without a word on what they used, their tasks wait no longer."""

NANO: Final = 10**9

_UNKNOWN: Final = Rate()


def to_nano(usd: float) -> int:
    """US dollars as nanodollars."""
    return round(usd * NANO)


def to_usd(amount: int) -> float:
    """Nanodollars as US dollars."""
    return amount / NANO


def costs_money(state: State, task: TaskState) -> bool:
    """Whether a WORK job of the task asks a model, as far as we know: a script does not."""
    agent = state.spec.agents.get(task.agent)
    return agent is not None and agent.prompt_kind != "script"


def cost_of(task: TaskState) -> int:
    """What all attempts of a task cost so far (nanodollars), as far as that is known."""
    usage = task.usage
    return to_nano(usage.cost_usd) if usage is not None and usage.cost_usd is not None else 0


def find_task_budget(limits: Limits, task: TaskSpec) -> float | None:
    """What all attempts of a task may cost together (US dollars): its own budget, else that of all tasks."""
    return limits.task_budget_usd if task.budget_usd is None else task.budget_usd


def find_job_budget(limits: Limits, task: TaskState) -> float | None:
    """What the task's next WORK job may cost (US dollars), None without a budget: what is left for the task."""
    whole = find_task_budget(limits, task.spec)
    return None if whole is None else to_usd(max(1, to_nano(whole) - _spent_by(task)))


def is_used_up(state: State, task: TaskState) -> bool:
    """Whether a task has spent its own budget: it gets no further round, retry or continuation."""
    whole = find_task_budget(state.spec.limits, task.spec)
    return whole is not None and _spent_by(task) >= to_nano(whole)


def describe_used_up(state: State, task: TaskState) -> str:
    """The reason of a task that is given up because it has spent its own budget."""
    whole = find_task_budget(state.spec.limits, task.spec) or 0.0
    after = f"; {task.reason}" if task.reason else ""
    return f"{BUDGET}: {_dollars(_spent_by(task))} spent of the {_dollars(to_nano(whole))} of this task{after}"


def reservation_of(state: State, task: TaskState) -> int:
    """What the task's next WORK job is taken to cost, until it is known."""
    own = find_job_budget(state.spec.limits, task)
    if own is not None:
        return to_nano(own)
    rate = state.money.rates.get(_name_rate(task))
    rates = [rate] if rate is not None and rate.known_jobs else [*state.money.rates.values()]
    jobs = sum(known.known_jobs for known in rates)
    return -(-sum(known.known for known in rates) // jobs) if jobs else 0


def find_wait(state: State, task: TaskState) -> str | None:
    """The name under which the task's next job waits for money: `BUDGET`, or that of a first job that runs."""
    if state.spec.limits.budget_usd is None and BUDGET not in state.holds:
        return None
    if not costs_money(state, task) or task.next_phase() not in UP_TO_WORK:
        return None
    if BUDGET in state.holds or _exceeds(state, task):
        return BUDGET
    if (
        state.spec.agents[task.agent].output == "text"
        or find_task_budget(state.spec.limits, task.spec) is not None
    ):
        return None  # it never says what it used; or its budget is what it may cost
    name = _name_rate(task)
    rate = state.money.rates.get(name, _UNKNOWN)
    return name if rate.working and not rate.known_jobs and rate.silent < FIRST_TRIES else None


def describe_wait(state: State, task: TaskState) -> str | None:
    """Why money keeps the task's next job from starting; None: it does not, or it is a hold that says why."""
    name = find_wait(state, task)
    if name is None or name in state.holds:
        return None
    if name == BUDGET:
        return describe_refusal(state, task)
    whose = name.removeprefix(FIRST)
    return f"{BUDGET}: one job of {whose} runs alone until its cost is known (with a task budget all may start)"


def is_hopeless(state: State, task: TaskState) -> bool:
    """Whether there will be no money for it: no job runs that might cost less than what is reserved for it."""
    return BUDGET not in state.holds and not state.money.working and _exceeds(state, task)


def describe_refusal(state: State, task: TaskState) -> str:
    money, whole = state.money, state.spec.limits.budget_usd or 0.0
    reserved = f" and {_dollars(money.reserved)} reserved" if money.reserved else ""
    wants = reservation_of(state, task)
    more = f"; a job is taken to cost {_dollars(wants)}" if wants else ""
    return f"{BUDGET}: {_dollars(money.spent)} spent{reserved} of {_dollars(to_nano(whole))}{more}"


def soft_budget_spent(state: State) -> str | None:
    """Why the session is to be held now; None when it is not."""
    soft = state.spec.limits.soft_budget_usd
    if soft is None or state.money.lifted or BUDGET in state.holds or state.money.spent < to_nano(soft):
        return None
    if state.completed == len(state.tasks) and not state.feed_open:
        return None  # there is nothing to be held
    spent = f"{_dollars(state.money.spent)} of {_dollars(to_nano(soft))}"
    return f"the soft budget is spent ({spent}); 'sessionrun release ID' lets it go on"


def reserve(state: State, task: TaskState, phase: Phase) -> int | None:
    """Reserve money for a job that was claimed; None where it costs none."""
    if phase != "work" or not costs_money(state, task):
        return None
    amount = reservation_of(state, task)
    state.money.reserved += amount
    state.money.rates.setdefault(_name_rate(task), Rate()).working += 1
    return amount


def settle(state: State, task: TaskState, reserved: int | None, used: Usage | None) -> None:
    """A job has ended: what it used takes the place of what was reserved; None in `used`: it never ran."""
    if reserved is None:
        return
    money, name = state.money, _name_rate(task)
    rate = money.rates.setdefault(name, Rate(working=1))
    money.reserved -= reserved
    rate.working -= 1
    if used is not None and used.cost_usd is not None:
        cost = to_nano(used.cost_usd)
        money.spent, rate.known, rate.known_jobs = money.spent + cost, rate.known + cost, rate.known_jobs + 1
    elif used is not None:
        money.spent += reserved
        rate.silent += 1 if used.input_tokens is None and used.output_tokens is None else FIRST_TRIES
    state.queue.unpark(BUDGET)
    state.queue.unpark(name)


def _name_rate(task: TaskState) -> str:
    model = task.asked_model
    return f"{FIRST}{task.agent}/{model}" if model else f"{FIRST}{task.agent}"


def _dollars(amount: int) -> str:
    return "$" + f"{to_usd(amount):.6f}".rstrip("0").rstrip(".")


def _exceeds(state: State, task: TaskState) -> bool:
    limit = state.spec.limits.budget_usd
    if limit is None:
        return False
    promised, whole = state.money.spent + state.money.reserved, to_nano(limit)
    return promised >= whole or promised + reservation_of(state, task) > whole


def _spent_by(task: TaskState) -> int:
    return cost_of(task) - task.forgiven


def name_model(agent: str, reported: str | None, asked: str | None) -> str:
    """Under which name a job's usage is counted: its model, else that its agent chose one (``codex:default``)."""
    return reported or asked or f"{agent}:default"


def usage_since(total: Usage, before: Usage) -> Usage:
    """Of a running total of tokens what came after `before`; all of it where it is not a later total."""
    counts = (
        (total.input_tokens, before.input_tokens),
        (total.output_tokens, before.output_tokens),
        (total.cached_input_tokens, before.cached_input_tokens),
    )
    if any((now or 0) < (then or 0) for now, then in counts):
        return total
    sent, received, cached = (None if now is None else now - (then or 0) for now, then in counts)
    return replace(total, input_tokens=sent, output_tokens=received, cached_input_tokens=cached)


def keep_work(task: TaskState, event: JobFinished) -> None:
    """Note what a WORK job left: how it ended, and the conversation that the task may go on with."""
    has_remark = event.verdict == "passed" and event.reason_class is not None
    task.remark = (event.reason_class or "", event.reason or "") if has_remark else None
    task.exit_code, task.signal, task.leftovers = event.exit_code, event.signal, event.leftovers
    task.last_conversation = event.conversation or task.last_conversation
    task.last_model = event.model or task.last_model
    task.last_thread = NO_THREAD
    task.thread = _follow(task.thread, event)


def _follow(thread: Thread, event: JobFinished) -> Thread:
    """The conversation after a run, and what all runs in it used.

    A limit met at the start, or the id of a conversation that is not there, is nothing to go on with.
    """
    conversation, used = event.conversation, event.usage
    if event.verdict == "passed" and thread.broken_off is not None:
        thread = thread._replace(broken_off=None)
    if conversation in (None, thread.conversation):
        if used is None or thread.conversation is None:
            return thread
        return thread._replace(usage=_plus(thread.usage, used))
    fails_at_once = effect_of(event.reason_class) != "none" or event.reason_class == NO_CONVERSATION
    if fails_at_once and not (used and used.output_tokens):
        return thread
    return thread._replace(conversation=conversation, usage=used)


def account(state: State, task: TaskState, used: Usage | None, model: str | None) -> Usage | None:
    """Count what a WORK job used that ran; None in `used`: it did not say.  What was counted."""
    asks = costs_money(state, task)
    if used is None and not asks:
        return None
    used = used or Usage()
    used = replace(used, unpriced_jobs=int(asks and used.cost_usd is None))
    name = name_model(task.agent, model, task.asked_model)
    both = task.agent, name
    task.usage_by_agent = {**task.usage_by_agent, both: _plus(task.usage_by_agent.get(both), used)}
    task.usage = _plus(task.usage, used)
    state.usage_by_model[name] = _plus(state.usage_by_model.get(name), used)
    return used


def _plus(before: Usage | None, used: Usage) -> Usage:
    return used if before is None else before.plus(used)
