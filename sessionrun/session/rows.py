"""The supervisor's side of the table of the house: who makes the jobs of a phase, and what is done around them.

What the process of a job does is the other half of the table, in `job`: the two must not import each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, get_args

from sessionrun.house import HOUSE, Phase, Wrap, load
from sessionrun.model.spec import SessionSpec, TaskSpec

Moment = Literal["variables", "build", "ended", "problem", "judged", "lost"]

_INWARDS: Final = ("ended", "problem", "judged", "lost")
"""What was put around a job last is the first to see its end."""


def find_phase(name: str) -> Phase:
    """The row of a phase that is not the session's own."""
    return next(row for business in HOUSE for row in business.phases if row.name == name)


def import_makers(spec: SessionSpec) -> None:
    """Import what makes and judges the jobs of a session, before its first one.

    After an upgrade of the package a supervisor that lives must not take modules of another version.
    """
    tasks = spec.tasks if spec.template is None else (*spec.tasks, spec.template)
    for business in HOUSE:
        for phase in business.phases:
            load(phase.maker)
        for wrap in business.wraps:
            if any(_is_asked(wrap, spec, task) for task in tasks):
                for name in filter(None, (getattr(wrap, moment) for moment in get_args(Moment))):
                    load(name)


def list_wraps(moment: Moment, spec: SessionSpec, task: TaskSpec) -> list[Callable[..., Any]]:
    """What is done at a moment around the jobs of a task, in its order; of all else nothing is imported."""
    wraps = (wrap for business in HOUSE for wrap in business.wraps)
    names = [getattr(wrap, moment) for wrap in wraps if _is_asked(wrap, spec, task)]
    found = [load(name) for name in names if name]
    return found[::-1] if moment in _INWARDS else found


def _is_asked(wrap: Wrap, spec: SessionSpec, task: TaskSpec) -> bool:
    owner, _, field = wrap.of.partition(".")
    return bool(getattr(task if owner == "task" else spec, field))


def list_placed() -> list[str]:
    """The names of files in a job's folder that name places, beside its request."""
    return [load(name) for business in HOUSE for name in business.placed]
