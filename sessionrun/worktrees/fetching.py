"""Fetches the repositories that tasks name into their mirrors, before the tasks begin."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sessionrun.git.clone import open_room
from sessionrun.model.errors import InputError, RepositoryFailed, SessionrunError
from sessionrun.model.places import Start, Upstream
from sessionrun.model.spec import TaskSpec
from sessionrun.store.trees import hold_entry
from sessionrun.worktrees.mirrors import check_whole, fetch_mirror, resolve_ref

Record = dict[str, Any]
"""One repository: an object of ``precache --json``."""


class Wanted(NamedTuple):
    """A repository, its mirror, and the refs that are wanted of it."""

    repo: str
    mirror: Path
    refs: tuple[str | None, ...]


class Fetched(NamedTuple):
    """A repository that was fetched, and where its refs are."""

    record: Record
    starts: Mapping[str | None, Start]


def group_mirrors(tasks: Iterable[TaskSpec]) -> list[Wanted]:
    """The repositories that tasks name, each with all the refs that are wanted of it."""
    by_mirror: dict[str, tuple[str, dict[str | None, None]]] = {}
    for task in tasks:
        if task.upstream is not None:
            by_mirror.setdefault(task.upstream.mirror, (task.upstream.repo, {}))[1][task.upstream.ref] = None
    return [Wanted(repo, Path(mirror), tuple(refs)) for mirror, (repo, refs) in by_mirror.items()]


def fetch_wanted(wanted: Wanted, tell: Callable[[Record], None] = lambda record: None) -> Fetched:
    """Make or renew a mirror; `tell` is given the record when it begins."""
    begun = time.monotonic()
    record: Record = {
        "repo": wanted.repo,
        "mirror": str(wanted.mirror),
        "refs": [{"ref": ref, "commit": None} for ref in wanted.refs],
        "error": None,
        "duration_s": None,
        "environments": [],
    }
    tell(record)
    starts: dict[str | None, Start] = {}
    problems: list[str] = []
    try:
        with hold_entry(wanted.mirror, None):
            by_ref = fetch_mirror(wanted.mirror, wanted.repo, wanted.refs)
        starts = {ref: start for ref, start in by_ref.items() if isinstance(start, Start)}
        problems = [str(missing) for missing in by_ref.values() if isinstance(missing, RepositoryFailed)]
    except (SessionrunError, OSError) as error:
        problems = [str(error)]
    refs = [{"ref": ref, "commit": starts[ref].commit if ref in starts else None} for ref in wanted.refs]
    problem = problems[0] if problems else None
    if len(problems) > 1:
        problem = f"{problem} (and {len(problems) - 1} more of its refs)"
    done = {"refs": refs, "error": problem, "duration_s": round(time.monotonic() - begun, 3)}
    return Fetched(record | done, starts)


def settle_starts(
    tasks: Iterable[TaskSpec], known: Iterable[TaskSpec] = (), *, require_cache: bool
) -> tuple[TaskSpec, ...]:
    """The tasks with the commits at which their repositories' refs stand; what is lacking of these is fetched.

    A ref stands where it does for tasks that are `known`.

    Raises:
        InputError: one cannot be fetched, or lacks what was asked for.
    """
    starts = {_name_ref(task.upstream): task.upstream.start for task in known if task.upstream is not None}
    new = [task for task in tasks if task.upstream is not None and starts.get(_name_ref(task.upstream)) is None]
    for wanted in group_mirrors(new):
        fetched = _look_up(wanted) if require_cache else fetch_wanted(wanted)
        if fetched.record["error"] is not None:
            raise InputError(fetched.record["error"])
        starts |= {(str(wanted.mirror), ref): start for ref, start in fetched.starts.items()}
    return tuple(
        task
        if task.upstream is None
        else replace(task, upstream=replace(task.upstream, start=starts[_name_ref(task.upstream)]))
        for task in tasks
    )


def _name_ref(upstream: Upstream) -> tuple[str, str | None]:
    return upstream.mirror, upstream.ref


def _look_up(wanted: Wanted) -> Fetched:
    """The same of a mirror as it is."""
    try:
        check_whole(wanted.mirror, wanted.repo)
        with open_room(wanted.mirror, wanted.repo) as room:
            found = {ref: resolve_ref(room.git, ref) for ref in wanted.refs}
        missing = [ref or "HEAD" for ref, start in found.items() if start is None]
        if missing:
            raise RepositoryFailed(f"{wanted.repo} has no {missing[0]} in the cache")
    except (SessionrunError, OSError) as error:
        why = f"{error}: nothing may be fetched (require_cache); sessionrun precache fetches it"
        return Fetched({"error": why}, {})
    return Fetched({"error": None}, {ref: start for ref, start in found.items() if start is not None})
