"""Reads spec.json some tasks at a time, for the sake of memory.

Parsed as a whole, each task takes 3 KB as long as the process lives: small objects that are soon dropped lie among
those that stay.  A third of that is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import orjson

from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.store.records import read_spec

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
