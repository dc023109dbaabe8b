"""The task queue of a repository, for any door: opened, shown as records, filled from a list.

Also what becomes of its tasks in the sessions that take them: what is at work, what needs a person.

What can be done with it are the methods of `queue.feed.Feed`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any, Final, NamedTuple

from sessionrun.client.lookup import load_summaries, resolve_results_dir
from sessionrun.client.notices import notify
from sessionrun.client.reading.view import load_or_warn, load_view
from sessionrun.model.errors import InputError
from sessionrun.model.wording import needs_look
from sessionrun.model.words import QUEUE_LABEL, parse_time
from sessionrun.queue.feed import Feed as Feed
from sessionrun.queue.file import NAME as FILE
from sessionrun.queue.file import PLACE
from sessionrun.queue.ingest import MAX_TASKS as MAX_TASKS
from sessionrun.queue.ingest import Ingested as Ingested
from sessionrun.queue.task import Changes as Changes
from sessionrun.queue.task import Draft as Draft
from sessionrun.queue.task import QueueTask as QueueTask
from sessionrun.queue.task import by_id, choose_group, choose_ready, find_place
from sessionrun.store.session import SessionDir

BACKENDS: Final = {"beads": ".beads", FILE: PLACE}
"""What each backend keeps in the top of a repository.  The module of its name has `find`, which returns None where
the backend cannot be used.  The last one is taken where no other is in use: it makes what it keeps."""

MAX_SUBTASKS: Final = 10
"""Into how many tasks a goal is split at most, if nothing else is said."""

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_ENTRY: Final = re.compile(
    r"(?P<indent> {0,3})(?:[-*+]|\d{1,9}[.)])[ \t]+(?:\[(?P<box>[ xX])\][ \t]+)?(?P<text>\S.*)"
)
_BOLD: Final = re.compile(r"(\*\*|__)(?P<title>.+?)\1\s*(?:[:\u2013\u2014-]+\s*)?(?P<rest>.*)")
_CREATE: Final = re.compile(r"\s*(?:[$>]\s+)?(?:bd|br)\s+create\s+(?P<words>.+)")


def open_queue(directory: Path | None = None, *, backend: str | None = None, reads: bool = False) -> Feed:
    """Open the queue of the repository around a directory.

    Args:
        directory: None for the current one; in a linked worktree the queue is that of the main checkout.
        backend: ``file`` or ``beads``; None: Beads if the repository has `.beads` and its program is installed.
        reads: it is only looked at: outside of a repository there has to be one.

    Raises:
        InputError: there is no such backend, or it is not in use there, or nothing is there to be looked at.
    """
    if backend is not None and backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r} of the queue; there are: {', '.join(sorted(BACKENDS))}")
    place = find_place(directory or Path.cwd())
    *others, last = BACKENDS
    kept = [name for name in others if (place.top / BACKENDS[name]).exists()]
    asked = (*kept, last) if backend is None else (backend,)
    found = (import_module(f"sessionrun.queue.{name}").find(place) for name in asked)
    feed: Feed | None = next(filter(None, found), None)
    if feed is None:
        raise InputError(f"{place.top}: there is no queue of {backend} here")
    if reads and place.lock.parent == place.top and not feed.place.exists():
        raise InputError(f"there is no queue: {place.top} is in no git repository and has no {feed.place.name}")
    if backend is None and kept and feed.name == last:
        keeps = BACKENDS[kept[0]]
        notify(f"{place.top} has {keeps}, but neither bd nor br is on PATH: the queue is {feed.place.name}")
    return feed


def load_tasks(
    feed: Feed, *, ready: bool = False, closed: bool = False, group: str | None = None
) -> list[QueueTask]:
    """Tasks of a group, or all, in the order of the queue; those that can be claimed with `ready`."""
    tasks = by_id(feed.load())
    if ready:
        return choose_ready(tasks, group)
    return [task for task in choose_group(tasks, group) if closed or task.status != "closed"]


def describe_task(task: QueueTask) -> dict[str, Any]:
    """A task as an object of ``queue --json``."""
    return {
        **{field.name: getattr(task, field.name) for field in fields(task)},
        "ready": task.is_ready,
        "worker": task.worker.name if task.worker else None,
        "session_id": task.worker.session if task.worker else None,
    }


def import_list(feed: Feed, name: str, *, group: str | None = None) -> tuple[list[QueueTask], list[str]]:
    """Append the tasks of a Markdown list; the new ones, and the titles that the queue had already."""
    drafts = read_list(name, group)
    made = feed.create(drafts, unless_known=True)
    known = [draft.title for draft, task in zip(drafts, made, strict=True) if task is None]
    return [task for task in made if task is not None], known


def read_list(name: str, group: str | None) -> list[Draft]:
    """What the tasks of a list would be in a group.  InputError: it cannot be read, or has none."""
    from sessionrun.input.given import read_text  # which knows all settings: dear for verbs that only look

    drafts = [replace(draft, group=group) for draft in parse_list(read_text(name, typed=True))]
    if not drafts:
        raise InputError(f'{name}: has no list entry (- TITLE) and no line `bd create "TITLE"` in a code block')
    return drafts


def parse_list(text: str) -> list[Draft]:
    """Return the tasks of a Markdown list, in its order.

    If there are lines ``bd create "TITLE"`` (also ``br create``) in code blocks, those are the tasks, since the
    other entries of such a list tell the same at length.  In any other list each entry of the outermost level is a
    task: its first line is the title, or only its bold beginning, if there is one.  Ticked entries (``- [x]``) are
    done and left out.
    """
    created: list[Draft] = []
    lines: list[str] = []
    fence = ""
    for line in text.removeprefix("\ufeff").splitlines():
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and not line.strip(" `~"):
            fence = ""
        elif not fence:
            lines.append(line.expandtabs(4))
        elif title := _read_create(line):
            created.append(Draft(title))
    return created or [*_iterate_entries(lines)]


def _read_create(line: str) -> str | None:
    found = _CREATE.fullmatch(line)
    if found is None:
        return None
    try:
        words = shlex.split(found["words"], comments=True)
    except ValueError:
        return None
    return words[0] if words and words[0].strip() and not words[0].startswith("-") else None


def _iterate_entries(lines: list[str]) -> Iterator[Draft]:
    entries: list[list[str]] = []
    outermost = min((len(found["indent"]) for line in lines if (found := _ENTRY.fullmatch(line))), default=0)
    is_open = False
    for line in lines:
        found = _ENTRY.fullmatch(line)
        if found and len(found["indent"]) == outermost:
            is_open = found["box"] in (None, " ")
            entries += [[found["text"]]] if is_open else []
        elif line.strip() and not line.startswith(" "):
            is_open = False
        elif is_open:
            entries[-1].append(line)
    for first, *rest in entries:
        bold = _BOLD.fullmatch(first.strip())
        title, begin = (bold["title"], bold["rest"]) if bold else (first, "")
        if title.strip():
            yield Draft(title.strip(), "\n".join([begin, dedent("\n".join(rest))]).strip("\n"))


def ingest(files: Sequence[Path] = (), *, backend: str | None = None, **how: Any) -> Ingested:
    """Take follow-ups into the queue of the repository around us: see `ingest.take_follow_ups`, which knows `how`.

    Raises:
        InputError: a file is not there, or the queue refuses the tasks; no line is lost.
        StoreError, OSError: the disk fails, or another process is at it for too long; no line is lost.
    """
    from sessionrun.queue.ingest import take_follow_ups

    paths = [Path(os.path.abspath(path)) for path in files]
    for path in paths:
        if not os.path.lexists(path):
            raise InputError(f"{path}: No such file or directory")
    return take_follow_ups(open_queue(backend=backend), find_place(Path.cwd()), paths, warn=notify, **how)


Attempt = Mapping[str, Any]
"""A task of a session, with the id and the title that it has in the queue."""


class AtWork(NamedTuple):
    """The attempts that run or wait, those that need a person; since a time, when work landed and what all cost.

    The cost is that of all sessions that did not end before (USD; None: not known of any task).
    """

    working: Sequence[Attempt]
    needing: Sequence[Attempt]
    landed_at: Sequence[float]
    cost_usd: float | None


def find_work(feed: Feed, tasks: Sequence[QueueTask], results_dir: Path | None, since: float) -> AtWork:
    """Look into the sessions that take tasks of this queue; of what ended before `since` nothing counts."""
    here = resolve_results_dir(results_dir)
    summaries = (*load_summaries(here), *load_summaries(here, everywhere=True))
    recent = [view for view in summaries if view["ended_at"] is None or parse_time(view["ended_at"]) >= since]
    paths = {view["results_dir"]: None for view in sorted(recent, key=lambda view: str(view["started_at"]))}
    attempts: dict[str, Attempt] = {}
    landed_at: list[float] = []
    costs: list[float] = []
    for path in paths:
        session = load_or_warn(SessionDir(Path(path)), load_view)
        if session is None or not session["feed"] or session["feed"]["queue"] != str(feed.place):
            continue
        for task in session["tasks"]:
            if task["usage"] and task["usage"]["cost_usd"] is not None:
                costs.append(task["usage"]["cost_usd"])
            if task["word"] == "landed" and task["ended_at"] and parse_time(task["ended_at"]) >= since:
                landed_at.append(parse_time(task["ended_at"]))
            if QUEUE_LABEL in task["labels"]:
                attempts[task["labels"][QUEUE_LABEL]] = task
    left = [task for task in tasks if task.status != "closed" and task.id in attempts]
    named = [{**attempts[task.id], "id": task.id, "title": task.title} for task in left]
    working = [task for task in named if task["status"] != "completed"]
    needing = [task for task in named if task["status"] == "completed" and needs_look(task)]
    return AtWork(working, needing, landed_at, sum(costs) if costs else None)
