"""From bytes to plain values: which of JSON, JSON Lines and YAML it is, or TOML; and where it breaks a rule.

Must not know what the values mean.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple

from sessionrun.input.text import MAX_INPUT_BYTES, Breach, ExtraText, parse_json, parse_yaml, plain
from sessionrun.model.errors import InputError
from sessionrun.model.frozen import frozen

Format = Literal["JSON", "JSON Lines", "YAML"]

_SUFFIXES: Final[dict[str, Format]] = {
    ".json": "JSON",
    ".jsonl": "JSON Lines",
    ".ndjson": "JSON Lines",
    ".yaml": "YAML",
    ".yml": "YAML",
}

PROJECT_SETTINGS: Final = "worksplit.toml"
STATUS_FILE: Final = "_jobstatus.json"
"""The files of a project of job files: its settings, and in the directory of the job files how they stand."""


class Document(NamedTuple):
    """Plain values as they stand in the input; `value` must not be changed.

    For JSON Lines, `value` is the list of values, and `lines` holds the line number of each.
    """

    value: Any
    format: Format
    lines: tuple[int, ...] = ()


@frozen
class Folder:
    """A directory of files that are one input together.

    `files` are those that may belong to it, by name; `name` is the directory as it was typed; `directory` and
    `project`, from where its paths count, are absolute.  `settings` is that file of the project.  `only`
    names the one file that was asked for, if it was one.
    """

    name: str
    directory: str
    project: str
    files: Mapping[str, bytes] = field(repr=False)
    settings: bytes | None = field(default=None, repr=False)
    only: str | None = None


@dataclass(frozen=True, eq=False)
class Source:
    """One input as the command line read it.

    `name` is the file as it was typed, or ``stdin``; messages begin with it.  Relative paths in the input
    count from `directory` (absolute): that of the file, or where the command was started for standard input.
    Formats of other programs may count them from where the command was started: `started_in`.
    `folder` is what lies around it, where it is a directory or a file that belongs to one.
    """

    name: str
    text: bytes = field(repr=False)
    directory: str
    started_in: str = ""
    folder: Folder | None = None

    @cached_property
    def document(self) -> Document:
        """The input, parsed.

        Raises:
            InputError: too large, not UTF-8, empty, or not well-formed; with line and column.
        """
        name = plain(self.name)
        if len(self.text) > MAX_INPUT_BYTES:
            limit = MAX_INPUT_BYTES >> 20
            raise InputError(f"{name}: {len(self.text) / 2**20:.1f} MiB of input, more than {limit} MiB; split it")
        text = decode(self.text, name)
        if not text.strip():
            raise InputError(f'{name}: empty input; write {{"prompts": ["..."]}}')
        try:
            return _parse(text, _format_of(self.name, text))
        except Breach as breach:
            raise InputError(f"{name}: {breach}") from None


def decode(raw: bytes, name: str) -> str:
    """The text of a file, without the mark that some editors put before it.

    Raises:
        InputError: it is not UTF-8.
    """
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = raw[error.start]
        raise InputError(f"{name}: line {line}: byte 0x{byte:02x} is not UTF-8; save it as UTF-8") from None


def _format_of(name: str, text: str) -> Format | None:
    """What the file's name says, else what the text begins like; None: one JSON value, or one a line."""
    start = text.lstrip()
    if start.startswith("```"):
        return None  # of no format; the reader of JSON names it
    dot = name.rfind(".")
    named = _SUFFIXES.get(name[dot:].lower()) if dot >= 0 else None
    if named == "JSON":
        return None
    if named:
        return named
    if start[0] in "{[" or (start[0] == '"' and _is_json(start.partition("\n")[0])):
        return None
    return "YAML"


def _parse(text: str, form: Format | None) -> Document:
    if form == "YAML":
        return Document(parse_yaml(text), "YAML")
    if form == "JSON Lines":
        return _parse_lines(text)
    try:
        return Document(parse_json(text), "JSON")
    except ExtraText:
        if not _is_json(text.lstrip().partition("\n")[0]):
            raise
    return _parse_lines(text)


def _is_json(line: str) -> bool:
    try:
        parse_json(line)
    except Breach:
        return False
    return True


def _parse_lines(text: str) -> Document:
    values: list[Any] = []
    lines: list[int] = []
    # Not splitlines(): it also breaks at U+2028, which JSON text may hold.
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.isspace():
            continue
        try:
            values.append(parse_json(line))
        except Breach as breach:
            hint = " (JSON Lines: one prompt a line)" if "not valid" in breach.problem else ""
            raise Breach(number, breach.column, breach.problem + hint) from None
        lines.append(number)
    return Document(values, "JSON Lines", tuple(lines))


def parse_toml(raw: bytes, name: str) -> dict[str, Any]:
    """Read a TOML document; `name` begins the message about what is wrong with it.

    Raises:
        InputError: not UTF-8, not TOML, or nested too deeply.
    """
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return dict(toml.loads(decode(raw, name)))
    except RecursionError:
        raise InputError(f"{name}: is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{name}: not valid TOML: {' '.join(str(error).split())}") from None
