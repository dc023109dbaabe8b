"""Where a task goes when one of its jobs ends: by one literal, total grid.

Every rule about the order of phases is a cell of the grid (docs/files.md prints it); a phase
that a task does not have counts as `passed`.  RELEASE is owed by every task whose PREPARE was claimed, so an
outcome here leads through it; the table need not say so.

An attempt whose CHECK fails in the last round, or whose agent breaks off, has left work all the same, and hidden
tests may pass on that work.  So PARK and PROVE come before the outcome: if the tests pass, the task has
succeeded; if not, it has failed for the reason of the job that failed.  A failure that says nothing about
the work (a limit, a repository that cannot be fetched) ends the attempt without the tests, because such a task is
run again.

The best round is the one in which most tests passed, then the one with the smallest diff, then the later one.  A
round of which no test is counted is worse than one with counts; where none is counted, the last one is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, TypeAlias

from sessionrun.engine.money import describe_used_up, is_used_up
from sessionrun.engine.moves import decide_outcome, enter, give, job_tokens, offer
from sessionrun.engine.providers import end_canary, keep_in_work
from sessionrun.engine.state import BUDGET, State
from sessionrun.engine.task import UP_TO_WORK, Best, Failure, Keeper, RunningJob, TaskState
from sessionrun.model.checks import Checked
from sessionrun.model.events import VERDICTS, Entry, JobFinished, JobLost, Stopping, Verdict
from sessionrun.model.keys import PHASES, Phase
from sessionrun.model.landings import MEND_REFUSED
from sessionrun.model.spec import OUTCOMES, RETRY_FAILED, Limits, Outcome, TaskSpec, hides_tests
from sessionrun.model.units import format_size
from sessionrun.model.words import (
    CHECK_NOT_RUN,
    INFRASTRUCTURE,
    LEFT_RUNNING,
    LINGERED,
    NO_TESTS,
    UNRESOLVED,
    WORKSPACE_REASONS,
    effect_of,
)

Target: TypeAlias = Phase | Outcome | Literal["again", "keep"]
"""The next phase, the outcome, `again` (the same phase, next start) or `keep` (the outcome decided before)."""

Judgement: TypeAlias = Verdict | Literal["overdue"]
"""What counts of a job's end: its verdict, or that it was stopped because the time of its round was up."""

LINGERING: Final[frozenset[Stopping]] = frozenset(("timeout", "round_timeout", "idle_timeout", "linger"))
"""Reasons to stop WORK which count less than its last word."""

JUDGEMENTS: Final[tuple[Judgement, ...]] = (*VERDICTS, "overdue")
"""The columns of the grid, in their order."""

TASK_PHASES: Final[tuple[Phase, ...]] = tuple(phase for phase in PHASES if phase != "land")
"""The phases of a task; LAND is one job for the work of many: rules have it (see `engine.state.Rules`)."""

_ROWS: Final[dict[Phase, tuple[Target, ...]]] = {
    "prepare": ("setup", "failed", "timed_out", "cancelled", "again", "again", "again", "timed_out"),
    "setup": ("work", "failed", "timed_out", "cancelled", "lost", "interrupted", "again", "timed_out"),
    "work": ("check", "failed", "timed_out", "cancelled", "lost", "interrupted", "again", "timed_out"),
    "check": ("park", "failed", "timed_out", "cancelled", "again", "again", "again", "timed_out"),
    "park": ("prove", "failed", "timed_out", "cancelled", "again", "again", "again", "timed_out"),
    "prove": ("succeeded", "failed", "timed_out", "cancelled", "again", "again", "again", "timed_out"),
    "release": ("keep", "keep", "keep", "keep", "again", "again", "again", "keep"),
}
_WITH_ROUNDS_LEFT: Final[dict[tuple[Phase, Judgement], Target]] = {
    ("work", "overdue"): "work",
    ("check", "failed"): "work",
    ("check", "overdue"): "work",
    ("prove", "failed"): "work",
}
TRANSITIONS: Final[dict[tuple[Phase, Judgement, bool], Target]] = {
    (phase, judgement, left): (_WITH_ROUNDS_LEFT.get((phase, judgement), target) if left else target)
    for phase, targets in _ROWS.items()
    for judgement, target in zip(JUDGEMENTS, targets, strict=True)
    for left in (True, False)
}
"""By phase, judgement, and whether rounds are left."""

MAX_STARTS: Final = 3
"""How often one phase is started anew before `again` gives up."""

ALONE: Final = 5
"""What a try counts that ended alone; one that ended with its keeper counts 1."""

MAX_TRIES: Final = MAX_STARTS * ALONE
"""With so much the phase is not started again."""

LEAVES_WORK: Final[frozenset[Phase]] = frozenset(("work", "check"))
"""Phases that leave work when they fail."""

WHEN_AGAIN_ENDS: Final[dict[Phase, Target]] = {
    **dict.fromkeys(UP_TO_WORK, "failed"),
    **dict.fromkeys(("check", "park", "prove"), "lost"),
    "release": "keep",
}

AS_PHASE: Final[dict[Target, Phase]] = {phase: phase for phase in TASK_PHASES}
AS_OUTCOME: Final[dict[Target, Outcome]] = {outcome: outcome for outcome in OUTCOMES}


def judge_stopped(
    phase: Phase, stopping: Stopping | None, verdict: Verdict, reason_class: str | None = None
) -> Judgement | None:
    """The judgement of a job that was being stopped when it ended; None: its own one holds.

    It ended for that reason, whatever its exit code says, but for two cases.  What LAND and RELEASE did is done,
    and what a PREPARE did whose time was up.  WORK that ran out of time and whose end was not seen stays `lost`,
    because `timed_out` may be tried again.  WORK that had said its last word, and then waited for work in the
    background until its time was up, is not done again: only what it left running is missing.  WORK whose
    last word was a limit of its provider has met that limit, and WORK that only did not exit is done.
    """
    unseen = verdict in ("lost", "interrupted")
    if stopping is None or (phase == "land" and unseen):
        return None
    if verdict == "passed" and (phase in ("land", "release") or stopping == "workspace_timeout"):
        return None
    if stopping == "cancelled":
        return "cancelled"
    has_said_why = reason_class in (LEFT_RUNNING, LINGERED) or effect_of(reason_class) != "none"
    if stopping in ("silent_limit", "linger") or (has_said_why and stopping in LINGERING):
        return None
    if stopping == "workspace_timeout":
        return "failed"
    if unseen:
        return None
    if stopping == "round_timeout":
        return "overdue"
    return "timed_out" if stopping in ("timeout", "idle_timeout") else "failed"


def describe_stop(spec: TaskSpec, limits: Limits, phase: Phase, stopping: Stopping) -> tuple[str, str]:
    """Reason class and reason of a job that was stopped."""
    if stopping == "cancelled":
        return "cancelled", "cancelled: on request"
    if stopping == "workspace_timeout":
        reason_class = WORKSPACE_REASONS.get(phase, "workspace_failed")
        return reason_class, f"{reason_class}: not done after {limits.workspace_timeout_s:g} s ({stopping})"
    if stopping == "idle_timeout":
        return "stalled", f"stalled: no output for {spec.idle_timeout_s:g} s"
    if stopping == "linger":
        return LINGERED, f"{LINGERED}: did not exit by itself; ended after {spec.linger_s:g} s"
    if stopping == "silent_limit":
        return "rate_limited", "rate_limited: its agent waited for a limit of its provider and printed nothing"
    if stopping == "disk_limit":
        most = spec.sandbox.disk if spec.sandbox is not None else None
        return "disk_limit", f"disk_limit: what it can write came to more than {format_size(most or 0)}"
    times = {
        "timeout": spec.timeout_s,
        "round_timeout": spec.round_timeout_s,
        "setup_timeout": spec.setup_timeout_s,
        "check_timeout": spec.check.timeout_s if spec.check else None,
    }
    return stopping, f"{stopping}: not done after {times[stopping]:g} s"


def find_keeper(state: State) -> Keeper:
    lives = state.supervisor
    return (None, None) if lives is None else (lives.keeper, lives.keeper_started)


def count_try(state: State, job: RunningJob, event: JobFinished | JobLost) -> int:
    """What a try that ended without a result counts; 0: the job never ran, for a reason that is not its own.

    A job that dies alone may well die again, so it has three starts.  One that dies together with its keeper is
    hardly the cause: a user or the machine ended all processes.  Five of those count as one.
    """
    if isinstance(event, JobLost) and event.verdict == "void" and not event.counts:
        return 0
    return ALONE if find_keeper(state) == job.keeper else 1


def end_job(state: State, entry: Entry, task: TaskState, job: RunningJob, end: JobFinished, tries: int) -> None:
    """Where the task goes; `tries` is what the start counts if it has no result."""
    reason_class, reason = end.reason_class, end.reason
    verdict: Judgement = end.verdict
    phase = job.key.phase
    give(state, list(job_tokens(state, task, phase)))
    stopped = judge_stopped(phase, job.stopping, end.verdict, end.reason_class)
    if stopped is not None and job.stopping is not None:
        verdict, (reason_class, reason) = stopped, describe_stop(task.spec, state.spec.limits, phase, job.stopping)
    elif reason_class == LEFT_RUNNING and job.stopping is not None:
        reason = f"{reason} ({describe_stop(task.spec, state.spec.limits, phase, job.stopping)[1]})"
    if reason_class == LEFT_RUNNING and job.stopping != "timeout" and task.has_round_after(phase):
        verdict = "overdue"  # the round is not done, and the next one can do what is missing
    target = TRANSITIONS[phase, verdict, task.has_round_after(phase) and reason_class != CHECK_NOT_RUN]
    if phase == "work" and verdict not in ("lost", "interrupted", "void", "cancelled"):
        # before the task may go on with an agent of another provider
        if state.providers and effect_of(reason_class) == "none":
            end_canary(state, task, entry.mono)
        failure = replace(end, reason_class=reason_class, reason=reason)
        if verdict not in ("passed", "overdue") and keep_in_work(state, entry, task, failure):
            return
        if (
            verdict == "passed"
            and task.spec.prompt_mode == "continue"
            and task.thread.turn < len(task.spec.prompts)
        ):
            _take_turn(state, task)
            return
    if target == "again":
        task.tries += tries
        if task.tries < MAX_TRIES and job.stopping is None:
            task.start += 1
            offer(state, task)
            return
        target = WHEN_AGAIN_ENDS[phase]
    if phase == "release" and verdict != "passed" and task.place is not None and task.place.worktree is not None:
        task.place = replace(task.place, kept=reason)  # the worktree, or what is left of it, is where it was
    _go_to(state, task, target, reason_class, reason)


def _go_to(state: State, task: TaskState, target: Target, reason_class: str | None, reason: str | None) -> None:
    """Enter the phase that the table names, passing those the task does not have, or decide the outcome."""
    phase = AS_PHASE.get(target)
    while phase is not None and not task.has_phase(phase):
        target = TRANSITIONS[phase, "passed", task.round < task.spec.rounds]
        phase = AS_PHASE.get(target)
    is_next_round = phase == "work" and task.phase in ("work", "check", "prove")
    if is_next_round and is_used_up(state, task):
        decide_outcome(state, task, "failed", BUDGET, describe_used_up(state, task))
    elif phase is not None:
        if is_next_round:
            task.round += 1
            task.round_deadline, task.overdue = None, reason_class == "round_timeout"
            if reason_class == LEFT_RUNNING:
                task.thread = task.thread._replace(broken_off=reason)
        enter(state, task, phase)
    elif target == "succeeded":
        decide_outcome(state, task, "succeeded", *(task.remark or (None, None)))
    elif target == "keep":
        task.prepared = False
        state.queue.decided.append(task.spec.id)
    else:
        fail(state, task, AS_OUTCOME[target], reason_class, reason)


def _take_turn(state: State, task: TaskState) -> None:
    """On to the next prompt of the conversation, while there is money for it."""
    if is_used_up(state, task):
        decide_outcome(state, task, "failed", BUDGET, describe_used_up(state, task))
        return
    task.thread = task.thread._replace(turn=task.thread.turn + 1)
    task.start, task.tries = task.start + 1, 0
    offer(state, task)


def fail(state: State, task: TaskState, outcome: Outcome, reason_class: str | None, reason: str | None) -> None:
    """End the attempt without success; if hidden tests can judge its work, they do so first."""
    leaves = task.phase in LEAVES_WORK and outcome in RETRY_FAILED
    if leaves and hides_tests(task.spec) and reason_class not in INFRASTRUCTURE:
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
        task.decided, task.reason_class, task.reason = "failed", MEND_REFUSED, f"{MEND_REFUSED}: {refused}"
    unchanged = task.place is not None and task.place.changed is False
    if task.decided == "succeeded" and demands_change(task) and unchanged:
        reason = "no_change: nothing in its worktree differs from the base commit"
        task.decided, task.reason_class, task.reason = "failed", "no_change", reason


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
    return best if is_earlier and outcome in RETRY_FAILED else None  # others were not awaited to their end


def _choose(best: Best | None, number: int, checked: Checked, *, passed: bool) -> Best | None:
    if passed:
        return Best(number, checked, "its check passed")
    if checked.snapshot is None:
        return best
    if best is None:
        return Best(number, checked, "the first round that was checked")
    old, new = _rank(best.checked), _rank(checked)
    high, low, other = (new, old, best.round) if new >= old else (old, new, number)
    if not high:
        why = "the last round; no test is counted"
    elif not low:
        why = f"of round {other} no test is counted"
    elif high[0] != low[0]:
        why = f"{high[0]} tests passed, and in round {other} {low[0]}"
    else:
        size = "a smaller diff" if high != low else "a diff of the same size"
        why = f"as many tests passed as in round {other}, with {size}"
    return Best(number, checked, why) if new >= old else best._replace(why=why)


def _rank(checked: Checked) -> tuple[int, ...]:
    """What makes a round better than another: tests that passed, then a smaller diff; () where none is counted."""
    counts, stat = checked.counts, checked.diff_stat
    if counts is None:
        return ()
    return counts.passed, -(stat["insertions"] + stat["deletions"]) if stat else 0
