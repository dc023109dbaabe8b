"""Reason classes: the published words for why a task did not succeed, and what follows from each.

The table is open: a later version may add rows, and an agent of the user's own may say others.  What is not in
it is shown as it is and has no effect.  This module must not know agents, files or clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from sessionrun.model.frozen import frozen

REASONS_VERSION: Final = 1
"""Counts up when a row goes or changes its meaning; new rows do not count."""

Effect = Literal["none", "limit", "backoff"]
"""What a class means for the other tasks of the same provider: nothing; they are held until the limit is over;
they are held for a moment that doubles."""


@frozen
class Reason:
    """One class: what it means; its effect on the provider; whether the same conversation may well go on."""

    meaning: str
    effect: Effect = "none"
    goes_on: bool = False


REASONS: Final[Mapping[str, Reason]] = {
    # from the system and from sessionrun
    "start_failed": Reason("the program could not be started"),
    "exit_code": Reason("another exit code than 0, and nothing says why"),
    "signal": Reason("killed by a signal that sessionrun did not send", goes_on=True),
    "agent_crashed": Reason("the agent died of a fault of its own or broke off", goes_on=True),
    "oom": Reason("the agent ran out of memory", goes_on=True),
    "disk_limit": Reason("what it can write inside of its walls came to more than sandbox.disk"),
    "stalled": Reason("no output for longer than idle_timeout", goes_on=True),
    "timeout": Reason("the attempt took longer than allowed"),
    "setup_failed": Reason("the setup commands failed"),
    "setup_timeout": Reason("the setup commands took longer than allowed"),
    "check_failed": Reason("the check did not pass in the last round", goes_on=True),
    "check_not_run": Reason("the check could not be run: its program is not found or not executable"),
    "check_timeout": Reason("the check took longer than allowed"),
    "round_timeout": Reason("the last round took longer than allowed"),
    "no_patch": Reason("the answer was to be a patch, and holds none"),
    "bad_patch": Reason("the patch in the answer does not apply"),
    "cancelled": Reason("on request"),
    "need": Reason("a task that it needs did not succeed"),
    "max_failures": Reason("so many tasks had failed that nothing new is started"),
    "budget": Reason("a limit on money or tokens is reached"),
    "lost": Reason("its end was not seen", goes_on=True),
    "interrupted": Reason("the machine was restarted", goes_on=True),
    "exit_unseen": Reason("it succeeded: its answer is complete, but the end of its process was not seen"),
    "lingered": Reason("it succeeded: its agent had said its last word, but did not exit, and was ended"),
    "infra": Reason("the session's own files could not be read or written"),
    "internal": Reason("a bug of sessionrun; its traceback is in supervisor.log"),
    "no_change": Reason("a change was expected and nothing was changed"),
    "mend_refused": Reason("a mend left a conflict as it was, or dropped all that one side had added"),
    "bad_context": Reason("a file that the agent is to be shown is not there, too long or outside the project"),
    "workspace_failed": Reason("its worktree could not be made; nothing of the task ran"),
    "repository_failed": Reason("its repository could not be fetched, or lacks the ref; nothing of the task ran"),
    "environment_failed": Reason("its environment could not be made; nothing of the task ran"),
    "sandbox_failed": Reason("its walls could not be built; nothing of the job ran"),
    "needs_conflict": Reason("the work of tasks that it needs conflicts; nothing of the task ran"),
    "not_parked": Reason("what is in its worktree could not be committed to its branch, so it cannot be proved"),
    "not_red": Reason("the check passes without the work too: nothing to fix, or no test shows it"),
    "weakened": Reason("the check passes only with the tests and test set-up as the task changed them"),
    "flaky": Reason("on the same files the check passed and failed"),
    "unproved": Reason("in a clean room, with nothing but the work, the check does not pass"),
    "unresolved": Reason("with the hidden tests of its instance the work does not pass"),
    "tests_not_run": Reason("the hidden tests of its instance could not be run; the work is not judged"),
    "no_tests": Reason("its instance names no tests, so the work cannot be judged"),
    "release_failed": Reason("its worktree could not be given back; never the reason of a task"),
    "held": Reason("it waits: a hold keeps it from going on"),
    "paced": Reason("it waits: for the pause between two starts, or until the machine has less to do"),
    # from the agent's output
    "usage_limit": Reason("the account's quota or money is used up", "limit", goes_on=True),
    "rate_limited": Reason("too many requests at a time (HTTP 429)", "backoff", goes_on=True),
    "overloaded": Reason("the provider has no capacity now (HTTP 503, 529)", "backoff", goes_on=True),
    "auth": Reason("log-in or permission refused by the model's server"),
    "bad_model": Reason("there is no such model, or not for this account"),
    "no_conversation": Reason("the conversation that was to go on is not there; it begins anew"),
    "unreachable": Reason("the model's server cannot be reached", goes_on=True),
    "api_error": Reason("any other error that the model's server answers"),
    "context_full": Reason("the conversation is too long for the model"),
    "max_turns": Reason("the agent reached its own limit of turns", goes_on=True),
    "refused": Reason("the model or its server declined the request"),
    "denied": Reason("tool calls were refused"),
    "aborted": Reason("the agent says it was interrupted, not by sessionrun", goes_on=True),
    "left_running": Reason("its turn ended, and work that it had begun in the background was lost", goes_on=True),
    "incomplete_output": Reason("the output ends before the result, or there is none", goes_on=True),
    "bad_output": Reason("the output is not in the agent's format", goes_on=True),
    "agent_error": Reason("any other failure that the agent reports"),
    "unknown": Reason("the agent failed and does not say why"),
}


WORKSPACE_REASONS: Final[Mapping[str, str]] = {
    "prepare": "workspace_failed",
    "park": "not_parked",
    "release": "release_failed",
}
"""What it is called when a job of a workspace fails, by its phase."""

NO_CONVERSATION: Final = "no_conversation"
LEFT_RUNNING: Final = "left_running"

CONTEXT_FULL: Final = "context_full"

CHECK_NOT_RUN: Final = "check_not_run"
"""No further round follows: an agent would be paid for what it cannot mend."""

NO_PROGRAM: Final[Mapping[int, str]] = {126: "not executable", 127: "not found"}
"""What a shell means by these exit codes."""

NEVER_RETRIED: Final = frozenset(("needs_conflict", "sandbox_failed", CHECK_NOT_RUN))
"""Failures that come again as long as nothing is changed: `retries` are for others."""

EXIT_UNSEEN: Final = "exit_unseen"
LINGERED: Final = "lingered"
"""The only class of a success."""

FALLBACK_ON: Final = frozenset(
    ("usage_limit", "rate_limited", "overloaded", "auth", "bad_model", "context_full", "refused", "start_failed")
)
"""For these another agent takes over, where a task names one and does not say for what."""


UNRESOLVED: Final = "unresolved"
NO_TESTS: Final = "no_tests"

INFRASTRUCTURE: Final = frozenset(
    (
        "repository_failed",
        "workspace_failed",
        "environment_failed",
        "sandbox_failed",
        "check_not_run",
        "setup_failed",
        "setup_timeout",
        "not_parked",
        "tests_not_run",
        "start_failed",
        "infra",
        "internal",
        "lost",
        "interrupted",
        "usage_limit",
        "rate_limited",
        "overloaded",
        "auth",
        "bad_model",
        "unreachable",
        "api_error",
        "budget",
        "max_failures",
        "need",
        "cancelled",
    )
)
"""Classes of a failure that says nothing about the work of an agent."""

NOT_OF_WORK: Final = frozenset(
    (
        "setup_failed",
        "setup_timeout",
        "check_failed",
        "check_not_run",
        "check_timeout",
        "round_timeout",
        "no_patch",
        "bad_patch",
        "cancelled",
        "need",
        "max_failures",
        "lost",
        "interrupted",
        "exit_unseen",
        "lingered",
        "no_change",
        "workspace_failed",
        "repository_failed",
        "environment_failed",
        "sandbox_failed",
        "needs_conflict",
        "not_parked",
        "not_red",
        "weakened",
        "flaky",
        "unproved",
        "unresolved",
        "tests_not_run",
        "no_tests",
        "release_failed",
        "held",
        "paced",
    )
)
"""Classes that no end of an agent has: no other agent can take over for them."""


def effect_of(reason_class: str | None) -> Effect:
    """What a class means for other tasks of the same provider."""
    reason = REASONS.get(reason_class or "")
    return reason.effect if reason else "none"


def goes_on(reason_class: str | None) -> bool:
    """Whether a conversation that ended for this class may well go on."""
    reason = REASONS.get(reason_class or "")
    return reason is not None and reason.goes_on
