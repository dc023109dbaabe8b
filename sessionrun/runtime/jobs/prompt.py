"""What an agent is told: a task's prompt, and what came of the work before.

A prompt goes out byte for byte as it was written, unless there is something to add: the envelope that was asked
for, the output of a check, or that an earlier run was broken off.  A conversation that goes on is not told its
prompt again.  This module must not know files or processes.
"""

from __future__ import annotations

from sessionrun.engine.state import TaskState
from sessionrun.model.reasons import goes_on
from sessionrun.model.spec import AgentSpec, SessionSpec


def word_prompt(
    session: SessionSpec,
    task: TaskState,
    agent: AgentSpec,
    *,
    prompt: str,
    red_check: bytes | None,
    conversation: str | None,
) -> bytes:
    """The prompt of the task's next WORK job.

    Args:
        session: the session.
        task: the task, at the start of that job.
        agent: the agent whose turn it is.
        prompt: what the task asks for.
        red_check: the end of what the check printed that sent the task into this round.
        conversation: the agent's id of the conversation that goes on; None: a new one begins.
    """
    text = _turn_of(task, agent, conversation) if task.spec.prompt_mode == "continue" else prompt
    if agent.prompt_kind == "script":
        return text.encode()
    if conversation is not None and (task.thread.broken_off or red_check is not None):
        return _word_continuation(task, red_check, text)
    if session.envelope:
        text = _wrap(task, text)
    if red_check is not None:
        head = f"{text}\n\nYour last attempt did not pass its check. The end of the check's output:\n\n"
        return head.encode() + red_check
    return (text + _tell_evidence(task)).encode()


def _turn_of(task: TaskState, agent: AgentSpec, conversation: str | None) -> str:
    """One turn's prompt; a conversation that is new in the middle is told those of before, too."""
    prompts = task.spec.prompts[: task.thread.turn]
    return prompts[-1] if conversation is not None or agent.prompt_kind == "script" else "\n\n".join(prompts)


def _word_continuation(task: TaskState, red_check: bytes | None, text: str) -> bytes:
    if task.thread.broken_off or red_check is None:
        asked = f" You were asked:\n\n{text}" if task.thread.turn > 1 else ""
        return f"Your last run was broken off ({task.thread.broken_off}). Go on where you stopped.{asked}".encode()
    return b"Your work did not pass its check. The end of the check's output:\n\n" + red_check


def _wrap(task: TaskState, text: str) -> str:
    place = task.place
    branch = f"Working branch: {place.branch}\nCommit your work to it.\n" if place else ""
    marker = f"Begin your answer with this marker: [ID: {task.spec.id}]"
    return f"Transaction ID: {task.spec.id}\n{branch}\n{text}\n\n{marker}"


def _tell_evidence(task: TaskState) -> str:
    """A new conversation has to be told what it cannot know: nothing, where nothing was done before."""
    if task.thread.broken_off:
        place = " What it did may be in the working directory."
        return f"\n\nAn earlier run of this task was broken off ({task.thread.broken_off}).{place}"
    if task.progress.attempt > 1 and task.end.reason and goes_on(task.end.reason_class):
        return f"\n\nAn earlier attempt at this task was broken off ({task.end.reason})."
    return ""
