"""Frozen records of what a CHECK and a PROVE answer: files of a session, which readers show too.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from sessionrun.model.checks import Checked, Note
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import ProofVerdict


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
