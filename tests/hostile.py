"""Requests as a hostile or broken program leaves them in a session: any kind, any shape, any value.

What they are made of follows from the annotations of the records themselves, so a new field is tried without a
word here.  All choices are those of a `Random`, so a seed gives the same requests again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from random import Random
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import orjson

from sessionrun.model.events import REQUEST_KINDS, RequestReceived, TasksAdded

TEXTS: Final = (
    "",
    " ",
    "x",
    "\0",
    "../x",
    "a=b",
    "{model}",
    "line\nline",
    "é" * 300,
    ".lock",
    "nope",
    "slot",
    "budget",
)
WHOLE: Final = (0, 1, 2, 3, 60, -1, 2**31, 2**63 - 1, -(2**63))
NUMBERS: Final = (0, 0.5, 60, 60.0, 1e-300, -1, -0.0, 1e8, 1e9, 1.7e308)
OTHERS: Final[Sequence[Any]] = (None, True, -7, 0.5, "x", [], {}, [[]], {"x": None}, [None])
"""Of these most belong into no field."""

FEW: Final = 0.06
"""How often a field that may be left out is there: with more of them nearly every request would be refused."""

WRONG: Final = 0.004
"""How often a value is of any other type."""


class Hostile:
    """Makes requests that speak of `tasks`, which exist, and of `agents`."""

    def __init__(self, random: Random, tasks: Sequence[str], agents: Sequence[str]) -> None:
        self._random = random
        self._tasks = tasks
        self._agents = agents
        self._made = 0
        self._new = "new"

    def make(self) -> dict[str, Any]:
        """A request as an object, with its id."""
        kind = self._random.choice((*REQUEST_KINDS, "add", "add", "add", "retry", "nonesuch", None))
        record = self._record(TasksAdded if kind == "add" else RequestReceived)
        record.update(kind=kind, request_id=self._choose_id())
        wanted = _WANTED.get(kind)
        if wanted is not None and self._random.random() < 0.9:
            record[wanted] = self._field(wanted, get_type_hints(RequestReceived)[wanted])
        if self._random.random() < WRONG:
            record[self._random.choice(list(record))] = self._random.choice(OTHERS)
        if kind == "cancel" and not record.get("tasks"):
            record["tasks"] = [self._random.choice(self._tasks)]  # else one of the first requests would end it all
        return record

    def spoil(self, record: Mapping[str, Any]) -> bytes:
        """The request as it lies in its file: most are whole, some half written, some no request at all."""
        content = orjson.dumps(record)
        chance = self._random.random()
        if chance > 0.2:
            return content
        rubbish = (b"", b"\xff", b"null", b"[" * 9000, b'{"request_id":', b"\0" * 4096, content + content)
        return self._random.choice((content[: self._random.randrange(len(content))], *rubbish))

    def _choose_id(self) -> str:
        self._made += 1
        again = self._random.random() < 0.05
        number = self._random.randrange(self._made) if again else self._made
        return str(uuid.UUID(int=number, version=4))

    def _record(self, cls: type) -> dict[str, Any]:
        required, optional = _annotations_of(cls)
        chosen = dict(required)
        for name, hint in optional.items():
            chance = 0.9 if name in ("tasks", "agent") else FEW
            if self._random.random() < chance:
                chosen[name] = hint
        return {name: self._field(name, hint) for name, hint in chosen.items()}

    def _field(self, name: str, hint: Any) -> Any:
        if name == "id":
            self._made += 1
            self._new = f"new-{self._made}"
            return self._random.choice((self._new,) * 200 + (*TEXTS, *self._tasks))
        if name in ("rounds", "retries"):
            return self._random.choice((-1, 0, 1, 2, 3))  # a million is a good wish, and would never end
        if name in ("agent", "name"):
            return self._random.choice((*self._agents,) * 30 + TEXTS)
        if (name == "tasks" and hint == tuple[str, ...]) or name == "needs":
            known = [*self._tasks, self._new] if self._random.random() < 0.2 else self._tasks
            return self._random.sample(known, self._random.randrange(3))
        return self._value(hint)

    def _value(self, hint: Any) -> Any:
        if self._random.random() < WRONG:
            return self._random.choice(OTHERS)
        origin, inner = get_origin(hint), get_args(hint)
        if origin is Literal:
            return self._random.choice(inner)
        if origin in (Union, UnionType):
            kinds = [kind for kind in inner if kind is not NoneType]
            return None if self._random.random() < 0.2 else self._value(kinds[0])
        if origin is tuple:
            return [self._value(inner[0]) for _ in range(self._random.randrange(1, 3))]
        if is_dataclass(hint) and isinstance(hint, type):
            return self._record(hint)
        if hint in _PLAIN:
            return self._random.choice(_PLAIN[hint])
        return {self._random.choice((*TEXTS, *self._agents)): self._value(inner[1])}


_WANTED: Final[Mapping[str | None, str]] = {"set": "max_parallel", "continue": "text"}
"""What a kind hardly ever lacks."""

_PLAIN: Final[Mapping[Any, Sequence[Any]]] = {
    str: TEXTS,
    int: WHOLE,
    float: NUMBERS,
    bool: (True, False),
    Any: OTHERS,
}


@cache
def _annotations_of(cls: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The annotations of the fields that must be there, and of those that may be left out."""
    hints = get_type_hints(cls)
    required, optional = dict[str, Any](), dict[str, Any]()
    for field in fields(cls):
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        (optional if has_default else required)[field.name] = hints[field.name]
    return required, optional
