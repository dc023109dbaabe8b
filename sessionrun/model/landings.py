"""Frozen records of what becomes of the work that is to land: events of the journal, and a part of `events`."""

from __future__ import annotations

from typing import Final

from sessionrun.model.frozen import frozen

LANDING_FOLDER: Final = "landing"
"""In the session's directory: a folder for each target, with the log of its landings and what gates printed."""

LAND_FAILED: Final = "land_failed"
"""Why work is held whose LAND job could not do its work."""


@frozen
class WorkLanded:
    """The work of a task is in the branch `target`; `commit`, if it is known, is that with which it came there.

    `reason` says what is remarkable.
    """

    task: str
    target: str
    commit: str | None = None
    reason: str | None = None


@frozen
class WorkBounced:
    """The work of a task does not land as it is: it conflicts, or a gate is red.

    `files` are in conflict; `against` are tasks that landed before and changed the same files; `output` is the
    file with what the gate printed.
    """

    task: str
    target: str
    reason_class: str
    reason: str
    files: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    output: str | None = None


@frozen
class WorkHeld:
    """The work of a task could not land now, for a reason that is not its own; `mend` is what a user can do."""

    task: str
    target: str
    reason_class: str
    reason: str
    mend: str | None = None
