"""What people and models get wrong in JSON, and how to mend it: a second look at text that could not be parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sessionrun.input.limits import quote

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
        message: what it says.
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
