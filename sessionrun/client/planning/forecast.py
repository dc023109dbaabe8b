"""How long a plan will take and what it will cost, from what tasks like its own took: of the user's own sessions.

`load_past` reads; the rest is pure.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from sessionrun.client.reading.eta import schedule
from sessionrun.model.spec import SLOT, SessionSpec, TaskSpec, title_of
from sessionrun.model.words import JUDGED

MOST_SESSIONS: Final = 200
"""So many sessions are looked at, the newest first."""

MOST_BYTES: Final = 4_000_000
"""A bigger status.json is left out, and no more than five times as much is read: it would take too long."""

LEAST_LIKE: Final = 3
"""With fewer tasks like one of its own, nothing is said of a plan."""

DRAWS: Final = 200
WORK: Final = 40_000
"""So many tasks are drawn at most, in fewer draws of a big plan."""

LOW: Final = 0.1
HIGH: Final = 0.9


class Past(NamedTuple):
    """What a task took: seconds, and US dollars if that is known."""

    seconds: float
    cost_usd: float | None


class Interval(NamedTuple):
    """Eight of ten draws lie between `low` and `high`, half of them below `middle`."""

    low: float
    middle: float
    high: float


class Forecast(NamedTuple):
    """What a plan is expected to take; `like` is how many tasks that rests on."""

    seconds: Interval
    cost_usd: Interval | None
    like: int


Likeness: TypeAlias = tuple[str, str]
"""The agent, and its model or, of a script, the title; ``""`` stands for any model."""


def load_past(dialect: str, results_dir: Path) -> dict[Likeness, list[Past]]:
    """What tasks of the user's sessions of this input format took that have the same results directory.

    Elsewhere a task of the same agent is other work, and so is an instance of SWE-bench beside a prompt.
    """
    from sessionrun.store import index

    past: dict[Likeness, list[Past]] = {}
    room = 5 * MOST_BYTES
    place = os.path.realpath(results_dir)
    near = [session for session in index.sessions() if os.path.realpath(session.path.parent) == place]
    for session in near[: -MOST_SESSIONS - 1 : -1]:
        try:
            size = session.status_path.stat().st_size
            status = session.load_status() if size <= min(room, MOST_BYTES) else None
        except OSError:
            continue
        room -= size if status is not None else 0
        for task in status["tasks"] if status is not None and status["dialect"] == dialect else ():
            if task["outcome"] in JUDGED and task["duration_s"] is not None:
                usage = task["usage"] or {}
                took = Past(float(task["duration_s"]), usage.get("cost_usd"))
                for what in {"", task["model"] or "", task["title"]}:
                    past.setdefault((task["agent"], what), []).append(took)
    return past


def forecast(spec: SessionSpec, past: Mapping[Likeness, Sequence[Past]]) -> Forecast | None:
    """The forecast of a plan; None if too little is known of one of its tasks.

    A draw gives each task what one of those like it took, and the slots and needs say when each of them ends.
    """
    pools = {task.id: past.get(_likeness(spec, task), ()) for task in spec.tasks}
    slots = min(spec.resources.get(SLOT) or len(pools), len(pools))
    lengths, costs = [], []
    for drawn in _draw(pools):
        unmet = {task.id: {need for need in task.needs if need in pools} for task in spec.tasks}
        ends: dict[str, float] = {}
        schedule(unmet, ends, [0.0] * slots, {name: one.seconds for name, one in drawn.items()})
        lengths.append(max(ends.values()))
        costs.append(_add(one.cost_usd for one in drawn.values()))
    if not lengths:
        return None
    known = [cost for cost in costs if cost is not None]
    like = sum({id(pool): len(pool) for pool in pools.values()}.values())
    return Forecast(_summarise(lengths), _summarise(known) if len(known) == len(costs) else None, like)


def _draw(pools: Mapping[str, Sequence[Past]]) -> Iterator[dict[str, Past]]:
    """What each task takes, drawn from what those like it took; nothing if too few are like one of them."""
    if pools and min(map(len, pools.values())) >= LEAST_LIKE:
        rng = random.Random(0)  # the same plan gets the same answer
        for _ in range(max(20, min(DRAWS, WORK // len(pools)))):
            yield {name: rng.choice(pool) for name, pool in pools.items()}


def describe_forecast(spec: SessionSpec) -> dict[str, Any] | None:
    """The forecast as JSON has it."""
    from sessionrun.client.lookup import resolve_results_dir

    found = forecast(spec, load_past(spec.dialect, resolve_results_dir(None)))
    if found is None:
        return None
    cost = found.cost_usd and found.cost_usd._asdict()
    return {"seconds": found.seconds._asdict(), "cost_usd": cost, "like": found.like}


def _likeness(spec: SessionSpec, task: TaskSpec) -> Likeness:
    is_script = spec.agents[task.agent].prompt_kind == "script"
    return task.agent, title_of(task) if is_script else task.model or ""


def _add(costs: Iterable[float | None]) -> float | None:
    total = 0.0
    for cost in costs:
        if cost is None:
            return None
        total += cost
    return total


def _summarise(values: Sequence[float]) -> Interval:
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 6)

    return Interval(at(LOW), at(0.5), at(HIGH))
