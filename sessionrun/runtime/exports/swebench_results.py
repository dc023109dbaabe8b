"""The export of a SWE-bench run: a file for each instance that has ended, the predictions, the summary.

The directory is that of one run, by its name.  A second session of that name adds to it: instances that have ended
are not run again, and keep their files.  So the predictions are always made of the files, each instance once.  The
summary says whose the directory is (`session`): the session that was launched last with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.model.errors import InputError, JobFileError, SessionrunError, StoreError
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Export, SessionSpec, TaskSpec
from sessionrun.runtime.export_places import find_place
from sessionrun.runtime.exports.swebench_json import (
    PREDICTION_LINES,
    PREDICTIONS,
    SUMMARY,
    dump_lines,
    list_predictions,
    project_instance,
    project_summary,
)
from sessionrun.runtime.jobs.prove.request import SOURCE_PATCH, ProveReport, load_report
from sessionrun.store import outside
from sessionrun.store.creation import has_records
from sessionrun.store.files import read_regular
from sessionrun.store.jobfiles import read_tail
from sessionrun.store.outside import CLAIM_PATIENCE_S
from sessionrun.store.session import SessionDir
from sessionrun.workspaces.source_patch import keep_source

_OURS: Final = (SUMMARY, PREDICTIONS)
_SUFFIX: Final = ".json"
_KEYS: Final = (
    *("instance_id", "success", "infrastructure", "prediction"),
    *("model", "duration", "iterations", "reason_class"),
)
"""What a file of an instance has in any case."""

_ARTIFACTS: Final = frozenset(("cache", "instances.jsonl", "results", "runs", "worktrees"))
"""What lies in the usual directory of a run and is nothing for git."""

MAX_BYTES: Final = 64 * 1024 * 1024


class ResultsWriter:
    """Writes the files of one run."""

    def __init__(self, session: SessionDir, spec: SessionSpec, export: Export) -> None:
        self._session = session
        self._export = export
        self._folder = Path(find_place(export, "outputs_dir"))
        self._own = {task.id for task in spec.tasks}
        self._open = {task.id for task in spec.tasks if task.sandbox is None}
        self._kept: dict[str, dict[str, Any]] | None = None
        self._ended: dict[str, dict[str, Any]] = {}
        self._attempts: dict[str, int] = {}
        self._written: dict[str, bytes] = {}
        self._identity: tuple[int, ...] | None = None

    def parts(
        self, status: Mapping[str, Any], *, durable: bool, failed: bool
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """See `writer.Writer`."""
        lacks = f"{self._folder} does not show all results"
        yield lacks, partial(self._write_instances, status, durable=durable)
        yield lacks, partial(self._write_run, status, durable=durable)
        runs = Path(find_place(self._export, "runs_dir"))
        yield f"{runs} does not show the session", partial(self._link_session, runs)

    def _write_instances(self, status: Mapping[str, Any], *, durable: bool) -> None:
        """The files of instances that have ended since; a task that is tried again has not ended any more."""
        with outside.open_folder(self._folder) as folder:
            self._check_ours(folder)
            for task in status["tasks"]:
                name = task["id"]
                if task["status"] != "completed":
                    self._ended.pop(name, None)
                    self._attempts.pop(name, None)
                elif self._attempts.get(name) != task["attempt"]:
                    document = describe_instance(self._session, self._export, task, readable=name in self._open)
                    outside.replace_below(folder, f"{name}{_SUFFIX}", _dump(document), durable=durable)
                    self._ended[name], self._attempts[name] = document, task["attempt"]

    def _write_run(self, status: Mapping[str, Any], *, durable: bool) -> None:
        with outside.open_folder(self._folder) as folder:
            self._check_ours(folder)
            if self._kept is None:
                self._kept = {name: kept for name, kept in load_documents(folder).items() if name not in self._own}
            documents = [*self._kept.values(), *(self._ended[task] for task in self._order(status))]
            predictions = list_predictions(documents)
            self._replace(folder, PREDICTION_LINES, dump_lines(predictions), durable=durable)
            self._replace(folder, PREDICTIONS, _dump(predictions), durable=durable)
            session = str(self._session.path.absolute())
            summary = project_summary(status, self._export.settings, documents, session=session)
            self._replace(folder, SUMMARY, _dump(summary), durable=durable)
            self._identity = outside.identify(folder, SUMMARY)

    def _order(self, status: Mapping[str, Any]) -> Iterator[str]:
        return (task["id"] for task in status["tasks"] if task["id"] in self._ended)

    def _replace(self, folder: int, name: str, content: bytes, *, durable: bool) -> None:
        if self._written.get(name) != content or outside.identify(folder, name) is None:
            outside.replace_below(folder, name, content, durable=durable)
            self._written[name] = content

    def _check_ours(self, folder: int) -> None:
        if not self._is_ours(folder):
            raise InputError("it belongs to a later session, and is left alone")

    def _is_ours(self, folder: int) -> bool:
        """Whether no later session has the directory; looks only if the summary was changed."""
        identity = outside.identify(folder, SUMMARY)
        if identity is None or identity == self._identity:
            return True
        owner = find_owner(self._folder)
        return owner is None or owner.path == self._session.path.absolute()

    def _link_session(self, runs: Path) -> None:
        with outside.open_folder(self._folder) as folder:
            if not self._is_ours(folder):
                return  # said by the other parts; the link is the later session's, too
        with outside.open_folder(runs, make=True) as folder:
            outside.link_below(folder, self._export.settings["run_name"], self._session.path.absolute())


make_writer = ResultsWriter


def describe_instance(
    session: SessionDir, export: Export, task: Mapping[str, Any], *, readable: bool
) -> dict[str, Any]:
    """The object of the file of an instance that has ended; `readable`: its agent could read the hidden tests."""
    proof, report = _find_proof(session, task)
    answer = read_tail(session.output_path(task["id"])).decode("utf-8", "replace").strip()
    return project_instance(
        task,
        export.settings,
        prediction=_read_prediction(session, task, proof).decode("utf-8", "replace"),
        answer=answer,
        tests=report.tests if report is not None else None,
        session=str(session.path.absolute()),
        readable=readable,
    )


def _find_proof(session: SessionDir, task: Mapping[str, Any]) -> tuple[Path | None, ProveReport | None]:
    """The folder of the task's last PROVE and what it found."""
    for round_ in range(task["round"] or 1, 0, -1):
        key = JobKey(task["id"], task["attempt"], round_, "prove", 1)
        for folder in session.find_starts(key):
            try:
                return folder, load_report(folder)
            except JobFileError:
                return folder, None
    return None, None


def _read_prediction(session: SessionDir, task: Mapping[str, Any], proof: Path | None) -> bytes:
    """The patch of the source: what was judged; if nothing was, what the attempt left, without its tests."""
    if proof is not None:
        try:
            return read_regular(proof / SOURCE_PATCH, MAX_BYTES)
        except OSError:
            pass
    patch = session.patch_path(JobKey(task["id"], task["attempt"], 1, "release", 1))
    try:
        return keep_source(read_regular(patch, MAX_BYTES))
    except OSError:
        return b""


def carry_over(export: Export, tasks: Sequence[TaskSpec]) -> tuple[Export, set[str]]:
    """See `writer.carry_over`; an instance whose end says nothing about its agent is run again."""
    try:
        with outside.open_folder(Path(find_place(export, "outputs_dir"))) as folder:
            documents = load_documents(folder)
    except FileNotFoundError:
        return export, set()
    except OSError as error:
        raise InputError(f"{find_place(export, 'outputs_dir')}: {outside.describe(error)}") from None
    ended = {name for name, document in documents.items() if not document["infrastructure"]}
    return export, {task.id for task in tasks if task.id in ended}


def carry_others(export: Export, tasks: Sequence[TaskSpec]) -> Export:
    """The export as it is: the directory holds the files of all other instances."""
    return export


def claim(session: SessionDir, spec: SessionSpec, export: Export, status: Mapping[str, Any]) -> None:
    """See `writer.claim_exports`."""
    folder = Path(find_place(export, "outputs_dir"))
    _refuse_living(folder, session)  # before anything is made for a launch that comes to nothing
    try:
        _hide_from_git(Path(find_place(export, "runs_dir")).parent)
        with outside.hold_file(folder / SUMMARY, timeout_s=CLAIM_PATIENCE_S, make=True) as fd:
            _refuse_living(folder, session)
            kept = [
                kept for name, kept in load_documents(fd).items() if name not in {task.id for task in spec.tasks}
            ]
            owner = str(session.path.absolute())
            summary = project_summary(status, export.settings, kept, session=owner)
            outside.replace_below(fd, SUMMARY, _dump(summary), durable=True)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {outside.describe(error)}") from error


def _hide_from_git(artifacts: Path) -> None:
    """Have git ignore the directory that the usual ones are in, unless something else is there, too.

    Raises:
        OSError: it cannot be written.
    """
    with outside.open_folder(artifacts, make=True) as fd:
        if _ARTIFACTS.issuperset(os.listdir(fd)):
            outside.replace_below(fd, ".gitignore", b"*\n", durable=False)


def _refuse_living(folder: Path, session: SessionDir) -> None:
    owner = find_owner(folder)
    if owner is not None and owner.path != session.path.absolute() and owner.is_alive():
        raise InputError(
            f"{folder} is being written by session {owner.session_id}: wait for it, or give another --run-name"
        )


def mend(export: Export) -> None:
    """Nothing: what has ended has its file."""


def find_behind(session: SessionDir, export: Export) -> str | None:
    """The summary of a session that ended, if it does not say so: it could not be written."""
    folder = Path(find_place(export, "outputs_dir"))
    owner = find_owner(folder)
    if owner is not None and owner.path != session.path.absolute():
        return None
    summary = _load(folder / SUMMARY)
    ended = isinstance(summary, dict) and summary.get("ended_at")
    return None if ended else str(folder / SUMMARY)


def remark_on_owner(export: Export) -> str | None:
    """What to say of a session that was interrupted over the directory; None: there is none."""
    owner = find_owner(Path(find_place(export, "outputs_dir")))
    if owner is None or owner.is_alive() or not has_records(owner):
        return None
    summary = owner.load_summary()
    if summary is not None and summary["ended_at"]:
        return None
    return (
        f"session {owner.session_id} of this run was interrupted: what it began is begun anew (to go on with it "
        f"instead: sessionrun resume {owner.session_id})"
    )


def find_outputs(session: SessionDir, export: Export) -> str | None:
    """The directory of runs, if its link leads to the session."""
    runs = find_place(export, "runs_dir")
    link = os.path.join(runs, export.settings["run_name"])
    is_ours = os.path.islink(link) and os.readlink(link) == str(session.path.absolute())
    return runs if is_ours else None


def find_owner(folder: Path) -> SessionDir | None:
    """The session that was launched last with the directory."""
    summary = _load(folder / SUMMARY)
    named = summary.get("session") if isinstance(summary, dict) else None
    return SessionDir(Path(named)) if isinstance(named, str) else None


def load_documents(folder: int) -> dict[str, dict[str, Any]]:
    """The files of instances in a directory, by id and in the order of ids; other files are passed over.

    Raises:
        OSError: the directory cannot be read.
    """
    documents = {}
    for name in sorted(os.listdir(folder)):
        stem = name.removesuffix(_SUFFIX)
        if stem == name or name in _OURS or name.startswith("."):
            continue
        try:
            document = orjson.loads(read_regular(name, MAX_BYTES, dir_fd=folder))
        except (OSError, orjson.JSONDecodeError):
            continue
        if isinstance(document, dict) and document.get("instance_id") == stem and document.keys() >= set(_KEYS):
            documents[stem] = document
    return documents


def _dump(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _load(path: Path) -> Any:
    try:
        return orjson.loads(outside.read_outside(path))
    except (OSError, SessionrunError, orjson.JSONDecodeError):
        return None
