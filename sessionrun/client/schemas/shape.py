"""From the types of keys to JSON Schemas of draft 2020-12.

A shape is a type as it stands at a key, `[shape]` for a list of such, `{str: shape}` for an object with any keys,
a tuple for one of several, or an object: a record, a TypedDict, or keys with their shapes, of which those that end
in `?` may be absent.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from sessionrun.model import checks, kinds, places, spec, usage, words

Shape: TypeAlias = Any
Keys: TypeAlias = Mapping[str, Shape]
Schema: TypeAlias = dict[str, Any]

_LEAVES: Final[Mapping[Any, Schema]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    NoneType: {"type": "null"},
    Any: {},
    kinds.Count: {"type": "integer", "minimum": 0},
    kinds.Time: {"type": "string", "format": "date-time"},
    kinds.FileName: {"type": "string", "minLength": 1},
}
_MODULES: Final = (checks, kinds, places, spec, usage, words)
_NAMES: Final = {"Sequence": Sequence, **{name: kind for each in _MODULES for name, kind in vars(each).items()}}
"""What annotations name that only a type checker imports."""


def keys_of(*records: type) -> dict[str, Shape]:
    """The keys of records together; the last one decides what a key is that several have."""
    keys: dict[str, Shape] = {}
    for record in records:
        absent: Collection[str] = getattr(record, "__optional_keys__", ())
        names = {**_NAMES, **vars(sys.modules[record.__module__])}
        hints = get_type_hints(record, localns=names, include_extras=True)
        keys |= {f"{key}?" if key in absent else key: hint for key, hint in hints.items()}
    return keys


def only(record: type, keys: Collection[str]) -> dict[str, Shape]:
    """Those keys of a record."""
    known = keys_of(record)
    return {key: known[key] for key in keys}


def describe_shape(shape: Shape) -> Schema:
    """The JSON Schema of a shape."""
    if isinstance(shape, Mapping):
        return _describe_mapping(*next(iter(shape.items()))) if str in shape else _describe_object(shape)
    if isinstance(shape, tuple):
        return _describe_union(shape)
    if isinstance(shape, list):
        return {"type": "array", "items": describe_shape(shape[0])}
    if shape in _LEAVES:
        return dict(_LEAVES[shape])
    origin: Any = get_origin(shape)
    inner = get_args(shape)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, UnionType):
        return _describe_union(inner)
    if origin is Annotated:
        return describe_shape(inner[0])
    if origin in (list, tuple, Sequence):
        return describe_shape([inner[0]])
    if origin in (dict, Mapping):
        return _describe_mapping(*inner)
    assert is_typeddict(shape) or is_dataclass(shape) or issubclass(shape, tuple), shape
    return _describe_object(keys_of(shape))


def _describe_object(keys: Keys) -> Schema:
    properties = {key.rstrip("?"): describe_shape(shape) for key, shape in keys.items()}
    return {"type": "object", "properties": properties, "required": [key for key in keys if not key.endswith("?")]}


def _describe_mapping(key: Shape, value: Shape) -> Schema:
    """An object with any keys or, if the key is one of certain words, with all of these."""
    words = get_args(key)
    if words:
        return _describe_object(dict.fromkeys(words, value))
    return {"type": "object", "additionalProperties": describe_shape(value)}


def _describe_union(shapes: Collection[Shape]) -> Schema:
    nullable = NoneType in shapes or None in shapes
    schemas = [describe_shape(shape) for shape in shapes if shape not in (None, NoneType)]
    if len(schemas) > 1:
        return {"anyOf": [*schemas, *([{"type": "null"}] if nullable else [])]}
    (schema,) = schemas
    if not nullable:
        return schema
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]} if "type" in schema else schema
