"""Tasks that are asked for again: which they are, with what change, and as what a new session has them.

`retry` takes tasks that did not succeed, `retry --new` makes a session of them, and `continue` asks more of a task
that has ended.  What the session would refuse is refused here first, so that nothing is started for it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any, Final, NamedTuple

from sessionrun.agents import table
from sessionrun.client.config import load_config
from sessionrun.client.launching.readiness import check_ready
from sessionrun.client.notices import notify
from sessionrun.client.planning.assemble import (
    agents_of,
    check_spec,
    foresee_costs,
    settle_agent,
    settle_prices,
)
from sessionrun.client.reading.view import fold_journal
from sessionrun.engine.handed import as_earlier, find_handed
from sessionrun.engine.requests import change_tasks, find_change_fault, find_dependents, find_fault
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.house import find_due
from sessionrun.model.errors import InputError
from sessionrun.model.events import Change, RequestReceived, change_task
from sessionrun.model.places import Repository
from sessionrun.model.repositories import has_worktree, ignore_leavings, repository_of
from sessionrun.model.spec import RETRY_FAILED, RETRY_LOST, AgentSpec, Export, SessionSpec, TaskSpec
from sessionrun.model.times import format_time
from sessionrun.store.requests import MAX_TEXT
from sessionrun.store.session import SessionDir

Shown = dict[str, Any]
"""A view, or a task of one."""

_NOT_GOOD: Final = (*RETRY_FAILED, *RETRY_LOST, "cancelled", "skipped")


class AskedChange(NamedTuple):
    """What the options of `retry` change; None leaves it as it is."""

    agent: str | None = None
    model: str | None = None
    prompt: str | None = None


class Retried(NamedTuple):
    """Ids of tasks: those that are tried again because they are chosen, and these with all that come along.

    `outcomes` are those by which they were chosen; empty: every outcome but success, of named tasks.
    """

    tried: list[str]
    every: list[str]
    outcomes: tuple[str, ...]


# --- which ---


def choose_retried(
    shown: Sequence[Shown], tasks: Sequence[Shown], *, named: bool, failed: bool, lost: bool
) -> Retried:
    """Of the `shown` tasks of a session those that a retry of `tasks`, all or `named` ones, tries again.

    Without flags these are tasks that failed, timed out, were lost or interrupted; named ones may also have been
    cancelled or skipped.  Tasks that were skipped because of a retried task come along.

    Raises:
        InputError: a named task cannot be tried again.
    """
    if not failed and not lost:
        failed = lost = not named
    outcomes = (*(RETRY_FAILED if failed else ()), *(RETRY_LOST if lost else ()))
    by_id = {task["id"]: task for task in shown}
    stuck = [task["id"] for task in tasks if _can_land_again(task, shown)]
    if not named and "failed" not in outcomes:
        stuck = []
    good = (task for task in tasks if task["outcome"] == "succeeded" and task["id"] not in stuck)
    if named and (refused := next(good, None)):
        raise InputError(f"task {refused['id']!r} succeeded and is not tried again; leave it out")
    bad = [task for task in tasks if task["outcome"] in (outcomes or _NOT_GOOD)]
    if named and (mend := next((task for task in bad if task.get("mends")), None)):
        raise InputError(f"task {mend['id']!r} mends {mend['mends']!r}: name that one, and new tasks mend it")
    tried = [task["id"] for task in bad if not task.get("mends")]
    chosen = tried + stuck
    skipped = {task["id"]: task["needs"] for task in by_id.values() if task["reason_class"] == "need"}

    def is_hopeless(name: str) -> bool:
        return name not in by_id or by_id[name]["outcome"] not in (None, "succeeded")

    opened = [*dict.fromkeys(chosen), *find_dependents(chosen, skipped, is_hopeless)]
    for name in chosen:
        for need in by_id[name]["needs"]:
            if need not in opened and is_hopeless(need):
                raise InputError(f"task {name!r} needs {need!r}, which did not succeed: name that one too")
    return Retried(tried, sorted(opened, key=lambda name: int(by_id[name]["num"])), outcomes)


def _can_land_again(task: Shown, tasks: Sequence[Shown]) -> bool:
    """Whether the work of a task, or a mend of it, could not land and may be tried again; `tasks` are all."""
    landing = task.get("landing") or {}
    if landing.get("status") == "mending":
        return any(_can_land_again(one, tasks) for one in tasks if one.get("mends") == task["id"])
    wanted = ("held",) if task.get("mends") else ("held", "bounced")
    return landing.get("status") in wanted and landing["reason_class"] != "rescued"


# --- with what change ---


def settle_change(
    spec: SessionSpec, tasks: Sequence[TaskState], asked: AskedChange, *, ready: bool = True
) -> Change:
    """The change for these tasks of a session, with the agent and the prices that the session lacks.

    A warning says so if a budget cannot see what the tasks will cost.

    Raises:
        InputError: it makes no sense for a task, or its agent is not there, not signed in or not ready.
    """
    for name, word in asked._asdict().items():
        if word is not None and not word.strip():
            raise InputError(f"--{name} is empty: leave it out, or say which")
    _check_size("--prompt", asked.prompt or "")
    config = load_config(Path.cwd(), os.environ, table.BUILTIN)
    agents: dict[str, AgentSpec] = {}
    if asked.agent is not None:
        known = {**config.agents, **spec.agents}
        agent = settle_agent(asked.agent, known, None, approve=spec.approve)
        if asked.agent not in spec.agents:
            agents[agent.name] = agent
    prices = settle_prices(config, agents.values())
    new = {name: price for name, price in prices.items() if name not in spec.prices}
    change = Change(asked.agent, asked.model, asked.prompt, agents, new, table.leavings(agents.values()))
    fault = find_change_fault(tasks, change, spec.agents)
    if fault is not None:
        raise InputError(fault)
    if asked.agent is not None or asked.model is not None:
        _look_ahead(spec, tasks, change, ready=ready)
    return change


def _look_ahead(spec: SessionSpec, tasks: Sequence[TaskState], change: Change, *, ready: bool) -> None:
    changed = tuple(change_task(task.spec, change) for task in tasks)
    agents, used = {**change.agents, **spec.agents}, agents_of(changed)
    prices = {**change.prices, **spec.prices}
    known = {name: agent for name, agent in agents.items() if name in used}
    narrow = replace(spec, tasks=changed, agents=known, prices=prices)
    if ready:
        check_ready(narrow)
    for remark in foresee_costs(narrow):
        notify(remark)


def _check_size(what: str, text: str) -> None:
    """Check that a text has room in a request.

    Raises:
        InputError: it is too long, or no UTF-8.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InputError(f"{what} is not UTF-8; write it as UTF-8") from None
    if size > MAX_TEXT:
        raise InputError(f"{what} has {size} bytes, and may have {MAX_TEXT}: put it into a file and name that")


# --- as more for a task that has ended ---


def check_follow_up(view: Shown, state: State, shown: Shown, text: str) -> None:
    """Refuse a follow-up of a task that cannot go on; warn if its agent cannot go on with its conversation.

    Raises:
        InputError: the text is empty, too long or no UTF-8, or the task has not ended, or cannot go on.
    """
    if not text.strip():
        raise InputError("the follow-up is empty: write what the task shall do")
    _check_size("the follow-up", text)
    if view["status"] == "interrupted":
        raise InputError(f"session {view['session_id']} was interrupted: sessionrun resume lets it go on first")
    name = shown["id"]
    fault = find_fault(state, RequestReceived("", "continue", (name,), text=text))
    if fault is not None:
        raise InputError(fault)
    task = state.tasks[name]
    for check in find_due("continue", [task.spec]):
        check(state.spec, task)
    if not _has_conversation(state.spec, shown):
        notify(f"task {name}: its agent has no conversation to go on with: it is told what was done before")


def _has_conversation(spec: SessionSpec, task: Shown) -> bool:
    """Whether the follow-up goes into the task's conversation; a script has none and needs none."""
    agent = spec.agents.get(task["agent"])
    if agent is None or agent.prompt_kind == "script":
        return True
    return bool(agent.continue_args) and task["conversation"] is not None


# --- as a new session ---


def renew(
    session: SessionDir,
    wanted: Collection[str],
    asked: AskedChange | None = None,
    tried: Collection[str] | None = None,
) -> SessionSpec:
    """The spec of a new session of these tasks (ids) of `session`; a warning names what has changed since.

    Those of them that are `tried` again (None: all) get the agent, model or prompt that is asked for; the others
    only come along.

    Raises:
        InputError: a task, an agent, a directory or the repository is gone, or the configuration is broken.
        StoreError: the session's files are damaged.
    """
    load_config(Path.cwd(), os.environ, table.BUILTIN)  # broken, it stops this launch, too
    state = fold_journal(session)
    spec, tasks = state.spec, state.tasks
    unknown = [name for name in wanted if name not in tasks]
    if unknown:
        raise InputError(f"no task {unknown[0]!r} in session {spec.session_id}")
    if asked is not None:
        # a new session has no conversation that a change could break, and a launch asks for itself who is ready
        changed = [tasks[name] for name in (wanted if tried is None else tried)]
        fresh = [TaskState(task.spec, task.num) for task in changed]
        change_tasks(state, changed, settle_change(spec, fresh, asked, ready=False))
        spec = replace(state.spec, agent=asked.agent or spec.agent)
    return _renew_spec(spec, _leave_out_mends(spec, wanted, tasks), tasks)


def _renew_spec(spec: SessionSpec, names: Collection[str], tasks: Mapping[str, TaskState]) -> SessionSpec:
    """The spec as a launch of these tasks would make it now.

    A need on a task that is not among them is met, for that task succeeded.  Its work is handed on while its
    branch exists: a branch that is gone was merged, or is not wanted.
    """
    specs = [task.spec for task in tasks.values()]
    chosen = tuple(_renew_task(task, names, tasks, spec) for task in specs if task.id in names)
    used = agents_of(chosen)
    known = {name: agent for name, agent in spec.agents.items() if name in used}
    for agent in known.values():
        table.check_startable(agent, approve=spec.approve, euid=os.geteuid(), environ=os.environ)
    repository = None
    if spec.repository is not None and any(task.workspace.kind == "worktree" for task in chosen):
        repository = _renew_repository(spec.repository)
        excludes = ignore_leavings(repository.excludes, table.leavings(known.values()))
        repository = replace(repository, excludes=excludes)
    renewed = replace(
        spec,
        session_id=str(uuid.uuid4()),
        created_at=format_time(time()) or "",
        tasks=chosen,
        agents=known,
        open_feed=False,
        feed=None,
        template=None,
        repository=repository,
        exports=_renew_exports(spec, chosen),
        origin=spec.origin or spec.session_id,
    )
    check_spec(renewed)
    return renewed


def _leave_out_mends(spec: SessionSpec, wanted: Collection[str], tasks: Mapping[str, TaskState]) -> set[str]:
    """The tasks without mends of their work: a mend begins with what its own session has.

    Raises:
        InputError: a mend is wanted without the task whose work it mends.
    """
    owners = {name: mend.task for name in wanted if (mend := tasks[name].spec.mend) is not None}
    for name, owner in owners.items():
        if owner not in wanted:
            how = f"name {owner!r} instead, or retry it in session {spec.session_id}"
            raise InputError(f"task {name!r} mends the work of {owner!r} in its own session: {how}")
    return {name for name in wanted if name not in owners}


def _renew_task(
    task: TaskSpec, names: Collection[str], tasks: Mapping[str, TaskState], spec: SessionSpec
) -> TaskSpec:
    """The task with the needs that are left, and the branches of the needs that are met."""
    needs = tuple(need for need in task.needs if need in names)
    met = tuple(need for need in task.needs if need not in names)
    repository = repository_of(spec, task)
    if repository is None or not (met or task.handed) or not has_worktree(task):
        return replace(task, needs=needs)
    from sessionrun.git.private import open_fence

    state = tasks[task.id]
    ends = find_handed(replace(state, spec=replace(task, needs=met)), tasks)
    with open_fence(repository) as fence:
        git = fence.main()
        there = [end for end in ends if end.commit and end.branch and git.commit_of(f"refs/heads/{end.branch}")]
    return replace(task, needs=needs, handed=as_earlier(tuple(there)))


def _renew_exports(spec: SessionSpec, tasks: Sequence[TaskSpec]) -> tuple[Export, ...]:
    """The exports, which keep the other runs in their files."""
    if not spec.exports:
        return ()
    from sessionrun.session.exports import open_exports

    return tuple(export.carry_others(tasks) for export in open_exports(spec.exports))


def _renew_repository(old: Repository) -> Repository:
    """The repository with the branch's commit of now, as at a fresh launch; without a branch, with the old one."""
    from sessionrun.git.git import Git
    from sessionrun.git.repository import find_repository

    there = os.path.isdir(old.top) and Git(Path(old.top)).commit_of(old.base_branch) is not None
    repository, remarks = find_repository(
        Path(old.top),
        base=old.base_branch if there else old.base_commit,
        worktree_dir=Path(old.worktree_dir),
        keep=old.keep,
    )
    for remark in remarks:
        notify(remark)
    return replace(repository, base_branch=old.base_branch)
