"""Rounds of an attempt: how the next one begins, and which one's work is kept.

Pure.  The best round is the one in which most tests passed, then the one with the smallest diff, then the
later one.  A round of which no test is counted is worse than one with counts; where none is counted, the last one
is kept.
"""

from __future__ import annotations

from typing import Final

from sessionrun.engine.task import Best, TaskState
from sessionrun.model.checks import Checked
from sessionrun.model.reasons import LEFT_RUNNING
from sessionrun.model.spec import Outcome

ENDS_WITH_BEST: Final[frozenset[Outcome]] = frozenset(("failed", "timed_out"))
"""Outcomes before which the best round's work is put back; others were not awaited to their end."""


def begin_clocks(task: TaskState, now: float) -> None:
    """A WORK job has started `now` (monotonic): the time of its attempt and of its round counts from the first."""
    if task.deadline is None and task.spec.timeout_s is not None:
        task.deadline = now + task.spec.timeout_s
    if task.round_deadline is None and task.spec.round_timeout_s is not None:
        task.round_deadline = now + task.spec.round_timeout_s


def begin_round(task: TaskState, reason_class: str | None, reason: str | None) -> None:
    """On to the next round, for this reason."""
    task.round += 1
    task.round_deadline, task.overdue = None, reason_class == "round_timeout"
    if reason_class == LEFT_RUNNING:
        task.thread = task.thread._replace(broken_off=reason)


def keep_round(task: TaskState, checked: Checked | None, *, passed: bool) -> None:
    """Note what a CHECK found out, and whether its round is the best so far."""
    task.check_passed, task.checked = passed, checked
    if task.spec.rounds > 1:
        task.best = _choose(task.best, task.round, checked or Checked(), passed=passed)


def find_better(task: TaskState) -> Best | None:
    """The earlier round whose work is put back before the task's work is parked; None: what lies there stays."""
    best = task.best
    if best is None or best.checked.counts is None or best.checked.snapshot is None:
        return None
    is_earlier = best.round < task.round and not task.check_passed
    failure = task.failure
    outcome = task.decided or (failure.outcome if failure is not None else None)
    return best if is_earlier and outcome in ENDS_WITH_BEST else None


def _choose(best: Best | None, number: int, checked: Checked, *, passed: bool) -> Best | None:
    if passed:
        return Best(number, checked, "its check passed")
    if checked.snapshot is None:
        return best
    if best is None:
        return Best(number, checked, "the first round that was checked")
    old, new = best.checked.counts, checked.counts
    if new is None or old is None:
        if old is not None:
            return best._replace(why=f"of round {number} no test is counted")
        why = "the last round; no test is counted" if new is None else f"of round {best.round} no test is counted"
        return Best(number, checked, why)
    sizes = _size_of(best.checked), _size_of(checked)
    if new.passed != old.passed:
        more, less = (number, best.round) if new.passed > old.passed else (best.round, number)
        high, low = max(new.passed, old.passed), min(new.passed, old.passed)
        why = f"{high} tests passed, and in round {less} {low}"
        return Best(number, checked, why) if more == number else best._replace(why=why)
    if sizes[1] > sizes[0]:
        return best._replace(why=f"as many tests passed as in round {number}, with a smaller diff")
    how = "with a smaller diff" if sizes[1] < sizes[0] else "with a diff of the same size"
    return Best(number, checked, f"as many tests passed as in round {best.round}, {how}")


def _size_of(checked: Checked) -> int:
    """How many lines a round changed."""
    stat = checked.diff_stat or {}
    return stat.get("insertions", 0) + stat.get("deletions", 0)
