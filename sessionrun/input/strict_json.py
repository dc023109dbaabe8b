"""JSON without its soft spots: duplicate keys, NaN, integers that readers round, half characters, depth.

What people and models get wrong is found by a second look at text that could not be parsed, with how to mend it.

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
        offset, what = name_mistake(text, error.pos, error.msg)
        raise _breach_at(text, offset, f"not valid JSON: {what}", kind) from None
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


def _breach_at(text: str, offset: int, problem: str, kind: type[Breach] = Breach) -> Breach:
    return kind(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset), problem)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        twin, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise Breach(None, None, TWICE.format(quote(twin)))
    return record


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=read_integer, parse_float=read_finite, parse_constant=read_finite
)


_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("true", "yes"), "true"),
    **dict.fromkeys(("false", "no"), "false"),
    **dict.fromkeys(("none", "nil", "null", "undefined"), "null"),
}
"""What other languages write, in lower case, and what JSON writes."""

_MENDS: Final[Mapping[str, str]] = {
    "Unterminated string": "the text that begins here is never closed; close it with a double quote",
    "Invalid control character": "a line break or a tab stands inside of a text; write \\n or \\t",
    "Invalid \\escape": "a backslash stands before a character that needs none; write \\\\ for a backslash",
    "Expecting ':'": "a colon is missing behind the key",
    "Expecting ','": "a comma is missing before this",
    "Expecting value": "a value is missing before this",
    "Extra data": "more text follows behind the value; remove it",
}
"""By how the message of the standard library begins."""

_OTHERS: Final = {"[": "}", "{": "]"}
"""The brackets that close the other kind."""

_WORD: Final = re.compile(r"[^\W\d][\w$.-]*")
_MARK: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]')


def name_mistake(text: str, offset: int, message: str) -> tuple[int, str]:
    """The offset of a mistake, and what it is and how to mend it.

    Args:
        text: what is not JSON.
        offset: where the standard library stumbled.
    """
    rest, before = text[offset:].strip(), text[:offset].rstrip()
    word = _WORD.match(rest)
    if rest.startswith(("//", "/*", "#")):
        return offset, "JSON has no comments; remove this one"
    if rest.startswith("```"):
        return offset, "this is a code fence; remove the lines that begin with ```"
    if rest[:1] in tuple("'`‘’‚“”„«»"):
        return offset, 'JSON has no such quotes; put double quotes (") around texts and keys'
    if message.startswith("Illegal trailing comma") or (rest[:1] in tuple("]}") and before.endswith(",")):
        at = offset if rest[:1] == "," else len(before) - 1
        return at, "the last entry of a list or object has no comma behind it; remove the comma"
    opened = _find_open(text[:offset])
    if opened is not None and rest[:1] not in ("", *_OTHERS[text[opened]]):
        opened = None
    if opened is not None:
        place = f"line {line}" if (line := text.count("\n", 0, opened) + 1) > 1 else f"column {opened + 1}"
        end = "before this" if rest else "at the end; is the input complete?"
        return offset, f'the "{text[opened]}" of {place} is not closed {end}'
    if word and not before:
        return offset, "JSON begins with { or [; a file of YAML is named *.yaml"
    if word and "property name" in message:
        return offset, f"put double quotes around the key {quote(word[0])}"
    if word and message.startswith("Expecting value"):
        meant = _WORDS.get(word[0].lower())
        return offset, f"write {meant}, not {word[0]}" if meant else "put double quotes around a text"
    if rest.startswith(":"):
        return offset, "a key with its value stands only in an object: {...}"
    mend = next((mend for begin, mend in _MENDS.items() if message.startswith(begin)), None)
    return offset, mend or message[:1].lower() + message[1:]


def _find_open(text: str) -> int | None:
    """Where the bracket is that was opened last and is not closed."""
    opened: list[int] = []
    for mark in _MARK.finditer(text):
        if mark[0] in "[{":
            opened.append(mark.start())
        elif mark[0] in "]}":
            del opened[-1:]
    return opened[-1] if opened else None
