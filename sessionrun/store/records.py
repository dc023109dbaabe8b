"""Records of spec.json and the journal as they come from disk: each value is of the type that its field declares.

The shapes follow from the annotations of the records themselves, so a new field is checked without a word here.
What no annotation says (an id is part of file names, a time must be one that can be shown) stands in `_NARROWER`.
Must not know files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import orjson

from sessionrun.model.changes import Change, change_from_record
from sessionrun.model.events import EVENTS, Entry, TasksAdded, from_record
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import SessionSpec
from sessionrun.model.spec_records import additions_from_record
from sessionrun.model.validation import describe_id_problem
from sessionrun.store import caches, shapes
from sessionrun.store.shapes import Kind

_PLAIN: Final[Mapping[Any, Kind]] = {
    str: shapes.TEXT,
    int: shapes.INTEGER,
    float: shapes.NUMBER,
    bool: shapes.FLAG,
    Any: shapes.anything,
    JobKey: shapes.TEXT,
}


def _are_task_ids(values: Sequence[Any]) -> bool:
    return shapes.TEXT(values) and not any(map(describe_id_problem, values))


_NARROWER: Final[Mapping[str, Kind]] = {
    "TaskSpec.id": Kind(_are_task_ids, shapes.file_name.describe),
    "TaskSpec.cwd": shapes.nullable(shapes.path),
    "TaskSpec.rounds": shapes.amount,
    "TaskSpec.retries": shapes.count,
    "TaskSpec.uses": shapes.mappings(shapes.amount),
    "Check.uses": shapes.mappings(shapes.amount),
    "Prove.repeat": shapes.amount,
    "SessionSpec.resources": shapes.mappings(shapes.amount),
    "TasksAdded.resources": shapes.mappings(shapes.amount),
    "Price.input": shapes.money,
    "Price.output": shapes.money,
    "Price.cached_input": shapes.nullable(shapes.money),
    "SessionSpec.session_id": shapes.file_name,
    "SessionSpec.created_at": shapes.time,
    "SessionSpec.cwd": shapes.path,
    "AgentSpec.argv": shapes.lists(shapes.path),
    "Repository.top": shapes.path,
    "Repository.common_dir": shapes.path,
    "Repository.base_branch": shapes.path,
    "Repository.base_commit": shapes.path,
    "Repository.worktree_dir": shapes.path,
    "Place.branch": shapes.nullable(shapes.path),
    "Place.worktree": shapes.nullable(shapes.path),
    "Place.base_commit": shapes.nullable(shapes.path),
    "Place.setup_commit": shapes.nullable(shapes.path),
    "Place.taken_up": shapes.nullable(shapes.path),
    "Place.commit": shapes.nullable(shapes.path),
    "Place.rescue": shapes.nullable(shapes.path),
    "Place.diff_stat": shapes.nullable(caches.DIFF_STAT),
    "MadeEnvironment.path": shapes.nullable(shapes.path),
    "Usage.input_tokens": shapes.nullable(shapes.count),
    "Usage.cached_input_tokens": shapes.nullable(shapes.count),
    "Usage.output_tokens": shapes.nullable(shapes.count),
    "Usage.unpriced_jobs": shapes.count,
    "SupervisorStarted.epoch": shapes.count,
    "SupervisorStarted.pid": shapes.count,
    "SupervisorStarted.started": shapes.count,
    "SupervisorStarted.keeper": shapes.nullable(shapes.count),
    "SupervisorStarted.keeper_started": shapes.nullable(shapes.count),
    "JobStarted.pid": shapes.count,
    "JobStarted.started": shapes.count,
    "Checked.counts": shapes.nullable(caches.COUNTS),
    "Checked.diff_stat": shapes.nullable(caches.DIFF_STAT),
    "JobFinished.exit_code": shapes.nullable(shapes.count),
    "JobFinished.signal": shapes.nullable(shapes.count),
}


_BY_ENDING: Final[Mapping[str, Kind]] = {"_s": shapes.seconds, "_usd": shapes.money}
"""What a number is, by the end of its field's name."""


def check_spec(record: object) -> None:
    """Whether the object of spec.json has the types that a session's spec declares, and each agent that it names.

    Raises:
        ValueError: it has not.
    """
    fault = _find_misfit(SessionSpec, record)
    if fault is not None:
        raise ValueError(fault)
    assert isinstance(record, dict)
    for task in record["tasks"]:
        for named in (task, *task.get("fallback", ())):
            if "agent" in named and named["agent"] not in record["agents"]:
                raise ValueError(
                    f"task {task['id']!r:.140} has the agent {named['agent']!r:.80}, which is not there"
                )


def read_additions(record: dict[str, Any]) -> TasksAdded:
    """The tasks that a request brings.

    Raises:
        ValueError: its values have not the types that tasks and agents declare.
    """
    fault = _find_misfit(TasksAdded, record)
    if fault is not None:
        raise ValueError(fault)
    return TasksAdded(record["request_id"], resources=record.get("resources", {}), **additions_from_record(record))


def read_change(record: object) -> Change:
    """What a request changes of the tasks that it lets be tried again.

    Raises:
        ValueError: its values have not the types that they should have.
    """
    fault = _find_misfit(Change, record)
    if fault is not None or not isinstance(record, dict):
        raise ValueError(f"change: {fault}")
    return change_from_record(record)


def iterate_entries(payloads: Sequence[bytes]) -> Iterator[Entry]:
    """The entries of a journal, up to the first that is none.

    Raises:
        ValueError: of a later version, or damaged.
    """
    records: list[Any] = []
    fault: Exception | None = None
    for payload in payloads:
        try:
            records.append(orjson.loads(payload))
        except ValueError as error:
            fault = error
            break
    are_good = _are_entries(records)
    for record in records:
        if not are_good:
            _check_entry(record)
        yield from_record(record)
    if fault is not None:
        raise fault


def kind_of(annotation: Any) -> Kind:
    """What JSON has for values of this type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if origin is Literal:
        return shapes.words(*arguments)
    if origin in (Union, UnionType):
        inner = [argument for argument in arguments if argument is not NoneType]
        assert len(inner) == 1 < len(arguments), annotation
        return shapes.nullable(kind_of(inner[0]))
    if origin is tuple:
        return shapes.lists(kind_of(arguments[0]))
    if is_dataclass(annotation) and isinstance(annotation, type):
        return _kind_of_record(annotation)
    return shapes.mappings(kind_of(arguments[1]))


@cache
def _kind_of_record(cls: type) -> Kind:
    required, optional = _keys_of(cls)
    return shapes.objects(required, optional)


@cache
def _keys_of(cls: type) -> tuple[Mapping[str, Kind], Mapping[str, Kind]]:
    """The keys that must be there, and those that have defaults."""
    hints = get_type_hints(cls)
    required: dict[str, Kind] = {}
    optional: dict[str, Kind] = {}
    for field in fields(cls):
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        kind = _NARROWER.get(f"{cls.__name__}.{field.name}") or _kind_of_number(field.name, hints[field.name])
        (optional if has_default else required)[field.name] = kind or kind_of(hints[field.name])
    return required, optional


def _kind_of_number(name: str, annotation: Any) -> Kind | None:
    kind = next((kind for ending, kind in _BY_ENDING.items() if name.endswith(ending)), None)
    if kind is None or float not in (annotation, *get_args(annotation)):
        return None
    return kind if annotation is float else shapes.nullable(kind)


_PLACE_IN_TIME: Final = shapes.objects({"seq": shapes.count, "at": shapes.moment, "mono": shapes.NUMBER})


def _are_entries(records: Sequence[Any]) -> bool:
    """Whether all are good, told at once."""
    if not _PLACE_IN_TIME(records):
        return False
    groups: dict[str, list[Any]] = {}
    for record in records:
        groups.setdefault(str(record.get("ev")), []).append(record)
    known: Mapping[str, type] = EVENTS
    return all(name in known and _kind_of_record(known[name])(group) for name, group in groups.items())


def _check_entry(record: Any) -> None:
    if not isinstance(record, dict) or not isinstance(record.get("ev"), str):
        raise ValueError("it is not an event")
    if not _PLACE_IN_TIME((record,)):
        raise ValueError("its seq or its time is not a number")
    cls = EVENTS.get(record["ev"])
    fault = None if cls is None else _find_misfit(cls, record)
    if fault is not None:
        raise ValueError(fault)


def _find_misfit(cls: type, record: object) -> str | None:
    """What of an object does not fit a record; the first key by name."""
    if _kind_of_record(cls)((record,)):
        return None
    if not isinstance(record, dict):
        return "it is not an object"
    required, optional = _keys_of(cls)
    missing = next((key for key in required if key not in record), None)
    if missing is not None:
        return f"{missing!r} is missing"
    kinds = {**required, **optional}
    wrong = next(key for key, kind in kinds.items() if key in record and not kind((record[key],)))
    return f"{wrong!r} has a value that does not belong there"
