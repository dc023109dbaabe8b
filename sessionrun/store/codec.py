"""Makes records of JSON, as their annotations say, and refuses all that does not fit.

It is the one way from JSON to our records: spec.json, the journal, requests, files of jobs.  So a new field is
read and checked without a word here.  msgspec reads types; what no type says (an id is part of file names, a time
must be one that can be shown), the field's annotation has of `model.kinds`.  Keys that a record does not know are
left out.  Must not know files.  The keeper and a poll do without this module.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from sessionrun.model.keys import JobKey, parse_job_key
from sessionrun.model.kinds import Money, Seconds

_Record = TypeVar("_Record")

_Found: TypeAlias = tuple[str, str] | None
"""Where in a value something is wrong ('': it is the value itself), and what."""

_Check: TypeAlias = Callable[[Any], _Found]
"""Looks at a value of the right type."""


def build(cls: type[_Record], value: object) -> _Record:
    """Make a record of an object that came from JSON.

    Raises:
        ValueError: it is no object, a key is missing, or a value does not fit; the text says where in the record.
    """
    if type(value) is not dict:
        raise ValueError("it is not an object")
    wanted: Any = cls
    _decoder(wanted)  # `convert` has no lock
    try:
        record = msgspec.convert({**value, **_read_keys(cls, value)}, cls)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(_word(str(error))) from None
    return _checked(cls, record)


def decode(cls: type[_Record], content: bytes) -> _Record:
    """Make a record of JSON, without dictionaries between the two.

    Raises:
        msgspec.DecodeError: it is no JSON.
        ValueError: as `build` has it.
    """
    wanted: Any = cls
    try:
        text = content.decode()  # msgspec does not look into keys that it leaves out
        record: _Record = _decoder(wanted).decode(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(_word(str(error))) from None
    return _checked(cls, record)


@cache
def _decoder(cls: Any) -> Any:
    with _LOCK:
        return msgspec.json.Decoder(cls)


# What msgspec learns of a class it keeps there half made at first, and dies of what another thread has left there.
_LOCK: Final = threading.Lock()


def _read_keys(cls: type[Any], value: Mapping[str, Any]) -> dict[str, JobKey]:
    """The key of a job is one text in JSON, and five fields here."""
    text = value.get("key")
    if type(text) is not str or cls.__annotations__.get("key") != "JobKey":
        return {}
    try:
        return {"key": parse_job_key(text)}
    except ValueError:
        raise ValueError(f"key {_word_refusal(text)}") from None


_PLACE: Final = re.compile(r"(.*?)(?: - at `(?:key in )?\$\.?(.*?)`)?", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")


def _word(error: str) -> str:
    """A refusal of msgspec's in our words: where, and what is wrong there."""
    match = _PLACE.fullmatch(error)
    problem, place = (match[1], match[2]) if match else (error, None)
    missing = _MISSING.fullmatch(problem)
    if missing:
        return f"{place}.{missing[1]} is missing" if place else f"{missing[1]} is missing"
    return f"{place or 'it'} has a value that does not belong there: {problem[:1].lower()}{problem[1:]}"


_BY_ENDING: Final[Mapping[str, Any]] = {"_s": Seconds, "_usd": Money}
"""What a number is, by the end of its field's name."""

_ALIKE: Final = frozenset(f"TaskSpec.{name}" for name in ("agent", "model", "cwd", "workspace", "linger_s"))
"""What most tasks of a session have in common: each text is in memory once, and so is the default of others."""

_NOTHING: Final[Mapping[str, Any]] = {}


def _checked(cls: type[Any], record: _Record) -> _Record:
    wanted: Any = cls
    check = _check_of_record(wanted)
    if found := check and check(record):
        raise ValueError(f"{found[0] or 'it'} {found[1]}")
    return record


@cache
def _check_of_record(cls: Any) -> _Check | None:
    hints = get_type_hints(cls, include_extras=True)
    names = [field.name for field in fields(cls)]
    checks = [(name, found) for name in names if (found := _check_of_field(name, hints[name]))]
    alike = {field.name: field.default for field in fields(cls) if f"{cls.__name__}.{field.name}" in _ALIKE}
    empty = [name for name in names if alike and get_origin(hints[name]) is Mapping]
    if not checks and not alike:
        return None

    def check(record: Any) -> _Found:
        for name, check_field in checks:
            value = getattr(record, name)
            if value is not None and (found := check_field(value)):
                return _within(name, found)
        for name, default in alike.items():
            value = getattr(record, name)
            if type(value) is str:
                object.__setattr__(record, name, sys.intern(value))
            elif value == default:
                object.__setattr__(record, name, default)
        for name in empty:
            if not getattr(record, name):
                object.__setattr__(record, name, _NOTHING)
        return None

    return check


def _check_of_field(name: str, hint: Any) -> _Check | None:
    narrower = next((kind for ending, kind in _BY_ENDING.items() if name.endswith(ending)), None)
    return _check_of(narrower if narrower and hint in (float, float | None) else hint)


def _check_of(hint: Any) -> _Check | None:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _narrowed(inner[1], _check_of(inner[0]))
    if origin in (Union, UnionType):
        return _check_of(next(part for part in inner if part is not NoneType))
    if is_dataclass(hint) and isinstance(hint, type):
        return _check_of_record(hint)
    if origin is tuple and inner[-1] is ...:
        check = _check_of(inner[0])
        return check and _each(check, enumerate)
    if origin is Mapping:
        check = _check_of(inner[1])
        return check and _each(check, lambda members: members.items())
    return None


def _narrowed(is_good: Callable[[Any], bool], check_inner: _Check | None) -> _Check:
    def check(value: Any) -> _Found:
        found = check_inner and check_inner(value)
        return found or (None if is_good(value) else ("", _word_refusal(value)))

    return check


def _each(check_member: _Check, iterate: Callable[[Any], Iterable[tuple[object, Any]]]) -> _Check:
    def check(value: Any) -> _Found:
        for place, member in iterate(value):
            if found := check_member(member):
                return _within(f"[{place!r:.80}]", found)
        return None

    return check


def _within(outer: str, found: tuple[str, str]) -> _Found:
    place, problem = found
    joint = "." if place and not place.startswith("[") else ""
    return f"{outer}{joint}{place}", problem


def _word_refusal(value: object) -> str:
    shown = f": {value!r:.40}" if isinstance(value, (str, int, float)) else ""
    return f"has a value that does not belong there{shown}"
