"""Where a task goes when one of its jobs ends: one literal, total table.

Every rule about the order of phases is a cell of this table (docs/files.md prints it); a phase
that a task does not have counts as `passed`.  RELEASE is owed by every task whose PREPARE was claimed, so an
outcome here leads through it; the table need not say so.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from sessionrun.model.events import VERDICTS, Timer, Verdict
from sessionrun.model.keys import PHASES, Phase
from sessionrun.model.reasons import LEFT_RUNNING, WORKSPACE_REASONS, effect_of
from sessionrun.model.sizes import format_size
from sessionrun.model.spec import OUTCOMES, Limits, Outcome, TaskSpec

Target: TypeAlias = Phase | Outcome | Literal["again", "keep"]
"""The next phase, the outcome, `again` (the same phase, next start) or `keep` (the outcome decided before)."""

Stopping: TypeAlias = Timer | Literal["cancelled"]
"""Why a job is being stopped: the attempt's deadline, its round's, one of its phase's own, its silence, or a
request."""

Judgement: TypeAlias = Verdict | Literal["overdue"]
"""What counts of a job's end: its verdict, or that it was stopped because the time of its round was up."""

JUDGEMENTS: Final[tuple[Judgement, ...]] = (*VERDICTS, "overdue")

TASK_PHASES: Final[tuple[Phase, ...]] = tuple(phase for phase in PHASES if phase != "land")
"""The phases of a task; LAND is one job for the work of many, see `engine.landing`."""

TRANSITIONS: Final[dict[tuple[Phase, Judgement, bool], Target]] = {
    # phase, verdict, rounds left
    ("prepare", "passed", True): "setup",
    ("prepare", "passed", False): "setup",
    ("prepare", "failed", True): "failed",
    ("prepare", "failed", False): "failed",
    ("prepare", "timed_out", True): "timed_out",
    ("prepare", "timed_out", False): "timed_out",
    ("prepare", "overdue", True): "timed_out",
    ("prepare", "overdue", False): "timed_out",
    ("prepare", "cancelled", True): "cancelled",
    ("prepare", "cancelled", False): "cancelled",
    ("prepare", "lost", True): "again",
    ("prepare", "lost", False): "again",
    ("prepare", "interrupted", True): "again",
    ("prepare", "interrupted", False): "again",
    ("prepare", "void", True): "again",
    ("prepare", "void", False): "again",
    ("setup", "passed", True): "work",
    ("setup", "passed", False): "work",
    ("setup", "failed", True): "failed",
    ("setup", "failed", False): "failed",
    ("setup", "timed_out", True): "timed_out",
    ("setup", "timed_out", False): "timed_out",
    ("setup", "overdue", True): "timed_out",
    ("setup", "overdue", False): "timed_out",
    ("setup", "cancelled", True): "cancelled",
    ("setup", "cancelled", False): "cancelled",
    ("setup", "lost", True): "lost",
    ("setup", "lost", False): "lost",
    ("setup", "interrupted", True): "interrupted",
    ("setup", "interrupted", False): "interrupted",
    ("setup", "void", True): "again",
    ("setup", "void", False): "again",
    ("work", "passed", True): "check",
    ("work", "passed", False): "check",
    ("work", "failed", True): "failed",
    ("work", "failed", False): "failed",
    ("work", "timed_out", True): "timed_out",
    ("work", "timed_out", False): "timed_out",
    ("work", "overdue", True): "work",
    ("work", "overdue", False): "timed_out",
    ("work", "cancelled", True): "cancelled",
    ("work", "cancelled", False): "cancelled",
    ("work", "lost", True): "lost",
    ("work", "lost", False): "lost",
    ("work", "interrupted", True): "interrupted",
    ("work", "interrupted", False): "interrupted",
    ("work", "void", True): "again",
    ("work", "void", False): "again",
    ("check", "passed", True): "park",
    ("check", "passed", False): "park",
    ("check", "failed", True): "work",
    ("check", "failed", False): "failed",
    ("check", "timed_out", True): "timed_out",
    ("check", "timed_out", False): "timed_out",
    ("check", "overdue", True): "work",
    ("check", "overdue", False): "timed_out",
    ("check", "cancelled", True): "cancelled",
    ("check", "cancelled", False): "cancelled",
    ("check", "lost", True): "again",
    ("check", "lost", False): "again",
    ("check", "interrupted", True): "again",
    ("check", "interrupted", False): "again",
    ("check", "void", True): "again",
    ("check", "void", False): "again",
    ("park", "passed", True): "prove",
    ("park", "passed", False): "prove",
    ("park", "failed", True): "failed",
    ("park", "failed", False): "failed",
    ("park", "timed_out", True): "timed_out",
    ("park", "timed_out", False): "timed_out",
    ("park", "cancelled", True): "cancelled",
    ("park", "cancelled", False): "cancelled",
    ("park", "overdue", True): "timed_out",
    ("park", "overdue", False): "timed_out",
    ("park", "lost", True): "again",
    ("park", "lost", False): "again",
    ("park", "interrupted", True): "again",
    ("park", "interrupted", False): "again",
    ("park", "void", True): "again",
    ("park", "void", False): "again",
    ("prove", "passed", True): "succeeded",
    ("prove", "passed", False): "succeeded",
    ("prove", "failed", True): "work",
    ("prove", "failed", False): "failed",
    ("prove", "timed_out", True): "timed_out",
    ("prove", "timed_out", False): "timed_out",
    ("prove", "cancelled", True): "cancelled",
    ("prove", "cancelled", False): "cancelled",
    ("prove", "overdue", True): "timed_out",
    ("prove", "overdue", False): "timed_out",
    ("prove", "lost", True): "again",
    ("prove", "lost", False): "again",
    ("prove", "interrupted", True): "again",
    ("prove", "interrupted", False): "again",
    ("prove", "void", True): "again",
    ("prove", "void", False): "again",
    ("release", "passed", True): "keep",
    ("release", "passed", False): "keep",
    ("release", "failed", True): "keep",
    ("release", "failed", False): "keep",
    ("release", "timed_out", True): "keep",
    ("release", "timed_out", False): "keep",
    ("release", "overdue", True): "keep",
    ("release", "overdue", False): "keep",
    ("release", "cancelled", True): "keep",
    ("release", "cancelled", False): "keep",
    ("release", "lost", True): "again",
    ("release", "lost", False): "again",
    ("release", "interrupted", True): "again",
    ("release", "interrupted", False): "again",
    ("release", "void", True): "again",
    ("release", "void", False): "again",
}

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
    last word was a limit of its provider has met that limit.
    """
    unseen = verdict in ("lost", "interrupted")
    if stopping is None or (phase == "land" and unseen):
        return None
    if verdict == "passed" and (phase in ("land", "release") or stopping == "workspace_timeout"):
        return None
    if stopping == "cancelled":
        return "cancelled"
    has_said_why = reason_class == LEFT_RUNNING or effect_of(reason_class) != "none"
    if stopping == "silent_limit" or (has_said_why and stopping in ("timeout", "round_timeout", "idle_timeout")):
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
