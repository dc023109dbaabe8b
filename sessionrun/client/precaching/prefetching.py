"""Fetches ahead what the tasks of an input name: their repositories, in each the refs, and then environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from sessionrun.client.fetching import Fetched, Record, fetch_wanted, group_mirrors
from sessionrun.client.planning.inputs import Given
from sessionrun.client.planning.plan import Nothing, plan
from sessionrun.client.precaching.abreast import run_abreast
from sessionrun.model.errors import InputError
from sessionrun.model.places import Start
from sessionrun.model.spec import SessionSpec, TaskSpec


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
    planned = plan(given, {"dialect": dialect, "cache_dir": cache_dir and str(cache_dir)}, preview=True)
    if isinstance(planned, Nothing):
        raise _refuse()
    spec, tasks = planned.spec, planned.spec.tasks[:limit]
    wanted = group_mirrors(tasks)
    records: dict[str, Record] = {}
    starts: dict[tuple[str, str | None], Start] = {}

    def add(fetched: Fetched) -> None:
        records[fetched.record["mirror"]] = fetched.record
        starts.update({(fetched.record["mirror"], ref): start for ref, start in fetched.starts.items()})
        tell(fetched.record)

    run_abreast([partial(fetch_wanted, repository, tell) for repository in wanted], add)
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
    from sessionrun.client.precaching.prebuilding import build_ahead, list_ahead

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
