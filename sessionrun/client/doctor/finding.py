"""What a check finds: a record, with what helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Final, Literal, TypeAlias

from sessionrun.model.frozen import frozen

Severity = Literal["error", "warning"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning")
"""`error`: something is lost, wrong or open to others; `warning`: something has to be looked after."""

Fix: TypeAlias = Callable[[], None]


@frozen
class Finding:
    """One thing that is not as it should be.

    `where` is a path or what else it is about; `plan` what helps: a command, or what `fix` does.  `fix` is there
    only where a repair is provably safe; it raises OSError or a SessionrunError where it cannot be done.
    """

    check: str
    severity: Severity
    where: str
    what: str
    plan: str
    fix: Fix | None = field(default=None, compare=False, repr=False)
