"""What people see: words, signs, tables, and the one place where foreign text is made safe for a terminal."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final

import click

from sessionrun.cli.argv import BY_FLAG
from sessionrun.model.words import BAD, OUTPUT_VERSION, SIGNS, parse_time

_UNSAFE: Final = re.compile(
    "\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u08e2\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0001-\U000e007f]"
)
"""C0 but LF, TAB and CR LF, DEL, C1, line separators, bidirectional and other format characters, surrogates."""

_PLAIN: Final = dict(
    zip(
        "\u2713\u2717\u2013\u21a9\u2205\u2016\u25b6\u00b7",
        ("ok", "XX", "--", "<-", "00", "||", ">>", ".."),
        strict=True,
    )
)
_SIGNS: Final[Mapping[str, tuple[str, str]]] = {
    "rocket": ("\U0001f680", "*"),
    "folder": ("\U0001f4c2", "*"),
    "done": ("\u2705", "[ok]"),
    "open": ("\u23f3", "[..]"),
    "wrong": ("\u274c", "[!!]"),
    **{word: (sign, _PLAIN[sign]) for word, sign in SIGNS.items()},
}
"""The signs of words; before them those of the blocks of `run` and ``--status``, as programs know them."""

_COLOURS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("succeeded", "landed"), "green"),
    **dict.fromkeys(BAD, "red"),
    **dict.fromkeys(("bounced", "changed_nothing", "held"), "yellow"),
    "running": "cyan",
}
"""Of words; the others are dim."""

JSON: Final = f"{__name__}.json"
"""Under this key the context of a command notes that `--json` was given."""

WIDTH: Final = 80
"""Columns that our own lines keep to; ids, paths and outputs are as long as they are."""


def escape(text: str) -> str:
    """Make foreign text safe for a terminal: control and format characters become visible escapes."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_visible, text)


def session_head(view: Mapping[str, Any]) -> str:
    """How a line about a session begins: its name, and the first digits of its id."""
    from sessionrun.model.wording import tell_session  # a poll for JSON needs no words

    return escape_line(tell_session(view))


def escape_line(text: str) -> str:
    """The same, and on one line: for names, ids and reasons."""
    return escape(" ".join(text.split()))


def sign(name: str, stream: IO[str] | None = None) -> str:
    """A sign, or its ASCII stand-in where the stream cannot show it."""
    fancy, plain = _SIGNS[name]
    return fancy if encodes(fancy, stream) else plain


def encodes(text: str, stream: IO[str] | None = None) -> bool:
    """Whether a stream can show it: its encoding has it, the locale is not plain C, the terminal not dumb."""
    stream = stream or sys.stdout
    if _is_dumb(stream):
        return False
    named = (os.environ.get(variable) for variable in ("LC_ALL", "LC_CTYPE", "LANG"))
    if next(filter(None, named), None) in ("C", "POSIX"):  # Python itself writes UTF-8 there
        return False
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _is_dumb(stream: IO[str]) -> bool:
    return os.environ.get("TERM") == "dumb" and stream.isatty()


def paint(text: str, word: str, stream: IO[str] | None = None) -> str:
    """A text in the colour of a word, on a terminal that shows colours."""
    stream = stream or sys.stdout
    if not stream.isatty() or _is_dumb(stream) or os.environ.get("NO_COLOR"):
        return text
    colour = _COLOURS.get(word)
    return click.style(text, fg=colour, dim=None if colour else True)


def mark(word: str, text: str, stream: IO[str] | None = None) -> str:
    """A text behind the sign of a word, in its colour: ``\u2717 7 failed``."""
    return paint(f"{sign(word, stream)} {text}", word, stream)


def terminal_width(stream: IO[str] | None = None) -> int:
    """The columns of the terminal that a stream is; `WIDTH` where it is none."""
    stream = stream or sys.stdout
    try:
        return (stream.isatty() and os.get_terminal_size(stream.fileno()).columns) or WIDTH
    except (OSError, ValueError):
        return WIDTH


def print_json(record: Mapping[str, Any]) -> None:
    """Print the one JSON object of a verb, and a newline, on standard output."""
    write_bytes(encode(versioned(record)), b"\n")


def versioned(record: Mapping[str, Any]) -> dict[str, Any]:
    """An object with the `schema_version` of this output as its first key."""
    return {"schema_version": OUTPUT_VERSION, **unversioned(record)}


def unversioned(record: Mapping[str, Any]) -> dict[str, Any]:
    """An object as it is shown inside of another one, which has the version."""
    return {key: value for key, value in record.items() if key != "schema_version"}


def encode(value: Any) -> bytes:
    """JSON on one line."""
    import orjson

    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # a path that is not UTF-8
        import json

        return json.dumps(value).encode()


def write_bytes(*pieces: bytes) -> None:
    """Write bytes to standard output, behind what was printed as text."""
    sys.stdout.flush()
    sys.stdout.buffer.writelines(pieces)
    sys.stdout.buffer.flush()


def is_json() -> bool:
    """Whether `--json` was given: then standard output gets one JSON object, and errors are one, too."""
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(JSON, False)


def is_seed_block() -> bool:
    """Whether a flag of an older tool was given, such as ``--status``, and no terminal reads.

    Then its block keeps the words of that tool, for the programs that read it.
    """
    return click.get_current_context().find_root().obj == BY_FLAG and not sys.stdout.isatty()


def wrap_line(text: str, indent: str, width: int = WIDTH) -> list[str]:
    """Foreign text as lines of so many columns; none of an empty text.  Paths and commands are not cut."""
    from sessionrun.model.wording import columns

    line = escape_line(text)
    if columns(indent + line) <= width:
        return [indent + line] if line else []
    import textwrap

    whole = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=indent, **whole)  # type: ignore[arg-type]


def local_time(at: str | None) -> str:
    """An ISO time as the C library's date line, in local time."""
    return "-" if at is None else time.ctime(parse_time(at))


def short_time(at: str | None) -> str:
    """An ISO time as ``2025-07-23 15:30:45``, in local time."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(parse_time(at)))


def tell_value(value: object) -> str:
    """A value in a table: a text as it is, nothing for null, else JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    import json

    return json.dumps(value)


def pad(text: str, width: int, *, middle: bool = False, right: bool = False) -> str:
    """A cell of a table: cut, perhaps in its middle, or filled with blanks, perhaps on its left."""
    from sessionrun.model.wording import clip, columns

    cut = clip(text, width, middle=middle)
    blanks = " " * (width - columns(cut))
    return blanks + cut if right else cut + blanks


def warn(message: str) -> None:
    """Say something on standard error that is not a reason to stop."""
    hint(f"sessionrun: warning: {escape_line(message)}")


def hint(line: str) -> None:
    """A line on standard error on which nothing depends: where it cannot be written, the work goes on."""
    try:
        click.echo(line, err=True)
    except BrokenPipeError:  # its reader has left
        raise
    except OSError:
        pass


@contextmanager
def telling(fact: str) -> Iterator[None]:
    """Print about a session that has started: if printing fails, a warning says that the session runs.

    A caller that took it for a failed start would start the same work again.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # its reader has left
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else what is still buffered fails again at the end
        warn(f"cannot write standard output: {error.strerror}; {fact}")


def lay_out(rows: Sequence[Sequence[str]], rights: Container[int] = ()) -> list[str]:
    """Rows as lines, in columns as wide as needed; those with the numbers `rights` stand to the right."""
    from sessionrun.model.wording import columns

    widths = [max(map(columns, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(pad(cell, widths[place], right=place in rights) for place, cell in enumerate(row)).rstrip()
        for row in rows
    ]


def table_lines(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A plain table below its heads; it is laid out when it is read, for JSON never."""
    from tabulate import tabulate

    cells = [[escape_line(str(cell)) for cell in row] for row in rows]
    table = tabulate([list(headers), *cells], tablefmt="plain", disable_numparse=True)  # no padded headers
    yield from (line.rstrip() for line in table.split("\n"))


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as `surrogateescape` keeps it
        code -= 0xDC00
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
