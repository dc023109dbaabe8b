"""Writes and claims the views of a session: files in other programs' formats that show it while it runs.

A view is a projection of status.json and no session reads its own: it can be written anew at any time, and what
goes wrong with it never harms the session: it is told in the log and in status.json.  The supervisor writes views
before status.json, so that a reader who finds the end there finds it in the views, too.

Each kind of view is a module with the functions of `Kind`; one table has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from sessionrun.model.spec import JOB_STATUS, MATRIX_RESULTS, SessionSpec, TaskSpec, View
from sessionrun.runtime.exports import job_status, matrix_results
from sessionrun.runtime.exports.settling import settle_views
from sessionrun.store import outside
from sessionrun.store.session import SessionDir


class Writer(Protocol):
    """Writes one view of one session, again and again."""

    def parts(
        self, status: Mapping[str, Any], *, durable: bool, failed: bool
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """What is written, each with the beginning of what is said when it cannot be.

        `failed` says that it could not be before.
        """


class Kind(Protocol):
    """A module for one kind of view."""

    def make_writer(self, session: SessionDir, spec: SessionSpec, view: View) -> Writer:
        """What writes the view."""

    def carry_over(self, view: View, tasks: Sequence[TaskSpec]) -> tuple[View, set[str]]:
        """See `carry_over`."""

    def carry_others(self, view: View, tasks: Sequence[TaskSpec]) -> View:
        """See `carry_others`."""

    def claim(self, session: SessionDir, spec: SessionSpec, view: View, status: Mapping[str, Any]) -> None:
        """See `claim_views`."""

    def mend(self, view: View) -> None:
        """See `mend_views`."""

    def find_behind(self, session: SessionDir, view: View) -> str | None:
        """The view's file, if its session has ended and it does not say so."""

    def remark_on_owner(self, view: View) -> str | None:
        """See `remark_on_owner`."""

    def find_outputs(self, session: SessionDir, spec: SessionSpec, view: View) -> str | None:
        """A directory whose links lead into the session."""


KINDS: Final[Mapping[str, Kind]] = {MATRIX_RESULTS: matrix_results, JOB_STATUS: job_status}


class ViewWriter:
    """Writes the views of one session."""

    def __init__(self, session: SessionDir, spec: SessionSpec) -> None:
        views = settle_views(spec.views)  # a session of an older version has not settled its own
        self._writers = [KINDS[view.kind].make_writer(session, spec, view) for view in views]
        self._told: set[str] = set()
        self.problems: list[str] = []
        """What could not be brought up to date by the last `write`, and why."""

    def write(self, status: Mapping[str, Any], *, durable: bool) -> str | None:
        """Bring the views up to date; never raises.  What went wrong, if that is something new."""
        problems: list[str] = []
        for writer in self._writers:
            for name, write in writer.parts(status, durable=durable, failed=bool(self._told)):
                try:
                    write()
                except Exception as error:  # whatever it is, the session goes on
                    problems.append(f"{name}: {outside.describe(error)}")
        fresh = [problem for problem in problems if problem not in self._told]
        self._told.update(fresh)
        self.problems = problems
        return "\n".join(fresh) or None


def carry_over(view: View, tasks: Sequence[TaskSpec]) -> tuple[View, set[str]]:
    """The view with the runs that succeeded before, and the ids of the tasks that need not run for it.

    Raises:
        InputError: there is something else than a results file in its place.
    """
    return KINDS[view.kind].carry_over(view, tasks)


def carry_others(view: View, tasks: Sequence[TaskSpec]) -> View:
    """The view with all runs that its file holds but those that these tasks do again.

    Raises:
        InputError: there is something else than a results file in its place.
    """
    return KINDS[view.kind].carry_others(view, tasks)


def claim_views(session: SessionDir, spec: SessionSpec, status: Mapping[str, Any]) -> None:
    """Make the views those of a session that is about to start, whose locks are held.

    Raises:
        InputError: a session that lives writes one of them, or something else lies in its place.
        StoreError: one cannot be written.
    """
    for view in spec.views:
        KINDS[view.kind].claim(session, spec, view, status)


def mend_views(spec: SessionSpec) -> None:
    """Bring up to date the views of sessions that ended, where nothing is left to start.

    Raises:
        StoreError: one cannot be written.
    """
    for view in spec.views:
        KINDS[view.kind].mend(view)


def find_behind(session: SessionDir, spec: SessionSpec) -> list[str]:
    """The files of a session that ended which do not say so: it could not write them."""
    found = [KINDS[view.kind].find_behind(session, view) for view in spec.views]
    return [path for path in found if path is not None]


def remark_on_owner(view: View) -> str | None:
    """What to say of a session that was interrupted over the view's file; None: there is none."""
    return KINDS[view.kind].remark_on_owner(view)


def find_outputs(session: SessionDir) -> list[str]:
    """The directories of outputs whose links lead into a session: with it they lose what they show.

    Raises:
        StoreError: its spec cannot be read.
    """
    spec = session.load_spec()
    found = [KINDS[view.kind].find_outputs(session, spec, view) for view in spec.views]
    return [folder for folder in found if folder is not None]
