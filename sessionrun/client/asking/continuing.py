"""`continue`: a task that has ended goes on in its conversation and on its branch, with a follow-up.

What the session itself would refuse is refused here first, where it is known: nothing is started for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sessionrun.client.asking.control import TAKEN_TIMEOUT_S, Reply, Target
from sessionrun.client.asking.requests import Refused, ask
from sessionrun.client.notices import notify
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.model.spec import SessionSpec, TaskSpec


def continue_task(session: SessionDir, task: str, text: str, *, timeout_s: float = TAKEN_TIMEOUT_S) -> Reply:
    """Ask more of a task that has ended; a session that has ended lives again for that.

    A warning says so if the agent cannot go on with its conversation.

    Raises:
        InputError: the text is empty or too long, the task does not exist, has not ended, or cannot go on.
        SessionGone: the session's processes are gone and cannot be started again; the request stays.
        StoreError: the request cannot be written.
    """
    from sessionrun.runtime.history import find_task, load_spec_now, load_tasks

    check_text(text)
    target = Target(session, (task,))
    shown = target.tasks[0]
    _check_ended(target.view, shown)
    spec, own = load_spec_now(session), find_task(session, load_tasks(session), shown["id"])
    _check_branch(spec, own, shown)
    if not _has_conversation(spec, shown):
        notify(f"task {shown['id']}: its agent has no conversation to go on with: it is told what was done before")
    record = {"kind": "continue", "tasks": [shown["id"]], "text": text}
    try:
        return target.reply(taken=ask(session, record, timeout_s=timeout_s))
    except Refused as error:
        raise InputError(f"task {shown['id']!r} cannot be continued: {error.why}") from None


def check_text(text: str) -> None:
    """Check the text of a follow-up.

    Raises:
        InputError: it is empty, too long, or no UTF-8.
    """
    from sessionrun.store.requests import MAX_TEXT

    if not text.strip():
        raise InputError("the follow-up is empty: write what the task shall do")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InputError("the follow-up is not UTF-8; write it as UTF-8") from None
    if size > MAX_TEXT:
        raise InputError(
            f"the follow-up has {size} bytes, and may have {MAX_TEXT}: put it into a file and name that"
        )


def _check_ended(view: Mapping[str, Any], task: Mapping[str, Any]) -> None:
    """Refuse what the session would refuse as well."""
    name = f"task {task['id']!r}"
    if view["status"] == "interrupted":
        raise InputError(f"session {view['session_id']} was interrupted: sessionrun resume lets it go on first")
    if task.get("mends"):
        raise InputError(f"{name} mends the work of {task['mends']!r}: continue that one")
    if task["status"] != "completed":
        raise InputError(f"{name} has not ended: wait for it, or cancel it first")
    if task.get("repo"):
        raise InputError(f"{name} worked in a repository of its own, which may be gone: start a new session")
    if task["started_at"] is None:
        raise InputError(f"{name} has not begun: there is nothing to go on with; use sessionrun retry")
    if (task.get("landing") or {}).get("status") == "landing" and view["ended_at"] is None:
        raise InputError(f"the work of {name} is landing: continue it when it has landed")


def _check_branch(spec: SessionSpec, own: TaskSpec, task: Mapping[str, Any]) -> None:
    """Refuse a task whose branch does not hold its work any more, or is in use; PREPARE would find the same."""
    from sessionrun.engine.handed import is_empty
    from sessionrun.model.places import Place
    from sessionrun.model.repositories import has_worktree, repository_of

    repository = repository_of(spec, own)
    if not has_worktree(own) or repository is None or task["base_commit"] is None:
        return
    earlier = Place(
        branch=task["branch"],
        worktree=task["worktree"],
        base_commit=task["base_commit"],
        commit=task["commit"],
        rescue=task["rescue_branch"],
        setup_commit=task.get("setup_commit"),
    )
    if is_empty(earlier):
        return
    from sessionrun.workspaces.request import WorkspaceRequest
    from sessionrun.workspaces.taking_up import check_earlier

    try:
        check_earlier(WorkspaceRequest(repository, spec.session_id, own.id, "", earlier=earlier))
    except (SessionrunError, OSError) as error:
        raise InputError(f"task {task['id']!r} cannot be continued: {error}") from None


def _has_conversation(spec: SessionSpec, task: Mapping[str, Any]) -> bool:
    """Whether the follow-up goes into the task's conversation; a script has none and needs none."""
    agent = spec.agents.get(task["agent"])
    if agent is None or agent.prompt_kind == "script":
        return True
    return bool(agent.continue_args) and task["conversation"] is not None
