"""Queue and session in step: tasks of the queue and a snapshot of the session in, what is to be done out.  Pure.

A claim names the task of the session that works on the task of the queue.  So the queue alone says what is left
to do after a crash.  If there is no task of that name, it was not added yet.  If that task is at its end, the
claim was not settled yet.

A snapshot says how the session stands, and how many more tasks it may have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, Literal, NamedTuple

from sessionrun.engine.moves import find_limit
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.model.asked import UNCLAIMED, FeedSpec
from sessionrun.model.keys import describe_id_problem
from sessionrun.model.spec import RETRY_LOST, SLOT, TaskSpec
from sessionrun.model.words import QUEUE_LABEL
from sessionrun.queue.task import QueueTask, Tasks, choose_ready, name_apart, show_line

UNDONE: Final = "not done by session "
"""What the reason begins with for which a task of the queue was opened again."""

UNLIMITED: Final = 1_000_000

Kind = Literal["going", "held", "done", "undone"]
"""`going`: the session still works on it.  `held`: its work waits for something that only a person can do."""

_ENDS: Final = ("rescued", "cancelled")
"""Why work is held that nothing lands by itself any more."""


class Standing(NamedTuple):
    """A task of the session.

    Attributes:
        queue_id: its id in the queue.
        reason: why, on one line.
        is_lost: whether nothing is known of its end, so that it may be tried again.
        is_extra: whether it goes on beyond what the task of the queue asks for: a follow-up, or work that lands.
        waits: whether it waits until it is claimed.
        branch: of work that was bounced, with the commit that it had then; a person may mend it there.
        bounced_seq: which time it was bounced: the number of the journal's record.
    """

    queue_id: str
    kind: Kind
    reason: str = ""
    is_lost: bool = False
    is_extra: bool = False
    waits: bool = False
    branch: tuple[str, str] | None = None
    bounced_seq: int | None = None


class Snapshot(NamedTuple):
    """How the session stands: what the supervisor's thread gives to the one that visits the queue.

    `tasks` are all tasks of the session by their ids, None: one that is not from the queue.  There are slots for
    `free` more, if it `takes` more at all.  `number` counts the snapshots.
    """

    number: int
    tasks: Mapping[str, Standing | None]
    free: int
    takes: bool

    def list_known(self) -> dict[str, Standing]:
        """The tasks that are from the queue."""
        return {name: one for name, one in self.tasks.items() if one is not None}


class Snapshots:
    """Makes them.  It keeps how each task stood, for only a request changes that after the end."""

    def __init__(self) -> None:
        self._tasks: dict[str, Standing | None] = {}
        self._requests = 0
        self._width: tuple[int, bool] | None = None
        self.number = 0

    def find_reborn(self, state: State) -> list[str]:
        """The tasks that may begin and may have no claim any more; to be asked before `look`.

        These are the tasks that a request tries again.  For a new supervisor these are all: while the session had
        none, its claims may have been taken back.
        """
        if not self.number:
            known = [name for name, task in state.tasks.items() if QUEUE_LABEL in task.spec.labels]
        elif len(state.requests) == self._requests:
            return []
        else:
            known = [name for name, one in self._tasks.items() if one is not None and one.kind != "going"]
        found = ((name, state.tasks[name]) for name in known)
        return [
            name for name, task in found if task.known_outcome is None and task.job is None and task.held is None
        ]

    def look(self, state: State) -> Snapshot | None:
        """Return how the session stands now; None: as on the snapshot before."""
        movable = [*state.tasks]  # after a request all may stand otherwise
        if len(state.requests) == self._requests:  # else those that were at no end, and new ones
            movable = [
                name for name, one in self._tasks.items() if one is not None and one.kind in ("going", "held")
            ]
            movable += islice(state.tasks, len(self._tasks), None)
        self._requests = len(state.requests)
        changed = False
        for name in movable:
            one = find_standing(state, state.tasks[name])
            if name not in self._tasks or self._tasks[name] != one:
                self._tasks[name], changed = one, True
        limit = find_limit(state, state.spec.resources.get(SLOT, 0))
        stops = state.cancelled or state.halted or state.held is not None or state.ended is not None
        free = (UNLIMITED if limit is None else limit) - len(state.tasks) + state.completed
        width = (free, state.feed_open and not stops)
        if not changed and width == self._width:
            return None
        self._width = width
        self.number += 1
        return Snapshot(self.number, dict(self._tasks), *width)


def find_standing(state: State, task: TaskState) -> Standing | None:
    """How a task stands; None: it is not from the queue."""
    queue_id = task.spec.labels.get(QUEUE_LABEL)
    if queue_id is None:
        return None
    kind, reason = _judge(state, task)
    goes, place, landing = kind == "going", task.place, task.landing
    is_bounced = landing is not None and landing.status == "bounced"
    return Standing(
        queue_id,
        kind,
        reason,
        is_lost=task.outcome in RETRY_LOST,
        is_extra=goes and (bool(task.follow_ups) or task.outcome is not None),
        waits=goes and task.held == UNCLAIMED,
        branch=(place.branch, place.commit) if is_bounced and place and place.branch and place.commit else None,
        bounced_seq=landing.seq if landing is not None and is_bounced else None,
    )


def _judge(state: State, task: TaskState) -> tuple[Kind, str]:
    outcome, landing = task.outcome, task.landing
    if outcome is None:
        return "going", ""
    where = f"session {state.spec.session_id[:8]}, task {task.spec.id}"
    if outcome != "succeeded":
        return "undone", _word_undone(where, task.reason or outcome)
    if landing is None:
        return "done", f"{_word_success(state, task)} ({where})"
    if landing.status == "landed":
        commit = f" as {landing.commit[:12]}" if landing.commit else ""
        return "done", f"landed{commit} ({where})"
    if landing.status == "bounced":
        why = f"its work did not land: {landing.reason or landing.reason_class}"
        if branch := task.place and task.place.branch:
            merge = f"sessionrun merge {state.spec.session_id[:8]} {task.spec.id}"
            why += f"; mend it on the branch {branch}, then: {merge}"
        return "undone", _word_undone(where, why)
    mender = find_mender(state, task.spec.id) if landing.status == "mending" else None
    if mender is not None and mender.landing is not None and mender.landing.status == "held":
        landing = mender.landing  # what mends it waits for a person
    if landing.status != "held":
        return "going", ""
    why = f"its work has not landed: {landing.reason or 'no reason is known'}"
    return "undone" if landing.reason_class in _ENDS else "held", _word_undone(where, why)


def find_mender(state: State, name: str) -> TaskState | None:
    """The last mend of a task's work."""
    found = [task for task in state.tasks.values() if task.spec.mend is not None and task.spec.mend.task == name]
    return found[-1] if found else None


def _word_undone(where: str, why: str) -> str:
    return " ".join(f"{UNDONE}{where.removeprefix('session ')}: {why}".split())


def _word_success(state: State, task: TaskState) -> str:
    place = task.place
    if place is None or place.holds_no_work:
        return "done, without a change" if place is not None else "done"
    branch = f"its work is on the branch {place.branch}" if place.branch else "its work was kept"
    return f"done; {branch}: sessionrun merge {state.spec.session_id[:8]}"


Known = Mapping[str, Standing]
"""The tasks of the session that are from the queue."""

What = Literal["close", "reopen", "claim", "bounce", "add", "claimed", "drop", "land"]


class Step(NamedTuple):
    """One thing to do for a task of the queue and the task of the session that works on it.

    For the queue: close or reopen the claimed task; claim it (again) for a task that works on it; or `bounce`:
    reopen it, though a person has closed it, for its work was bounced again.  For the session: add a task for a
    claim; let a task go on that waited for its claim, and has it or needs none; drop a task whose claim is gone;
    or land its work again, for a person has closed its task.
    """

    what: What
    queue_id: str
    name: str
    reason: str = ""

    @property
    def is_for_queue(self) -> bool:
        """Whether it changes the queue; only when it needs no such step does what is left count."""
        return self.what in ("close", "reopen", "claim", "bounce")


def find_steps(
    tasks: Tasks,
    known: Known,
    session_id: str,
    landing: Mapping[str, int | None],
    is_mended: Callable[[Standing], bool] = lambda one: False,
    *,
    ends: bool = False,
) -> list[Step]:
    """What the queue needs, and what the session: claims settled, what runs claimed, what is claimed added.

    Work that is held is done, and a retry of the session lands it.  So its task stays claimed, also at the end of
    the session, or it would be done again.  `landing` are tasks whose work was asked to land again, with the time
    it had been bounced then; `is_mended` says whether the branch of work that was bounced has gone on since.  If
    the session `ends`, what it still works on, or has not heard of, is given back.
    """
    claims, steps = find_claims(tasks, session_id), []
    for name, task in claims.items():
        kind, reason = (known[name].kind, known[name].reason) if name in known else ("going", "")
        if kind in ("done", "undone") or (kind == "going" and ends):
            steps.append(Step("close" if kind == "done" else "reopen", task.id, name, reason))
        elif name not in known:
            steps.append(Step("add", task.id, name))
    for name, one in known.items() if not ends else ():
        queued = tasks.get(one.queue_id)
        is_closed = queued is not None and queued.status == "closed"
        if one.kind == "going":
            if name not in claims and queued is not None and queued.is_ready:
                steps.append(Step("claim", one.queue_id, name))
            elif name not in claims and not (one.is_extra and (queued is None or is_closed)):
                steps.append(Step("drop", one.queue_id, name))
            elif one.waits:
                steps.append(Step("claimed", one.queue_id, name))
        elif one.kind == "undone" and one.branch is not None and is_closed:  # by hand
            if name in landing and landing[name] != one.bounced_seq:
                steps.append(Step("bounce", one.queue_id, name, one.reason))
            elif name not in landing and is_mended(one):
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
        if not is_wanted or any(one.kind in ("going", "held") for one in tries):
            continue
        waits = tries and (task.reason or "").startswith(UNDONE)
        if not waits or (tries[-1].is_lost and len(tries) <= retries):
            yield task


def find_claims(tasks: Tasks, session_id: str) -> dict[str, QueueTask]:
    """Return what a session has claimed, by the task of the session that works on it."""
    claimed = ((task.worker, task) for task in tasks.values())
    return {worker.name: task for worker, task in claimed if worker and worker.session == session_id}


# --- a task of the queue as one of the session ---

_PLACE: Final = re.compile(r"\{(task|title|body|script|id)\}")
"""What a frame has in place of the task: title and text, one of them, the text or else the title; the id."""

_LONGEST: Final = 100
"""Characters of an id, so that a number has room behind it."""


def make_task(template: TaskSpec, task: QueueTask, task_id: str) -> TaskSpec:
    prompts = tuple(fill_frame(frame, task) for frame in template.prompts)
    return replace(
        template,
        id=task_id,
        title=show_line(task.title) or task.id,
        prompts=prompts,
        priority=task.priority,
        labels={**template.labels, QUEUE_LABEL: task.id},
    )


def fill_frame(frame: str, task: QueueTask) -> str:
    """Return a prompt: the frame with the task in its places, or before the task if it names none."""
    if {*_PLACE.findall(frame)} <= {"id"}:
        frame = f"{frame.rstrip()}\n\n{{task}}\n"
    whole, script = f"{task.title}\n\n{task.body}".strip(), task.body or task.title
    values = {"task": whole, "title": task.title, "body": task.body, "script": script, "id": task.id}
    return _PLACE.sub(lambda place: values[place[1]], frame)


def choose_id(queue_id: str, taken: Collection[str]) -> str:
    """Return an id for a task of the session; `taken` are the ids that there are, in lower case.

    >>> choose_id("bd-a3f8.1", {"bd-a3f8.1"})
    'bd-a3f8.1-2'
    """
    stem = re.sub(r"[^A-Za-z0-9._-]|\.(?=\.)", "-", queue_id)[:_LONGEST]
    stem = stem if describe_id_problem(stem) is None else f"task-{stem.strip('.-_') or 'x'}".removesuffix(".lock")
    return name_apart(stem, taken)
