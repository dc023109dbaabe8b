"""An input on its way to a spec: which steps are due, what each is given, and gives to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sessionrun.house import HOUSE, STEPS, Moment, Step, load
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import TaskSpec

if TYPE_CHECKING:
    from sessionrun.client.config import Config
    from sessionrun.input.plan import Plan, Source
    from sessionrun.input.settings import Options
    from sessionrun.model.spec import SessionSpec


class Choice(NamedTuple):
    """The session's default agent, and why it was chosen, as text for the user."""

    name: str
    why: str


@frozen
class Draft:
    """Each step returns it with one more thing settled in `spec`; a step knows no other one.

    Attributes:
        source: the input.
        plan: what it asks for.
        options: what is said beside it.
        config: the configuration; in a session to which tasks are added, that session's own comes before.
        spec: as far as it is settled.
        choice: the default agent.
        into: the session, as it is now, to which the tasks will be added.
        place: lies in the repository of the worktrees.
        preview: nothing will be started, so agents need not be installed, and nothing is fetched.
        remarks: lines for people.
        skipped: how many tasks of the input were left out, for an earlier session finished them.
    """

    source: Source
    plan: Plan
    options: Options
    config: Config
    spec: SessionSpec
    choice: Choice
    into: SessionSpec | None
    place: Path
    preview: bool
    remarks: tuple[str, ...] = ()
    skipped: int = 0

    def settle(self, **settled: Any) -> Draft:
        """The same, with these fields of `spec`."""
        return replace(self, spec=replace(self.spec, **settled))

    def remark(self, *lines: str) -> Draft:
        """The same, with more lines for people."""
        return replace(self, remarks=(*self.remarks, *lines))


def find_due(moment: Moment, tasks: Sequence[TaskSpec], *speakers: object) -> Iterator[Callable[..., Any]]:
    """The functions of the steps of a moment of which something is said; each is imported when its turn comes.

    A speaker is a map of values, a record with fields, or None.  A task says what is not as it is by itself.
    """
    there = {"", *(business.name for business in HOUSE)}
    for step in STEPS[moment]:
        if step.business in there and _is_due(step, tasks, speakers):
            yield load(step.function)


def _is_due(step: Step, tasks: Sequence[TaskSpec], speakers: Sequence[object]) -> bool:
    if not (step.words or step.of_tasks) or any(_says(one, name) for one in speakers for name in step.words):
        return True
    silent = TaskSpec("", ())
    readers = [attrgetter(name) for name in step.of_tasks]
    return any(read(task) != read(silent) for read in readers for task in tasks)


def _says(speaker: object, name: str) -> bool:
    if isinstance(speaker, Mapping):
        return name in speaker
    return getattr(speaker, name, None) not in (None, ())
