"""Makes records of JSON, as their annotations say, and refuses all that does not fit.

It is the one way from JSON to our records: spec.json, the journal, requests, files of jobs.  So a new field is
read and checked without a word here, by msgspec: what no type says (an id is part of file names), the field's
annotation has of `model.kinds`.  Keys that a record does not know are left out.  Must not know files.  The keeper
and a poll do without this module.
"""

from __future__ import annotations

import re
import threading
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from sessionrun.model.keys import parse_job_key

_Record = TypeVar("_Record")


def build(cls: type[_Record], value: object) -> _Record:
    """Make a record of an object that came from JSON.

    Raises:
        ValueError: it is no object, a key is missing, or a value does not fit; the text says where in the record.
    """
    if type(value) is not dict:
        raise ValueError("it is not an object")
    text = value.get("key")
    if type(text) is str and cls.__annotations__.get("key") == "JobKey":  # one text in JSON, and five fields here
        try:
            value = {**value, "key": parse_job_key(text)}
        except ValueError:
            raise ValueError(f"key is not that of a job: {text!r:.40}") from None
    wanted: Any = cls
    _decoder(wanted)  # `convert` has no lock
    try:
        return msgspec.convert(value, cls)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(_word(str(error))) from None


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
        return record
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(_word(str(error))) from None


@cache
def _decoder(cls: Any) -> Any:
    with _LOCK:
        return msgspec.json.Decoder(cls)


# What msgspec learns of a class it keeps there half made at first, and dies of what another thread has left there.
_LOCK: Final = threading.Lock()


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
