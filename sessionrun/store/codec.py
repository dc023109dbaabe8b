"""Makes records of values that came from JSON, as their annotations say, and refuses all that does not fit.

It is the one way from JSON to our records: spec.json, the journal, requests and the files of jobs.  So a new field
is read and checked without a word here.  What no type says (an id is part of file names, a time must be one that
can be shown), the field's annotation has of `model.kinds`.  Keys that a record does not know are left out: a later
version added them.  Must not know files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from sessionrun.model.keys import JobKey, parse_job_key
from sessionrun.model.kinds import Money, Seconds

_Record = TypeVar("_Record")

_Reader: TypeAlias = Callable[[Any], Any]
"""Makes a field's value of one that came from JSON.

Raises:
    _Misfit: it does not fit.
"""


class _Misfit(ValueError):
    """A value is not of the type that its record wants; `place` is where inside of the record it is."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(f"{place or 'it'} {problem}")
        self._problem = problem
        self._place = place

    def within(self, outer: str) -> _Misfit:
        """The same, told from one level further out."""
        joint = "." if self._place and not self._place.startswith("[") else ""
        return _Misfit(self._problem, f"{outer}{joint}{self._place}")


def build(cls: type[_Record], value: object) -> _Record:
    """Make a record of an object that came from JSON.

    Raises:
        ValueError: it is no object, a key is missing, or a value does not fit; the text says where in the record.
    """
    wanted: Any = cls
    try:
        record: _Record = _reader_of_record(wanted)(value)
    except _Misfit as misfit:
        raise ValueError(str(misfit)) from None
    return record


_BY_ENDING: Final[Mapping[str, Any]] = {"_s": Seconds, "_usd": Money}
"""What a number is, by the end of its field's name."""

_ALIKE: Final = frozenset(("TaskSpec.agent", "TaskSpec.model", "TaskSpec.cwd", "TaskSpec.base"))
"""Texts that most tasks of a session have in common: each is in memory once."""

_NOTHING: Final[Mapping[str, Any]] = {}


@cache
def _reader_of_record(cls: type[Any]) -> _Reader:
    hints = get_type_hints(cls, include_extras=True)
    members = {field.name: field for field in fields(cls)}
    readers = {name: _reader_of_field(f"{cls.__name__}.{name}", hints[name]) for name in members}
    required = [
        name for name, field in members.items() if field.default is MISSING and field.default_factory is MISSING
    ]

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Misfit("is not an object")
        name = ""
        known: dict[str, Any] = {}
        try:
            for name, member in value.items():
                if name in readers:
                    known[name] = readers[name](member)
        except _Misfit as misfit:
            raise misfit.within(name) from None
        for name in required:
            if name not in known:
                raise _Misfit("is missing", name)
        return cls(**known)

    return read


def _reader_of_field(name: str, hint: Any) -> _Reader:
    narrower = next((kind for ending, kind in _BY_ENDING.items() if name.endswith(ending)), float)
    if hint in (float, float | None):
        hint = narrower if hint is float else narrower | None
    read = _reader_of(hint)
    return _shared(read) if name in _ALIKE else read


def _reader_of(hint: Any) -> _Reader:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (other,) = (part for part in inner if part is not NoneType)
        return _or_none(_reader_of(other))
    if origin is Annotated:
        return _narrowed(_reader_of(inner[0]), inner[1])
    if origin is Literal:
        return _reader_of_words(inner)
    if origin is tuple:
        elements = _reader_of(inner[0])
        return _reader_of_list(elements) if inner[-1] is ... else _reader_of_parts(tuple(map(_reader_of, inner)))
    if origin is Mapping:
        return _reader_of_mapping(_reader_of(inner[1]))
    if hint is Any:
        return lambda value: value
    if hint is float:
        return _read_number
    if hint is JobKey:
        return _read_key
    if is_dataclass(hint) and isinstance(hint, type):
        return _reader_of_record(hint)
    assert hint in (str, int, bool), hint
    return _reader_of_type(hint)


def _reader_of_type(wanted: type) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not wanted:
            raise _refusal(value)
        return value

    return read


def _read_number(value: Any) -> float:
    """JSON has one kind of number, and other programs write 60 where we write 60.0."""
    if type(value) is not float and type(value) is not int:
        raise _refusal(value)
    return float(value)


def _read_key(value: Any) -> JobKey:
    if type(value) is not str:
        raise _refusal(value)
    try:
        return parse_job_key(value)
    except ValueError:
        raise _refusal(value) from None


def _reader_of_words(words: tuple[str, ...]) -> _Reader:
    known = {word: word for word in words}

    def read(value: Any) -> Any:
        if type(value) is not str or value not in known:
            raise _refusal(value)
        return known[value]  # so it is in memory once

    return read


def _reader_of_list(read_element: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _refusal(value)
        done: list[Any] = []
        try:
            done.extend(map(read_element, value))
        except _Misfit as misfit:
            raise misfit.within(f"[{len(done)}]") from None
        return tuple(done)

    return read


def _reader_of_parts(readers: tuple[_Reader, ...]) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise _refusal(value)
        return tuple(read_part(part) for read_part, part in zip(readers, value, strict=True))

    return read


def _reader_of_mapping(read_member: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _refusal(value)
        name = ""
        done: dict[str, Any] = {}
        try:
            for name, member in value.items():
                done[name] = read_member(member)
        except _Misfit as misfit:
            raise misfit.within(f"[{name!r:.80}]") from None
        return done or _NOTHING

    return read


def _or_none(read: _Reader) -> _Reader:
    return lambda value: None if value is None else read(value)


def _shared(read: _Reader) -> _Reader:
    return lambda value: None if value is None else sys.intern(read(value))


def _narrowed(read: _Reader, is_good: Callable[[Any], bool]) -> _Reader:
    def read_narrowed(value: Any) -> Any:
        made = read(value)
        if not is_good(made):
            raise _refusal(value)
        return made

    return read_narrowed


def _refusal(value: object) -> _Misfit:
    simple = value is None or isinstance(value, (str, int, float))
    shown = f": {'null' if value is None else format(repr(value), '.40')}" if simple else ""
    return _Misfit(f"has a value that does not belong there{shown}")
