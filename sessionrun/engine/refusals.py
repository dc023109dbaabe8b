"""Why a session cannot do what is asked of it, as it stands now.

Pure.  The question comes before the record: a request that is refused leaves no trace in the journal.
"""

from __future__ import annotations

from sessionrun.engine.additions import find_addition_fault
from sessionrun.engine.changes import find_change_fault
from sessionrun.engine.follow_ups import find_follow_up_fault
from sessionrun.engine.requests import list_chosen
from sessionrun.engine.state import State
from sessionrun.engine.width import find_width_fault
from sessionrun.model.events import RequestReceived, TasksAdded


def find_fault(state: State, request: RequestReceived | TasksAdded) -> str | None:
    """Why a request cannot be done; None: it can, or it was recorded before and is only to be acknowledged."""
    if request.request_id in state.requests:
        return None
    if isinstance(request, TasksAdded):
        return find_addition_fault(state, request)
    if request.kind == "set":
        return find_width_fault(state, request)
    unknown = next((name for name in request.tasks if name not in state.tasks), None)
    if unknown is not None:
        return f"there is no task {unknown!r:.140}"
    if request.change is not None:
        return find_change_fault(list_chosen(state, request), request.change, state.spec.agents)
    return find_follow_up_fault(state, request) if request.kind == "continue" else None
