"""Writes the exports of a session: files in other programs' formats that show it while it runs.

An export is a projection of status.json, and no session reads its own.  So it can be written anew at any time, and
what goes wrong with it never harms the session: the log and status.json tell it.  The supervisor writes exports
before status.json.  So a reader that finds the end in status.json finds it in the exports, too.

Each kind of export is an `ExportFile`, in a module beside what reads the format, or here; see `open_exports`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sessionrun.house import HOUSE, load
from sessionrun.model.spec import JOB_STATUS, MATRIX_RESULTS, Export, SessionSpec
from sessionrun.runtime.exports.export_file import ExportFile, Shown
from sessionrun.store import locks, outside
from sessionrun.store.files import find_beside, remove_left
from sessionrun.store.session import SessionDir

_KINDS: Final[Mapping[str, str]] = {
    MATRIX_RESULTS: "runtime.exports.matrix_results:MatrixResults",
    JOB_STATUS: "runtime.exports.job_status:JobStatus",
}
"""The class of each kind that is of no business; the house has the others."""


def open_exports(exports: Iterable[Export]) -> list[ExportFile]:
    """Each export with what its kind does; the module of a kind is imported when a session has one."""
    kinds = dict(_KINDS)
    for business in HOUSE:
        for row in business.formats.values():
            kinds |= row.exports
    return [load(kinds[export.kind])(export) for export in exports]


def settle_exports(exports: Iterable[Export]) -> tuple[Export, ...]:
    """The exports with the places of their files: a launch does this once, and it stays so."""
    opened = open_exports(exports)
    return tuple(
        replace(one.export, places={key: str(place) for key, place in one.places.items()}) for one in opened
    )


class ExportWriter:
    """Writes the exports of one session."""

    def __init__(self, session: SessionDir, spec: SessionSpec) -> None:
        self._session = session
        self._spec = spec
        self._exports = open_exports(spec.exports)
        self._told: set[str] = set()
        self.problems: list[str] = []
        """What could not be brought up to date by the last `write`, and why."""

    def write(self, status: Mapping[str, Any], *, durable: bool) -> str | None:
        """Bring the exports up to date; never raises.  What went wrong, if that is something new."""
        problems: list[str] = []
        if self._exports:
            status = {**status, "tasks": list(status["tasks"])}  # made once, for all of them
        shown = Shown(self._session, self._spec, status)
        for export in self._exports:
            for name, write in export.parts(shown, durable=durable, failed=bool(self._told)):
                try:
                    write()
                except Exception as error:  # whatever it is, the session goes on
                    problems.append(f"{name}: {outside.describe(error)}")
        problems = list(dict.fromkeys(problems))  # parts of one export may say the same
        fresh = [problem for problem in problems if problem not in self._told]
        self._told.update(fresh)
        self.problems = problems
        return "\n".join(fresh) or None


def find_behind(session: SessionDir, spec: SessionSpec) -> list[str]:
    """The files of a session that ended which do not say so: it could not write them."""
    paths = [export.find_behind(session) for export in open_exports(spec.exports)]
    return [path for path in paths if path is not None]


def find_left(exports: Iterable[Export]) -> list[Path]:
    """What writers that died have left beside the files of exports, and beside the files in their directories."""
    left: dict[Path, None] = {}
    for place in (Path(place) for export in exports for place in export.places.values()):
        left |= {place.parent / name: None for name in find_beside(place.parent, (place.name,))}
        if place.is_dir():
            left |= {place / name: None for name in find_beside(place, os.listdir(place))}
    return list(left)


def sweep_left(exports: Iterable[Export]) -> None:
    """Remove what writers that died have left there, and their locks."""
    exports = list(exports)
    for path in find_left(exports):
        with suppress(OSError):
            remove_left(path)
    for place in (Path(place) for export in exports for place in export.places.values()):
        for beside in (place, *(place / name for name in (os.listdir(place) if place.is_dir() else ()))):
            locks.remove_free(beside.with_name(f".{beside.name}.lock"))
