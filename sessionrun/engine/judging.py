"""Decides how an attempt ends where its work counts more than the end of its last job.

Pure.  An attempt whose CHECK fails in the last round, or whose agent breaks off, has left work all the same.
Hidden tests may pass on that work.  So PARK and PROVE come before the outcome.  If the tests pass, the task has
succeeded.  If they do not pass, the task has failed for the reason of the job that failed.  A failure that says
nothing about the work (a limit, a repository that cannot be fetched) ends the attempt without the tests, because
such a task is run again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sessionrun.engine.moves import decide_outcome, enter
from sessionrun.engine.rounds import ENDS_WITH_BEST
from sessionrun.engine.state import State
from sessionrun.engine.task import Failure, TaskState
from sessionrun.model.keys import Phase
from sessionrun.model.mends import REFUSED
from sessionrun.model.reasons import INFRASTRUCTURE, NO_TESTS, UNRESOLVED
from sessionrun.model.spec import Outcome, hides_tests

LEAVES_WORK: Final[frozenset[Phase]] = frozenset(("work", "check"))
"""Phases that leave work when they fail."""


def fail(state: State, task: TaskState, outcome: Outcome, reason_class: str | None, reason: str | None) -> None:
    """End the attempt without success; if hidden tests can judge its work, they do so first."""
    if _is_judged_first(task, outcome, reason_class):
        task.failure = Failure(outcome, reason_class, reason)
        enter(state, task, "park")
    elif task.failure is not None and reason_class in (UNRESOLVED, NO_TESTS):
        decide_outcome(state, task, *task.failure)
    else:
        decide_outcome(state, task, outcome, reason_class, reason)


def demands_change(task: TaskState) -> bool:
    """Whether the task fails if its work changes nothing: not where hidden tests pass, because they decide."""
    return task.spec.expect_change and not (hides_tests(task.spec) and task.proof == "proved")


def take_back(task: TaskState) -> None:
    """Make a failure of a success if RELEASE has found no change where the task demands one, or refuses a mend."""
    refused = task.place.refused if task.place is not None else None
    if task.decided == "succeeded" and refused is not None:
        task.decided, task.reason_class, task.reason = "failed", REFUSED, f"{REFUSED}: {refused}"
    unchanged = task.place is not None and task.place.changed is False
    if task.decided == "succeeded" and demands_change(task) and unchanged:
        reason = "no_change: nothing in its worktree differs from the base commit"
        task.decided, task.reason_class, task.reason = "failed", "no_change", reason


def _is_judged_first(task: TaskState, outcome: Outcome, reason_class: str | None) -> bool:
    leaves = task.phase in LEAVES_WORK and outcome in ENDS_WITH_BEST
    return hides_tests(task.spec) and leaves and reason_class not in INFRASTRUCTURE


def tell_kept(task: TaskState, why: str | None) -> None:
    """RELEASE did not come to its end: the worktree, or what is left of it, is where it was."""
    if task.place is not None and task.place.worktree is not None:
        task.place = replace(task.place, kept=why)
