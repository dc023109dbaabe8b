"""The export of a matrix: its results file, and links to the outputs of its runs."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from sessionrun.model.errors import InputError, SessionrunError, StoreError
from sessionrun.model.keys import JobKey
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import MATRIX_RESULTS, Export, TaskSpec
from sessionrun.runtime.export_places import find_place
from sessionrun.runtime.exports import results_json as runs_file
from sessionrun.runtime.exports.export_file import OwnedFile, Shown, dump
from sessionrun.store import outside
from sessionrun.store.files import NotRegular
from sessionrun.store.outside import CLAIM_PATIENCE_S
from sessionrun.store.session import AGENT_DIR, SessionDir


class MatrixResults(OwnedFile):
    """One results file with its directory of outputs."""

    elsewhere = "name another file"

    def __init__(self, export: Export) -> None:
        path = Path(find_place(export, "results_file"))
        owner_of = f", which wrote {export.settings['results_file']},"
        super().__init__(export, path, shown=path, owner_of=owner_of)
        self._outputs = Path(find_place(export, "outputs_dir"))
        self._settled: set[tuple[str, int]] = set()

    def carry_over(self, tasks: Sequence[TaskSpec]) -> tuple[Export, set[str]]:
        """See `ExportFile`."""
        done = runs_file.find_done(self._load_runs(), tasks)
        return self._keep(done), {tasks[place].id for place in done}

    def carry_others(self, tasks: Sequence[TaskSpec]) -> Export:
        """See `ExportFile`."""
        return self._keep(runs_file.find_others(self._load_runs(), tasks))

    def _keep(self, runs: Mapping[int, Mapping[str, Any]]) -> Export:
        kept = {str(place): run for place, run in runs.items()}
        return replace(self.export, settings={**self.export.settings, "kept": kept})

    def mend(self) -> None:
        """See `ExportFile` and `_load_runs`."""
        owner = self.find_owner()
        try:
            with outside.hold_file(self.path, timeout_s=CLAIM_PATIENCE_S) as folder:
                document, runs = _load(self.path), self._load_runs()
                if document and owner is not None and not owner.is_alive() and document["runs"] != runs:
                    content = dump({**document, "runs": runs})
                    outside.replace_below(folder, self.path.name, content, durable=True)
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {outside.describe(error)}") from error

    def _make_places(self) -> None:
        try:
            with outside.open_folder(self._outputs, make=True):
                if not os.access(self._outputs, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise StoreError(f"cannot write {self._outputs}: {outside.describe(error)}") from error

    def _make_first(self, folder: int, shown: Shown) -> dict[str, Any]:
        return _project(self.export, shown)

    def _check(self) -> None:
        _load(self.path)

    def _shows_end(self) -> bool:
        try:
            document = _load(self.path)
        except SessionrunError:
            return False
        return document is not None and _have_ended(document["runs"])

    def find_outputs(self, session: SessionDir) -> str | None:
        """See `ExportFile`."""
        folder: str = self.export.settings["outputs_dir"]
        try:
            tasks = os.listdir(folder)
        except OSError:
            return None
        return folder if any(_leads_into(session, folder, task) for task in tasks) else None

    def _load_runs(self) -> list[dict[str, Any]]:
        """The runs that the file holds now; an empty list if there is no file.

        Where a run has not ended, what counts is what its session says: the disk may have been full at the end.

        Raises:
            InputError: there is something else than a results file.
        """
        document, owner = _load(self.path), self.find_owner()
        runs: list[dict[str, Any]] = document["runs"] if document else []
        if owner is None or _have_ended(runs):
            return runs
        known = _told_by(owner)
        return [run if run.get("status") in runs_file.ENDS else known.get(run.get("run_id"), run) for run in runs]

    def parts(self, shown: Shown, *, durable: bool, failed: bool) -> Iterator[tuple[str, Callable[[], None]]]:
        """See `ExportFile`."""
        yield f"{self._outputs} does not show all outputs", partial(self._link_outputs, shown)
        yield f"{self.path} is not written", partial(self._write_runs, shown, durable=durable)

    def _write_runs(self, shown: Shown, *, durable: bool) -> None:
        """Replace the results file, where it still is ours."""
        with outside.open_folder(self.path.parent) as folder:
            self.check_ours(folder, shown.session)
            document = _project(self.export, shown)
            outside.replace_below(folder, self.path.name, dump(document), durable=durable)
            self.note_written(folder)

    def _link_outputs(self, shown: Shown) -> None:
        """All links that can be made; then the first error of those that cannot."""
        problems = []
        tasks = [task for task in shown.status["tasks"] if task["status"] != "pending"]
        tasks = [task for task in tasks if (task["id"], task["attempt"]) not in self._settled]
        if not tasks:
            return
        with outside.open_folder(self._outputs, make=True) as folder:
            for task in tasks:
                try:
                    self._link_task(shown.session, folder, task)
                except OSError as error:
                    problems.append(error)
        if problems:
            raise problems[0]

    def _link_task(self, session: SessionDir, outputs: int, task: Mapping[str, Any]) -> None:
        folder = outside.enter(outputs, task["id"], make=True)
        try:
            for name, target in _list_targets(session, task):
                if target.exists():
                    outside.link_below(folder, name, target)
        finally:
            os.close(folder)
        if task["status"] == "completed":
            self._settled.add((task["id"], task["attempt"]))


def _list_targets(session: SessionDir, task: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    name = task["id"]
    release = JobKey(name, task["attempt"], 1, "release", 1)
    yield runs_file.LINKS["stdout_file"], session.output_path(name)
    yield runs_file.LINKS["stderr_file"], _find_errors(session, task)
    yield runs_file.LINKS["logs_dir"], session.job_path(release).parent / AGENT_DIR / "logs"
    if runs_file.has_diff(task):
        yield runs_file.LINKS["diff_file"], session.patch_path(release)


def _find_errors(session: SessionDir, task: Mapping[str, Any]) -> Path:
    """The agent's standard error, or, where it came to nothing without an agent, that of the setup."""
    path = session.error_path(task["id"])
    if task["reason_class"] not in ("setup_failed", "setup_timeout"):
        return path
    setup = JobKey(task["id"], task["attempt"], 1, "setup", 1)
    errors = (folder / "stderr" for folder in session.find_starts(setup))
    return next((file for file in errors if file.exists()), path)


def _leads_into(session: SessionDir, folder: str, task: str) -> bool:
    links = (os.path.join(folder, task, name) for name in runs_file.LINKS.values())
    inside = f"{session.path.absolute()}/"
    return any(os.path.islink(link) and os.readlink(link).startswith(inside) for link in links)


def _have_ended(runs: Sequence[Mapping[str, Any]]) -> bool:
    return all(run.get("status") in runs_file.ENDS for run in runs)


def _told_by(owner: SessionDir) -> dict[Any, dict[str, Any]]:
    """The runs of a session by their ids, as its status.json has them."""
    try:
        spec, status = owner.load_spec(), owner.load_status()
    except (SessionrunError, OSError):
        return {}
    if not status:
        return {}
    exports = [export for export in spec.exports if export.kind == MATRIX_RESULTS]
    shown = Shown(owner, spec, status)
    return {run["run_id"]: run for export in exports for run in _project(export, shown)["runs"]}


def _project(export: Export, shown: Shown) -> dict[str, Any]:
    spec = shown.spec
    first = next((one for one in spec.tasks if one.upstream is not None), None)
    repository = spec.repository or (first and repository_of(spec, first))
    worktree_dir = repository.worktree_dir if repository else ""
    session = str(shown.session.path)
    return runs_file.project_runs(
        shown.status, export.settings, worktree_dir=worktree_dir, session=session, now=time.time()
    )


def _load(path: Path) -> dict[str, Any] | None:
    """The results file; None: there is none.

    Raises:
        InputError: there is something else than a results file.
    """
    try:
        document: dict[str, Any] | None = orjson.loads(outside.read_outside(path))
    except FileNotFoundError:
        return None
    except (NotRegular, orjson.JSONDecodeError) as error:
        why = "is not a plain file" if isinstance(error, NotRegular) else "is not JSON"
        raise InputError(f"{path} {why}, so it is not a results file: move it away or name another one") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if document is not None:
        runs_file.read_runs(document, str(path))
    return document
