"""Reads what a report shows: the view of its session, when jobs ran, and parts of prompts, outputs and patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.evidence import Run, find_runs
from sessionrun.client.reading.changes import patch_path
from sessionrun.client.reading.digest import Excerpt, make_excerpt
from sessionrun.client.reading.telling import add_tellings
from sessionrun.client.reading.view import load_history
from sessionrun.model.errors import InputError
from sessionrun.model.events import Entry, HoldLifted, HoldPlaced
from sessionrun.runtime.history import load_tasks
from sessionrun.store.files import replace_file
from sessionrun.store.session import SessionDir

MOST_BYTES: Final = 4_000_000
"""So much text of all tasks together is in a report."""

MOST_OF_A_TASK: Final = 24_000
LEAST_OF_A_TASK: Final = 600

_NOTHING: Final = Excerpt("", 0, False)


class Shown(NamedTuple):
    """What is shown of one task beside its view; `runs` are its jobs that have begun."""

    task: Mapping[str, Any]
    prompts: tuple[str, ...]
    runs: list[Run]
    answer: Excerpt
    errors: Excerpt
    patch: Excerpt


class Hold(NamedTuple):
    """When nothing that uses a resource started (wall time); `end` None: it is held still."""

    resource: str
    reason: str
    begin: float
    end: float | None


class Matter(NamedTuple):
    """What a report is made of."""

    view: Mapping[str, Any]
    tasks: list[Shown]
    holds: Sequence[Hold] = ()


def gather(session: SessionDir, details_of: Callable[[Mapping[str, Any]], bool] | None = None) -> Matter:
    """Read all of it.

    Args:
        session: what is shown.
        details_of: of which tasks prompts, answers and changes are read; None: of all.

    Raises:
        StoreError: the session's files are damaged.
    """
    view, evidence = load_history(session)
    tasks = view["tasks"]
    chosen = {task["id"] for task in tasks if details_of is None or details_of(task)}
    specs = load_tasks(session) if chosen else {}
    runs: dict[str, list[Run]] = {}
    for key, run in find_runs(evidence.entries).items():
        runs.setdefault(key.task, []).extend([run] if run.begin is not None else [])
    room = max(LEAST_OF_A_TASK, min(MOST_OF_A_TASK, MOST_BYTES // max(1, len(chosen))))

    def show(task: dict[str, Any]) -> Shown:
        ran = runs.get(task["id"], [])
        if task["id"] not in chosen:
            return Shown(task, (), ran, _NOTHING, _NOTHING, _NOTHING)
        spec = specs.get(task["id"])
        prompts = tuple(prompt[: room // 6] for prompt in spec.prompts) if spec is not None else ()
        (worded,) = add_tellings(session, [task])
        return Shown(
            worded,
            prompts,
            ran,
            _take(session.path / task["output"], room // 3),
            _take(session.path / task["stderr"], room // 6),
            _take(patch_path(session, task), room // 3),
        )

    return Matter(view, [show(task) for task in tasks], find_holds(evidence.entries))


def write_page(path: Path, page: bytes) -> None:
    """Write a page to a file, whole or not at all, for its owner alone; or into what is no file, such as a pipe.

    Raises:
        InputError: its directory does not exist.
        OSError: it cannot be written.
    """
    place = path.resolve()
    if not place.parent.is_dir():
        raise InputError(f"{path}: there is no directory {place.parent}; make it, or name another file")
    if place.exists() and not place.is_file():
        place.write_bytes(page)
    else:
        replace_file(place, page, durable=False, sweeps=True)


def _take(path: Path, room: int) -> Excerpt:
    return make_excerpt(path, room, lambda text: len(text.encode("utf-8", "backslashreplace")))


def find_holds(entries: Sequence[Entry]) -> list[Hold]:
    """The holds on resources, from the journal; one that is placed again goes on."""
    holds: list[Hold] = []
    open_holds: dict[str, int] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, HoldPlaced) and event.resource not in open_holds:
            open_holds[event.resource] = len(holds)
            holds.append(Hold(event.resource, event.reason, entry.at, None))
        elif isinstance(event, HoldLifted) and event.resource in open_holds:
            place = open_holds.pop(event.resource)
            holds[place] = holds[place]._replace(end=entry.at)
    return holds
