"""The records of a session's directory, made of the JSON objects that spec.json, the journal and requests hold.

spec.json is read some tasks at a time.  Parsed as a whole, each task takes 3 KB as long as the process lives:
small objects that are soon dropped lie among those that stay.  A third of that is needed.

Must not know files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import orjson

from sessionrun.model.errors import InputError
from sessionrun.model.events import EVENTS, Entry
from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import Count, Moment
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.model.words import SCHEMA_VERSION
from sessionrun.store.codec import build


@frozen
class _When:
    """The place of an entry of the journal in the order, and its time."""

    seq: Count
    at: Moment
    mono: float


def read_spec(record: dict[str, Any]) -> SessionSpec:
    """The object of spec.json as a session's spec.

    Raises:
        ValueError: its values have not the types that a spec declares, or a task has an agent that is not there.
        InputError: a newer version wrote it.
    """
    version = record["schema_version"]
    if version != SCHEMA_VERSION:  # of another one not even the keys are known
        raise InputError(f"spec.json has schema_version {version}; this sessionrun reads {SCHEMA_VERSION}")
    spec = build(SessionSpec, record)
    for task in spec.tasks:
        for agent in (task.agent, *[other.agent for other in task.fallback]):
            if agent not in spec.agents:
                raise ValueError(f"task {task.id!r:.140} has the agent {agent!r:.80}, which is not there")
    return spec


def iterate_entries(payloads: Sequence[bytes]) -> Iterator[Entry]:
    """The entries of a journal, up to the first that is none.

    Raises:
        ValueError: of a later version, or damaged.
    """
    for payload in payloads:
        yield read_entry(orjson.loads(payload))


def read_entry(record: object) -> Entry:
    """Read what `model.events.to_record` wrote.

    Raises:
        ValueError: an event of a later version, or no event at all.
    """
    if not isinstance(record, dict) or not isinstance(record.get("ev"), str):
        raise ValueError("it is not an event")
    cls = EVENTS.get(record["ev"])
    if cls is None:
        raise ValueError(f"unknown event {record['ev']!r:.80}; was it written by a newer version?")
    when = build(_When, record)
    return Entry(when.seq, when.at, when.mono, build(cls, record))


TASKS_AT_A_TIME: Final = 200

_TASKS: Final = b'"tasks":['
_TASK: Final = b'{"id":"'
_NEXT: Final = b"}," + _TASK
"""Between two tasks, and never inside of a text: there each quote has a backslash before it."""


def parse_spec(content: bytes) -> SessionSpec:
    """Make a session's spec of the bytes of its spec.json.

    Raises:
        ValueError: it is no JSON, or lacks what a spec has.
        InputError: a newer version wrote it.
    """
    try:
        return _build(_parse_by_parts(content))
    except ValueError:  # it is damaged, or laid out in another way; read whole, it is told which task is damaged
        return _build([orjson.loads(content)])


def _build(parts: Iterable[dict[str, Any]]) -> SessionSpec:
    tasks: list[TaskSpec] = []
    for record in parts:
        spec = read_spec(record)
        tasks += spec.tasks
    return replace(spec, tasks=tuple(tasks))


def _parse_by_parts(content: bytes) -> Iterator[dict[str, Any]]:
    """The object of spec.json, again and again, each time with other tasks.

    A cut inside of a task would leave an open bracket on both its sides, which is no JSON.

    Raises:
        orjson.JSONDecodeError: a part is no JSON.
    """
    first = content.find(_TASKS + _TASK) + len(_TASKS)
    if first < len(_TASKS):
        yield orjson.loads(content)  # it has no task
        return
    cuts = [first]
    while (end := content.find(_NEXT, cuts[-1])) >= 0:
        cuts.append(end + len(b"},"))
    cuts = cuts[::TASKS_AT_A_TIME]
    rest = orjson.loads(b'{"tasks":[' + content[cuts[-1] :])
    around = {**orjson.loads(content[:first] + b"]}"), **rest}
    for begin, end in pairwise(cuts):
        yield {**around, "tasks": orjson.loads(b"[" + content[begin : end - 1] + b"]")}
    yield around
