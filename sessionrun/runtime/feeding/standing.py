"""Where the tasks of a session stand for the queue from which they came, and how many more it may have.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final, Literal, NamedTuple

from sessionrun.engine.mending import find_mender
from sessionrun.engine.state import State
from sessionrun.engine.task import LandEntry, TaskState
from sessionrun.engine.tokens import find_limit
from sessionrun.model.feeding import QUEUE_LABEL, UNCLAIMED
from sessionrun.model.spec import RETRY_LOST, SLOT

UNDONE: Final = "not done by session "
"""What the reason begins with for which a task of the queue was opened again."""

Kind = Literal["going", "held", "done", "undone"]
"""`going`: the session still works on it.  `held`: its work waits for something that only a person can do."""


_ENDS: Final = ("rescued", "cancelled")
"""Why work is held that nothing lands by itself any more."""


class Standing(NamedTuple):
    """A task of the session.

    Attributes:
        queue_id: its id in the queue.
        kind: how it stands.
        reason: why, on one line.
        is_lost: whether nothing is known of its end, so that it may be tried again.
        asked: whether a user has asked more of it after its end.
        branch: of work that was bounced, with the commit that it had then; a person may mend it there.
    """

    queue_id: str
    kind: Kind
    reason: str = ""
    is_lost: bool = False
    branch: tuple[str, str] | None = None
    asked: bool = False


def find_standing(state: State, task: TaskState) -> Standing | None:
    """How a task stands; None: it is not from the queue."""
    queue_id = task.spec.labels.get(QUEUE_LABEL)
    if queue_id is None:
        return None
    is_lost = task.outcome in RETRY_LOST
    return Standing(queue_id, *_judge(state, task), is_lost, _find_bounced(task), bool(task.follow_ups))


def _find_bounced(task: TaskState) -> tuple[str, str] | None:
    place, landing = task.place, task.landing
    if landing is None or landing.status != "bounced" or place is None or not (place.branch and place.commit):
        return None
    return place.branch, place.commit


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
    if landing.status == "held" and landing.reason_class in _ENDS:
        return "undone", _word_undone(where, f"its work has not landed: {landing.reason}")
    if landing.status == "held":
        return "held", _word_undone(where, f"its work has not landed: {landing.reason or 'no reason is known'}")
    return "going", ""


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


UNLIMITED: Final = 1_000_000


class Board(NamedTuple):
    """How the session stands: what the supervisor's thread shows to the one that visits the queue.

    Attributes:
        number: counts the boards.
        news: by task, how each stands that was not on an earlier board or stands otherwise now.
        others: the ids of tasks that are not from the queue and were not on an earlier board.
        waiting: tasks that wait until they are claimed again.
        free: for how many tasks more there are slots.
        takes: whether it takes more tasks at all.
        is_open: whether its feed is open.
    """

    number: int
    news: Mapping[str, Standing]
    others: frozenset[str]
    waiting: frozenset[str]
    free: int
    takes: bool
    is_open: bool


class Boards:
    """Makes boards, each from the state and what stood on those before."""

    def __init__(self) -> None:
        self._standings: dict[str, Standing] = {}
        self._others: frozenset[str] = frozenset()
        self._seen = 0
        self._requests = 0
        self._last: tuple[frozenset[str], int, bool, bool] | None = None
        self.number = 0

    def find_reborn(self, state: State) -> list[str]:
        """The tasks that may begin and may have no claim any more; to be asked before `make`.

        These are the tasks that a request tries again.  For a new supervisor these are all: while the session had
        none, its claims may have been taken back.
        """
        if not self.number:
            known = [name for name, task in state.tasks.items() if QUEUE_LABEL in task.spec.labels]
        elif len(state.requests) == self._requests:
            return []
        else:
            known = [name for name, one in self._standings.items() if one.kind != "going"]
        return [name for name in known if _can_begin(state.tasks[name])]

    def make(self, state: State) -> Board | None:
        """Return the board as of now; None: nothing on it has changed."""
        found = self._look(state)
        others = frozenset(name for name, one in found if one is None) - self._others
        self._others |= others
        news = {name: one for name, one in found if one is not None and self._standings.get(name) != one}
        self._standings |= news
        limit = find_limit(state, state.spec.resources.get(SLOT, 0))
        width = UNLIMITED if limit is None else limit
        stops = state.cancelled or state.halted or state.held is not None or state.ended is not None
        going = [name for name, one in self._standings.items() if one.kind == "going"]
        waiting = frozenset(name for name in going if state.tasks[name].held == UNCLAIMED)
        free = width - len(state.tasks) + state.completed
        last = (waiting, free, state.feed_open and not stops, state.feed_open)
        if not (news or others) and last == self._last:
            return None
        self._last = last
        self.number += 1
        return Board(self.number, news, others, *last)

    def _look(self, state: State) -> list[tuple[str, Standing | None]]:
        """The tasks that may stand otherwise: those that were at no end, new ones, and after a request all."""
        names = [name for name, standing in self._standings.items() if standing.kind in ("going", "held")]
        names += islice(state.tasks, self._seen, None)
        if len(state.requests) != self._requests:
            names = list(state.tasks)
        self._seen, self._requests = len(state.tasks), len(state.requests)
        return [(name, find_standing(state, state.tasks[name])) for name in names]


def _can_begin(task: TaskState) -> bool:
    return task.known_outcome is None and task.job is None and task.held is None


def join_boards(first: Board, second: Board) -> Board:
    """The second board with what was new on the first."""
    return second._replace(news={**first.news, **second.news}, others=first.others | second.others)
