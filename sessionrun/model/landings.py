"""Frozen records of what becomes of the work that is to land, and of mends: tasks that make bounced work fit.

This module must not know git, files or processes.
"""

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


MEND_REFUSED: Final = "mend_refused"
"""The reason class of a mend that left a conflict as it was, or dropped what one side had added."""

DROPPED: Final = "drops all lines that"
KEPT: Final = "just as it found it, without what"
"""Words of refusals that are made once: a mend that does the same again has its reasons."""


@frozen
class Mend:
    """Whose work a task mends, and why that did not land, or why the mend before failed; see `WorkBounced`.

    `number` is which try it is, from 1.  It begins with the work of `source`: the same task, or a mend before it.
    """

    task: str
    number: int
    source: str
    reason_class: str
    reason: str
    files: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    output: str | None = None


@frozen
class MendBase:
    """Where a mend begins: the end of the branch `target` (its full name), merged with the commit `tip`.

    `insists`: the try before was refused because it took one side; this one may.  `files`: those in conflict.
    """

    target: str
    tip: str
    insists: bool = False
    files: tuple[str, ...] = ()
