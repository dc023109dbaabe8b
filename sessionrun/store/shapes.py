"""What values read from JSON must look like, checked column by column: the same key of many objects at once.

A kind says whether all values of a column are good.  So each test is one call for all tasks of a session, not one
for each, and a table of ten thousand tasks is checked in a fraction of the time that it takes to parse.  Kinds are
written down as tables (`objects`); records have theirs by their annotations, see `codec`.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, TypeAlias

from sessionrun.model.times import is_time

Schema: TypeAlias = dict[str, Any]
"""A JSON Schema, of draft 2020-12."""


class Kind:
    """Whether each value of a column is good; `describe` says it of one value, as a JSON Schema."""

    __slots__ = ("_are_good", "describe")

    def __init__(self, are_good: Callable[[Sequence[Any]], bool], describe: Callable[[], Schema]) -> None:
        self._are_good = are_good
        self.describe = describe

    def __call__(self, values: Sequence[Any]) -> bool:
        return self._are_good(values)


def _described(schema: Schema) -> Callable[[Callable[[Sequence[Any]], bool]], Kind]:
    return lambda are_good: Kind(are_good, schema.copy)


_BLOCK: Final = 256
"""How many objects are looked at together: few enough to stay in the processor's cache from key to key."""

_TYPE_WORDS: Final[Mapping[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}


def of_types(*allowed: type) -> Kind:
    """Values of exactly these types: a truth value is not a number."""
    types = frozenset(allowed)
    word = _TYPE_WORDS[float if float in types else allowed[0]]
    return Kind(lambda values: types.issuperset(map(type, values)), lambda: {"type": word})


TEXT: Final = of_types(str)
FLAG: Final = of_types(bool)
NUMBER: Final = of_types(int, float)
INTEGER: Final = of_types(int)


@_described({})
def anything(values: Sequence[Any]) -> bool:
    """Every value is good."""
    return True


@_described({"type": "integer", "minimum": 0})
def count(values: Sequence[Any]) -> bool:
    """Whole numbers, not below 0."""
    return INTEGER(values) and min(values, default=0) >= 0


@_described({"type": "string"})
def path(values: Sequence[Any]) -> bool:
    """Texts that the system takes as a path."""
    return TEXT(values) and not any("\0" in value for value in values)


@_described({"type": "string", "minLength": 1})
def file_name(values: Sequence[Any]) -> bool:
    """Names of files within one directory."""
    return path(values) and not any("/" in value or value in ("", ".", "..") for value in values)


@_described({"type": "string", "format": "date-time"})
def time(values: Sequence[Any]) -> bool:
    """Times as status.json spells them, which can be shown in any time zone."""
    return TEXT(values) and all(map(is_time, values))


def words(*allowed: str) -> Kind:
    """Texts out of a closed set."""
    known = frozenset(allowed)
    return Kind(lambda values: TEXT(values) and known.issuperset(values), lambda: {"enum": list(allowed)})


def nullable(kind: Kind) -> Kind:
    """The same, or null."""

    def fit(values: Sequence[Any]) -> bool:
        given = [value for value in values if value is not None]
        return not given or kind(given)

    return Kind(fit, lambda: _or_null(kind.describe()))


def _or_null(schema: Schema) -> Schema:
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]} if "type" in schema else schema


def lists(kind: Kind) -> Kind:
    """Lists of such values."""
    is_list = of_types(list)
    return Kind(
        lambda values: is_list(values) and kind(list(chain.from_iterable(values))),
        lambda: {"type": "array", "items": kind.describe()},
    )


def mappings(kind: Kind) -> Kind:
    """Objects with any keys and such values."""
    is_object = of_types(dict)
    return Kind(
        lambda values: is_object(values) and kind(list(chain.from_iterable(map(dict.values, values)))),
        lambda: {"type": "object", "additionalProperties": kind.describe()},
    )


def objects(required: Mapping[str, Kind], optional: Mapping[str, Kind] | None = None) -> Kind:
    """Objects in which each key has its kind; optional ones may be absent; what other keys there are is free."""
    is_object = of_types(dict)
    getters = [(itemgetter(key), kind) for key, kind in required.items()]
    more = optional or {}

    def fit(block: Sequence[Any]) -> bool:
        for key, kind in more.items():
            column = [value[key] for value in block if key in value]
            if column and not kind(column):
                return False
        try:
            return all(kind(list(map(get, block))) for get, kind in getters)
        except KeyError:
            return False

    def are_good(values: Sequence[Any]) -> bool:
        blocks = (values[begin : begin + _BLOCK] for begin in range(0, len(values), _BLOCK))
        return is_object(values) and all(map(fit, blocks))

    def describe() -> Schema:
        properties = {key: kind.describe() for key, kind in {**required, **more}.items()}
        return {"type": "object", "properties": properties, "required": list(required)}

    return Kind(are_good, describe)


def either(*kinds: Kind) -> Kind:
    """Values that are good for one of these kinds."""
    return Kind(
        lambda values: all(any(kind((value,)) for kind in kinds) for value in values),
        lambda: {"anyOf": [kind.describe() for kind in kinds]},
    )
