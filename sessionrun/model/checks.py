"""Frozen records of how work is answered and judged: briefs, hidden tests, answers of CHECK and PROVE.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Final, Literal

from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import Count, DiffStat, Seconds

Reset = Literal["keep", "hard"]
"""What a further round begins with: the files as they are, or those with which WORK began."""

AnswerKind = Literal["patch", "text"]
"""What the answer of an agent is without a brief: a diff that CHECK applies, or a text."""

ReportUse = Literal["read", "ignore"]
"""Whether a test that failed by a runner's report fails the check, though its commands exit 0."""


@frozen
class Counts:
    """How many tests came to what; `failed` made a wrong assertion, `errors` broke otherwise."""

    passed: Count = 0
    failed: Count = 0
    errors: Count = 0
    skipped: Count = 0
    total: Count = 0

    def plus(self, more: Counts) -> Counts:
        return Counts(*(getattr(self, one.name) + getattr(more, one.name) for one in fields(Counts)))


NoteLevel = Literal["note", "alarm"]


@frozen
class Note:
    """One thing that the audit of a proof says of the work; it never changes an outcome."""

    rule: str
    """- `runner_in_source`: The source names the test runner.
    - `exit_in_source`: It ends the process.
    - `equal_to_all`: An equality that is always true.
    - `answer_of_test`: It returns what a test of the base expects for what that test asks.
    - `chance_in_source`: It draws lots, so the check was done 8 times.
    - `content_known_elsewhere`: A file is as another branch has it."""
    level: NoteLevel
    """A `note`: few lines, or what the project did before."""
    where: str
    """A file, perhaps with a line."""
    text: str
    certain: bool = False
    """True: it is so, whatever it means."""


@frozen
class Checked:
    """What a round came to: its tests, and its work as a commit (`snapshot`) with the size of its diff."""

    counts: Counts | None = None
    snapshot: str | None = None
    diff_stat: DiffStat | None = None


AnswerMode = Literal["replace", "edit", "split"]
"""How the answer of an agent that does not edit becomes files: whole files; changes of places that it quotes;
whole files, every one of `outputs`."""


@frozen
class Brief:
    """Files that an agent is shown, and files that its work is to be.

    Paths count from the task's directory and stay inside of it.  `context` and `targets` are shown as they are
    when the work begins, and with them so many (`room`) files that the tasks it needs wrote.  No file of `context`
    has more than `max_context_lines`, no answer more than `max_output_lines`.  The answer of an agent that does
    not edit files becomes the files `outputs`, by `mode`; none that a pattern of `protected` matches.
    `system` are the instructions for such an agent.
    """

    mode: AnswerMode = "replace"
    system: str = ""
    context: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    room: int = 0
    max_context_lines: int | None = None
    max_output_lines: int | None = None
    create_directories: bool = True
    protected: tuple[str, ...] = ()


TEST_COMMAND: Final = "python -m pytest"


@frozen
class HiddenTests:
    """A patch that brings tests, and the ids of those tests that then have to pass.

    They replace the check in a PROVE, where only the source of the work counts.  The agent learns nothing of
    what they come to, so no round follows.  Before that a CHECK runs those of `pass_to_pass` that are there
    without the patch.  `fail_to_pass` fail on the base, `pass_to_pass` pass there.  The shell `command` runs the
    tests of the files or ids that are appended to it, for at most `timeout_s` seconds each time (None: any time).
    """

    patch: str
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    command: str = TEST_COMMAND
    timeout_s: Seconds | None = None


# --- what a CHECK and a PROVE answer: files of a session, which readers show too ---

ProofVerdict = Literal["proved", "not_red", "weakened", "flaky", "unproved"]
"""What a PROVE finds; see `checks.prove`."""


@frozen
class CheckReport:
    """The answer: the files that were written with their lines; in one line what is wrong, if anything is.

    `reason_class` is the class of that problem, `checked` what the round came to.
    """

    written: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None
    earlier: tuple[str, ...] = ()
    reason_class: str = "check_failed"
    checked: Checked | None = None


@frozen
class JudgedTests:
    """What hidden tests came to, by their ids: `failed` should pass now, `broken` passed before.

    `total` is how many there are; of those that did not pass, `errors` broke otherwise than by a wrong assertion.
    `red_before` are those of `broken` that did not pass before the work either, as its SETUP found.
    """

    total: int
    failed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    errors: int = 0
    red_before: tuple[str, ...] = ()


@frozen
class ProveReport:
    """The answer: the verdict; in one line what is wrong, if the task fails by it.

    `reason_class` is the class of that problem, if it is not called as the verdict is.  `audit` never changes the
    verdict.
    """

    verdict: ProofVerdict
    problem: str | None = None
    reason_class: str | None = None
    tests: JudgedTests | None = None
    audit: tuple[Note, ...] = ()
