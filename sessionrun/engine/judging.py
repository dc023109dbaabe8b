"""What follows when an attempt fails: hidden tests judge first what it left.

Pure.  A check that fails in the last round, or an agent that breaks off, leaves work.  How the attempt ended does
not tell whether that work passes the hidden tests.  So PARK and PROVE come before the outcome.  If the tests pass,
the task has succeeded.  If they do not pass, it has failed for its own reason.  A failure that says nothing about
the work (a limit, a repository that cannot be fetched) is not judged, because such a task is run again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sessionrun.engine.moves import decide_outcome, enter
from sessionrun.engine.rounds import ENDS_WITH_BEST
from sessionrun.engine.state import State, TaskState
from sessionrun.engine.task import Failure
from sessionrun.model.keys import Phase
from sessionrun.model.reasons import INFRASTRUCTURE, UNRESOLVED
from sessionrun.model.spec import Outcome, hides_tests

LEAVES_WORK: Final[frozenset[Phase]] = frozenset(("work", "check"))
"""Phases that leave something to judge when they fail."""


def fail(state: State, task: TaskState, outcome: Outcome, reason_class: str | None, reason: str | None) -> None:
    """The attempt ends without success, or is judged first."""
    progress = task.progress
    if _is_judged_first(task, outcome, reason_class):
        progress.failure = Failure(outcome, reason_class, reason)
        enter(state, task, "park")
    elif progress.failure is not None and reason_class == UNRESOLVED:
        decide_outcome(state, task, *progress.failure)
    else:
        decide_outcome(state, task, outcome, reason_class, reason)


def _is_judged_first(task: TaskState, outcome: Outcome, reason_class: str | None) -> bool:
    leaves = task.progress.phase in LEAVES_WORK and outcome in ENDS_WITH_BEST
    return hides_tests(task.spec) and leaves and reason_class not in INFRASTRUCTURE


def demand_change(task: TaskState) -> None:
    """What RELEASE found may take a success back: the work was to change something, and nothing came out."""
    unchanged = task.place is not None and task.place.changed is False
    if task.end.decided == "succeeded" and task.spec.expect_change and unchanged:
        reason = "no_change: nothing in its worktree differs from the base commit"
        task.end = task.end._replace(decided="failed", reason_class="no_change", reason=reason)


def tell_kept(task: TaskState, why: str | None) -> None:
    """RELEASE did not come to its end: the worktree, or what is left of it, is where it was."""
    if task.place is not None and task.place.worktree is not None:
        task.place = replace(task.place, kept=why)
