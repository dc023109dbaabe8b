"""Writes and claims the exports of a session: files in other programs' formats that show it while it runs.

An export is a projection of status.json, and no session reads its own.  So it can be written anew at any time, and
what goes wrong with it never harms the session: the log and status.json tell it.  The supervisor writes exports
before status.json.  So a reader that finds the end in status.json finds it in the exports, too.

Each kind of export is a module with the functions of `Kind`; one table has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from sessionrun.model.spec import INSTANCE_RESULTS, JOB_STATUS, MATRIX_RESULTS, Export, SessionSpec, TaskSpec
from sessionrun.runtime.exports import job_status, matrix_results, swebench_results
from sessionrun.store import outside
from sessionrun.store.session import SessionDir


class Writer(Protocol):
    """Writes one export of one session, again and again."""

    def parts(
        self, status: Mapping[str, Any], *, durable: bool, failed: bool
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """What is written, each with the beginning of what is said when it cannot be.

        `failed` says that it could not be before.
        """


class Kind(Protocol):
    """A module for one kind of export."""

    def make_writer(self, session: SessionDir, spec: SessionSpec, export: Export) -> Writer:
        """What writes the export."""

    def carry_over(self, export: Export, tasks: Sequence[TaskSpec]) -> tuple[Export, set[str]]:
        """The export with the runs that succeeded before, and the ids of the tasks that need not run for it.

        Raises:
            InputError: there is something else than a results file in its place.
        """

    def carry_others(self, export: Export, tasks: Sequence[TaskSpec]) -> Export:
        """The export with all runs that its file holds but those that these tasks do again.

        Raises:
            InputError: there is something else than a results file in its place.
        """

    def claim(self, session: SessionDir, spec: SessionSpec, export: Export, status: Mapping[str, Any]) -> None:
        """See `claim_exports`."""

    def mend(self, export: Export) -> None:
        """See `mend_exports`."""

    def find_behind(self, session: SessionDir, export: Export) -> str | None:
        """The export's file, if its session has ended and it does not say so."""

    def remark_on_owner(self, export: Export) -> str | None:
        """What to say of a session that was interrupted over the export's file; None: there is none."""

    def find_outputs(self, session: SessionDir, export: Export) -> str | None:
        """A directory whose links lead into the session."""


KINDS: Final[Mapping[str, Kind]] = {
    MATRIX_RESULTS: matrix_results,
    JOB_STATUS: job_status,
    INSTANCE_RESULTS: swebench_results,
}


class ExportWriter:
    """Writes the exports of one session."""

    def __init__(self, session: SessionDir, spec: SessionSpec) -> None:
        self._writers = [KINDS[export.kind].make_writer(session, spec, export) for export in spec.exports]
        self._told: set[str] = set()
        self.problems: list[str] = []
        """What could not be brought up to date by the last `write`, and why."""

    def write(self, status: Mapping[str, Any], *, durable: bool) -> str | None:
        """Bring the exports up to date; never raises.  What went wrong, if that is something new."""
        problems: list[str] = []
        if self._writers:
            status = {**status, "tasks": list(status["tasks"])}  # made once, for all of them
        for writer in self._writers:
            for name, write in writer.parts(status, durable=durable, failed=bool(self._told)):
                try:
                    write()
                except Exception as error:  # whatever it is, the session goes on
                    problems.append(f"{name}: {outside.describe(error)}")
        problems = list(dict.fromkeys(problems))  # parts of one export may say the same
        fresh = [problem for problem in problems if problem not in self._told]
        self._told.update(fresh)
        self.problems = problems
        return "\n".join(fresh) or None


def claim_exports(session: SessionDir, spec: SessionSpec, status: Mapping[str, Any]) -> None:
    """Make the exports those of a session that is about to start, whose locks are held.

    Raises:
        InputError: a session that lives writes one of them, or something else lies in its place.
        StoreError: one cannot be written.
    """
    for export in spec.exports:
        KINDS[export.kind].claim(session, spec, export, status)


def mend_exports(spec: SessionSpec) -> None:
    """Bring up to date the exports of sessions that ended, where nothing is left to start.

    Raises:
        StoreError: one cannot be written.
    """
    for export in spec.exports:
        KINDS[export.kind].mend(export)


def find_behind(session: SessionDir, spec: SessionSpec) -> list[str]:
    """The files of a session that ended which do not say so: it could not write them."""
    paths = [KINDS[export.kind].find_behind(session, export) for export in spec.exports]
    return [path for path in paths if path is not None]


def find_outputs(session: SessionDir) -> list[str]:
    """The directories of outputs whose links lead into a session: with it they lose what they show.

    Raises:
        StoreError: its spec cannot be read.
    """
    spec = session.load_spec()
    folders = [KINDS[export.kind].find_outputs(session, export) for export in spec.exports]
    return [folder for folder in folders if folder is not None]
