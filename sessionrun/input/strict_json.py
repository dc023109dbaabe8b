"""JSON without its soft spots: duplicate keys, NaN, integers that readers round, half characters, depth.

The scanner is the standard library's.  Its hooks see values, not places: so what breaks one of our rules is named,
and only what is no JSON at all is told with its line.  Must not know what the values mean.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from sessionrun.input.limits import (
    HALF_CHARACTER,
    MAX_DEPTH,
    TOO_DEEP,
    TWICE,
    Breach,
    has_half_character,
    quote,
    read_finite,
    read_integer,
)

_MAYBE_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""Escapes of half characters; two that belong together are one character."""


class ExtraText(Breach):
    """A whole JSON value, and more text behind it."""


def parse_json(text: str) -> Any:
    """Read one JSON value.

    Raises:
        Breach: no JSON, or one of the rules above is broken; `ExtraText` when more follows the value.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        kind = ExtraText if error.msg == "Extra data" and text[error.pos] not in "/#`" else Breach
        offset, what = _name_mistake(text, error.pos, error.msg)
        line, column = text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
        raise kind(line, column, f"not valid JSON: {what}") from None
    except RecursionError:
        raise Breach(None, None, TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and is_too_deep(value):
        raise Breach(None, None, TOO_DEEP)
    if _MAYBE_HALF.search(text) and has_half_character(json.dumps(value, ensure_ascii=False)):
        raise Breach(None, None, HALF_CHARACTER)
    return value


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects lie in each other more than `MAX_DEPTH` deep; goes level by level."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
    return bool(level)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        twin, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise Breach(None, None, TWICE.format(quote(twin)))
    return record


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=read_integer, parse_float=read_finite, parse_constant=read_finite
)


_SIGNS: Final[Mapping[tuple[str, ...], str]] = {
    ("//", "/*", "#"): "JSON has no comments; remove this one",
    ("```",): "this is a code fence; remove the lines that begin with ```",
    tuple("'`‘’‚“”„«»"): 'JSON has no such quotes; put double quotes (") around texts and keys',
}
"""What people and models write that is no JSON, by how it begins."""

_MENDS: Final[Mapping[str, str]] = {
    "Unterminated string": "the text that begins here is never closed; close it with a double quote",
    "Invalid control character": "a line break or a tab stands inside of a text; write \\n or \\t",
    "Invalid \\escape": "a backslash stands before a character that needs none; write \\\\ for a backslash",
    "Expecting ':'": "a colon is missing behind the key",
    "Expecting ','": "a comma, or the bracket that closes, is missing before this",
    "Expecting property name": "put double quotes around the key",
    "Expecting value": "a value is missing here: text in double quotes, true, false and null in small letters",
    "Extra data": "more text follows behind the value; remove it",
}
"""By how the message of the standard library begins."""


def _name_mistake(text: str, offset: int, message: str) -> tuple[int, str]:
    """Where a mistake is, and how to mend it; the standard library stumbled at `offset`."""
    rest, before = text[offset:].strip(), text[:offset].rstrip()
    if message.startswith("Illegal trailing comma") or (rest[:1] in tuple("]}") and before.endswith(",")):
        at = offset if rest[:1] == "," else len(before) - 1
        return at, "the last entry of a list or object has no comma behind it; remove the comma"
    if not rest:
        return offset, "the text ends too early; is the input complete?"
    if not before and (rest[0].isalpha() or rest[0] == "-"):
        return offset, "JSON begins with { or [; a file of YAML is named *.yaml"
    known = next((words for signs, words in _SIGNS.items() if rest.startswith(signs)), None)
    mend = next((mend for begin, mend in _MENDS.items() if message.startswith(begin)), None)
    return offset, known or mend or message[:1].lower() + message[1:]
