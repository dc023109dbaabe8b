"""Where a task goes when one of its jobs ends: one literal, total grid.

Every rule about the order of phases is a cell of the grid (docs/files.md prints it); a phase
that a task does not have counts as `passed`.  RELEASE is owed by every task whose PREPARE was claimed, so an
outcome here leads through it; the table need not say so.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from sessionrun.model.events import VERDICTS, Timer, Verdict
from sessionrun.model.keys import PHASES, Phase
from sessionrun.model.reasons import LEFT_RUNNING, LINGERED, WORKSPACE_REASONS, effect_of
from sessionrun.model.sizes import format_size
from sessionrun.model.spec import OUTCOMES, Limits, Outcome, TaskSpec

Target: TypeAlias = Phase | Outcome | Literal["again", "keep"]
"""The next phase, the outcome, `again` (the same phase, next start) or `keep` (the outcome decided before)."""

Stopping: TypeAlias = Timer | Literal["cancelled"]
"""Why a job is being stopped: the attempt's deadline, its round's, one of its phase's own, its silence, or a
request."""

Judgement: TypeAlias = Verdict | Literal["overdue"]
"""What counts of a job's end: its verdict, or that it was stopped because the time of its round was up."""

LINGERING: Final[frozenset[Stopping]] = frozenset(("timeout", "round_timeout", "idle_timeout", "linger"))
"""Reasons to stop WORK which count less than its last word."""

JUDGEMENTS: Final[tuple[Judgement, ...]] = (*VERDICTS, "overdue")

TASK_PHASES: Final[tuple[Phase, ...]] = tuple(phase for phase in PHASES if phase != "land")
"""The phases of a task; LAND is one job for the work of many, see `engine.landing`."""

_COLUMNS: Final[tuple[Judgement, ...]] = (
    *("passed", "failed", "timed_out", "overdue", "cancelled", "lost", "interrupted", "void"),
)
_ROWS: Final[dict[Phase, tuple[Target, ...]]] = {
    "prepare": ("setup", "failed", "timed_out", "timed_out", "cancelled", "again", "again", "again"),
    "setup": ("work", "failed", "timed_out", "timed_out", "cancelled", "lost", "interrupted", "again"),
    "work": ("check", "failed", "timed_out", "timed_out", "cancelled", "lost", "interrupted", "again"),
    "check": ("park", "failed", "timed_out", "timed_out", "cancelled", "again", "again", "again"),
    "park": ("prove", "failed", "timed_out", "timed_out", "cancelled", "again", "again", "again"),
    "prove": ("succeeded", "failed", "timed_out", "timed_out", "cancelled", "again", "again", "again"),
    "release": ("keep", "keep", "keep", "keep", "keep", "again", "again", "again"),
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
    for judgement, target in zip(_COLUMNS, targets, strict=True)
    for left in (True, False)
}
"""By phase, judgement, and whether rounds are left."""

MAX_STARTS: Final = 3
"""How often one phase is started anew before `again` gives up."""

WHEN_AGAIN_ENDS: Final[dict[Phase, Target]] = {
    "prepare": "failed",
    "setup": "failed",
    "work": "failed",
    "check": "lost",
    "park": "lost",
    "prove": "lost",
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
