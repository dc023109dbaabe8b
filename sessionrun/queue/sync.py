"""Queue and session in step: tasks of the queue and a snapshot of the session in, what is to be done out.  Pure.

A claim names the task of the session that works on the task of the queue.  So the queue alone says what is left
to do after a crash.  If there is no task of that name, it was not added yet.  If that task is at its end, the
claim was not settled yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final, Literal, NamedTuple

from sessionrun.model.asked import QUEUE_LABEL, FeedSpec
from sessionrun.model.keys import describe_id_problem
from sessionrun.model.spec import TaskSpec
from sessionrun.queue.graph import Tasks, choose_ready
from sessionrun.queue.snapshot import UNDONE, Standing
from sessionrun.queue.task import QueueTask

Known = Mapping[str, Standing]
"""The tasks of the session that are from the queue."""

What = Literal["close", "reopen", "claim", "bounce", "add", "claimed", "drop", "land"]


class Step(NamedTuple):
    """One thing to do for a task of the queue and the task of the session that works on it.

    Attributes:
        what: for the queue: close or reopen the claimed task; claim it (again) for a task that works on it; or
            `bounce`: reopen it, though a person has closed it, for its work was bounced again.  For the session:
            add a task for a claim; let a task go on that waited for its claim, and has it or needs none; drop a
            task whose claim is gone; or land its work again, for a person has closed its task.
    """

    what: What
    queue_id: str
    name: str
    reason: str = ""


def find_changes(
    tasks: Tasks, known: Known, session_id: str, landing: Mapping[str, int | None], *, ends: bool = False
) -> list[Step]:
    """Return what the queue needs: its claims settled, and claims for what runs without one.

    Work that is held is done, and a retry of the session lands it.  So its task stays claimed, also at the end of
    the session, or it would be done again.

    Args:
        tasks: of the queue.
        known: how the tasks of the session stand.
        landing: tasks whose work was asked to land again, and which time it had been bounced then.
        ends: the session ends: what it still works on, or has not heard of, is given back.
    """
    claims, steps = find_claims(tasks, session_id), []
    for name, task in claims.items():
        kind, reason = (known[name].kind, known[name].reason) if name in known else ("going", "")
        if kind in ("done", "undone") or (kind == "going" and ends):
            steps.append(Step("close" if kind == "done" else "reopen", task.id, name, reason))
    for name, one in known.items() if not ends else ():
        waiting = tasks.get(one.queue_id)
        if waiting is None or name in claims:
            continue
        if one.kind == "going" and waiting.is_ready:
            steps.append(Step("claim", waiting.id, name))
        elif _is_closed_by_hand(one, waiting) and name in landing and landing[name] != one.bounced_seq:
            steps.append(Step("bounce", waiting.id, name, one.reason))
    return steps


def find_news(
    tasks: Tasks, known: Known, session_id: str, landing: Collection[str], is_mended: Callable[[Standing], bool]
) -> list[Step]:
    """Return what the session has to do; to be asked when the queue needs nothing more.

    Args:
        tasks: of the queue.
        known: how the tasks of the session stand.
        landing: tasks whose work was asked to land again.
        is_mended: whether the branch of work that was bounced has gone on since.
    """
    claims = find_claims(tasks, session_id)
    steps = [Step("add", task.id, name) for name, task in claims.items() if name not in known]
    for name, one in known.items():
        task = tasks.get(one.queue_id)
        if one.kind == "going":
            needs_none = one.is_extra and (task is None or task.status == "closed")
            if one.waits and (needs_none or name in claims):
                steps.append(Step("claimed", one.queue_id, name))
            elif not (needs_none or name in claims or (task is not None and task.is_ready)):
                steps.append(Step("drop", one.queue_id, name))
        elif _is_closed_by_hand(one, task) and name not in landing and is_mended(one):
            steps.append(Step("land", one.queue_id, name))
    return steps


def choose_next(tasks: Tasks, known: Known, asked: FeedSpec, retries: int) -> Iterator[QueueTask]:
    """Yield the tasks of the queue that the session may claim, the first to be claimed first.

    A task that the session has tried waits for a person: it is ready again once its reason is another one.  If its
    end was lost, it is tried again by itself, up to `retries` times.

    Raises:
        InputError: there is no such group.
    """
    tried: dict[str, list[Standing]] = {}
    for one in known.values():
        tried.setdefault(one.queue_id, []).append(one)
    for task in choose_ready(tasks, asked.group):
        tries = tried.get(task.id, [])
        is_wanted = not asked.chosen or task.id in asked.chosen
        if is_wanted and _may_claim(task, tries, retries):
            yield task


def _may_claim(task: QueueTask, tries: Sequence[Standing], retries: int) -> bool:
    if any(one.kind in ("going", "held") for one in tries):
        return False
    if not tries or not (task.reason or "").startswith(UNDONE):
        return True
    return tries[-1].is_lost and len(tries) <= retries


def find_claims(tasks: Tasks, session_id: str) -> dict[str, QueueTask]:
    """Return what a session has claimed, by the task of the session that works on it."""
    claimed = [(task.claim.worker, task) for task in tasks.values() if task.claim is not None]
    return {worker.name: task for worker, task in claimed if worker.session == session_id}


def _is_closed_by_hand(one: Standing, task: QueueTask | None) -> bool:
    """Whether a person has closed a task whose work was bounced."""
    return one.branch is not None and one.kind == "undone" and task is not None and task.status == "closed"


# --- a task of the queue as one of the session ---

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
