"""The export of a matrix: its results file, and links to the outputs of its runs.

The results file says whose it is (`session`): the session that was launched last with it.  An older one that is
resumed leaves it alone.
"""

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
from sessionrun.model.spec import MATRIX_RESULTS, Export, SessionSpec, TaskSpec
from sessionrun.runtime.export_places import find_place
from sessionrun.runtime.exports import results_json as runs_file
from sessionrun.store import outside
from sessionrun.store.creation import has_records
from sessionrun.store.files import NotRegular
from sessionrun.store.outside import CLAIM_PATIENCE_S
from sessionrun.store.session import AGENT_DIR, SessionDir


class RunsWriter:
    """Writes the results file and the links of one session's export."""

    def __init__(self, session: SessionDir, spec: SessionSpec, export: Export) -> None:
        self._session = session
        self._spec = spec
        self._export = export
        self._settled: set[tuple[str, int]] = set()
        self._linked: set[Path] = set()
        self._written: tuple[int, ...] | None = None

    def parts(
        self, status: Mapping[str, Any], *, durable: bool, failed: bool
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """See `writer.Writer`."""
        outputs = Path(find_place(self._export, "outputs_dir"))
        yield f"{outputs} does not show all outputs", partial(self._link_outputs, outputs, status)
        yield f"{_results_path(self._export)} is not written", partial(self._write_runs, status, durable=durable)

    def _write_runs(self, status: Mapping[str, Any], *, durable: bool) -> None:
        """Replace the results file, where it still is ours: read again only if another program changed it."""
        path = _results_path(self._export)
        with outside.open_folder(path.parent) as folder:
            identity = outside.identify(folder, path.name)
            if identity is not None and identity != self._written:
                _check_ours(self._export, self._session)
            document = _project(self._export, status, self._session, self._spec)
            outside.replace_below(folder, path.name, _dump(document), durable=durable)
            self._written = outside.identify(folder, path.name)

    def _link_outputs(self, outputs: Path, status: Mapping[str, Any]) -> None:
        """All links that can be made; then the first error of those that cannot."""
        problems = []
        tasks = [task for task in status["tasks"] if task["status"] != "pending"]
        tasks = [task for task in tasks if (task["id"], task["attempt"]) not in self._settled]
        if not tasks:
            return
        with outside.open_folder(outputs, make=True) as folder:
            for task in tasks:
                try:
                    self._link_task(folder, outputs / task["id"], task)
                except OSError as error:
                    problems.append(error)
        if problems:
            raise problems[0]

    def _link_task(self, outputs: int, place: Path, task: Mapping[str, Any]) -> None:
        folder = outside.enter(outputs, place.name, make=True)
        try:
            for name, target in self._targets(task):
                if (place / name) not in self._linked and target.exists():
                    outside.link_below(folder, name, target)
                    self._linked.add(place / name)
        finally:
            os.close(folder)
        if task["status"] == "completed":
            self._settled.add((task["id"], task["attempt"]))
            for key in ("diff_file", "stderr_file"):  # another attempt may have another one
                self._linked.discard(place / runs_file.LINKS[key])

    def _targets(self, task: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
        session, name = self._session, task["id"]
        release = JobKey(name, task["attempt"], 1, "release", 1)
        yield runs_file.LINKS["stdout_file"], session.output_path(name)
        yield runs_file.LINKS["stderr_file"], self._find_errors(task)
        yield runs_file.LINKS["logs_dir"], session.job_path(release).parent / AGENT_DIR / "logs"
        if runs_file.has_diff(task):
            yield runs_file.LINKS["diff_file"], session.patch_path(release)

    def _find_errors(self, task: Mapping[str, Any]) -> Path:
        """The agent's standard error, or, where it came to nothing without an agent, that of the setup."""
        path = self._session.error_path(task["id"])
        if task["reason_class"] not in ("setup_failed", "setup_timeout"):
            return path
        setup = JobKey(task["id"], task["attempt"], 1, "setup", 1)
        errors = (folder / "stderr" for folder in self._session.find_starts(setup))
        return next((file for file in errors if file.exists()), path)


make_writer = RunsWriter


def carry_over(export: Export, tasks: Sequence[TaskSpec]) -> tuple[Export, set[str]]:
    """See `writer.carry_over`.

    Raises:
        InputError: there is something else than a results file in its place.
    """
    done = runs_file.find_done(load_runs(export), tasks)
    return _keep(export, done), {tasks[place].id for place in done}


def carry_others(export: Export, tasks: Sequence[TaskSpec]) -> Export:
    """The export with all runs that its file holds but those that these tasks do again.

    Raises:
        InputError: there is something else than a results file in its place.
    """
    return _keep(export, runs_file.find_others(load_runs(export), tasks))


def claim(session: SessionDir, spec: SessionSpec, export: Export, status: Mapping[str, Any]) -> None:
    """See `writer.claim_exports`."""
    path = _results_path(export)
    _refuse_living(export, session)  # before anything is made for a launch that comes to nothing
    _make_outputs(find_place(export, "outputs_dir"))
    try:
        with outside.hold_file(path, timeout_s=CLAIM_PATIENCE_S, make=True) as folder:
            _refuse_living(export, session)
            content = _dump(_project(export, status, session, spec))
            outside.replace_below(folder, path.name, content, durable=True)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {outside.describe(error)}") from error


def _refuse_living(export: Export, session: SessionDir) -> None:
    """Raises InputError when another session that lives writes the export, or something else lies in its place."""
    owner = _owner(export)
    if owner is not None and owner.path != session.path and owner.is_alive():
        path = _results_path(export)
        raise InputError(
            f"{path} is being written by session {owner.session_id}: wait for it, or name another file"
        )
    load_runs(export)


def mend(export: Export) -> None:
    """Bring up to date the file of a session that ended, where nothing is left to start: see `load_runs`.

    Raises:
        StoreError: it cannot be written.
    """
    path, owner = _results_path(export), _owner(export)
    try:
        with outside.hold_file(path, timeout_s=CLAIM_PATIENCE_S) as folder:
            document, runs = _load(path), load_runs(export)
            if owner is not None and not owner.is_alive() and document["runs"] != runs:
                content = _dump({**document, "runs": runs})
                outside.replace_below(folder, path.name, content, durable=True)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {outside.describe(error)}") from error


def find_behind(session: SessionDir, export: Export) -> str | None:
    """The results file of a session that ended, if it does not say so: it could not be written."""
    return None if not _is_ours(export, session) or _shows_end(export) else str(_results_path(export))


def _shows_end(export: Export) -> bool:
    try:
        document = _load(_results_path(export))
        return document is not None and all(
            run.get("status") in runs_file.ENDS for run in runs_file.read_runs(document, "")
        )
    except SessionrunError:
        return False


def remark_on_owner(export: Export) -> str | None:
    """What to say of a session that was interrupted over the export's file; None: there is none."""
    owner = _owner(export)
    if owner is None or owner.is_alive() or not has_records(owner):
        return None
    summary = owner.load_summary()
    if summary is not None and summary["ended_at"]:
        return None
    problem = f"session {owner.session_id}, which wrote {export.settings['results_file']}, was interrupted"
    return (
        f"{problem}: what it began is begun anew (to go on with it instead: sessionrun resume {owner.session_id})"
    )


def find_outputs(session: SessionDir, export: Export) -> str | None:
    """The directory of outputs, if its links lead into the session: with it they lose what they show."""
    folder: str = export.settings["outputs_dir"]
    try:
        tasks = os.listdir(folder)
    except OSError:
        return None
    return folder if any(_leads_into(session, folder, task) for task in tasks) else None


def _leads_into(session: SessionDir, folder: str, task: str) -> bool:
    links = (os.path.join(folder, task, name) for name in runs_file.LINKS.values())
    inside = f"{session.path.absolute()}/"
    return any(os.path.islink(link) and os.readlink(link).startswith(inside) for link in links)


def _make_outputs(path: str) -> None:
    try:
        with outside.open_folder(Path(path), make=True):
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {outside.describe(error)}") from error


def _is_ours(export: Export, session: SessionDir) -> bool:
    """Whether the export's file is this session's to write: no later one has it."""
    owner = _owner(export)
    return owner is None or owner.path == session.path


def _check_ours(export: Export, session: SessionDir) -> None:
    """Raises InputError when what lies in the place of the results file is not this session's to replace."""
    path = _results_path(export)
    document = _load(path)
    if document is not None:
        runs_file.read_runs(document, str(path))
    if not _is_ours(export, session):
        raise InputError("it belongs to a later session, and is left alone")


def load_runs(export: Export) -> list[dict[str, Any]]:
    """The runs that the file of an export holds now; an empty list if there is no file.

    Where a run has not ended, what counts is what its session says: the disk may have been full at the end.

    Raises:
        InputError: there is something else than a results file.
    """
    path = _results_path(export)
    document = _load(path)
    if document is None:
        return []
    runs, owner = runs_file.read_runs(document, str(path)), _owner(export)
    if owner is None or all(run.get("status") in runs_file.ENDS for run in runs):
        return runs
    known = _told_by(owner)
    return [run if run.get("status") in runs_file.ENDS else known.get(run.get("run_id"), run) for run in runs]


def _told_by(owner: SessionDir) -> dict[Any, dict[str, Any]]:
    """The runs of a session by their ids, as its status.json has them."""
    try:
        spec, status = owner.load_spec(), owner.load_status()
    except (SessionrunError, OSError):
        return {}
    exports = [export for export in spec.exports if export.kind == MATRIX_RESULTS] if status else []
    return {
        run["run_id"]: run for export in exports for run in _project(export, status or {}, owner, spec)["runs"]
    }


def _project(export: Export, status: Mapping[str, Any], session: SessionDir, spec: SessionSpec) -> dict[str, Any]:
    first = next((one for one in spec.tasks if one.upstream is not None), None)
    repository = spec.repository or (first and repository_of(spec, first))
    worktree_dir = repository.worktree_dir if repository else ""
    return runs_file.project_runs(
        status, export.settings, worktree_dir=worktree_dir, session=str(session.path), now=time.time()
    )


def _dump(document: Mapping[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _keep(export: Export, runs: Mapping[int, Mapping[str, Any]]) -> Export:
    return replace(export, settings={**export.settings, "kept": {str(place): run for place, run in runs.items()}})


def _results_path(export: Export) -> Path:
    """The file itself, also where a link leads to it: it is replaced, and the link is not."""
    return Path(find_place(export, "results_file"))


def _owner(export: Export) -> SessionDir | None:
    """The session that was launched last with the export's file."""
    try:
        document = _load(_results_path(export))
    except SessionrunError:
        return None
    named = document.get("session") if isinstance(document, dict) else None
    return SessionDir(Path(named)) if isinstance(named, str) else None


def _load(path: Path) -> Any:
    try:
        return orjson.loads(outside.read_outside(path))
    except FileNotFoundError:
        return None
    except (NotRegular, orjson.JSONDecodeError) as error:
        why = "is not a plain file" if isinstance(error, NotRegular) else "is not JSON"
        raise InputError(f"{path} {why}, so it is not a results file: move it away or name another one") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
