"""`split`: a goal becomes a group of small tasks in the queue, by an agent's answer or by rule.

The agent runs in a session like any other, so its output is kept.  It is not approved to change anything.  What it
is asked, the check of its answer, and the rule that stands in for it are pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sessionrun.client.notices import notify
from sessionrun.input.text import quote
from sessionrun.model.errors import AgentNotFound, InputError
from sessionrun.queue.feed import Feed
from sessionrun.queue.ingest import MAX_TITLE, fold, make_draft, strip_mark
from sessionrun.queue.open import MAX_SUBTASKS, open_queue
from sessionrun.queue.task import Changes, QueueTask, name_apart

if TYPE_CHECKING:
    from sessionrun.model.spec import SessionSpec
    from sessionrun.store.session import SessionDir

TIMEOUT_S: Final = 600.0
"""How long an agent may think about one answer."""

_ASKS: Final = 2

_QUOTED: Final = r"""`[^`\n]*`|"[^"\n]*"|(?<!\w)'[^'\n]*'(?!\w)"""
_SEPARATOR: Final = (
    r"\s*;\s*|(?<!\be\.g)(?<!\bi\.e)\.(?:\s+|$)|,\s+(?:and\s+)?(?:then\s+)?"
    r"|\s+and\s+(?:then\s+)?|\s+then\s+"
)
_PIECE: Final = re.compile(rf"(?P<quoted>{_QUOTED})|(?P<separator>{_SEPARATOR})|.", re.DOTALL | re.IGNORECASE)
_LEADING: Final = re.compile(r"^(?:and\s+then|and|then)\s+", re.IGNORECASE)

_CODE: Final = re.compile(r"[$>#%|<{}\[\]()&]|sudo\s|cd\s+\S+$|(?:git|npm|pip|make|bash|sh|echo|cat|ls)\s+-")
_OPERATORS: Final = re.compile(r"&&|\|\||[<>]{2}|[;{\\]$")
_PROSE: Final = re.compile(
    r"(?:sure|certainly|okay|ok|of course|(?:here|below|there) (?:is|are)|here's|i|i'll|i've|i'd|i'm|let me|we|you"
    r"|this|these|those|the following|note that|note:|hope|thanks)(?![\w-])",
    re.IGNORECASE,
)
_SENTENCES: Final = re.compile(r"[.!?]\s+[A-Z]")

_PROMPT: Final = """\
Split a goal into small tasks.  Several coding agents will do them at the same time, each alone, in this
repository.

The goal:
{goal}

Answer with 2 to {maximum} lines, and nothing else.  Each line is a task:
- it can be done without the others, in any order;
- it names the file, or the few files, that it changes, and no other task changes them;
- it is a command to the agent, in one sentence of at most {length} characters.
No numbers, no headings, no explanation, no code blocks.  Look at the repository as far as you need to, but change
no file and do none of the tasks.
"""

_AGAIN: Final = """
Another answer was refused: {problem}.  Give the lines alone.
"""


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
        parts = split_by_rule(whole if task is None else task.body, maximum)
        if len(parts) < 2:
            parts = split_by_rule(text, maximum)
        if len(parts) < 2:
            why = "the rule finds only one part in this goal; name its parts, or ask an agent (--agent)"
            raise InputError(f"split: {why}")
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
    prompt = _PROMPT.format(goal=goal, maximum=maximum, length=MAX_TITLE)
    again = ""
    for _ in range(_ASKS):
        try:
            spec = _plan(prompt + again, agent, model)
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
            again = _AGAIN.format(problem=error)
            notify(f"session {session.session_id[:8]}: a bad answer: {error}", again=True)
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


# --- an agent's answer, and the rule; pure ---


def read_answer(text: str, maximum: int) -> list[str]:
    """Return the tasks of an answer.  ValueError: what is wrong with it."""
    lines = [line.strip() for line in text.splitlines()]
    tasks = [strip_mark(line) for line in lines if line and not line.startswith(("```", "~~~"))]
    seen: set[str] = set()
    for task in tasks:
        name = fold(task).rstrip(".")
        problem = "is there twice" if name in seen else _describe_problem(task)
        if problem is not None:
            raise ValueError(f"the line {quote(task)} {problem}")
        seen.add(name)
    if not 2 <= len(tasks) <= maximum:
        raise ValueError(f"it has {len(tasks)} task{'s' * (len(tasks) != 1)}, not 2 to {maximum}")
    return tasks


def _describe_problem(task: str) -> str | None:
    if len(task) > MAX_TITLE:
        return f"has more than {MAX_TITLE} characters"
    if len(task.split()) < 2:
        return "is not a task"
    bare = re.sub(_QUOTED, "", task)
    if _CODE.match(task) or _OPERATORS.search(bare):
        return "is code, not a task"
    if _PROSE.match(task) or task.endswith((":", "?", "!")) or _SENTENCES.search(bare):
        return "is talk, not a task"
    return None


def split_by_rule(goal: str, maximum: int) -> list[str]:
    """Return the parts of a goal: between ``;`` ``. `` ``, ``, `and`, `then` and ends of lines; once each.

    What stands in quotes or backticks stays whole.  If there are more parts than `maximum`, the last one has the
    rest.

    >>> split_by_rule('Fix login, then write "a, b" to notes.md and test it.', 10)
    ['Fix login', 'write "a, b" to notes.md', 'test it']
    """
    parts = [""]
    for line in goal.splitlines():
        for piece in _PIECE.finditer(strip_mark(line)):
            if piece["separator"] is None:
                parts[-1] += piece[0]
            else:
                parts.append("")
        parts.append("")
    named: dict[str, str] = {}
    for part in parts:
        text = _LEADING.sub("", part.strip()).strip(" .,;")
        if any(map(str.isalnum, text)):
            named.setdefault(fold(text), text)
    parts = [*named.values()]
    if len(parts) <= maximum:
        return parts
    return [*parts[: maximum - 1], "; ".join(parts[maximum - 1 :])]


def name_group(goal: str, taken: Iterable[str]) -> str:
    """Return an id for the group of a goal that no task has as its id or title."""
    stem = re.sub(r"[^a-z0-9]+", "-", goal.lower()).strip("-")[:30].rstrip("-") or "goal"
    return name_apart(stem, {name.casefold() for name in taken})
