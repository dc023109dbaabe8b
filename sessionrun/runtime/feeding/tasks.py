"""A task of the queue as a task of a session: its id and its prompt.  Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from itertools import count
from typing import Final

from sessionrun.model.feeding import QUEUE_LABEL
from sessionrun.model.keys import describe_id_problem
from sessionrun.model.spec import TaskSpec
from sessionrun.queue.task import QueueTask

TASK: Final = "{task}"
TITLE: Final = "{title}"
BODY: Final = "{body}"
QUEUE_ID: Final = "{id}"
SCRIPT: Final = "{script}"
"""What a frame has in place of the task: title and text, one of them, the id; the text or else the title."""

_PLACE: Final = re.compile("|".join(map(re.escape, (TASK, TITLE, BODY, QUEUE_ID, SCRIPT))))

_LONGEST: Final = 100
"""Characters of an id, so that a number has room behind it."""


def make_task(template: TaskSpec, task: QueueTask, task_id: str) -> TaskSpec:
    """Return the task of the session that works on a task of the queue."""
    prompts = tuple(fill_frame(frame, task) for frame in template.prompts)
    return replace(
        template,
        id=task_id,
        title=_clean(task.title) or task.id,
        prompts=prompts,
        priority=task.priority,
        labels={**template.labels, QUEUE_LABEL: task.id},
    )


def _clean(title: str) -> str:
    """A title on one line without control characters: it comes into commits, and from there to terminals.

    >>> _clean("Fix \\x1b[31mit")
    'Fix [31mit'
    """
    return " ".join("".join(char if char.isprintable() else " " for char in title).split())


def fill_frame(frame: str, task: QueueTask) -> str:
    """Return a prompt: the frame with the task in its places, or before the task if it names none."""
    whole = f"{task.title}\n\n{task.body}".strip()
    if not any(place in frame for place in (TASK, TITLE, BODY, SCRIPT)):
        frame = f"{frame.rstrip()}\n\n{TASK}\n"
    values = {TASK: whole, TITLE: task.title, BODY: task.body, QUEUE_ID: task.id, SCRIPT: task.body or task.title}
    return _PLACE.sub(lambda found: values[found[0]], frame)


def choose_id(queue_id: str, taken: Collection[str]) -> str:
    """Return an id for a task of the session; `taken` are the ids that there are, in lower case.

    >>> choose_id("bd-a3f8.1", {"bd-a3f8.1"})
    'bd-a3f8.1-2'
    """
    stem = re.sub(r"[^A-Za-z0-9._-]|\.(?=\.)", "-", queue_id)[:_LONGEST]
    stem = stem if describe_id_problem(stem) is None else f"task-{stem.strip('.-_') or 'x'}".removesuffix(".lock")
    names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    return next(name for name in names if name.casefold() not in taken)
