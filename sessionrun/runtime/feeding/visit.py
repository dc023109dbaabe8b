"""What a visit to the queue finds to be done.  Pure: tasks of the queue and of the session in, steps out.

A claim names the task of the session that works on the task of the queue.  So the queue alone says what is left
to do after a crash.  If there is no task of that name, it was not added yet.  If that task is at its end, the
claim was not settled yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from sessionrun.queue.graph import Tasks, choose_ready
from sessionrun.queue.task import QueueTask
from sessionrun.runtime.feeding.standing import UNDONE, Standing

What = Literal["close", "reopen", "add", "claim", "claimed", "drop", "land", "bounce"]


class Step(NamedTuple):
    """One thing to do for a task of the queue and the task of the session that works on it.

    Attributes:
        what: close or reopen the claimed task of the queue; add a task for a claim; claim it (again) for a task
            that works on it; let a task go on that waited for its claim, and has it or needs none; drop a task
            whose claim is gone; land the work of a task again, for a person has closed its task; or reopen that,
            for its work was bounced again.
        queue_id: the task of the queue.
        name: the task of the session.
        reason: why, for people.
    """

    what: What
    queue_id: str
    name: str
    reason: str = ""


def find_steps(
    tasks: Tasks, known: Mapping[str, Standing], session_id: str, landing: Collection[str] = ()
) -> list[Step]:
    """Return what has to be done for the claims of a session, and for its tasks without one.

    Args:
        tasks: of the queue.
        known: how the tasks of the session stand.
        session_id: of the session.
        landing: tasks whose work is tried again, for which a claim is not needed.
    """
    claims = dict(_iterate_claims(tasks, session_id))
    steps = [step for name, task in claims.items() if (step := _settle(name, task, known.get(name))) is not None]
    excused = {*claims, *landing, *find_excused(tasks, known)}
    left = {name: one for name, one in known.items() if one.kind == "going" and name not in excused}
    return [*steps, *(_claim_again(name, one, tasks.get(one.queue_id)) for name, one in left.items())]


def find_claimed(tasks: Tasks, session_id: str) -> frozenset[str]:
    """Return the tasks of a session that have a claim."""
    return frozenset(name for name, _ in _iterate_claims(tasks, session_id))


def find_excused(tasks: Tasks, known: Mapping[str, Standing]) -> frozenset[str]:
    """Return the tasks of a session that need no claim: follow-ups whose task of the queue is closed."""
    asked = {name: one.queue_id for name, one in known.items() if one.kind == "going" and one.asked}
    return frozenset(name for name, queue_id in asked.items() if _is_closed(tasks, queue_id))


def find_landings(
    tasks: Tasks, known: Mapping[str, Standing], landing: Collection[str], is_mended: Callable[[str, str], bool]
) -> list[Step]:
    """Return what has to be done for work that was bounced and whose task a person has closed since.

    Args:
        tasks: of the queue.
        known: how the tasks of the session stand.
        landing: tasks whose work is tried again.
        is_mended: asked with a branch and a commit; whether the branch has gone on from there.
    """
    steps = []
    for name, one in known.items():
        task = tasks.get(one.queue_id)
        if one.branch is None or one.kind != "undone" or task is None or task.status != "closed":
            continue
        if name in landing:
            steps.append(Step("bounce", one.queue_id, name, one.reason))
        elif is_mended(*one.branch):
            steps.append(Step("land", one.queue_id, name))
    return steps


def find_last_steps(tasks: Tasks, known: Mapping[str, Standing], session_id: str) -> list[Step]:
    """Return what has to be done for the claims of a session that ends.

    Work that is held is done, and a retry of the session lands it.  So its task stays claimed, or it would be done
    again.
    """
    steps = []
    for name, task in _iterate_claims(tasks, session_id):
        one = known.get(name)
        if one is not None and one.kind == "held":
            continue
        what: What = "close" if one is not None and one.kind == "done" else "reopen"
        steps.append(Step(what, task.id, name, one.reason if one is not None else ""))
    return steps


def choose_next(
    tasks: Tasks, known: Mapping[str, Standing], group: str | None, chosen: Sequence[str], retries: int
) -> list[QueueTask]:
    """Return the tasks of the queue that the session may claim, the first to be claimed first.

    A task that the session has tried waits for a person: it is ready again once its reason is another one.  If its
    end was lost, it is tried again by itself, up to `retries` times.

    Raises:
        InputError: there is no such group.
    """
    tried: dict[str, list[Standing]] = {}
    for one in known.values():
        tried.setdefault(one.queue_id, []).append(one)
    wanted = frozenset(chosen)
    return [
        task
        for task in choose_ready(tasks, group)
        if (not wanted or task.id in wanted) and _may_claim(task, tried.get(task.id, []), retries)
    ]


def _may_claim(task: QueueTask, tries: Sequence[Standing], retries: int) -> bool:
    if any(one.kind in ("going", "held") for one in tries):
        return False
    if not tries or not (task.reason or "").startswith(UNDONE):
        return True
    return tries[-1].is_lost and len(tries) <= retries


def _iterate_claims(tasks: Tasks, session_id: str) -> Iterator[tuple[str, QueueTask]]:
    for task in tasks.values():
        if task.claim is not None and task.claim.worker.session == session_id:
            yield task.claim.worker.name, task


def _is_closed(tasks: Tasks, queue_id: str) -> bool:
    """Whether nothing is left to do for the queue: the task is closed, or not in it any more."""
    return queue_id not in tasks or tasks[queue_id].status == "closed"


def _settle(name: str, task: QueueTask, one: Standing | None) -> Step | None:
    if one is None:
        return Step("add", task.id, name)
    if one.kind in ("going", "held"):
        return None
    return Step("close" if one.kind == "done" else "reopen", task.id, name, one.reason)


def _claim_again(name: str, one: Standing, task: QueueTask | None) -> Step:
    """A task that runs without a claim: it was tried again, or the claim was taken away."""
    if task is not None and task.is_ready:
        return Step("claim", one.queue_id, name)
    return Step("drop", one.queue_id, name)
