"""A new session of some tasks of an old one: what `retry --new` starts."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from time import time

import click

from sessionrun import agents
from sessionrun.cli.assemble import agents_of, check_spec, ignore_leavings
from sessionrun.cli.run import Launch, start_session
from sessionrun.model import Repository, SessionSpec, TaskSpec, View
from sessionrun.status import format_time
from sessionrun.store import SessionDir


def start_renewed(
    session: SessionDir, wanted: Collection[str], *, sync: bool, quiet: bool, as_json: bool, ready: bool
) -> int:
    """Start these tasks (ids) of `session` in a session of their own beside it; the exit code of that.

    Raises:
        InputError: they cannot run any more; nothing was created.
    """
    from sessionrun.cli.render import escape_line, warn
    from sessionrun.config import load_config

    load_config(
        Path.cwd(), os.environ, agents.BUILTIN
    )  # broken settings stop this launch, too, though it needs none
    spec, remark = renew_spec(session.load_spec(), wanted)
    if remark:
        warn(remark)
    if not quiet:
        click.echo(f"agent: {escape_line(spec.agent)} (as in session {session.session_id})", err=True)
    return start_session(
        spec, Launch(session.path.parent, as_json=as_json, quiet=quiet, verbose=False, sync=sync, ready=ready)
    )


def renew_spec(spec: SessionSpec, wanted: Collection[str]) -> tuple[SessionSpec, str | None]:
    """The spec of a new session of these tasks, as a launch would make it now; and a remark for people.

    A need on a task that is not among them is met: it succeeded.

    Raises:
        InputError: an agent, a directory or the repository is not there any more.
    """
    names = set(wanted)
    tasks = tuple(
        replace(task, needs=tuple(need for need in task.needs if need in names))
        for task in spec.tasks
        if task.id in names
    )
    used = agents_of(tasks)
    known = {name: agent for name, agent in spec.agents.items() if name in used}
    for agent in known.values():
        agents.check_startable(agent, approve=spec.approve, euid=os.geteuid(), environ=os.environ)
    repository, remark = None, None
    if spec.repository is not None and any(task.workspace.kind == "worktree" for task in tasks):
        repository, remark = _renew_repository(spec.repository)
    renewed = replace(
        spec,
        session_id=str(uuid.uuid4()),
        created_at=format_time(time()) or "",
        tasks=tasks,
        agents=known,
        open_feed=False,
        repository=ignore_leavings(repository, known),
        views=_renew_views(spec, tasks),
    )
    check_spec(renewed)
    return renewed, remark


def _renew_views(spec: SessionSpec, tasks: Sequence[TaskSpec]) -> tuple[View, ...]:
    """The views, with the other runs of their files."""
    if not spec.views:
        return ()
    from sessionrun.views import carry_others

    return tuple(carry_others(view, tasks) for view in spec.views)


def _renew_repository(old: Repository) -> tuple[Repository, str | None]:
    """Begin where the branch stands now, as a fresh launch would; where it is gone, at the commit of then."""
    from sessionrun.git import Git
    from sessionrun.workspaces.repository import find_repository

    there = os.path.isdir(old.top) and Git(Path(old.top)).commit_of(old.base_branch) is not None
    found, remark = find_repository(
        Path(old.top),
        base=old.base_branch if there else old.base_commit,
        worktree_dir=Path(old.worktree_dir),
        keep=old.keep,
    )
    return replace(found, base_branch=old.base_branch), remark
