"""The export of a matrix: its results file, and links to the outputs of its runs.

The keys and words of the file are those of ``results.json`` of the Qwen Concurrent Runner; sessionrun-files(5) has
them.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from sessionrun.model.errors import SessionrunError, StoreError
from sessionrun.model.keys import JobKey
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import MATRIX_RESULTS, Export, TaskSpec
from sessionrun.session.exports import OwnedFile, Shown, dump
from sessionrun.store import outside
from sessionrun.store.session import AGENT_DIR, SessionDir

_Run: TypeAlias = Mapping[str, Any]

_WAITS: Final = ("queued", "preparing", "initializing")
"""Our phases before the agent's work, which that file calls the same; all others are its `running`."""

_ENDS: Final = ("succeeded", "failed")
"""The words of a run that has ended."""

_CELL: Final = (("task_id", ""), ("model", ""), ("agent", ""), ("sample", 1))
"""The keys of a run that tell its cell, and what stands for one that is not there: the other program has fewer."""

_LINKS: Final[Mapping[str, str]] = {
    "stdout_file": "stdout.txt",
    "stderr_file": "stderr.txt",
    "logs_dir": "logs",
    "diff_file": "diff.patch",
}
"""What a run's directory holds, by the key that names it."""


class MatrixResults(OwnedFile):
    """One results file with its directory of outputs: an `ExportFile`."""

    what = "a results file"
    named_by = ("results_file", "outputs_dir")
    elsewhere = "name another file"

    def __init__(self, export: Export) -> None:
        super().__init__(export)
        self._outputs = self.places["outputs_dir"]
        self._settled: set[tuple[str, int]] = set()

    def find_fault(self, document: Any) -> str | None:
        runs = document.get("runs") if isinstance(document, dict) else None
        is_list = isinstance(runs, list) and all(isinstance(run, dict) for run in runs)
        return None if is_list else 'has no list "runs"'

    def has_ended(self, document: Any) -> bool:
        return all(run.get("status") in _ENDS for run in document["runs"])

    def carry_over(self, tasks: Sequence[TaskSpec]) -> tuple[Export, set[str]]:
        """See `ExportFile`; a task need not run if the run succeeded that would do the same."""
        document, owner = self.load(), self.find_owner()
        runs: list[_Run] = document["runs"] if document else []
        if owner is not None and document and not self.has_ended(document):
            # what its session says of these counts: the disk may have been full at the end
            known = _list_known(owner)
            runs = [run if run.get("status") in _ENDS else known.get(run.get("run_id"), run) for run in runs]
        succeeded = [run for run in runs if run.get("status") == "succeeded"]
        done = {tuple(str(run.get(key, other)) for key, other in _CELL): run for run in succeeded}
        kept: dict[str, _Run] = {}
        names = set()
        for place, task in enumerate(tasks):
            labels = task.labels
            name, model, sample = (labels.get(key, "") for key in ("task", "model", "sample"))
            for agent in (labels.get("agent", ""), ""):  # the other program names none
                if (run := done.get((name, model, agent, sample))) is not None:
                    kept.setdefault(str(place), run)
                    names.add(task.id)
        return replace(self.export, settings={**self.export.settings, "kept": kept}), names

    def make_places(self) -> None:
        try:
            with outside.open_folder(self._outputs, make=True):
                if not os.access(self._outputs, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise StoreError(f"cannot write {self._outputs}: {outside.describe(error)}") from error

    def make_first(self, folder: int, shown: Shown) -> dict[str, Any]:
        return _project(self.export, shown)

    def parts(self, shown: Shown, *, durable: bool, failed: bool) -> Iterator[tuple[str, Callable[[], None]]]:
        yield f"{self._outputs} does not show all outputs", partial(self._link_outputs, shown)
        yield f"{self.path} is not written", partial(self._write_runs, shown, durable=durable)

    def _write_runs(self, shown: Shown, *, durable: bool) -> None:
        """Replace the results file, where it still is ours."""
        with outside.open_folder(self.path.parent) as folder:
            self.check_ours(shown.session)
            document = dump(_project(self.export, shown))
            outside.replace_below(folder, self.path.name, document, durable=durable)

    def _link_outputs(self, shown: Shown) -> None:
        """All links that can be made; then the first error of those that cannot."""
        problems = []
        for task in shown.status["tasks"]:
            if task["status"] == "pending" or (task["id"], task["attempt"]) in self._settled:
                continue
            try:
                with outside.open_folder(self._outputs / task["id"], make=True) as folder:
                    for name, target in _list_targets(shown.session, task):
                        if target.exists():
                            outside.link_below(folder, name, target)
            except OSError as error:
                problems.append(error)
                continue
            if task["status"] == "completed":
                self._settled.add((task["id"], task["attempt"]))
        if problems:
            raise problems[0]

    def find_outputs(self, session: SessionDir) -> str | None:
        folder: str = self.export.settings["outputs_dir"]
        inside = f"{session.path.absolute()}/"
        try:
            tasks = os.listdir(folder)
        except OSError:
            return None
        links = (os.path.join(folder, task, name) for task in tasks for name in _LINKS.values())
        leads = any(os.path.islink(link) and os.readlink(link).startswith(inside) for link in links)
        return folder if leads else None


def _list_targets(session: SessionDir, task: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    name = task["id"]
    release = JobKey(name, task["attempt"], 1, "release", 1)
    yield _LINKS["stdout_file"], session.output_path(name)
    errors = [session.error_path(name)]
    if task["reason_class"] in ("setup_failed", "setup_timeout"):  # it came to nothing without an agent
        setup = JobKey(name, task["attempt"], 1, "setup", 1)
        errors = [*(folder / "stderr" for folder in session.find_starts(setup)), *errors]
    yield _LINKS["stderr_file"], next((file for file in errors if file.exists()), errors[-1])
    yield _LINKS["logs_dir"], session.job_path(release).parent / AGENT_DIR / "logs"
    if _has_diff(task):
        yield _LINKS["diff_file"], session.patch_path(release)


def _list_known(owner: SessionDir) -> dict[Any, _Run]:
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
    """The object of the results file: this session's runs, and kept ones of older sessions at their places."""
    spec, settings = shown.spec, export.settings
    first = next((one for one in spec.tasks if one.upstream is not None), None)
    repository = spec.repository or (first and repository_of(spec, first))
    worktree_dir = repository.worktree_dir if repository else ""
    tasks = [task for task in shown.status["tasks"] if not task.get("mends")]  # a mend is no run of the input
    fresh = [_project_run(task, settings["shown_as"], worktree_dir) for task in tasks]
    kept: Mapping[str, _Run] = settings["kept"]
    waiting = iter(fresh)
    places = (kept.get(str(place)) or next(waiting, None) for place in range(len(fresh) + len(kept)))
    return {
        "updated_at": datetime.fromtimestamp(time.time()).isoformat(timespec="seconds"),
        "session": str(shown.session.path),
        "runs": [run for run in places if run is not None],
    }


def _project_run(task: Mapping[str, Any], shown_as: str, worktree_dir: str) -> dict[str, Any]:
    labels, outcome = task["labels"], task["outcome"]
    folder = f"{shown_as}/{task['id']}"
    shown = {key: f"{folder}/{name}" for key, name in _LINKS.items()}
    return {
        "run_id": task["id"],
        "task_id": labels.get("task"),
        "task_name": labels.get("name"),
        "model": labels.get("model"),
        "agent": labels.get("agent"),
        "sample": int(labels.get("sample", 1)),
        "auth_type": labels.get("auth_type"),
        "status": _word(task),
        "worktree_path": task["worktree"] or f"{worktree_dir}/run-{task['id']}",
        "branch": task["branch"],
        "output_dir": folder,
        **shown,
        "diff_file": shown["diff_file"] if _has_diff(task) else None,
        "started_at": _local_time(task["started_at"]),
        "ended_at": _local_time(task["ended_at"]),
        "duration_s": task["duration_s"],
        "exit_code": task["exit_code"],
        "error_message": (task["reason"] or outcome) if outcome not in (None, "succeeded") else None,
        "outcome": outcome,
        "session_id": task["conversation"],
        "usage": task["usage"],
    }


def _has_diff(task: Mapping[str, Any]) -> bool:
    """Whether a task of status.json changed anything, as far as that is known yet."""
    return bool(task["diff_stat"] and task["diff_stat"]["files"])


def _word(task: Mapping[str, Any]) -> str:
    if task["status"] == "completed":
        return "succeeded" if task["outcome"] == "succeeded" else "failed"
    phase = task["phase"] or "queued"
    return phase if phase in _WAITS else "running"


def _local_time(text: str | None) -> str | None:
    """A time of status.json as that file has them: of this machine, without a zone."""
    if text is None:
        return None
    at = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    return at.replace(tzinfo=None).isoformat(timespec="seconds")
