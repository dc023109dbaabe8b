"""What WORK jobs left, and what they used up by task and by model: running totals, so that no reader adds up.

Pure.  What a job cost was settled when it was judged and stands in the journal; here it is only added up.
"""

from __future__ import annotations

from dataclasses import replace

from sessionrun.engine.budget import costs_money
from sessionrun.engine.state import State
from sessionrun.engine.task import NO_THREAD, TaskState, Thread
from sessionrun.model.events import JobFinished
from sessionrun.model.reasons import NO_CONVERSATION, effect_of
from sessionrun.model.usage import Usage


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
    """Note what a WORK job left: how it ended, and the conversation that the task may go on with.

    Args:
        task: the task, of which a WORK job has ended.
        event: the end; its usage is that of the job alone.
    """
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
