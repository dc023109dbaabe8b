"""`continue`: a task that has ended goes on in its conversation and on its branch, with a follow-up.

What the session itself would refuse is refused here first, where it is known: nothing is started for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sessionrun.client.asking.control import TAKEN_TIMEOUT_S, Reply, Target
from sessionrun.client.asking.requests import Refused, ask, check_size
from sessionrun.client.notices import notify
from sessionrun.client.reading.view import fold_journal
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.engine.task import TaskState
    from sessionrun.model.spec import SessionSpec


def continue_task(session: SessionDir, task: str, text: str, *, timeout_s: float = TAKEN_TIMEOUT_S) -> Reply:
    """Ask more of a task that has ended; a session that has ended lives again for that.

    A warning says so if the agent cannot go on with its conversation.

    Raises:
        InputError: the text is empty or too long, the task does not exist, has not ended, or cannot go on.
        SessionGone: the session's processes are gone and cannot be started again; the request stays.
        StoreError: the request cannot be written.
    """
    from sessionrun.engine.requests import find_fault
    from sessionrun.model.events import RequestReceived

    check_text(text)
    target = Target(session, (task,))
    shown = target.tasks[0]
    if target.view["status"] == "interrupted":
        raise InputError(f"session {session.session_id} was interrupted: sessionrun resume lets it go on first")
    state, _ = fold_journal(session)
    fault = find_fault(state, RequestReceived("", "continue", (shown["id"],), text=text))
    if fault is not None:
        raise InputError(fault)
    _check_branch(state.spec, state.tasks[shown["id"]])
    if not _has_conversation(state.spec, shown):
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
    if not text.strip():
        raise InputError("the follow-up is empty: write what the task shall do")
    check_size("the follow-up", text)


def _check_branch(spec: SessionSpec, task: TaskState) -> None:
    """Refuse a task whose branch does not hold its work any more, or is in use; PREPARE would find the same."""
    from sessionrun.engine.handed import is_empty
    from sessionrun.model.repositories import has_worktree, repository_of

    repository, earlier = repository_of(spec, task.spec), task.place
    if not has_worktree(task.spec) or repository is None or earlier is None or is_empty(earlier):
        return
    from sessionrun.workspaces.request import WorkspaceRequest
    from sessionrun.workspaces.taking_up import check_earlier

    try:
        check_earlier(WorkspaceRequest(repository, spec.session_id, task.spec.id, "", earlier=earlier))
    except (SessionrunError, OSError) as error:
        raise InputError(f"task {task.spec.id!r} cannot be continued: {error}") from None


def _has_conversation(spec: SessionSpec, task: Mapping[str, Any]) -> bool:
    """Whether the follow-up goes into the task's conversation; a script has none and needs none."""
    agent = spec.agents.get(task["agent"])
    if agent is None or agent.prompt_kind == "script":
        return True
    return bool(agent.continue_args) and task["conversation"] is not None
