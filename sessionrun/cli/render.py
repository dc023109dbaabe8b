"""What people see: words, signs, tables, and the one place where foreign text is made safe for a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import IO, Any, Final

import click

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u08e2\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0001-\U000e007f]"
)
"""C0 but LF and TAB, DEL, C1, line separators, bidirectional and other format characters, surrogates."""

_SIGNS: Final[Mapping[str, tuple[str, str]]] = {
    "rocket": ("\U0001f680", "*"),
    "folder": ("\U0001f4c2", "*"),
    "done": ("\u2705", "[ok]"),
    "open": ("\u23f3", "[..]"),
    "failed": ("\u274c", "[!!]"),
}

WAITING: Final = "[Task still running...]"
DOUBLE_LINE: Final = "=" * 50
SINGLE_LINE: Final = "-" * 30


def escape(text: str) -> str:
    """Make foreign text safe for a terminal: control and format characters become visible escapes."""
    return _UNSAFE.sub(_visible, text)


def sign(name: str, stream: IO[str] | None = None) -> str:
    """A sign, or its ASCII stand-in where the stream's encoding has none."""
    fancy, plain = _SIGNS[name]
    encoding = getattr(stream or sys.stdout, "encoding", None) or "ascii"
    try:
        fancy.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return plain
    return fancy


def print_json(value: Any) -> None:
    """Print one JSON value and a newline on standard output."""
    import orjson

    write_bytes(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS))


def write_bytes(content: bytes) -> None:
    """Write bytes to standard output, behind what was printed as text."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def task_sign(task: Mapping[str, Any]) -> str:
    """The sign in front of a task."""
    if task["status"] != "completed":
        return sign("open")
    return sign("done" if task["outcome"] == "succeeded" else "failed")


def task_word(task: Mapping[str, Any]) -> str:
    """How a task stands, for people: `completed`, `running`, `pending`, or how it failed, with the reason."""
    if task["status"] == "running" and task["phase"] not in ("running", None):
        return str(task["phase"])
    if task["status"] != "completed":
        held = task.get("held_until")
        return f"{task['status']} (held until {local_time(held)})" if held else str(task["status"])
    if task["outcome"] == "succeeded":
        return "completed"
    word = str(task["outcome"]).replace("_", " ")
    return f"{word} ({escape(task['reason'])})" if task["reason"] else word


def local_time(at: str | None) -> str:
    """An ISO time as the C library's date line, in local time."""
    if at is None:
        return "-"
    moment = datetime.fromisoformat(at.replace("Z", "+00:00")).astimezone()
    days = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    months = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    clock = f"{moment.hour:02}:{moment.minute:02}:{moment.second:02}"
    return f"{days[moment.weekday()]} {months[moment.month - 1]} {moment.day:2} {clock} {moment.year}"


def duration(seconds: float | None) -> str:
    """Seconds for people: ``4.2s``, ``3m12s``, ``2h05m``."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    return f"{whole // 60}m{whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02}m"


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A plain table on standard output."""
    from tabulate import tabulate

    cells = [[escape(str(cell)) for cell in row] for row in rows]
    click.echo(tabulate(cells, headers=list(headers), tablefmt="plain", disable_numparse=True))


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
