"""Frozen records of what a CHECK found out beside whether it passed.  Pure; part of `model`."""

from __future__ import annotations

from dataclasses import fields
from typing import Final, Literal

from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import Count, DiffStat

Reset = Literal["keep", "hard"]
RESETS: Final[tuple[Reset, ...]] = ("keep", "hard")
"""What a further round begins with: the files as they are, or those with which WORK began."""

AnswerKind = Literal["patch", "text"]
ANSWER_KINDS: Final[tuple[AnswerKind, ...]] = ("patch", "text")
"""What the answer of an agent is without a brief: a diff that CHECK applies, or a text."""


ReportUse = Literal["read", "ignore"]
REPORT_USES: Final[tuple[ReportUse, ...]] = ("read", "ignore")
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
        """The sum."""
        return Counts(*(getattr(self, one.name) + getattr(more, one.name) for one in fields(Counts)))


NoteLevel = Literal["note", "alarm"]


@frozen
class Note:
    """What the audit of a proof says of the work; it never changes an outcome.

    `where` is a file, perhaps with a line; `certain`: it is so, whatever it means.
    """

    rule: str
    level: NoteLevel
    where: str
    text: str
    certain: bool = False


@frozen
class Checked:
    """What a round came to: its tests, and its work as a commit (`snapshot`) with the size of its diff."""

    counts: Counts | None = None
    snapshot: str | None = None
    diff_stat: DiffStat | None = None
