"""Fetches ahead what the tasks of an input name: their repositories, in each the refs, and then environments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sessionrun.client.abreast import run_abreast
from sessionrun.client.inputs import Given
from sessionrun.client.planning import Asked, AskedGit, Nothing, plan
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.places import Start
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.store.files import make_directories
from sessionrun.workspaces.mirrors import FOREVER_S, bring, lock_path
from sessionrun.workspaces.registration import hold_lock
from sessionrun.workspaces.request import RepositoryFailed

Record = dict[str, Any]
"""One repository: an object of ``precache --json``."""


class _Wanted(NamedTuple):
    repo: str
    mirror: Path
    refs: tuple[str | None, ...]


class _Fetched(NamedTuple):
    record: Record
    starts: Mapping[str | None, Start]


def precache(
    given: Given,
    *,
    dialect: str | None = None,
    limit: int | None = None,
    cache_dir: Path | None = None,
    environments: bool = True,
    tell: Callable[[Record], None] = lambda record: None,
    tell_environment: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Fetch what the tasks of an input name, then build their environments, several at a time.

    Returns a record for each repository, in the order of the input: `repo`, `mirror`, `refs` (each with its
    `commit`, null if it is missing), `error` (null: all is there), `duration_s`, and `environments`, a list of
    records (see `prebuilding.build_ahead`).  The last record is of the repository where the session would begin,
    if tasks have environments in worktrees of that: its `mirror` is null.

    Args:
        given: a file or directory by name, what its JSON would be as a value, or None for standard input.
        dialect: how it is read; None: as `run` would guess.
        limit: only the first tasks, so many.
        cache_dir: the cache; None: the configured one.
        environments: whether environments are built, too.
        tell: is given each record when its repository begins (`duration_s` null) and when it is fetched.
        tell_environment: the same for records of environments.

    Raises:
        InputError: the input cannot be read, or there is nothing to fetch or to build.
    """
    planned = plan(given, Asked(dialect=dialect), AskedGit(cache_dir=cache_dir), preview=True)
    if isinstance(planned, Nothing):
        raise _refuse()
    spec, tasks = planned.spec, planned.spec.tasks[:limit]
    wanted = _group(tasks)
    records: dict[str, Record] = {}
    starts: dict[tuple[str, str | None], Start] = {}

    def add(fetched: _Fetched) -> None:
        records[fetched.record["mirror"]] = fetched.record
        starts.update({(fetched.record["mirror"], ref): start for ref, start in fetched.starts.items()})
        tell(fetched.record)

    run_abreast([partial(_fetch, repository, tell) for repository in wanted], add)
    ordered = [records[str(repository.mirror)] for repository in wanted]
    if environments and any(task.environment is not None for task in tasks):
        ordered += _build(spec, tasks, starts, ordered, tell_environment)
    if not ordered:
        raise _refuse()
    return ordered


def _refuse() -> InputError:
    return InputError(
        "no task of this input names a repo, or wants an environment that can be built: nothing to fetch ahead"
    )


def _build(
    spec: SessionSpec,
    tasks: Sequence[TaskSpec],
    starts: Mapping[tuple[str, str | None], Start],
    records: Iterable[Record],
    tell: Callable[[Record], None],
) -> Iterator[Record]:
    """Add the environments to the records of their repositories; a record for the repository of the session."""
    from sessionrun.client.prebuilding import build_ahead, list_ahead

    built = build_ahead(list_ahead(spec, tasks, starts), tell)
    for record in records:
        record["environments"] = built.pop(record["mirror"], [])
    for top, environments in built.items():
        assert spec.repository is not None
        ref = {"ref": spec.repository.base_branch, "commit": spec.repository.base_commit}
        yield {
            "repo": top,
            "mirror": None,
            "refs": [ref],
            "error": None,
            "duration_s": 0.0,
            "environments": environments,
        }


def _group(tasks: Iterable[TaskSpec]) -> list[_Wanted]:
    """The repositories that tasks name, each with all the refs that are wanted of it."""
    by_mirror: dict[str, tuple[str, dict[str | None, None]]] = {}
    for task in tasks:
        if task.upstream is not None:
            by_mirror.setdefault(task.upstream.mirror, (task.upstream.repo, {}))[1][task.upstream.ref] = None
    return [_Wanted(repo, Path(mirror), tuple(refs)) for mirror, (repo, refs) in by_mirror.items()]


def _fetch(wanted: _Wanted, tell: Callable[[Record], None]) -> _Fetched:
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
    by_ref: Mapping[str | None, Start | RepositoryFailed] = {}
    try:
        make_directories(wanted.mirror.parent, 0o700)
        with hold_lock(lock_path(wanted.mirror), 0o600, FOREVER_S):
            by_ref = bring(wanted.mirror, wanted.repo, wanted.refs)
        problems = [str(missing) for missing in by_ref.values() if isinstance(missing, RepositoryFailed)]
    except (SessionrunError, OSError) as error:
        problems = [str(error)]
    starts = {ref: start for ref, start in by_ref.items() if isinstance(start, Start)}
    refs = [{"ref": ref, "commit": starts[ref].commit if ref in starts else None} for ref in wanted.refs]
    problem = problems[0] if problems else None
    if len(problems) > 1:
        problem = f"{problem} (and {len(problems) - 1} more of its refs)"
    done = {"refs": refs, "error": problem, "duration_s": round(time.monotonic() - begun, 3)}
    return _Fetched(record | done, starts)
