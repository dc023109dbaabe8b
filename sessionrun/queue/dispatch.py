"""What is done before a session starts that takes its tasks from a queue: settle it, look after a queue, fill it.

Planning takes the steps of the first part.  In the second one what was found is a line each, and what stops the
session is an error.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.client.launch import check_ready, tell_signed_out
from sessionrun.client.notices import notify
from sessionrun.client.planning.assemble import Draft
from sessionrun.client.planning.plan import Planned
from sessionrun.git.git import Git
from sessionrun.git.repository import hide_name, locate
from sessionrun.input.given import read_text
from sessionrun.input.plan import SeatsWish
from sessionrun.input.prompts import FRAME
from sessionrun.input.rows import QUEUE
from sessionrun.model.asked import SLURM, SUGGESTIONS, TAKE_BACK_S, FeedSpec
from sessionrun.model.errors import InputError
from sessionrun.model.spec import SLOT, AgentSpec, SessionSpec
from sessionrun.queue.dispatch_config import FILE as CONFIGURATION
from sessionrun.queue.feed import Feed
from sessionrun.queue.open import import_list, open_queue, read_list
from sessionrun.queue.sync import choose_id, choose_next, make_task
from sessionrun.queue.task import QueueTask, Tasks, by_id, choose_group, find_blockers, find_place, fold_spaces

# --- the session: where its queue is, and what each of its tasks is made of ---


def place_feed(draft: Draft) -> Draft:
    """The main checkout, which has the queue and from which the worktrees are made; they stay for the next task.

    Raises:
        InputError: there is no repository, the frame cannot be read, or worktrees would have to stay on nodes.
    """
    plan, given = draft.plan, draft.options.given
    if plan.feed is None:
        return draft
    root = Path(plan.repository.path or draft.place)
    if not os.path.isdir(root):  # which also says so of a name that is too long
        where = f"{draft.source.name}: repo_root: {root} is not a directory"
        raise InputError(f"{where}; it counts from the directory of this file")
    top = find_place(root).top
    git = Git(top)
    locate(git)
    if not draft.preview:
        _hide_suggestions(git)
    seats = plan.seats
    if draft.options.choose("cluster") in (None, SLURM):
        seats = seats or SeatsWish("inside")
    elif seats is not None:
        why = "worktrees that stay are of one machine, and cannot be had on the nodes of a cluster"
        key = plan.repository.keys.get("worktrees", "worktrees")
        raise InputError(f"{draft.source.name}: {key}: {why}: leave that out")
    (task,) = draft.spec.tasks
    task = replace(task, cwd=str(top), prompts=_find_frame(draft, task.prompts))
    wish = replace(plan.repository, path=None)
    if "land_into" in given:
        wish = replace(wish, base=given["land_into"], keys={**wish.keys, "--base": "--land-into"})
    draft = replace(draft, place=top, plan=replace(plan, seats=seats, repository=wish))
    return draft.settle(dialect=QUEUE, tasks=(task,))


def _hide_suggestions(git: Git) -> None:
    """Let git overlook the file of follow-ups: it is collected, and in commits it would conflict.

    The rules of what is ignored are read with the repository, so this comes first.
    """
    hide_name(locate(git)[1], SUGGESTIONS)
    if git.names("ls-files", "-z", "--", SUGGESTIONS):
        mend = f"git rm --cached {SUGGESTIONS}"
        notify(f"{SUGGESTIONS} is in the repository, so tasks that append to it conflict: take it out ({mend})")


def _find_frame(draft: Draft, own: tuple[str, ...]) -> tuple[str, ...]:
    """What stands around each task: the option's, or of the file that the input names, or its own."""
    asked: str | None = draft.options.given.get("prompt_template")
    if asked is not None:
        if not asked.strip():
            raise InputError("--prompt-template: the file is empty")
        return (asked,)
    if draft.plan.frame_file is None:
        return own
    try:
        text = read_text(draft.plan.frame_file)
        if not text.strip():
            raise InputError(f"{draft.plan.frame_file}: is empty")
    except InputError as error:
        raise InputError(f"{draft.source.name}: prompt_template: {error}") from None
    return (text,)


def add_feed(draft: Draft) -> Draft:
    """The queue in the place of tasks; each begins where the branch is by then, on which the work lands.

    Raises:
        InputError: there is no such queue.
    """
    values, spec = draft.plan.feed, draft.spec
    if values is None:
        return draft
    queue = open_queue(draft.place, backend=values.get("backend"))
    (template,) = spec.tasks
    if template.prompts == (FRAME,) and spec.agents[template.agent].prompt_kind == "script":
        template = replace(template, prompts=("{script}\n",))  # words around it would be commands
    known, moves = spec.repository, spec.landing is not None
    if known is not None and not moves:  # else the base may be a commit
        moves = Git(Path(known.top)).commit_of(f"refs/heads/{known.base_branch}") is not None
    if moves:
        template = replace(template, base="target")
    more = {name: value for name, value in values.items() if name not in ("backend", "takes_back")}
    if not values.get("takes_back", True):
        more["take_back_s"] = 0.0
    return draft.settle(
        source=str(queue.place),
        tasks=(),
        template=template,
        feed=FeedSpec(str(draft.place), queue.name, **{"take_back_s": TAKE_BACK_S, **more}),
        open_feed=True,
    )


# --- the queue ---

_OLLAMA: Final = AgentSpec("ollama", ("ollama",), ready=("ollama", "show", "{model}"))
_PREFIXES: Final = ("ollama/", "ollama_chat/")
"""What a model of Ollama begins with, for agents that know others, too."""

LIST: Final = "BEADS_FOR_ANALYSIS.md"
"""The list in the top of a repository from which an empty queue is filled."""


class Prepared(NamedTuple):
    """A fed session that can be started, with the tasks that it can claim at once, the first first.

    `left` counts the tasks of the queue, of those that it is for, that are not closed.  `findings` are lines about
    what was looked at.
    """

    ready: list[QueueTask]
    left: int
    findings: list[str]


def find_configuration() -> Path | None:
    """The configuration in the top of the repository that has the queue, if there is one."""
    path = find_place(Path.cwd()).top / CONFIGURATION
    return path if os.path.lexists(path) else None


def prepare(
    spec: SessionSpec,
    listed: Path | None = None,
    *,
    results_dir: Path | None = None,
    preview: bool = False,
    ready: bool = True,
) -> Prepared:
    """Look after the queue of a session that is to be fed; fill an empty one from the list of the repository.

    Args:
        listed: a list whose tasks come into the queue first.
        preview: nothing will be started: change nothing.
        ready: look whether the agent can be asked.

    Raises:
        InputError: it cannot be started as it is asked for; no session was created.
    """
    wanted = spec.feed
    assert wanted is not None
    feed = open_queue(Path(wanted.top), backend=wanted.backend)
    _check_wanted(feed, wanted.chosen)
    back = []
    if wanted.take_back_s and not preview:  # else the tasks of sessions that are gone would not count as ready
        from sessionrun.queue.claims import reclaim

        settled = reclaim(feed, results_dir, most=wanted.take_back_most)
        back = [f"queue: {task.id} is {task.status}: {task.reason}" for task in settled]
    queued: Tasks = by_id(feed.load())
    known = Path(wanted.top) / LIST
    path = listed or (known if known.is_file() and not queued else None)
    if path is None and not (preview or wanted.watch):
        tasks, left = _choose(wanted, queued)
        if not tasks:
            return Prepared([], left, back)
    findings = _look_at_agent(spec, preview=preview) if ready else []
    drafted = ""
    if path is not None and preview:
        queued, new = _draft(str(path), wanted.group, queued)
        drafted = f"; {new} would be imported from {path}"
    elif path is not None:
        added, present = import_list(feed, str(path), group=wanted.group)
        drafted = f"; {len(added)} were imported from {path}{f', {len(present)} were known' if present else ''}"
        queued = by_id(feed.load())
    tasks, left = _choose(wanted, queued)
    finding = f"queue: {feed.place.name}: {len(tasks)} of {left} open tasks are ready{drafted}"
    return Prepared(tasks, left, [*back, finding, *findings])


def foresee(planned: Planned, prepared: Prepared) -> Planned:
    """The session with the tasks that it begins with, for a preview."""
    spec = planned.spec
    assert spec.template is not None
    taken: set[str] = set()
    tasks = []
    for task in prepared.ready[: spec.resources.get(SLOT)]:
        name = choose_id(task.id, taken)
        taken.add(name.casefold())
        tasks.append(make_task(spec.template, task, name))
    return planned._replace(spec=replace(spec, tasks=tuple(tasks)))


def _look_at_agent(spec: SessionSpec, *, preview: bool) -> list[str]:
    """Look whether it can be asked; refuse one that is not signed in or ready, as `run` does, or only say so."""
    assert spec.template is not None
    agent, first = spec.agents[spec.template.agent], replace(spec, tasks=(spec.template,))
    found = [f"agent: {agent.name} ({agent.argv[0]})"]
    if preview:
        return [*found, *(f"warning: agent: {line}" for line in tell_signed_out(first))]
    check_ready(first)
    model = spec.template.model or ""
    name = next((model.removeprefix(prefix) for prefix in _PREFIXES if model.startswith(prefix)), None)
    environ = {**os.environ, **agent.env}
    if name is not None and shutil.which(_OLLAMA.name, path=environ.get("PATH")) is not None:
        host = environ.get("OLLAMA_API_BASE") or environ.get("OLLAMA_HOST", "")  # as aider reads them
        ollama = replace(_OLLAMA, env={**agent.env, "OLLAMA_HOST": host})
        task = replace(spec.template, agent=ollama.name, model=name, fallback=())
        check_ready(replace(spec, agents={ollama.name: ollama}, tasks=(task,)))
        found.append(f"model: {name} is there")
    return found


def _draft(path: str, group: str | None, queued: Tasks) -> tuple[Tasks, int]:
    """The queue with the tasks of a list that would be new, with ids that they might get; how many these are."""
    known, made = {task.title for task in queued.values()}, dict[str, QueueTask]()
    ids = (name for name in map("task-{}".format, count(1)) if name not in queued)
    around = {group: replace(queued.get(group) or QueueTask(group, group), is_group=True)} if group else {}
    for draft in read_list(path, group):
        if (title := fold_spaces(draft.title)) not in known:
            known.add(title)
            task = QueueTask(next(ids), title, draft.body, group=group)
            made[task.id] = replace(task, blocked_by=find_blockers({**queued, **around}, task))
    return {**queued, **(around if made else {}), **made}, len(made)


def _choose(wanted: FeedSpec, tasks: Tasks) -> tuple[list[QueueTask], int]:
    """The tasks that can be claimed, of those that are asked for, and how many of these are open."""
    chosen = frozenset(wanted.chosen or tasks)
    among = [task for task in choose_group(tasks, wanted.group) if task.id in chosen and not task.is_group]
    left = sum(task.status != "closed" for task in among)
    return [*choose_next(tasks, {}, wanted, retries=0)], left


def _check_wanted(feed: Feed, wanted: tuple[str, ...]) -> None:
    """Refuse ids of tasks that no worker would get.  InputError: the first of them, and why.

    A task may be claimed, since the session that claimed it may be gone, and may wait for others of `wanted`.
    """
    for task in map(feed.show, wanted):
        waits_for = [one for one in task.blocked_by if one not in wanted]
        if task.status == "closed":
            why = f"is closed; open it again first (sessionrun queue reopen {task.id})"
        elif task.is_group:
            why = f"is a group; name the group instead (sessionrun queue work --group {task.id})"
        elif task.status == "deferred":
            why = f"is {task.backend_status}"
        elif waits_for:
            why = f"waits for {', '.join(waits_for)}; close that first, or name it, too"
        else:
            continue
        raise InputError(f"task {task.id} {why}")
