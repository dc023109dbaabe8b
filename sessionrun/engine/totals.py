"""What the jobs of a session used up, by task and by model: running totals, so that no reader has to add up tasks.

Pure.  What a job cost was settled when it was judged and stands in the journal; here it is only added up.
"""

from __future__ import annotations

from dataclasses import replace

from sessionrun.engine.budget import costs_money
from sessionrun.engine.state import State, TaskState
from sessionrun.model.events import JobFinished
from sessionrun.model.reasons import NO_CONVERSATION, effect_of
from sessionrun.model.usage import Usage


def name_model(agent: str, reported: str | None, asked: str | None) -> str:
    """Under which name a job's usage is counted: its model, else that its agent chose one (``codex:default``)."""
    return reported or asked or f"{agent}:default"


def usage_since(total: Usage, before: Usage) -> Usage:
    """Of a running total of tokens what came after `before`; all of it where it is no later total."""
    counts = (
        (total.input_tokens, before.input_tokens),
        (total.output_tokens, before.output_tokens),
        (total.cached_input_tokens, before.cached_input_tokens),
    )
    if any((now or 0) < (then or 0) for now, then in counts):
        return total
    told, said, cached = (None if now is None else now - (then or 0) for now, then in counts)
    return replace(total, input_tokens=told, output_tokens=said, cached_input_tokens=cached)


def keep_thread(task: TaskState, event: JobFinished) -> None:
    """Note the conversation that the task may go on with, and what all runs in it used.

    A limit met at the start, or the id of a conversation that is not there, is nothing to go on with.

    Args:
        task: the task, of which a WORK job has ended.
        event: the end; its usage is that of the job alone.
    """
    conversation, used = event.conversation, event.usage
    fails_at_once = effect_of(event.reason_class) != "none" or event.reason_class == NO_CONVERSATION
    if conversation in (None, task.thread):
        if used is not None and task.thread is not None:
            task.thread_usage = used if task.thread_usage is None else task.thread_usage.plus(used)
    elif not fails_at_once or bool(used and used.output_tokens):
        task.thread, task.thread_usage = conversation, used


def account(state: State, task: TaskState, used: Usage | None, model: str | None) -> Usage | None:
    """Count what a WORK job used that ran; None in `used`: it did not say.  What was counted."""
    asks = costs_money(state, task)
    if used is None and not asks:
        return None
    used = used or Usage()
    used = replace(used, unpriced_jobs=int(asks and used.cost_usd is None))
    name = name_model(task.agent, model, task.asked_model)
    task.usage = used if task.usage is None else task.usage.plus(used)
    for totals in (task.usage_by_model, state.usage_by_model):
        totals[name] = totals[name].plus(used) if name in totals else used
    return used
