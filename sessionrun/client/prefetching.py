"""Fetches ahead what the tasks of an input name: their repositories, and in each the refs and commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.inputs import Given
from sessionrun.client.planning import Asked, AskedGit, Nothing, plan
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.spec import TaskSpec
from sessionrun.store.files import make_directories
from sessionrun.workspaces.mirrors import FOREVER_S, bring, lock_path
from sessionrun.workspaces.registration import hold_lock

AT_A_TIME: Final = 4
"""How many repositories are fetched at once."""

Record = dict[str, Any]
"""One repository: an object of ``precache --json``."""


class _Wanted(NamedTuple):
    repo: str
    mirror: Path
    refs: tuple[str | None, ...]


def precache(
    given: Given,
    *,
    dialect: str | None = None,
    limit: int | None = None,
    cache_dir: Path | None = None,
    tell: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Fetch what the tasks of an input name, several repositories at a time.

    Returns a record for each repository, in the order of the input: `repo`, `mirror`, `refs` (each with its
    `commit`, null if it is missing), `error` (null: all is there) and `duration_s`.

    Args:
        given: a file or directory by name, what its JSON would be as a value, or None for standard input.
        dialect: how it is read; None: as `run` would guess.
        limit: only the first tasks, so many.
        cache_dir: the cache; None: the configured one.
        tell: is given each record when its repository begins (`duration_s` null) and when it is done.

    Raises:
        InputError: the input cannot be read, or names no repository.
    """
    planned = plan(given, Asked(dialect=dialect), AskedGit(cache_dir=cache_dir), preview=True)
    tasks = () if isinstance(planned, Nothing) else planned.spec.tasks[:limit]
    wanted = _group(tasks)
    if not wanted:
        raise InputError("no task of this input names a repo: there is nothing to fetch ahead")
    records: dict[Path, Record] = {}
    pool = ThreadPoolExecutor(AT_A_TIME)
    try:
        jobs = [pool.submit(_fetch, one, tell) for one in wanted]
        for job in as_completed(jobs):
            record = job.result()
            records[Path(record["mirror"])] = record
            tell(record)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        _end_children()
        raise
    finally:
        pool.shutdown()
    return [records[one.mirror] for one in wanted]


def _group(tasks: Iterable[TaskSpec]) -> list[_Wanted]:
    """The repositories that tasks name, each with all the refs that are wanted of it."""
    found: dict[str, tuple[str, dict[str | None, None]]] = {}
    for task in tasks:
        if task.upstream is not None:
            found.setdefault(task.upstream.mirror, (task.upstream.repo, {}))[1][task.upstream.ref] = None
    return [_Wanted(repo, Path(mirror), tuple(refs)) for mirror, (repo, refs) in found.items()]


def _fetch(wanted: _Wanted, tell: Callable[[Record], None]) -> Record:
    begun = time.monotonic()
    record: Record = {
        "repo": wanted.repo,
        "mirror": str(wanted.mirror),
        "refs": [{"ref": ref, "commit": None} for ref in wanted.refs],
        "error": None,
        "duration_s": None,
    }
    tell(record)
    try:
        make_directories(wanted.mirror.parent, 0o700)
        with hold_lock(lock_path(wanted.mirror), 0o600, FOREVER_S):
            found = bring(wanted.mirror, wanted.repo, wanted.refs)
    except (SessionrunError, OSError) as error:
        return {**record, "error": str(error), "duration_s": round(time.monotonic() - begun, 3)}
    refs, problems = [], []
    for ref, start in found.items():
        missing = isinstance(start, SessionrunError)
        refs.append({"ref": ref, "commit": None if isinstance(start, SessionrunError) else start.commit})
        problems += [str(start)] if missing else []
    told = problems[0] if problems else None
    if len(problems) > 1:
        told = f"{told} (and {len(problems) - 1} more of its refs)"
    return {**record, "refs": refs, "error": told, "duration_s": round(time.monotonic() - begun, 3)}


def _end_children() -> None:
    """End the git commands that are under way: they are in sessions of their own, where Ctrl+C does not reach."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.Error:
            pass
