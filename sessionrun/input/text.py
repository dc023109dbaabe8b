"""Foreign text: read strictly as JSON and YAML, and shown in a message; how large, deep and odd it may be.

JSON is read without its soft spots: duplicate keys, NaN, integers that readers round, half characters, depth.

The scanner of JSON is the standard library's.  Its hooks see values, not places: so what breaks one of our rules
is named, and only what is no JSON at all is told with its line.

YAML is a more pleasant JSON here: values are built from the parser's events, never by tag.  Plain scalars read as
in JSON: ``no`` and ``on``, dates, ``0x1f`` and ``010`` are text.  Aliases are refused: they are how a small text
unfolds into a huge one.  Must not know what the values mean.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from yaml.events import Event, ScalarEvent

MAX_INPUT_BYTES: Final = 64 * 1024 * 1024
_MAX_DEPTH: Final = 64
_MAX_INTEGER: Final = 2**53
"""Beyond it, JSON readers that hold numbers as doubles (most of them) silently change the value."""

_TOO_DEEP: Final = f"nesting deeper than {_MAX_DEPTH} levels"
_TOO_LARGE: Final = "{} is out of range: whole numbers lie within 2^53 of 0; quote it if it is text"
_INFINITE: Final = "{} is not a finite number"
_TWICE: Final = "key {} is given twice; keep one"
_HALF_CHARACTER: Final = "text holds half of a surrogate pair (\\ud800 to \\udfff); write the whole character"

_MAX_DIGITS: Final = len(str(-_MAX_INTEGER))
_SHOWN: Final = 60
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


class Breach(Exception):
    """The text breaks a rule of its format or of ours, at `line` and `column` (both from 1; None: not known)."""

    def __init__(self, line: int | None, column: int | None, problem: str) -> None:
        places = (("line", line), ("column", column))
        where = ", ".join(f"{name} {number}" for name, number in places if number is not None)
        super().__init__(f"{where}: {problem}" if where else problem)
        self.line = line
        self.column = column
        self.problem = problem


def _read_integer(digits: str) -> int:
    """A whole number of JSON or YAML.

    Raises:
        Breach: it is out of range.
    """
    # the length first: converting very long numbers takes quadratic time
    if len(digits) > _MAX_DIGITS or abs(number := int(digits)) > _MAX_INTEGER:
        raise Breach(None, None, _TOO_LARGE.format(shorten(digits)))
    return number


def _read_finite(digits: str) -> float:
    """A number with a fraction or an exponent.

    Raises:
        Breach: it is none, or infinite.
    """
    number = float(digits)
    if not abs(number) < float("inf"):
        raise Breach(None, None, _INFINITE.format(shorten(digits)))
    return number


def shorten(digits: str) -> str:
    """The beginning of a number, for messages."""
    return digits if len(digits) <= 40 else digits[:40] + "..."


def quote(text: str) -> str:
    """Show foreign text inside a message: quoted, escaped, on one line, not long."""
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    if shown.isprintable() and '"' not in shown and "\\" not in shown:
        return f'"{shown}"'
    return '"' + shown.replace('"', '\\"').encode("unicode_escape", "backslashreplace").decode() + '"'


def plain(text: str) -> str:
    """Foreign text as it is when it fits a message, else `quote`d: for names that were typed."""
    return text if text.isprintable() and len(text) <= 4096 else quote(text)


def has_half_character(text: str) -> bool:
    """Whether the text cannot be encoded: it holds a surrogate without its other half."""
    return _SURROGATE.search(text) is not None


# --- JSON ---

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
        raise Breach(None, None, _TOO_DEEP) from None
    if text.count("[") + text.count("{") > _MAX_DEPTH and _is_too_deep(value):
        raise Breach(None, None, _TOO_DEEP)
    if _MAYBE_HALF.search(text) and has_half_character(json.dumps(value, ensure_ascii=False)):
        raise Breach(None, None, _HALF_CHARACTER)
    return value


def _is_too_deep(value: Any) -> bool:
    """Whether lists and objects lie in each other more than `_MAX_DEPTH` deep; goes level by level."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(_MAX_DEPTH):
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
        raise Breach(None, None, _TWICE.format(quote(twin)))
    return record


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_read_integer, parse_float=_read_finite, parse_constant=_read_finite
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


# --- YAML ---

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

_CONSTANTS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

_TAB: Final = "a tab stands where only spaces may indent; replace it by spaces"
_INDENTED: Final = (
    "this line is not indented as those it belongs to; begin all entries of a list or object in the same column"
)
_EXPLANATIONS: Final = (
    ("mapping values are not allowed", 'a ": " inside of a text begins a new key; put quotes around the text'),
    ("expected '-' indicator", _INDENTED),
    ("did not find expected key", _INDENTED),
    ("expected <block end>", _INDENTED),
)
"""A part of what libyaml or the parser in Python says, and what it means."""

_TAG: Final = "tag:yaml.org,2002:"
_TEXT_TAGS: Final = ("!", _TAG + "str")
_COLLECTION_TAGS: Final = (None, "!", _TAG + "map", _TAG + "seq")


def parse_yaml(text: str) -> Any:
    """Read one YAML document; an empty one is None.

    Raises:
        Breach: no YAML, more than one document, an alias, a tag of its own, or one of the rules above is broken.
    """
    import yaml

    loader: Any = getattr(yaml, "CLoader", yaml.Loader)
    events = yaml.parse(text, Loader=loader)
    documents = (event for event in events if isinstance(event, yaml.DocumentStartEvent))
    try:
        value = _node(events, next(events), 0) if next(documents, None) is not None else None
        if (second := next(documents, None)) is not None:
            raise _breach(second, "a second document begins; put all prompts into one")
        return value
    except yaml.MarkedYAMLError as error:
        raise _explain(error, text) from None
    except yaml.YAMLError as error:
        offset = max(0, getattr(error, "position", None) or 0)
        line, column = text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
        raise Breach(line, column, f"not valid YAML: {_one_line(getattr(error, 'reason', None))}") from None


def _explain(error: Any, text: str) -> Breach:
    """What PyYAML says of a place; the three commonest mistakes in a user's words, not in those of its grammar."""
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context
    line, column = (mark.line, mark.column) if mark else (0, 0)
    rows = text.splitlines()
    row = rows[line] if line < len(rows) else ""
    before = row[: len(row) - len(row.lstrip())] + row[column : column + 1]
    known = next((words for part, words in _EXPLANATIONS if part in problem), _one_line(problem))
    words = _TAB if "\t" in before else known
    shown = f": {quote(row.strip())}" if row.strip() else ""
    return Breach(line + 1, column + 1, f"not valid YAML: {words}{shown}")


def _one_line(problem: str | None) -> str:
    line = " ".join((problem or "cannot be read").split())
    return line if line.isprintable() and len(line) <= 160 else quote(line)


def _node(events: Iterator[Event], event: Event, depth: int) -> Any:
    import yaml

    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if isinstance(event, yaml.AliasEvent):
        raise _breach(event, 'aliases ("*name") are not read; write the value out, or use "defaults"')
    if depth == _MAX_DEPTH:
        raise _breach(event, _TOO_DEEP)
    assert isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent))
    if event.tag not in _COLLECTION_TAGS:
        raise _breach(event, f"tag {quote(event.tag)} is not read; remove it")
    if isinstance(event, yaml.MappingStartEvent):
        return _mapping(events, depth + 1)
    values = []
    while not isinstance(event := next(events), yaml.SequenceEndEvent):
        values.append(_node(events, event, depth + 1))
    return values


def _mapping(events: Iterator[Event], depth: int) -> dict[str, Any]:
    import yaml

    record: dict[str, Any] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        if not isinstance(event, yaml.ScalarEvent):
            raise _breach(event, "a key must be plain text")
        key = event.value
        if has_half_character(key):
            raise _breach(event, _HALF_CHARACTER)
        if key in record:
            raise _breach(event, _TWICE.format(quote(key)))
        record[key] = _node(events, next(events), depth)
    return record


def _scalar(event: ScalarEvent) -> Any:
    text = event.value
    if event.tag is not None and event.tag not in _TEXT_TAGS:
        raise _breach(event, f"tag {quote(event.tag)} is not read; remove it")
    if event.tag is None and event.implicit[0]:
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _NOT_FINITE.fullmatch(text):
            raise _breach(event, _INFINITE.format(text))
        if _NUMBER.fullmatch(text):
            try:
                return _read_integer(text) if _INTEGER.fullmatch(text) else _read_finite(text)
            except Breach as breach:
                raise _breach(event, breach.problem) from None
    if has_half_character(text):
        raise _breach(event, _HALF_CHARACTER)
    return text


def _breach(event: Event, problem: str) -> Breach:
    mark = event.start_mark
    return Breach(mark.line + 1, mark.column + 1, problem) if mark else Breach(1, 1, problem)
