"""The records of what `doctor` finds and of what `clean` can take away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from sessionrun.model.frozen import frozen

Severity = Literal["error", "warning"]
"""`error`: something is lost, wrong or open to others; `warning`: something has to be looked after."""

Fix: TypeAlias = Callable[[], object]


@frozen
class Finding:
    """One thing that is not as it should be.

    `where` is a path, or names the thing in question; `plan` is what helps: a command, or what `fix` does.  `fix`
    is there only if a repair is provably safe; it raises OSError or a SessionrunError if the repair fails.  A
    `shared` finding is the same for each session that has to do with `where`.  `check` is the name of its check in
    the table.
    """

    severity: Severity
    where: str
    what: str
    plan: str
    fix: Fix | None = None
    shared: bool = False
    check: str = ""


def error(where: str | Path, what: str, plan: str, *, shared: bool = False) -> Finding:
    """Find that something is lost, wrong or open to others: nothing repairs it without a person."""
    return Finding("error", str(where), what, plan, shared=shared)


def warning(where: str | Path, what: str, plan: str, fix: Fix | None = None) -> Finding:
    """Find something that has to be looked after."""
    return Finding("warning", str(where), what, plan, fix)


@frozen
class Leftover:
    """Something of ours that is left: `removed` is whether it went (in a dry run: would go), `why` the reason.

    `repository` is the top of the user's; `size` (bytes) is known of what is in the cache.
    """

    what: str
    name: str
    removed: bool
    why: str
    session_id: str | None = None
    repository: str | None = None
    task: str | None = None
    size: int | None = None

    def show(self, *, dry_run: bool) -> dict[str, Any]:
        """The object of ``clean --json``."""
        return {
            "session_id": self.session_id,
            "repository": self.repository,
            "what": self.what,
            "name": self.name,
            "id": self.task,
            **({} if self.size is None else {"bytes": self.size}),
            "removed": self.removed and not dry_run,
            "would_remove": self.removed if dry_run else None,
            "why": self.why,
        }
