"""`results --max-bytes` and `--max-tokens`: the answers of a session within a size that the caller can pay."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessionrun.cli.options import place_lines
from sessionrun.cli.render import (
    DOUBLE_LINE,
    SINGLE_LINE,
    encode,
    escape,
    escape_line,
    task_word,
    telling_lines,
    versioned,
    write_bytes,
)
from sessionrun.client.reading.digest import Digest, Excerpt, Shown, Task, make_digest
from sessionrun.client.reading.digest_record import describe_digest, find_room, shorten_reason, tell_rest
from sessionrun.model.wording import tell_head
from sessionrun.model.words import tell_counts
from sessionrun.store.session import SessionDir

_ERRORS_HEAD: Final = "[standard error]"
_SAID_HEAD: Final = "[the agent said]"
_ENDS: Final = len(
    "".join(["\n\n\n\n", "These need attention, too: ", "Tasks that are fine and not shown: 1234567890"])
)
"""Bytes of the lines about tasks without a block, but for the names in them."""


def print_digest(
    session: SessionDir, view: Mapping[str, Any], tasks: Sequence[Task], max_bytes: int, *, as_json: bool
) -> None:
    """Print at most `max_bytes` bytes.

    Raises:
        InputError: that is too little for anything.
    """
    write_bytes(
        make_json(session, view, tasks, max_bytes) if as_json else make_text(session, view, tasks, max_bytes)
    )


def make_json(session: SessionDir, view: Mapping[str, Any], tasks: Sequence[Task], max_bytes: int) -> bytes:
    """The digest as one JSON object with a newline."""

    def spell(record: Mapping[str, Any]) -> bytes:
        return encode(versioned(record)) + b"\n"

    return spell(describe_digest(session, view, tasks, max_bytes, spell))


def make_text(session: SessionDir, view: Mapping[str, Any], tasks: Sequence[Task], max_bytes: int) -> bytes:
    """The digest for people, or for a caller that reads text."""
    head = "\n".join(
        [
            escape_line(tell_head(view, time.time())),
            tell_counts(view["counts"]),
            *place_lines(view),
            DOUBLE_LINE,
            "",
        ]
    )
    rest = f"Whole answers: {tell_rest(view)}\n"
    clean = escape if sys.stdout.isatty() else str

    def measure(text: str) -> int:
        return len(clean(text).encode("utf-8", "backslashreplace"))

    def frame(empty: Shown) -> int:
        return measure("".join(_block(empty)))

    room = find_room(max_bytes, measure(head + rest) + _ENDS)
    digest = make_digest(session, tasks, room, frame=frame, measure=measure)
    blocks = ["".join(_block(shown)) for shown in digest.shown]
    return clean("".join([head, *blocks, *_ends(digest), rest])).encode("utf-8", "backslashreplace")


def _block(shown: Shown) -> list[str]:
    """A task and its texts, each with what it lacks."""
    task = shown.task
    reason = [escape_line(shorten_reason(task)) + "\n"] if task["reason"] else []
    lines = [
        f"\nTask {task['num']} (ID: {escape_line(task['id'])}): {task_word(task)}\n",
        *reason,
        SINGLE_LINE + "\n",
    ]
    lines += [f"{line}\n" for line in telling_lines(task, "")]
    if shown.errors is not None:
        lines += [_ERRORS_HEAD + "\n", *_section(shown.errors)]
    is_marked = shown.answer.size and (shown.errors is not None or task.get("telling"))
    return [*lines, *([_SAID_HEAD + "\n"] if is_marked else []), *_section(shown.answer)]


def _section(excerpt: Excerpt) -> list[str]:
    text = excerpt.text if excerpt.text.endswith("\n") or not excerpt.text else excerpt.text + "\n"
    return [text, *([f"[cut: it has {excerpt.size} bytes]\n"] if excerpt.is_cut else [])]


def _ends(digest: Digest) -> list[str]:
    """The lines about tasks without a block."""
    lines = []
    if digest.ids or digest.numbers:
        lines.append(f"\nThese need attention, too: {', '.join(digest.ids or digest.numbers)}\n")
    if digest.left_out:
        lines.append(f"\nTasks that are fine and not shown: {digest.left_out}\n")
    return lines
