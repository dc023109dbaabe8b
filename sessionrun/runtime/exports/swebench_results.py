"""The export of a SWE-bench run: a file for each instance that has ended, the predictions, the summary.

The directory is that of one run, by its name.  A second session of that name adds to it: instances that have ended
are not run again, and keep their files.  So the predictions are always made of the files, each instance once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.model.errors import InputError, JobFileError
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Export, SessionSpec, TaskSpec
from sessionrun.runtime.export_places import find_place
from sessionrun.runtime.exports.export_file import OwnedFile, Shown, dump, load_if_whole
from sessionrun.runtime.exports.swebench_json import (
    PREDICTION_LINES,
    PREDICTIONS,
    SUMMARY,
    SUMMED_UP,
    dump_lines,
    list_predictions,
    project_instance,
    project_summary,
)
from sessionrun.runtime.jobs.prove.request import SOURCE_PATCH, ProveReport
from sessionrun.store import outside
from sessionrun.store.files import read_regular
from sessionrun.store.jobfiles import load_answer, read_tail
from sessionrun.store.session import SessionDir
from sessionrun.workspaces.source_patch import keep_source

_OURS: Final = (SUMMARY, PREDICTIONS)
_SUFFIX: Final = ".json"
_KEYS: Final = frozenset((*SUMMED_UP, "prediction", "model"))
"""What a file of an instance has in any case: what summary and predictions are made of."""

_ARTIFACTS: Final = frozenset(("cache", "instances.jsonl", "results", "runs", "worktrees"))
"""What lies in the usual directory of a run and is nothing for git."""

MAX_BYTES: Final = 64 * 1024 * 1024


class InstanceResults(OwnedFile):
    """The directory of one run; its summary says whose it is."""

    elsewhere = "give another --run-name"

    def __init__(self, export: Export) -> None:
        self._folder = Path(find_place(export, "outputs_dir"))
        self._runs = Path(find_place(export, "runs_dir"))
        super().__init__(export, self._folder / SUMMARY, shown=self._folder, owner_of=" of this run")
        self._kept: list[dict[str, Any]] | None = None
        self._ended: dict[str, dict[str, Any]] = {}
        self._contents: dict[str, bytes] = {}

    def carry_over(self, tasks: Sequence[TaskSpec]) -> tuple[Export, set[str]]:
        """See `ExportFile`; an instance whose end says nothing about its agent is run again."""
        try:
            with outside.open_folder(self._folder) as folder:
                documents = load_documents(folder)
        except FileNotFoundError:
            return self.export, set()
        except OSError as error:
            raise InputError(f"{self._folder}: {outside.describe(error)}") from None
        ended = {name for name, document in documents.items() if not document["infrastructure"]}
        return self.export, {task.id for task in tasks if task.id in ended}

    def _make_places(self) -> None:
        """Have git ignore the usual directory, unless something else is there, too."""
        with outside.open_folder(self._runs.parent, make=True) as artifacts:
            if _ARTIFACTS.issuperset(os.listdir(artifacts)):
                outside.replace_below(artifacts, ".gitignore", b"*\n", durable=False)

    def _make_first(self, folder: int, shown: Shown) -> dict[str, Any]:
        return self._summarise(shown, _load_others(folder, shown.spec))

    def _summarise(self, shown: Shown, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        session = str(shown.session.path.absolute())
        return project_summary(shown.status, self.export.settings, documents, session=session)

    def _shows_end(self) -> bool:
        summary = load_if_whole(self.path)
        return isinstance(summary, dict) and bool(summary.get("ended_at"))

    def find_outputs(self, session: SessionDir) -> str | None:
        """The directory of runs, if its link leads to the session."""
        link = self._runs / self.export.settings["run_name"]
        is_ours = os.path.islink(link) and os.readlink(link) == str(session.path.absolute())
        return str(self._runs) if is_ours else None

    def parts(self, shown: Shown, *, durable: bool, failed: bool) -> Iterator[tuple[str, Callable[[], None]]]:
        """See `ExportFile`."""
        lacks = f"{self._folder} does not show all results"
        yield lacks, partial(self._write_instances, shown, durable=durable)
        yield lacks, partial(self._write_run, shown, durable=durable)
        yield f"{self._runs} does not show the session", partial(self._link_session, shown.session)

    def _write_instances(self, shown: Shown, *, durable: bool) -> None:
        """The files of instances that have ended since; a task that is tried again has not ended any more."""
        unwalled = {task.id for task in shown.spec.tasks if task.sandbox is None}
        with outside.open_folder(self._folder) as folder:
            self.check_ours(folder, shown.session)
            for task in shown.status["tasks"]:
                name = task["id"]
                if task["status"] != "completed":
                    self._ended.pop(name, None)
                elif name not in self._ended or self._ended[name]["attempt"] != task["attempt"]:
                    document = describe_instance(shown.session, self.export, task, readable=name in unwalled)
                    outside.replace_below(folder, f"{name}{_SUFFIX}", dump(document), durable=durable)
                    self._ended[name] = document

    def _write_run(self, shown: Shown, *, durable: bool) -> None:
        with outside.open_folder(self._folder) as folder:
            self.check_ours(folder, shown.session)
            if self._kept is None:
                self._kept = _load_others(folder, shown.spec)
            ended = [self._ended[task["id"]] for task in shown.status["tasks"] if task["id"] in self._ended]
            predictions = list_predictions([*self._kept, *ended])
            summary = self._summarise(shown, [*self._kept, *ended])
            self._replace(folder, PREDICTION_LINES, dump_lines(predictions), durable=durable)
            self._replace(folder, PREDICTIONS, dump(predictions), durable=durable)
            self._replace(folder, SUMMARY, dump(summary), durable=durable)
            self.note_written(folder)

    def _replace(self, folder: int, name: str, content: bytes, *, durable: bool) -> None:
        if self._contents.get(name) != content or outside.identify(folder, name) is None:
            outside.replace_below(folder, name, content, durable=durable)
            self._contents[name] = content

    def _link_session(self, session: SessionDir) -> None:
        with outside.open_folder(self._folder) as folder:
            if not self.is_ours(folder, session):
                return  # said by the other parts; the link is the later session's, too
        with outside.open_folder(self._runs, make=True) as folder:
            outside.link_below(folder, self.export.settings["run_name"], session.path.absolute())


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
                return folder, load_answer(folder, ProveReport)
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


def _load_others(folder: int, spec: SessionSpec) -> list[dict[str, Any]]:
    """The files of instances that are not this session's."""
    own = {task.id for task in spec.tasks}
    return [document for name, document in load_documents(folder).items() if name not in own]


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
        if isinstance(document, dict) and document.get("instance_id") == stem and document.keys() >= _KEYS:
            documents[stem] = document
    return documents
