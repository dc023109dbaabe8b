"""Why tasks failed or did not land, told once for all of which the same is true.

What is told of a task stands in this order: what the step printed last at which it failed, what the agent printed
last on standard error, and the last line of its answer, which is only what it *said*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from sessionrun.client.reading.telling import choose_lines, tell, tell_files
from sessionrun.model.wording import Group, Task, group_tasks
from sessionrun.model.words import BAD
from sessionrun.store.jobfiles import read_tail
from sessionrun.store.session import SessionDir

SAID: Final = "said"
"""The source of what the agent said; of others it is a step, `work` for the agent's standard error."""

_TOOK: Final = re.compile(r"\b\d+(\.\d+)?\s?m?s\b")
"""How long something took, which differs between lines that mean the same."""


class Section(NamedTuple):
    """The last lines of one source."""

    source: str
    lines: Sequence[str]


class Failure(NamedTuple):
    """Tasks with the same word, reason and last lines."""

    group: Group
    sections: Sequence[Section]


def read_sections(session: SessionDir, task: Mapping[str, Any]) -> list[Section]:
    """What a task that has ended printed last, source by source; none of what is empty."""
    tellings = [tell(session, task)]
    if task["word"] in BAD and not (tellings[0] and tellings[0]["step"] == "work"):
        tellings.append(tell_files("work", [session.path / task["stderr"]]))
    sections = [Section(telling["step"], telling["lines"]) for telling in tellings if telling]
    last = choose_lines(read_tail(session.path / task["output"]).decode("utf-8", "backslashreplace"))[-1:]
    return [*sections, *([Section(SAID, last)] if last and task["word"] != "bounced" else [])]


def group_failures(
    session: SessionDir, chosen: Iterable[Task], tasks: Mapping[str, Task], now: float
) -> list[Failure]:
    """The chosen tasks by what failed; `tasks` are all of the session by id, `now` is wall time."""
    failures = []
    for group in group_tasks(chosen, tasks, now):
        alike: dict[tuple[Section, ...], tuple[list[Task], list[Sequence[Section]]]] = {}
        for task in group.tasks:
            sections = read_sections(session, task)
            members, read = alike.setdefault(_find_key(sections), ([], []))
            members.append(task)
            read.append(sections)
        failures += [
            Failure(group._replace(tasks=members), _find_common(read)) for members, read in alike.values()
        ]
    return failures


def fold_failures(failures: Iterable[Failure], most: int | None) -> list[Failure]:
    """The same, of each reason at most so many; the others of it are told as one, without what they printed."""
    folded: list[Failure] = []
    for _, alike in groupby(failures, key=lambda failure: (failure.group.word, failure.group.reason)):
        members = list(alike)
        rest = [task for failure in members[most:] for task in failure.group.tasks] if most else []
        folded += members[: most or None]
        if rest:
            group = members[0].group
            why = ", ".join(filter(None, (group.reason, "each with other last lines")))
            folded.append(Failure(group._replace(tasks=rest, reason=why), ()))
    return folded


def _find_key(sections: Sequence[Section]) -> tuple[Section, ...]:
    """What has to be the same for two tasks to be told as one: not what took how long, nor what agents say."""
    steps = (section for section in sections if section.source != SAID)
    return tuple(Section(source, tuple(_TOOK.sub("", line) for line in lines)) for source, lines in steps)


def _find_common(read: Sequence[Sequence[Section]]) -> Sequence[Section]:
    """The sections of the first task, without what it said if others said something else."""
    first = read[0]
    return [section for section in first if section.source != SAID or all(section in other for other in read)]
