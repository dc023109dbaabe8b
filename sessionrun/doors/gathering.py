"""Reads what a page shows of a session: its view, when jobs ran, why tasks failed, parts of files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.evidence import find_runs
from sessionrun.client.explain import find_attempts
from sessionrun.client.lookup import name_for_command
from sessionrun.client.reading.comparison import name_each
from sessionrun.client.reading.digest import Excerpt, make_excerpt
from sessionrun.client.reading.outputs import read_steps
from sessionrun.client.reading.telling import (
    Failure,
    Section,
    group_failures,
    list_step,
    read_section,
    read_sections,
)
from sessionrun.client.reading.view import load_history
from sessionrun.doors.drawing import Bar, find_bars
from sessionrun.model.events import Entry, HoldLifted, HoldPlaced, RequestReceived
from sessionrun.model.spec import PROVIDER_PREFIX, AgentSpec
from sessionrun.model.wording import cut_bytes, name_tasks, tell_reason, tell_rounds
from sessionrun.model.words import BAD
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.diff import patch_path

FEW: Final = 40
"""So many tasks have room for much; of more the page has only as much as it can bear."""

MOST: Final = 300
"""Of more tasks only those that need a look are told one by one."""

BYTES_OF_FEW: Final = 1_000_000
BYTES_OF_MANY: Final = 90_000
MOST_OF_A_TASK: Final = 24_000
LEAST_OF_A_TASK: Final = 240

Task = Mapping[str, Any]

NOTHING: Final = Excerpt("", 0, False)


class Shown(NamedTuple):
    """What is shown of one task beside its view.

    `bars` are its jobs that have begun, `rounds` these in words; `acts` what its agent called tools for, and its
    errors, a line each with the seconds it took, if those are known; `check` is what its check printed, both
    streams.
    """

    task: Task
    bars: Sequence[Bar]
    sections: Sequence[Section] = ()
    prompts: Sequence[str] = ()
    answer: Excerpt = NOTHING
    errors: Excerpt = NOTHING
    patch: Excerpt = NOTHING
    acts: Sequence[tuple[str, float | None]] = ()
    check: Sequence[Excerpt] = ()
    rounds: Sequence[str] = ()


class Matter(NamedTuple):
    """What a page is made of; `name` stands for the session on a command line, `now` is wall time.

    `names` are the tasks as a person names them, `reasons` why each stands as it does, both by id.
    """

    view: Mapping[str, Any]
    name: str
    now: float
    tasks: Sequence[Shown]
    failures: Sequence[Failure]
    names: Mapping[str, str]
    reasons: Mapping[str, str]
    pauses: Sequence[Bar] = ()
    last_at: float | None = None
    """When its last event was, of a session that has not ended."""


STREAM_LINES: Final = 2000
ACT_BYTES: Final = 200
MOST_LIVE: Final = 12
"""Of so many running tasks the last lines are read."""


def is_wrong(task: Task) -> bool:
    """Whether a page says first why a task stands so: it is bad, or its work was to land and did not."""
    return task["word"] in (*BAD, "bounced") or (task["word"] == "held" and task["status"] == "completed")


def gather(session: SessionDir, details_of: Callable[[Task], bool] | None = None) -> Matter:
    """Read all of it; but texts only `details_of` these tasks, or (None) of all that a page can bear."""
    view, evidence = load_history(session)
    entries = evidence.entries
    tasks, now = view["tasks"], time.time()
    ended = entries[-1].at if entries and view["ended_at"] else now
    few = len(tasks) <= MOST
    live = {task["id"] for task in [task for task in tasks if task["word"] == "running"][:MOST_LIVE]}
    chosen = {task["id"] for task in tasks if (few or is_wrong(task) if details_of is None else details_of(task))}
    state = evidence.require()
    attempts = find_attempts(state, evidence, chosen)
    bars: dict[str, list[Any]] = {}
    for key, run in find_runs(entries).items():
        bars.setdefault(key.task, []).extend([run] if run.begin is not None else [])
    whole = BYTES_OF_FEW if len(chosen) <= FEW else BYTES_OF_MANY
    room = max(LEAST_OF_A_TASK, min(MOST_OF_A_TASK, whole // max(1, len(chosen))))

    def show(task: dict[str, Any]) -> Shown:
        ran = find_bars(task, bars.get(task["id"], []), ended)
        printed = [session.path / task[key] for key in ("output", "stderr") if task["id"] in live]
        last = [section] if (section := read_section("work", printed)) else []
        if task["id"] not in chosen:
            return Shown(task, ran, last)
        # of many tasks those that are good have no room for what ran, and what it did
        has_room = len(chosen) <= FEW or is_wrong(task)
        known, agent = state.tasks.get(task["id"]), state.spec.agents.get(task["agent"])
        return Shown(
            task,
            ran,
            read_sections(session, task) if is_wrong(task) else last,
            [prompt[: room // 6] for prompt in known.spec.prompts] if known is not None else (),
            _take(session.path / task["output"], room // 3),
            _take(session.path / task["stderr"], room // 6),
            _take(patch_path(session, task), room // 3),
            _read_acts(session, task, agent, room // 3) if has_room else (),
            # a page of its own has room for all of it
            [] if details_of is None else [_take(path, room // 3) for path in list_step(session, task, "check")],
            list(tell_rounds(attempts.get(task["id"], ()), task["attempt"])) if has_room else (),
        )

    by_id = name_tasks(view)
    failures = group_failures(session, filter(is_wrong, tasks), by_id, now)
    return Matter(
        view,
        name_for_command(view),
        now,
        [show(task) for task in tasks],
        failures,
        name_each(tasks),
        {name: tell_reason(task, by_id, now) for name, task in by_id.items()},
        find_pauses(entries, ended),
        entries[-1].at if entries and not view["ended_at"] else None,
    )


def _read_acts(
    session: SessionDir, task: Task, agent: AgentSpec | None, room: int
) -> list[tuple[str, float | None]]:
    if not task["raw"] or agent is None:
        return []
    steps = read_steps(session.path / task["raw"], agent.output, STREAM_LINES)[-max(1, room // ACT_BYTES) :]
    return [(cut_bytes(line, ACT_BYTES), seconds) for line, seconds in steps]


def _take(path: Path, room: int) -> Excerpt:
    return make_excerpt(path, room, lambda text: len(text.encode("utf-8", "backslashreplace")))


def find_pauses(entries: Sequence[Entry], ended: float) -> list[Bar]:
    """When nothing that uses a resource started, or nothing of the session: the holds of the journal.

    One that is placed again goes on, an open one until `ended`.
    """
    pauses: list[Bar] = []
    still: dict[str, int] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, HoldPlaced):
            what, why, begins = event.resource.removeprefix(PROVIDER_PREFIX), event.reason, True
        elif isinstance(event, HoldLifted):
            what, why, begins = event.resource.removeprefix(PROVIDER_PREFIX), "", False
        elif isinstance(event, RequestReceived) and event.kind in ("hold", "release") and not event.tasks:
            what, why, begins = "on request", event.reason or "", event.kind == "hold"
        else:
            continue
        if begins and what not in still:
            still[what] = len(pauses)
            pauses.append(Bar(entry.at, ended, "pause", f"held: {what}{f': {why}' if why else ''}"))
        elif not begins and what in still:
            place = still.pop(what)
            pauses[place] = pauses[place]._replace(end=entry.at)
    return pauses
