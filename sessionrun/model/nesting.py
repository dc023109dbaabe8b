"""A session that a job of another session launched; jobs learn by variables what holds for such a session."""

from __future__ import annotations

from typing import Final

from sessionrun.model.frozen import frozen

DEPTH_VARIABLE: Final = "SESSIONRUN_DEPTH"
"""How deep a session is that this job launches: 1 if the job's own session was launched by no job."""

BUDGET_VARIABLE: Final = "SESSIONRUN_BUDGET_USD"
"""The most that a session may cost which this job launches (US dollars); not there: no limit."""

MAX_DEPTH: Final = 3
"""How deep sessions may be if no setting says otherwise."""


@frozen
class Parent:
    """The session and the task whose job launched a session; for `depth` see `DEPTH_VARIABLE`."""

    session_id: str
    task: str
    depth: int = 1
