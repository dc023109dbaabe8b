"""What any door calls: plan, launch, ask, wait, read, explain, change, clean, doctor.

In: whole errands on sessions, with records and warnings as answers.
Not in: click, and printing: that is the business of the door.

The names below are the public ones: `from sessionrun import client`, then `client.plan`.  A name's module is
imported when the name is used first, so that a poll stays cheap.  All else in this room may change with each
version: only our own doors, which change with it, import it.

Each docstring names the errors that are its own.  Besides these, a function that is given a session raises
`SessionNotFound` if the session was removed, and any of them raises OSError if the disk fails.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sessionrun.client.asking.adding import add as add
    from sessionrun.client.asking.adding import load_open as load_open
    from sessionrun.client.asking.changing import AskedChange as AskedChange
    from sessionrun.client.asking.continuing import continue_task as continue_task
    from sessionrun.client.asking.control import Reply as Reply
    from sessionrun.client.asking.control import cancel as cancel
    from sessionrun.client.asking.control import find_retried as find_retried
    from sessionrun.client.asking.control import hold as hold
    from sessionrun.client.asking.control import release as release
    from sessionrun.client.asking.control import resume as resume
    from sessionrun.client.asking.control import retry as retry
    from sessionrun.client.asking.control import set_width as set_width
    from sessionrun.client.asking.renewal import renew as renew
    from sessionrun.client.cleaning.clean import clean as clean
    from sessionrun.client.cleaning.clean import clean_worktrees as clean_worktrees
    from sessionrun.client.doctor.report import Report as Report
    from sessionrun.client.doctor.report import diagnose as diagnose
    from sessionrun.client.explaining.grounds import explain as explain
    from sessionrun.client.landing.landing import AskedLanding as AskedLanding
    from sessionrun.client.landing.landing import merge as merge
    from sessionrun.client.launching.launch import launch as launch
    from sessionrun.client.lookup import choose_tasks as choose_tasks
    from sessionrun.client.lookup import open_session as open_session
    from sessionrun.client.notices import SessionWarning as SessionWarning
    from sessionrun.client.planning.handover import AskedTasks as AskedTasks
    from sessionrun.client.planning.joining import settle_addition as settle_addition
    from sessionrun.client.planning.landing import AskedLand as AskedLand
    from sessionrun.client.planning.pace import AskedPace as AskedPace
    from sessionrun.client.planning.plan import Asked as Asked
    from sessionrun.client.planning.plan import AskedGit as AskedGit
    from sessionrun.client.planning.plan import AskedMoney as AskedMoney
    from sessionrun.client.planning.plan import Nothing as Nothing
    from sessionrun.client.planning.plan import Planned as Planned
    from sessionrun.client.planning.plan import plan as plan
    from sessionrun.client.queue.feeds import open_queue as open_queue
    from sessionrun.client.reading.changes import Change as Change
    from sessionrun.client.reading.changes import find_changed as find_changed
    from sessionrun.client.reading.changes import read_changes as read_changes
    from sessionrun.client.reading.listing import load_summaries as load_summaries
    from sessionrun.client.reading.next_end import NextEnd as NextEnd
    from sessionrun.client.reading.next_end import wait_for_next as wait_for_next
    from sessionrun.client.reading.outputs import read_answer as read_answer
    from sessionrun.client.reading.since import load_since as load_since
    from sessionrun.client.reading.view import load_summary_view as load_summary_view
    from sessionrun.client.reading.view import load_view as load_view
    from sessionrun.client.reading.waiting import Progress as Progress
    from sessionrun.client.reading.waiting import Waited as Waited
    from sessionrun.client.reading.waiting import wait as wait
    from sessionrun.model.errors import AgentNotFound as AgentNotFound
    from sessionrun.model.errors import InputError as InputError
    from sessionrun.model.errors import SessionGone as SessionGone
    from sessionrun.model.errors import SessionNotFound as SessionNotFound
    from sessionrun.model.errors import SessionrunError as SessionrunError
    from sessionrun.model.errors import StoreError as StoreError
    from sessionrun.model.events import TasksAdded as TasksAdded
    from sessionrun.model.spec import SessionSpec as SessionSpec
    from sessionrun.queue.feed import Feed as Feed
    from sessionrun.queue.task import Changes as Changes
    from sessionrun.queue.task import Draft as Draft
    from sessionrun.queue.task import QueueTask as QueueTask
    from sessionrun.queue.task import Worker as Worker
    from sessionrun.store.session import SessionDir as SessionDir

_NAMES = {
    "sessionrun.client.asking.adding": ("add", "load_open"),
    "sessionrun.client.reading.changes": ("Change", "find_changed", "read_changes"),
    "sessionrun.client.asking.changing": ("AskedChange",),
    "sessionrun.client.cleaning.clean": ("clean", "clean_worktrees"),
    "sessionrun.client.asking.continuing": ("continue_task",),
    "sessionrun.client.asking.control": (
        "Reply",
        "cancel",
        "find_retried",
        "hold",
        "release",
        "resume",
        "retry",
        "set_width",
    ),
    "sessionrun.client.doctor.report": ("Report", "diagnose"),
    "sessionrun.client.explaining.grounds": ("explain",),
    "sessionrun.client.planning.handover": ("AskedTasks",),
    "sessionrun.client.planning.joining": ("settle_addition",),
    "sessionrun.client.landing.landing": ("AskedLanding", "merge"),
    "sessionrun.client.planning.landing": ("AskedLand",),
    "sessionrun.client.launching.launch": ("launch",),
    "sessionrun.client.reading.listing": ("load_summaries",),
    "sessionrun.client.lookup": ("choose_tasks", "open_session"),
    "sessionrun.client.reading.next_end": ("NextEnd", "wait_for_next"),
    "sessionrun.client.notices": ("SessionWarning",),
    "sessionrun.client.reading.outputs": ("read_answer",),
    "sessionrun.client.planning.pace": ("AskedPace",),
    "sessionrun.client.planning.plan": ("Asked", "AskedGit", "AskedMoney", "Nothing", "Planned", "plan"),
    "sessionrun.client.queue.feeds": ("open_queue",),
    "sessionrun.client.asking.renewal": ("renew",),
    "sessionrun.client.reading.since": ("load_since",),
    "sessionrun.client.reading.view": ("load_summary_view", "load_view"),
    "sessionrun.client.reading.waiting": ("Progress", "Waited", "wait"),
    "sessionrun.model.errors": (
        "AgentNotFound",
        "InputError",
        "SessionGone",
        "SessionNotFound",
        "SessionrunError",
        "StoreError",
    ),
    "sessionrun.model.events": ("TasksAdded",),
    "sessionrun.model.spec": ("SessionSpec",),
    "sessionrun.queue.feed": ("Feed",),
    "sessionrun.queue.task": ("Changes", "Draft", "QueueTask", "Worker"),
    "sessionrun.store.session": ("SessionDir",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:  # or a checker would believe in every name

    def __getattr__(name: str) -> Any:
        """Import a public name when it is used."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """The public names."""
        return __all__
