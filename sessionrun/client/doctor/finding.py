"""The record of what a check finds, and of what helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Literal, TypeAlias

from sessionrun.model.frozen import frozen

Severity = Literal["error", "warning"]
"""`error`: something is lost, wrong or open to others; `warning`: something has to be looked after."""

Fix: TypeAlias = Callable[[], None]


@frozen
class Finding:
    """One thing that is not as it should be.

    `where` is a path, or names the thing in question; `plan` is what helps: a command, or what `fix` does.  `fix`
    is there only if a repair is provably safe; it raises OSError or a SessionrunError if the repair fails.  A
    `shared` finding is the same for each session that has to do with `where`.
    """

    check: str
    severity: Severity
    where: str
    what: str
    plan: str
    fix: Fix | None = field(default=None, compare=False, repr=False)
    shared: bool = False
