"""Makes the spec of a new session from tasks of an old session, for `retry --new`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from sessionrun.agents import table
from sessionrun.client.config import load_config
from sessionrun.client.notices import notify
from sessionrun.client.planning.assemble import agents_of, check_spec, ignore_leavings
from sessionrun.client.reading.view import fold_journal
from sessionrun.engine.handed import as_earlier, find_handed
from sessionrun.engine.task import TaskState
from sessionrun.model.errors import InputError
from sessionrun.model.events import change_task
from sessionrun.model.places import Repository
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.spec import Export, SessionSpec, TaskSpec
from sessionrun.model.times import format_time
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.client.asking.changing import AskedChange


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
        InputError: a task does not exist, or cannot run any more, or not so, or the configuration is broken.
        StoreError: the session's files are damaged.
    """
    load_config(Path.cwd(), os.environ, table.BUILTIN)  # broken, it stops this launch, too
    state, _ = fold_journal(session)
    spec, tasks = state.spec, state.tasks
    unknown = [name for name in wanted if name not in tasks]
    if unknown:
        raise InputError(f"no task {unknown[0]!r} in session {spec.session_id}")
    if asked is not None:
        spec, tasks = _change(spec, tasks, wanted if tried is None else tried, asked)
    spec, remarks = renew_spec(spec, wanted, tasks)
    for remark in remarks:
        notify(remark)
    return spec


def _change(
    spec: SessionSpec, tasks: Mapping[str, TaskState], names: Collection[str], asked: AskedChange
) -> tuple[SessionSpec, dict[str, TaskState]]:
    """Spec and tasks with what is asked for; a new session has no conversation that a change could break."""
    from sessionrun.client.asking.changing import settle_change

    fresh = [TaskState(task.spec, task.num) for name, task in tasks.items() if name in names]
    change = settle_change(spec, fresh, asked, ready=False)  # a launch asks for itself
    changed = {task.spec.id: replace(tasks[task.spec.id], spec=change_task(task.spec, change)) for task in fresh}
    spec = replace(
        spec,
        agent=change.agent or spec.agent,
        agents={**change.agents, **spec.agents},
        prices={**change.prices, **spec.prices},
    )
    return spec, {**tasks, **changed}


def renew_spec(
    spec: SessionSpec, wanted: Collection[str], tasks: Mapping[str, TaskState]
) -> tuple[SessionSpec, list[str]]:
    """The spec of a new session of these tasks, as a launch would make it now; and remarks for the user.

    A need on a task that is not among them is met, for that task succeeded.  Its work is handed on while its
    branch exists: a branch that is gone was merged, or is not wanted.

    Raises:
        InputError: an agent, a directory or the repository is gone.
    """
    names = _leave_out_mends(spec, wanted, tasks)
    specs = [task.spec for task in tasks.values()]
    chosen = tuple(_renew_task(task, names, tasks, spec) for task in specs if task.id in names)
    used = agents_of(chosen)
    known = {name: agent for name, agent in spec.agents.items() if name in used}
    for agent in known.values():
        table.check_startable(agent, approve=spec.approve, euid=os.geteuid(), environ=os.environ)
    repository, remarks = None, list[str]()
    if spec.repository is not None and any(task.workspace.kind == "worktree" for task in chosen):
        repository, remarks = _renew_repository(spec.repository)
    renewed = replace(
        spec,
        session_id=str(uuid.uuid4()),
        created_at=format_time(time()) or "",
        tasks=chosen,
        agents=known,
        open_feed=False,
        feed=None,
        template=None,
        repository=ignore_leavings(repository, known),
        exports=_renew_exports(spec, chosen),
        origin=spec.origin or spec.session_id,
    )
    check_spec(renewed)
    return renewed, remarks


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
    from sessionrun.workspaces.fence import open_fence

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
    from sessionrun.runtime.exports.writer import open_exports

    return tuple(export.carry_others(tasks) for export in open_exports(spec.exports))


def _renew_repository(old: Repository) -> tuple[Repository, list[str]]:
    """The repository with the branch's commit of now, as at a fresh launch; without a branch, with the old one."""
    from sessionrun.workspaces.git import Git
    from sessionrun.workspaces.repository import find_repository

    there = os.path.isdir(old.top) and Git(Path(old.top)).commit_of(old.base_branch) is not None
    repository, remarks = find_repository(
        Path(old.top),
        base=old.base_branch if there else old.base_commit,
        worktree_dir=Path(old.worktree_dir),
        keep=old.keep,
    )
    return replace(repository, base_branch=old.base_branch), remarks
