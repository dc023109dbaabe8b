"""JSON without its soft spots: duplicate keys, NaN, integers that readers round, half characters, depth.

The fast path is the standard library's scanner with hooks that only notice that something is wrong; where
and what is found by a second, slow look that good input never pays for.  Must not know what the values mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from sessionrun.dialects.limits import (
    HALF_CHARACTER,
    MAX_DEPTH,
    MAX_INTEGER,
    NOT_FINITE,
    TOO_DEEP,
    TOO_LARGE,
    TWICE,
    Breach,
    has_half_character,
    quote,
)

_MAX_DIGITS: Final = len(str(-MAX_INTEGER))

_MAYBE_HALF: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
"""Escapes that may be half characters; an escaped backslash in front makes it a false alarm."""

_TOKEN: Final = re.compile(
    r"[ \t\r\n,:]*(?:"
    r'(?P<text>"[^"\\]*(?:\\.[^"\\]*)*")(?P<key>[ \t\r\n]*:)?'
    r"|(?P<open>[{\[])|(?P<close>[}\]])"
    r'|(?P<word>[^ \t\r\n\[\]{},:"]+))'
)


class _Suspicion(Exception):
    """A hook saw a breach; the slow look says which and where."""


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
        from sessionrun.dialects.json_mistakes import name_mistake

        kind = ExtraText if error.msg == "Extra data" and text[error.pos] not in "/#`" else Breach
        offset, what = name_mistake(text, error.pos, error.msg)
        raise _breach_at(text, offset, f"not valid JSON: {what}", kind) from None
    except (_Suspicion, RecursionError):
        raise find_breach(text) or Breach(1, 1, TOO_DEEP) from None
    maybe_deep = text.count("[") + text.count("{") > MAX_DEPTH and is_too_deep(value)
    if maybe_deep or ("\\u" in text and _MAYBE_HALF.search(text)):
        breach = find_breach(text)
        if breach:
            raise breach
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


def find_breach(text: str) -> Breach | None:
    """The first place that breaks one of our rules; the text is taken for well-formed up to there."""
    stack: list[set[str]] = []
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        problem = None
        if kind == "open":
            stack.append(set())
            problem = TOO_DEEP if len(stack) > MAX_DEPTH else None
        elif kind == "close":
            del stack[-1:]
        elif kind == "word":
            problem = _number_problem(token["word"])
        else:
            problem = _text_problem(token, stack)
        if problem:
            return _breach_at(text, token.start(_SPAN[kind or "text"]), problem)
    return None


_SPAN: Final[Mapping[str, str]] = {
    "open": "open",
    "close": "close",
    "word": "word",
    "text": "text",
    "key": "text",
}


def _text_problem(token: re.Match[str], stack: list[set[str]]) -> str | None:
    try:
        value = str(json.loads(token["text"], strict=False))
    except json.JSONDecodeError:
        return None
    if has_half_character(value):
        return HALF_CHARACTER
    if token["key"] and stack:
        if value in stack[-1]:
            return TWICE.format(quote(value))
        stack[-1].add(value)
    return None


def _number_problem(word: str) -> str | None:
    if word in ("NaN", "Infinity", "-Infinity"):
        return NOT_FINITE.format(word)
    try:
        _DECODER.decode(word)
    except _Suspicion:
        shown = word if len(word) <= 40 else word[:40] + "..."
        return (TOO_LARGE if word.lstrip("-").isdigit() else NOT_FINITE).format(shown)
    except json.JSONDecodeError:
        pass
    return None


def _breach_at(text: str, offset: int, problem: str, kind: type[Breach] = Breach) -> Breach:
    return kind(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset), problem)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise _Suspicion
    return record


def _integer(digits: str) -> int:
    # The length first: converting very long numbers takes quadratic time.
    if len(digits) > _MAX_DIGITS or abs(number := int(digits)) > MAX_INTEGER:
        raise _Suspicion
    return number


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise _Suspicion
    return number


def _refuse_constant(name: str) -> Any:
    raise _Suspicion(name)


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_finite, parse_constant=_refuse_constant
)
