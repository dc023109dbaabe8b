"""Follow-ups that agents wrote, a task on each line: lines to drafts, without what is known.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from sessionrun.queue.task import Draft, QueueTask

NAME: Final = "suggested_tasks.txt"
"""The file into which the prompt of a dispatched task asks agents to write them."""

MAX_TITLE: Final = 200
MAX_BODY: Final = 10_000
"""Characters.  What a program of Beads is given on its command line has a limit."""

_MARK: Final = re.compile(r"(?:[-*+\u2022]|\d{1,3}[.)])\s+(?:\[[ xX]?\]\s+)?")


def strip_mark(line: str) -> str:
    """Return a line without the mark of a list, on one line and without characters that are not printed.

    >>> strip_mark("  - [ ]  Fix   the login")
    'Fix the login'
    """
    text = "".join(char if char.isprintable() else " " for char in line)
    text = " ".join(text.split())
    return text[found.end() :] if (found := _MARK.match(text)) else text


def read_line(line: str) -> str | None:
    """Return the task on a line; None: there is neither a letter nor a digit on it."""
    text = strip_mark(line)
    return text if any(map(str.isalnum, text)) else None


def fold(title: str) -> str:
    """Return what is the same for two titles that differ in case or space only."""
    return " ".join(title.split()).casefold()


def make_draft(text: str, group: str | None = None) -> Draft:
    """Return the draft of a line: a line that is too long for a title is also the body."""
    if len(text) <= MAX_TITLE:
        return Draft(text, group=group)
    return Draft(f"{text[: MAX_TITLE - 3].rstrip()}...", text[:MAX_BODY], group=group)


def find_open(tasks: Iterable[QueueTask]) -> frozenset[str]:
    """Return the folded titles of the tasks that are not closed."""
    return frozenset(fold(task.title) for task in tasks if task.status != "closed")
