"""What a task's brief makes of its WORK and CHECK: the words of its prompt, the request of its check.

`jobs` knows keys and processes, `briefing` files and words; this is what lies between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from sessionrun.agents import table
from sessionrun.engine.state import TaskState
from sessionrun.model.spec import AgentSpec, TaskSpec
from sessionrun.runtime.jobs.check.request import Request, Verification
from sessionrun.runtime.jobs.context_files import BriefProblem, Shown, load_shown, word_answer, word_edit

REFUSAL: Final = "refusal"
"""In the folder of a WORK job that could not be worded: why."""

VERDICT_PROMPT: Final = "verdict-prompt"


def word_task(
    tasks: Mapping[str, TaskSpec], task: TaskSpec, agent: AgentSpec, directory: str, *, again: bool
) -> str:
    """What the task asks of an agent, with the files of its brief as they are now.

    Args:
        tasks: the session's, by id.
        task: the one that is to begin.
        agent: whose turn it is.
        directory: where it works.
        again: an earlier round has written files.

    Raises:
        BriefProblem: a file cannot be shown.
    """
    prompt = "\n\n".join(task.prompts)
    if task.brief is None or agent.prompt_kind == "script":
        return prompt
    shown = load_shown(task.brief, directory, list_earlier(tasks, task), again=again)
    return word_edit(task.brief, prompt, shown) if agent.edits else word_answer(task.brief, prompt, shown)


def list_earlier(tasks: Mapping[str, TaskSpec], task: TaskSpec) -> Iterator[str]:
    """The files that the tasks it needs, and those that these need, were to write: nearest first, each once."""
    seen, paths, queue = {task.id}, set(), deque(task.needs)
    while queue:
        need = tasks.get(queue.popleft())
        if need is None or need.id in seen:
            continue
        seen.add(need.id)
        queue.extend(need.needs)
        for path in need.brief.outputs if need.brief else ():
            if path not in paths:
                paths.add(path)
                yield path


def needs_request(task: TaskSpec, agent: AgentSpec) -> bool:
    """Whether the task's CHECK is more than shell commands."""
    if agent.prompt_kind == "script":
        return False
    return bool(task.check and task.check.verify) or task.brief is not None


def make_request(
    tasks: Mapping[str, TaskSpec],
    state: TaskState,
    agent: AgentSpec,
    *,
    directory: str,
    answer: Path,
    answer_mark: Path,
    folder: Path,
) -> Request:
    """The request of a CHECK.

    Args:
        tasks: the session's, by id.
        state: the task.
        agent: who worked.
        directory: where.
        answer: the file with what the agent said.
        answer_mark: the file that says that this was written; the same for each start of the round's check.
        folder: the check's own.
    """
    task, check = state.spec, state.spec.check
    return Request(
        directory=directory,
        prompt="\n\n".join(task.prompts),
        applied=str(answer_mark),
        brief=task.brief,
        answer=None if agent.edits or task.brief is None else str(answer),
        commands=check.commands if check else (),
        verification=_verification(state, agent, folder) if check and check.verify else None,
        earlier=tuple(file.path for file in _show_again(tasks, task, directory) if file.role == "changed"),
    )


def _show_again(tasks: Mapping[str, TaskSpec], task: TaskSpec, directory: str) -> list[Shown]:
    if task.brief is None:
        return []
    try:
        return load_shown(task.brief, directory, list_earlier(tasks, task), again=False)
    except BriefProblem:  # the work took one of them away
        return []


def _verification(state: TaskState, agent: AgentSpec, folder: Path) -> Verification:
    """The agent's own command line, but without leave to use its tools: who judges changes nothing."""
    check, prompt_file = state.spec.check, str(folder / VERDICT_PROMPT)
    assert check is not None
    return Verification(
        system=check.verify or "",
        files=check.files,
        argv=table.build_argv(agent, model=state.asked_model, approve=False, prompt_file=prompt_file),
        prompt_file=prompt_file,
        on_stdin=agent.stdin == "prompt",
        output=agent.output,
    )
