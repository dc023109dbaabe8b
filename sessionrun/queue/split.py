"""`split`: a goal becomes a group of small tasks in the queue, by an agent's answer or by rule.

The agent runs in a session like any other, so its output is kept.  It is not approved to change anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sessionrun.client.notices import notify
from sessionrun.model.errors import AgentNotFound, InputError
from sessionrun.queue.feed import Feed
from sessionrun.queue.ingest import make_draft
from sessionrun.queue.lists import MAX_SUBTASKS, name_group, read_answer, split_by_rule, write_prompt
from sessionrun.queue.open import open_queue
from sessionrun.queue.task import Changes, QueueTask

if TYPE_CHECKING:
    from sessionrun.model.spec import SessionSpec
    from sessionrun.store.session import SessionDir

TIMEOUT_S: Final = 600.0
"""How long an agent may think about one answer."""

_ASKS: Final = 2


class Split(NamedTuple):
    """What a goal was split into, ``by`` agent or rule; `group` None and no `tasks`: a dry run.

    `titles` are what the new tasks are, or would be; `session_ids` the sessions in which an agent was asked.
    """

    group: QueueTask | None
    tasks: list[QueueTask]
    titles: list[str]
    by: str
    session_ids: list[str]


def split(
    goal: str | None = None,
    *,
    task_id: str | None = None,
    maximum: int = MAX_SUBTASKS,
    agent: str | None = None,
    model: str | None = None,
    by_rule: bool = False,
    dry_run: bool = False,
    backend: str | None = None,
    results_dir: Path | None = None,
    on_start: Callable[[SessionDir], None] = lambda _: None,
) -> Split:
    """Split a goal, or a task of the queue, into at most `maximum` tasks of a group.

    Args:
        task_id: a task of the queue: its title and text are the goal, and it becomes the group.
        agent: which agent is asked, else the usual one; if there is none, the goal is split by rule.
        dry_run: ask, but put nothing into the queue.
        results_dir: where the session of the agent is kept, else in the results directory in use.
        on_start: called with each session that was started.

    Raises:
        InputError: there is nothing to split, the task cannot become a group, or the named agent not be asked.
    """
    feed = open_queue(backend=backend)
    task = None if task_id is None else _find_task(feed, task_id)
    text = " ".join((goal or "").split()) if task is None else task.title
    if (goal is None) == (task_id is None) or not text:
        raise InputError("split: give a goal, or --id with the id of a task")
    whole = (goal or "").strip() if task is None else f"{task.title}\n\n{task.body}".strip()
    found = Split(None, [], [], "rule", [])
    if not by_rule:
        found = _ask(whole, maximum, agent, model, results_dir, on_start)
    if not found.titles:
        parts = _split_by_rule(whole if task is None else task.body, text, maximum)
        found = found._replace(titles=parts)
    if dry_run:
        return found
    group, tasks = _add(feed, task, whole, found.titles)
    return found._replace(group=group, tasks=tasks)


def _find_task(feed: Feed, task_id: str) -> QueueTask:
    task = feed.show(task_id)
    if task.status in ("claimed", "closed"):
        raise InputError(f"{task.id}: it is {task.status}; reopen it first (sessionrun queue reopen {task.id})")
    if task.is_group:
        raise InputError(f"{task.id}: it is a group already (sessionrun queue list --group {task.id})")
    return task


def _split_by_rule(body: str, title: str, maximum: int) -> list[str]:
    """The parts of the text, or of the title if the text has none."""
    for text in (body, title):
        parts = split_by_rule(text, maximum)
        if len(parts) > 1:
            return parts
    raise InputError("split: the rule finds only one part in this goal; name its parts, or ask an agent (--agent)")


def _add(feed: Feed, task: QueueTask | None, goal: str, titles: list[str]) -> tuple[QueueTask, list[QueueTask]]:
    """Make the tasks in one step with their group, so that no worker finds the group without tasks."""
    if task is not None:
        name, title, priority = task.id, task.title, task.priority
    else:
        head = make_draft(" ".join(goal.split()))
        name = name_group(head.title, [word for one in feed.load() for word in (one.id, one.title)])
        title, priority = head.title, 0
    drafts = [replace(make_draft(one, name), priority=priority) for one in titles]
    drafts = [replace(draft, body=f"{draft.body}\n\nPart of: {title}".strip()) for draft in drafts]
    made = [one for one in feed.create(drafts) if one is not None]
    group = made[0].group or name
    if task is not None:
        return feed.show(group), made
    body = goal if goal != title else None
    return feed.edit(group, Changes(title=title, body=body)), made


def _ask(
    goal: str,
    maximum: int,
    agent: str | None,
    model: str | None,
    results_dir: Path | None,
    on_start: Callable[[SessionDir], None],
) -> Split:
    """Ask an agent, once more if its answer is bad; no titles: no agent can be asked, or both are bad."""
    sessions: list[str] = []
    nothing = Split(None, [], [], "rule", sessions)
    problem: str | None = None
    for _ in range(_ASKS):
        try:
            spec = _plan(write_prompt(goal, maximum, problem), agent, model)
            from sessionrun.client.launch import launch

            session = launch(spec, results_dir)
        except InputError as error:  # AgentNotFound is one
            if agent is not None and not sessions:
                raise
            notify(f"{error}; the goal is split by rule")
            return nothing
        sessions.append(session.session_id)
        on_start(session)
        try:
            return nothing._replace(titles=read_answer(_wait(session), maximum), by="agent")
        except ValueError as error:
            problem = str(error)
            notify(f"session {session.session_id[:8]}: a bad answer: {problem}", again=True)
    notify("the agent gave no good answer; the goal is split by rule")
    return nothing


def _plan(prompt: str, agent: str | None, model: str | None) -> SessionSpec:
    """Settle a session of one task.  AgentNotFound, InputError: no agent can be asked."""
    from sessionrun.client.planning.plan import Planned, plan

    given = {"prompts": [{"id": "split", "prompt": prompt}]}
    options = {"agent": agent, "model": model, "timeout_s": TIMEOUT_S, "name": "split"}
    try:
        planned = plan(given, {**options, "approve": False})
    except AgentNotFound:
        raise
    except InputError:  # an agent that has no option for it may do all that the user may
        planned = plan(given, options)
    assert isinstance(planned, Planned)
    name = planned.spec.tasks[0].agent
    if planned.spec.agents[name].prompt_kind == "script":
        raise AgentNotFound(f"agent {name!r} runs prompts as scripts, so it cannot split a goal")
    return planned.spec


def _wait(session: SessionDir) -> str:
    """Wait for the answer.  Ctrl+C cancels the session.  ValueError: the task did not succeed."""
    from sessionrun.client.reading.outputs import read_answer as read_output
    from sessionrun.client.reading.waiting import wait

    try:
        waited = wait(session)
    except KeyboardInterrupt:
        from sessionrun.client.ask import cancel

        cancel(session, timeout_s=None)
        raise
    (task,) = waited.tasks
    if task["outcome"] != "succeeded":
        raise ValueError(f"the agent {task['outcome'] or 'did not end'}: {task['reason'] or 'no reason is known'}")
    return read_output(session, task)
