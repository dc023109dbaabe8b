"""Says in a user's words what a YAML parser complains about.  Must not know what the YAML means.

The parser's words are those of its grammar: "did not find expected '-' indicator".  Each row here has a part of
them, of libyaml and of the parser in Python, and what a user has done who reads them.
"""

from __future__ import annotations

from typing import Any, Final

from sessionrun.dialects.limits import Breach, quote

_INDENTED: Final = (
    "this line is not indented as those it belongs to; begin all entries of a list or object in the same column"
)
_TAB: Final = "a tab stands where only spaces may indent; replace it by spaces"
_MARK: Final = "text cannot begin with this character; put quotes around the text"
_COLON: Final = 'a ": " inside of a text begins a new key; put quotes around the text'

_SAID: Final = (
    ("mapping values are not allowed", _COLON),
    ("cannot start any token", _MARK),
    ("tab character", _TAB),
    ("expected '-' indicator", _INDENTED),
    ("did not find expected key", _INDENTED),
    ("expected <block end>", _INDENTED),
    ("sequence entries are not allowed", 'a "- " cannot stand here; begin the list in a line of its own'),
    (
        "could not find expected ':'",
        'a key without ": "; write KEY: VALUE, or put quotes around a text of two lines',
    ),
    ("unknown escape", 'unknown character after "\\"; write "\\\\" for a backslash, or use single quotes'),
    ("expected hexadecimal", 'a character code after "\\" is too short; write "\\\\" for a backslash'),
)
_OPENED: Final = (
    ("quoted scalar", "the quote that opens here is never closed; close it"),
    ("flow sequence", 'the "[" that opens here is not closed, or a comma is missing; close it with "]"'),
    ("flow mapping", 'the "{" that opens here is not closed, or a comma is missing; close it with "}"'),
    ("flow node", 'the "[" or "{" before this is not closed; close it'),
)
"""What the parser was in: the place of its beginning helps more than that of the end."""


def describe_yaml_error(error: Any, text: str) -> Breach:
    """What a marked error of PyYAML says, with the line that it is about."""
    mark = error.problem_mark or error.context_mark
    fault, within = " ".join((error.problem or "").split()), str(error.context or "")
    lines = text.splitlines()
    if mark is not None and mark.line < len(lines) and _has_tab(lines[mark.line], mark.column):
        return _breach(mark, _TAB, lines)
    if error.context_mark is not None:
        words = next((words for part, words in _OPENED if part in within), None)
        if words:
            return _breach(error.context_mark, words, lines)
    known = next((words for part, words in _SAID if part in fault), None)
    return _breach(mark, known or _describe_fault(fault or within), lines)


def _has_tab(line: str, column: int) -> bool:
    return "\t" in line[: len(line) - len(line.lstrip())] or line[column : column + 1] == "\t"


def _describe_fault(fault: str) -> str:
    line = fault or "cannot be read"
    return line if line.isprintable() and len(line) <= 160 else quote(line)


def _breach(mark: Any, words: str, lines: list[str]) -> Breach:
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    shown = lines[line].strip() if line < len(lines) else ""
    return Breach(line + 1, column + 1, f"not valid YAML: {words}{f': {quote(shown)}' if shown else ''}")
