"""The export of a SWE-bench run: a file for each instance that has ended, the predictions, the summary.

The directory is that of one run, by its name.  A second session of that name adds to it: instances that have ended
are not run again, and keep their files.  So the predictions are always made of the files, each instance once.

The keys are those of the SWE-Bench Runner, and the predictions those of the official harness; sessionrun-files(5)
lists them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.checks.requests import SOURCE_PATCH
from sessionrun.checks.testing import keep_source
from sessionrun.model.checks import ProveReport
from sessionrun.model.errors import InputError
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Export, SessionSpec, TaskSpec
from sessionrun.model.words import INFRASTRUCTURE, JUDGED, NO_TESTS
from sessionrun.session.exports import OwnedFile, Shown, dump, is_ours
from sessionrun.store import outside
from sessionrun.store.files import read_regular
from sessionrun.store.jobfiles import ANSWER, load_usable, read_tail
from sessionrun.store.session import SessionDir

_SUMMARY: Final = "summary.json"
_PREDICTIONS: Final = "predictions.json"

_SUMMED_UP: Final = ("instance_id", "success", "duration", "iterations", "reason_class", "infrastructure")
"""What the summary says of each instance."""

_KEYS: Final = frozenset((*_SUMMED_UP, "prediction", "model"))
"""What a file of an instance has in any case: what summary and predictions are made of."""

_ARTIFACTS: Final = frozenset(("cache", "instances.jsonl", "results", "runs", "worktrees"))
"""What lies in the usual directory of a run and is nothing for git."""

_UNOFFICIAL: Final = (
    "unofficial: tests ran on this machine, without the containers of the official harness; "
    "give it predictions.jsonl for a score that counts"
)

_MAX_BYTES: Final = 64 * 1024 * 1024


class InstanceResults(OwnedFile):
    """The directory of one run; its summary says whose it is."""

    what = "the summary of a run"
    named_by = ("outputs_dir", "runs_dir")
    file = _SUMMARY
    leaves_out = "ended"
    elsewhere = "give another --run-name"

    def __init__(self, export: Export) -> None:
        super().__init__(export)
        self._folder, self._runs = self.places["outputs_dir"], self.places["runs_dir"]
        self._kept: list[dict[str, Any]] | None = None
        self._ended: dict[str, dict[str, Any]] = {}

    def find_fault(self, document: Any) -> str | None:
        return None if isinstance(document, dict) else "is no object"

    def has_ended(self, document: Any) -> bool:
        return bool(document.get("ended_at"))

    def carry_over(self, tasks: Sequence[TaskSpec]) -> tuple[Export, set[str]]:
        """See `ExportFile`; an instance whose end says nothing about its agent is run again."""
        try:
            with outside.open_folder(self._folder) as folder:
                documents = _load_documents(folder)
        except FileNotFoundError:
            return self.export, set()
        except OSError as error:
            raise InputError(f"{self._folder}: {outside.describe(error)}") from None
        ended = {name for name, document in documents.items() if not document["infrastructure"]}
        return self.export, {task.id for task in tasks if task.id in ended}

    def make_places(self) -> None:
        """Have git ignore the usual directory, unless something else is there, too."""
        with outside.open_folder(self._runs.parent, make=True) as artifacts:
            if _ARTIFACTS.issuperset(os.listdir(artifacts)):
                outside.replace_below(artifacts, ".gitignore", b"*\n", durable=False)

    def make_first(self, folder: int, shown: Shown) -> dict[str, Any]:
        return self._summarise(shown, _load_others(folder, shown.spec))

    def find_outputs(self, session: SessionDir) -> str | None:
        """The directory of runs, if its link leads to the session."""
        link = self._runs / self.export.settings["run_name"]
        is_ours = os.path.islink(link) and os.readlink(link) == str(session.path.absolute())
        return str(self._runs) if is_ours else None

    def parts(self, shown: Shown, *, durable: bool, failed: bool) -> Iterator[tuple[str, Callable[[], None]]]:
        lacks = f"{self._folder} does not show all results"
        yield lacks, partial(self._write_instances, shown, durable=durable)
        yield lacks, partial(self._write_run, shown, durable=durable)
        yield f"{self._runs} does not show the session", partial(self._link_session, shown.session)

    def _write_instances(self, shown: Shown, *, durable: bool) -> None:
        """The files of instances that have ended since; a task that is tried again has not ended any more."""
        unwalled = {task.id for task in shown.spec.tasks if task.sandbox is None}
        with outside.open_folder(self._folder) as folder:
            self.check_ours(shown.session)
            for task in shown.status["tasks"]:
                name = task["id"]
                if task["status"] != "completed":
                    self._ended.pop(name, None)
                elif name not in self._ended or self._ended[name]["attempt"] != task["attempt"]:
                    document = _project_instance(shown.session, self.export, task, readable=name in unwalled)
                    outside.replace_below(folder, f"{name}.json", dump(document), durable=durable)
                    self._ended[name] = document

    def _write_run(self, shown: Shown, *, durable: bool) -> None:
        with outside.open_folder(self._folder) as folder:
            self.check_ours(shown.session)
            if self._kept is None:
                self._kept = _load_others(folder, shown.spec)
            ended = [self._ended[task["id"]] for task in shown.status["tasks"] if task["id"] in self._ended]
            documents = [*self._kept, *ended]
            # as the official harness reads them: one for each instance that an agent worked on
            predictions = [
                {
                    "instance_id": document["instance_id"],
                    "model_name_or_path": document["model"],
                    "model_patch": document["prediction"] or "",
                }
                for document in documents
                if not document["infrastructure"]
            ]
            lines = b"".join(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in predictions)
            for name, content in (("predictions.jsonl", lines), (_PREDICTIONS, dump(predictions))):
                outside.replace_below(folder, name, content, durable=durable)
            # last: what says that the run has ended must not be newer than what it came to
            summary = dump(self._summarise(shown, documents))
            outside.replace_below(folder, self.path.name, summary, durable=durable)

    def _summarise(self, shown: Shown, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        status, settings = shown.status, self.export.settings
        waiting = [task for task in status["tasks"] if task["status"] != "completed"]
        successful = sum(document["success"] for document in documents)
        infrastructure = sum(document["infrastructure"] for document in documents)
        unjudged = sum(document["reason_class"] == NO_TESTS for document in documents)
        total = len(documents) + len(waiting)
        return {
            "run_name": settings["run_name"],
            "timestamp": status["ended_at"] or status["started_at"],
            "total_instances": total,
            "successful": successful,
            "failed": len(documents) - successful,
            "success_rate": successful / total if total else 0.0,
            "with_mcp": settings["with_mcp"],
            "max_workers": settings["max_workers"],
            "max_iterations": settings["max_iterations"],
            "score": _UNOFFICIAL,
            "judged": len(documents) - infrastructure - unjudged,
            "infrastructure": infrastructure,
            "running": sum(task["status"] == "running" for task in waiting),
            "pending": sum(task["status"] == "pending" for task in waiting),
            "started_at": status["started_at"],
            "ended_at": status["ended_at"],
            "model": settings["model"],
            "session": str(shown.session.path.absolute()),
            "instances": [{key: document[key] for key in _SUMMED_UP} for document in documents],
        }

    def _link_session(self, session: SessionDir) -> None:
        if is_ours(self.load_if_whole(), session):  # else the link is the later session's, too
            with outside.open_folder(self._runs, make=True) as folder:
                outside.link_below(folder, self.export.settings["run_name"], session.path.absolute())


def _project_instance(
    session: SessionDir, export: Export, task: Mapping[str, Any], *, readable: bool
) -> dict[str, Any]:
    """The object of the file of an instance that has ended; `readable`: its agent could read the hidden tests."""
    proof, report = _find_proof(session, task)
    tests = None if report is None else report.tests
    instance, outcome = export.settings["instances"].get(task["id"], {}), task["outcome"]
    success = outcome == "succeeded"
    infrastructure = outcome not in JUDGED or (not success and task["reason_class"] in INFRASTRUCTURE)
    results = None
    if tests is not None:
        bad = len(tests.failed) + len(tests.broken)
        counts = {"passed": tests.total - bad, "failed": bad - tests.errors, "errors": tests.errors}
        results = {**counts, "total": tests.total}
    return {
        "instance_id": task["id"],
        "repo": instance.get("repo"),
        "base_commit": task["base_commit"] or instance.get("base_commit"),
        "problem_statement": instance.get("problem_statement"),
        "success": success,
        "resolved": None if tests is None else tests.total > 0 and not tests.failed and not tests.broken,
        "duration": task["duration_s"],
        "iterations": task["round"],
        "timestamp": task["ended_at"],
        "model": export.settings["model"],
        "prediction": _read_prediction(session, task, proof).decode("utf-8", "replace"),
        "problem_solving_summary": read_tail(session.output_path(task["id"])).decode("utf-8", "replace").strip(),
        "error": None if success else task["reason"] or outcome,
        "outcome": outcome,
        "reason_class": task["reason_class"],
        "infrastructure": infrastructure,
        "final_test_results": results,
        "FAIL_TO_PASS_failed": None if tests is None else list(tests.failed),
        "PASS_TO_PASS_failed": None if tests is None else list(tests.broken),
        "PASS_TO_PASS_failed_before": None if tests is None else list(tests.red_before),
        "hidden_readable": readable,
        "usage": task["usage"],
        "attempt": task["attempt"],
        "score": _UNOFFICIAL,
        "session": str(session.path.absolute()),
    }


def _find_proof(session: SessionDir, task: Mapping[str, Any]) -> tuple[Path | None, ProveReport | None]:
    for round_ in range(task["round"] or 1, 0, -1):
        key = JobKey(task["id"], task["attempt"], round_, "prove", 1)
        for folder in session.find_starts(key):
            return folder, load_usable(folder / ANSWER, ProveReport)
    return None, None


def _read_prediction(session: SessionDir, task: Mapping[str, Any], proof: Path | None) -> bytes:
    """The patch of the source: what was judged; if nothing was, what the attempt left, without its tests."""
    if proof is not None:
        try:
            return read_regular(proof / SOURCE_PATCH, _MAX_BYTES)
        except OSError:
            pass
    patch = session.patch_path(JobKey(task["id"], task["attempt"], 1, "release", 1))
    try:
        return keep_source(read_regular(patch, _MAX_BYTES))
    except OSError:
        return b""


def _load_others(folder: int, spec: SessionSpec) -> list[dict[str, Any]]:
    others = _load_documents(folder)
    for task in spec.tasks:
        others.pop(task.id, None)
    return list(others.values())


def _load_documents(folder: int) -> dict[str, dict[str, Any]]:
    """The files of instances in a directory, by id and in the order of ids; other files are passed over."""
    documents = {}
    for name in sorted(os.listdir(folder)):
        stem = name.removesuffix(".json")
        if stem == name or name in (_SUMMARY, _PREDICTIONS) or name.startswith("."):
            continue
        try:
            document = orjson.loads(read_regular(name, _MAX_BYTES, dir_fd=folder))
        except (OSError, orjson.JSONDecodeError):
            continue
        if isinstance(document, dict) and document.get("instance_id") == stem and document.keys() >= _KEYS:
            documents[stem] = document
    return documents
