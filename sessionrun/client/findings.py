"""The records of what `doctor` finds and of what `clean` can take away; what businesses add to both.

A business says in its `FINDINGS` what there is to be found of it.  `doctor`, `clean` and `explain` know no
business: after what they know of a session themselves they go through these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from sessionrun.house import HOUSE, load
from sessionrun.model.frozen import frozen

if TYPE_CHECKING:
    from sessionrun.client.evidence import Evidence
    from sessionrun.engine.state import State
    from sessionrun.engine.task import TaskState
    from sessionrun.model.places import Repository
    from sessionrun.store.session import SessionDir
    from sessionrun.store.space import Cached

Severity = Literal["error", "warning"]
"""`error`: something is lost, wrong or open to others; `warning`: something has to be looked after."""

Fix: TypeAlias = Callable[[], object]
Remains: TypeAlias = Literal["session", "worktree", "branch", "trash", "room", "environment", "mirror", "replica"]


@frozen
class Finding:
    """One thing that is not as it should be; `plan` is what helps: a command, or what `fix` does.

    A `fix` is there only if it is provably safe; it raises OSError or a SessionrunError if it fails.
    """

    severity: Severity
    where: str
    what: str
    plan: str
    fix: Fix | None = None
    check: str = ""


def error(where: str | Path, what: str, plan: str) -> Finding:
    """Find that something is lost, wrong or open to others: nothing repairs it without a person."""
    return Finding("error", str(where), what, plan)


def warning(where: str | Path, what: str, plan: str, fix: Fix | None = None) -> Finding:
    """Find something that has to be looked after."""
    return Finding("warning", str(where), what, plan, fix)


@frozen
class Leftover:
    """Something of ours that is left: `removed` is whether it went (in a dry run: would go), `why` the reason.

    `repository` is the top of the user's; `size` (bytes) is known of what is in the cache.  `empty`: it holds no
    work of any job, so no session needs it.
    """

    what: Remains
    name: str
    removed: bool
    why: str
    session_id: str | None = None
    repository: str | None = None
    task: str | None = None
    size: int | None = None
    empty: bool = False

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


# --- what businesses add ---


class Cleaned(NamedTuple):
    """A session that `clean` looked at: its repository, and all in which it had worktrees."""

    session_id: str
    home: Repository | None
    repositories: Sequence[Repository]


class Kind(NamedTuple):
    """How entries of one kind in a cache are listed and removed; the latter says why one stays.

    `beside`: they lie beside the user's cache, and belong to no other one.
    """

    what: Remains
    iterate: Callable[[Path], Iterator[Cached]]
    remove: Callable[..., str | None]
    beside: bool = False


def _find_none(*_: object, **__: object) -> Iterator[Any]:
    yield from ()


class Findings(NamedTuple):
    """What there is to be found of a business.

    Attributes:
        session_checks: for `doctor`, by name: what is wrong with a session.
        machine_checks: for `doctor`, by name: what is wrong with this machine, given the results directory.
        check_clusters: for `doctor`: what is wrong with those that sessions name and, if the second argument says
            so, the configuration.
        take_away: for `clean`: takes away what one session left, given its evidence, and says it; with `dry_run`
            it only says it.
        sweep: for `clean`: the same of what sessions left for the next one, given what was `Cleaned`.
        sweep_repository: for `clean`: the same in a repository's directory of git; it returns nothing to show.
        list_kinds: for `clean --cache`: the kinds of entries in the cache that sessions share.
        describe_success: for `explain`: what is said of a task that succeeded, behind its attempt.
    """

    session_checks: Mapping[str, Callable[[Evidence], Iterator[Finding]]] = {}
    machine_checks: Mapping[str, Callable[[Path], Iterator[Finding]]] = {}
    check_clusters: Callable[[Sequence[SessionDir], bool], Iterator[Finding]] = _find_none
    take_away: Callable[..., Iterator[Leftover]] = _find_none
    sweep: Callable[..., Iterator[Leftover]] = _find_none
    sweep_repository: Callable[[Repository], None] = lambda _: None
    list_kinds: Callable[[], Iterable[Kind]] = _find_none
    describe_success: Callable[[State, TaskState], str] = lambda _, __: ""


def load_findings() -> list[Findings]:
    """Those of all businesses, in the order of the house: one that stands on another comes later."""
    return [load(business.findings) for business in HOUSE if business.findings]
