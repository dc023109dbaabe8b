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

About = Literal["work", "outside", "judged", "session"]
"""What a class speaks of: the work of an agent; what its WORK met outside, which says nothing about the work; the
work as others judged it, and no end of an agent; neither of them."""


@frozen
class Reason:
    """One class: what it speaks of, what it means, and what follows from it.

    `effect` is that on the other tasks of the provider.  `goes_on`: the same conversation may well go on.
    `retried`: `retries` are for it, too; not for what comes again as long as nothing is changed.  `falls_back`:
    another agent takes over, where a task names one and does not say for what.
    """

    about: About
    meaning: str
    effect: Effect = "none"
    goes_on: bool = False
    retried: bool = True
    falls_back: bool = False


REASONS: Final[Mapping[str, Reason]] = {
    # from the system and from sessionrun
    "start_failed": Reason("outside", "the program could not be started", falls_back=True),
    "exit_code": Reason("work", "another exit code than 0, and nothing says why"),
    "signal": Reason("work", "killed by a signal that sessionrun did not send", goes_on=True),
    "agent_crashed": Reason("work", "the agent died of a fault of its own or broke off", goes_on=True),
    "oom": Reason("work", "the agent ran out of memory", goes_on=True),
    "disk_limit": Reason("work", "what it can write inside of its walls came to more than sandbox.disk"),
    "stalled": Reason("work", "no output for longer than idle_timeout", goes_on=True),
    "timeout": Reason("work", "the attempt took longer than allowed"),
    "setup_failed": Reason("session", "the setup commands failed"),
    "setup_timeout": Reason("session", "the setup commands took longer than allowed"),
    "check_failed": Reason("judged", "the check did not pass in the last round", goes_on=True),
    "check_not_run": Reason("session", "the check's program is not found or not executable", retried=False),
    "check_timeout": Reason("judged", "the check took longer than allowed"),
    "round_timeout": Reason("judged", "the last round took longer than allowed"),
    "no_patch": Reason("judged", "the answer was to be a patch, and holds none"),
    "bad_patch": Reason("judged", "the patch in the answer does not apply"),
    "cancelled": Reason("session", "on request"),
    "need": Reason("session", "a task that it needs did not succeed"),
    "max_failures": Reason("session", "so many tasks had failed that nothing new is started"),
    "budget": Reason("outside", "a limit on money or tokens is reached"),
    "lost": Reason("session", "its end was not seen", goes_on=True),
    "interrupted": Reason("session", "the machine was restarted", goes_on=True),
    "exit_unseen": Reason("judged", "it succeeded: its answer is complete, but its end was not seen"),
    "lingered": Reason("judged", "it succeeded, but did not exit after its last word, and was ended"),
    "infra": Reason("outside", "the session's own files could not be read or written"),
    "internal": Reason("outside", "a bug of sessionrun; its traceback is in supervisor.log"),
    "no_change": Reason("judged", "a change was expected and nothing was changed"),
    "mend_refused": Reason("judged", "a mend left a conflict as it was, or dropped all that one side had added"),
    "bad_context": Reason("work", "a file to be shown is not there, too long or outside the project"),
    "workspace_failed": Reason("session", "its worktree could not be made; nothing of the task ran"),
    "repository_failed": Reason("session", "its repository could not be fetched, or lacks the ref; nothing ran"),
    "environment_failed": Reason("session", "its environment could not be made; nothing of the task ran"),
    "sandbox_failed": Reason("session", "its walls could not be built; nothing of the job ran", retried=False),
    "needs_conflict": Reason("judged", "the work of what it needs conflicts; nothing ran", retried=False),
    "not_parked": Reason("session", "its work could not be committed to its branch, so it cannot be proved"),
    "not_red": Reason("judged", "the check passes without the work too: nothing to fix, or no test shows it"),
    "weakened": Reason("judged", "the check passes only with the tests and test set-up as the task changed them"),
    "flaky": Reason("judged", "on the same files the check passed and failed"),
    "unproved": Reason("judged", "in a clean room, with nothing but the work, the check does not pass"),
    "unresolved": Reason("judged", "with the hidden tests of its instance the work does not pass"),
    "tests_not_run": Reason("session", "the hidden tests could not be run; the work is not judged"),
    "no_tests": Reason("judged", "its instance names no tests, so the work cannot be judged"),
    "release_failed": Reason("judged", "its worktree could not be given back; never the reason of a task"),
    "held": Reason("judged", "it waits: a hold keeps it from going on"),
    "paced": Reason("judged", "it waits: for the pause between two starts, or until the machine has less to do"),
    # from the agent's output
    "usage_limit": Reason(
        "outside", "the account's quota or money is used up", "limit", goes_on=True, falls_back=True
    ),
    "rate_limited": Reason(
        "outside", "too many requests at a time (HTTP 429)", "backoff", goes_on=True, falls_back=True
    ),
    "overloaded": Reason(
        "outside", "the provider has no capacity now (HTTP 503, 529)", "backoff", goes_on=True, falls_back=True
    ),
    "auth": Reason("outside", "log-in or permission refused by the model's server", falls_back=True),
    "bad_model": Reason("outside", "there is no such model, or not for this account", falls_back=True),
    "no_conversation": Reason("work", "the conversation that was to go on is not there; it begins anew"),
    "unreachable": Reason("outside", "the model's server cannot be reached", goes_on=True),
    "api_error": Reason("outside", "any other error that the model's server answers"),
    "context_full": Reason("work", "the conversation is too long for the model", falls_back=True),
    "max_turns": Reason("work", "the agent reached its own limit of turns", goes_on=True),
    "refused": Reason("work", "the model or its server declined the request", falls_back=True),
    "denied": Reason("work", "tool calls were refused"),
    "aborted": Reason("work", "the agent says it was interrupted, not by sessionrun", goes_on=True),
    "left_running": Reason("work", "its turn ended, and its work in the background was lost", goes_on=True),
    "incomplete_output": Reason("work", "the output ends before the result, or there is none", goes_on=True),
    "bad_output": Reason("work", "the output is not in the agent's format", goes_on=True),
    "agent_error": Reason("work", "any other failure that the agent reports"),
    "unknown": Reason("work", "the agent failed and does not say why"),
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

EXIT_UNSEEN: Final = "exit_unseen"
LINGERED: Final = "lingered"
"""The only class of a success."""

UNRESOLVED: Final = "unresolved"
NO_TESTS: Final = "no_tests"

OF_WORK: Final = tuple(name for name, reason in REASONS.items() if reason.about in ("work", "outside"))
INFRASTRUCTURE: Final = frozenset(
    name for name, reason in REASONS.items() if reason.about in ("outside", "session")
)
NEVER_RETRIED: Final = frozenset(name for name, reason in REASONS.items() if not reason.retried)
FALLBACK_ON: Final = frozenset(name for name, reason in REASONS.items() if reason.falls_back)


def effect_of(reason_class: str | None) -> Effect:
    """What a class means for other tasks of the same provider."""
    reason = REASONS.get(reason_class or "")
    return reason.effect if reason else "none"


def goes_on(reason_class: str | None) -> bool:
    """Whether a conversation that ended for this class may well go on."""
    reason = REASONS.get(reason_class or "")
    return reason is not None and reason.goes_on
