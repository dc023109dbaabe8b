"""How the session stands for the queue from which its tasks come, and how many more tasks it may have.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, Literal, NamedTuple

from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.engine.tokens import find_limit
from sessionrun.model.asked import QUEUE_LABEL, UNCLAIMED
from sessionrun.model.places import LandEntry
from sessionrun.model.spec import RETRY_LOST, SLOT

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

    Attributes:
        number: counts the snapshots.
        tasks: all tasks of the session by their ids; None: it is not from the queue.
        free: for how many tasks more there are slots.
        takes: whether it takes more tasks at all.
        is_open: whether its feed is open.
    """

    number: int
    tasks: Mapping[str, Standing | None]
    free: int
    takes: bool
    is_open: bool

    def list_known(self) -> dict[str, Standing]:
        """Return the tasks that are from the queue."""
        return {name: one for name, one in self.tasks.items() if one is not None}


class Snapshots:
    """Makes them.  It keeps how each task stood, for only a request changes that after the end."""

    def __init__(self) -> None:
        self._tasks: dict[str, Standing | None] = {}
        self._requests = 0
        self._width: tuple[int, bool, bool] | None = None
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
        changed = False
        for name in self._list_movable(state):
            one = find_standing(state, state.tasks[name])
            if name not in self._tasks or self._tasks[name] != one:
                self._tasks[name], changed = one, True
        limit = find_limit(state, state.spec.resources.get(SLOT, 0))
        stops = state.cancelled or state.halted or state.held is not None or state.ended is not None
        free = (UNLIMITED if limit is None else limit) - len(state.tasks) + state.completed
        width = (free, state.feed_open and not stops, state.feed_open)
        if not changed and width == self._width:
            return None
        self._width = width
        self.number += 1
        return Snapshot(self.number, dict(self._tasks), *width)

    def _list_movable(self, state: State) -> Iterable[str]:
        """The tasks that may stand otherwise: those that were at no end, new ones, and after a request all."""
        if len(state.requests) != self._requests:
            self._requests = len(state.requests)
            return [*state.tasks]
        open_ones = [
            name for name, one in self._tasks.items() if one is not None and one.kind in ("going", "held")
        ]
        return [*open_ones, *islice(state.tasks, len(self._tasks), None)]


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
        return "undone", _word_undone(where, _word_bounced(task, landing, state.spec.session_id[:8]))
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


def _word_bounced(task: TaskState, landing: LandEntry, session: str) -> str:
    branch = task.place.branch if task.place else None
    how = f"mend it on the branch {branch}, then: sessionrun merge {session} {task.spec.id}"
    return f"its work did not land: {landing.reason or landing.reason_class}" + (f"; {how}" if branch else "")
