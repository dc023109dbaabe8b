"""Follow-ups that agents wrote, a task on each line of a file; and the shelf, where such files wait.

The shelf is a folder beside the lock of the queue.  A file is renamed onto it: that of a task when no process of
the task lives any more, that of the main checkout when follow-ups are taken.  A process that opens it by its old
name from then on makes a new one.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from sessionrun.queue.place import QueuePlace
from sessionrun.queue.task import Draft, QueueTask
from sessionrun.store.files import make_directories, read_regular, replace_file

NAME: Final = "suggested_tasks.txt"
"""The file into which the prompt of a task of the queue asks agents to write them."""

LIMIT: Final = 1024 * 1024
"""Bytes; a larger file is not taken."""

MAX_TASKS: Final = 100
"""How many tasks are made at once, if nothing else is said."""

MAX_TITLE: Final = 200
MAX_BODY: Final = 10_000
"""Characters.  What a program of Beads is given on its command line has a limit."""

_MARK: Final = re.compile(r"(?:[-*+\u2022]|\d{1,3}[.)])\s+(?:\[[ xX]?\]\s+)?")


class Ingested(NamedTuple):
    """What became of the lines.

    Attributes:
        added: `id` (None: a dry run), `title` and `source` of each new task.
        known: `title` and `source` of each line that a task, or another line, says already.
        kept: `source` and `lines` of what is above the limit.
    """

    added: list[dict[str, Any]]
    known: list[dict[str, Any]]
    kept: list[dict[str, Any]]


def find_shelf(place: QueuePlace) -> Path:
    """Return the folder with the files of which the lines are not in the queue yet."""
    return place.lock.with_name(place.lock.name.replace("queue.lock", "ingest"))


def put_aside(place: QueuePlace, source: Path) -> Path:
    """Move a file onto the shelf, without the lock; return its new place.

    Raises:
        NotRegular: a link or a directory lies there; OSError: it is too large, or not there.
    """
    content, path = read_regular(source, LIMIT), find_shelf(place) / f"{uuid4()}.txt"
    make_directories(path.parent, 0o700)
    try:
        os.rename(source, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        replace_file(path, content, durable=True)
        source.unlink()
    return path


class Lines:
    """The lines of all sources, and what becomes of each."""

    def __init__(self, tasks: Sequence[QueueTask], maximum: int, group: str | None) -> None:
        self._maximum, self._group = maximum, group
        self._titles = {fold(task.title) for task in tasks}
        self._open = {fold(task.title) for task in tasks if task.status != "closed"}
        self._seen: set[str] = set()
        self.chosen: list[tuple[Draft, str]] = []
        self._known: list[tuple[Draft, str]] = []
        self._kept: dict[str, int] = {}

    def choose(self, content: bytes, source: str, *, was_taken: bool) -> list[str]:
        """Choose what is new; return the lines that are above the limit."""
        rest = []
        for line in content.decode("utf-8", "replace").split("\n"):
            text = read_line(line)
            if text is None:
                continue
            draft = make_draft(text, self._group)
            title = fold(draft.title)
            if title in self._seen or title in (self._titles if was_taken else self._open):
                self._known.append((draft, source))
            elif len(self.chosen) >= self._maximum:
                rest.append(line)
            else:
                self.chosen.append((draft, source))
            self._seen.add(title)
        if rest:
            self._kept[source] = self._kept.get(source, 0) + len(rest)
        return rest

    def report(self, ids: Sequence[str | None]) -> Ingested:
        """Tell what became of them; `ids` are those of the tasks that were made."""
        made = zip(ids, self.chosen, strict=True)
        added = [{"id": name, "title": draft.title, "source": source} for name, (draft, source) in made]
        known = [{"title": draft.title, "source": source} for draft, source in self._known]
        return Ingested(added, known, [{"source": name, "lines": lines} for name, lines in self._kept.items()])


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
