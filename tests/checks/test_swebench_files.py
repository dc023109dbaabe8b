"""The files of a SWE-bench run: live and whole, each instance once, and those of a later session."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from sessionrun.checks.swebench_results import InstanceResults
from sessionrun.model.errors import InputError
from sessionrun.model.keys import JobKey
from sessionrun.model.reports import JudgedTests, ProveReport
from sessionrun.model.spec import INSTANCE_RESULTS, Export, SessionSpec, TaskSpec
from sessionrun.session.exports import ExportWriter, Shown, find_behind
from sessionrun.store.jobfiles import ANSWER
from sessionrun.store.session import SessionDir

SOURCE = b"diff --git a/s.py b/s.py\n--- a/s.py\n+++ b/s.py\n@@ -1 +1 @@\n-a\n+b\n"
TESTS = b"diff --git a/test_s.py b/test_s.py\n--- a/test_s.py\n+++ b/test_s.py\n@@ -1 +1 @@\n-a\n+b\n"


class Run:
    """A session of a run, without processes: what its status says is written at once."""

    def __init__(self, place: Path, name: str, ids: str) -> None:
        self.session = SessionDir(place / f"session-{name}")
        self.session.path.mkdir()
        settings = {
            "run_name": "r",
            "outputs_dir": str(place / "results" / "r"),
            "runs_dir": str(place / "runs"),
            "model": "claude-x",
            "with_mcp": True,
            "max_workers": 4,
            "max_iterations": 5,
            "instances": {task: {"repo": "o/r", "base_commit": "HEAD", "problem_statement": "p"} for task in ids},
        }
        self.export = Export(INSTANCE_RESULTS, settings)
        tasks = tuple(TaskSpec(task, ("p",)) for task in ids)
        self.spec = SessionSpec(
            name, "2026-01-01T00:00:00Z", "swebench", "i", "/", "x", {}, tasks, exports=(self.export,)
        )
        self.tasks = {task: make_task(task) for task in ids}
        self.folder = Path(settings["outputs_dir"])  # type: ignore[arg-type]

    def status(self, ended_at: str | None = None) -> dict[str, Any]:
        return {
            "session_id": self.spec.session_id,
            "tasks": list(self.tasks.values()),
            "started_at": "2026-01-01T00:00:00.000Z",
            "ended_at": ended_at,
        }

    def claim(self) -> ExportWriter:
        InstanceResults(self.spec.exports[0]).claim(Shown(self.session, self.spec, self.status()))
        return ExportWriter(self.session, self.spec)

    def end(self, task: str, outcome: str = "succeeded", reason_class: str | None = None, **more: Any) -> None:
        reason = reason_class and f"{reason_class}: so it was"
        ended = {"status": "completed", "outcome": outcome, "reason_class": reason_class, "reason": reason}
        self.tasks[task] |= {**ended, "ended_at": "2026-01-01T00:01:00.000Z", "duration_s": 60.0, **more}

    def leave_proof(self, task: str, tests: JudgedTests | None, patch: bytes = SOURCE) -> None:
        folder = self.session.make_job_path(JobKey(task, 1, 1, "prove", 1))
        (folder / ANSWER).write_bytes(orjson.dumps(ProveReport("proved", None, tests=tests)))
        (folder / "source.patch").write_bytes(patch)

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def predictions(self) -> list[str]:
        lines = (self.folder / "predictions.jsonl").read_text().splitlines()
        predictions = [json.loads(line) for line in lines]
        assert self.read("predictions.json") == predictions
        assert all(set(one) == {"instance_id", "model_name_or_path", "model_patch"} for one in predictions)
        return [prediction["instance_id"] for prediction in predictions]


def make_task(task: str) -> dict[str, Any]:
    values = dict.fromkeys(("outcome", "reason_class", "reason", "ended_at", "duration_s", "base_commit", "usage"))
    return {"id": task, "status": "pending", "round": 1, "attempt": 1, **values}


def test_a_run_while_it_runs(tmp_path: Path) -> None:
    run = Run(tmp_path, "1", "abc")
    writer = run.claim()
    assert run.read("summary.json")["pending"] == 3
    run.leave_proof("a", JudgedTests(total=3))
    run.end("a")
    run.tasks["b"]["status"] = "running"
    assert writer.write(run.status(), durable=False) is None
    assert run.predictions() == ["a"]
    document = run.read("a.json")
    assert document["prediction"] == SOURCE.decode()
    assert document["final_test_results"] == {"passed": 3, "failed": 0, "errors": 0, "total": 3}
    summary = run.read("summary.json")
    assert (summary["running"], summary["pending"], summary["total_instances"]) == (1, 1, 3)
    assert find_behind(run.session, run.spec) == [str(run.folder / "summary.json")]
    # b fails without having been judged: what the attempt left, without its tests; c says nothing about the agent
    folder = run.session.make_job_path(JobKey("b", 1, 1, "work", 1)).parent
    (folder / "a1-diff.patch").write_bytes(TESTS + SOURCE)
    run.end("b", "failed", "check_failed", round=5)
    run.end("c", "failed", "repository_failed")
    assert writer.write(run.status("2026-01-01T01:00:00.000Z"), durable=True) is None
    assert run.predictions() == ["a", "b"]
    assert run.read("b.json")["prediction"] == SOURCE.decode()
    summary = run.read("summary.json")
    assert (summary["successful"], summary["failed"], summary["infrastructure"], summary["judged"]) == (1, 2, 1, 2)
    assert [(one["instance_id"], one["iterations"]) for one in summary["instances"]] == [
        ("a", 1),
        ("b", 5),
        ("c", 1),
    ]
    assert find_behind(run.session, run.spec) == []
    assert (tmp_path / "runs" / "r").resolve() == run.session.path
    assert InstanceResults(run.export).find_outputs(run.session) == str(tmp_path / "runs")


def test_the_tests_say_whether_an_instance_is_resolved(tmp_path: Path) -> None:
    """Not the outcome: a task whose check failed is judged, and one may lose its success after that."""
    run, red = Run(tmp_path, "1", "abcd"), JudgedTests(5, ("t::x",), ("t::y", "t::z"), 1)
    writer = run.claim()
    for task, tests in zip("abc", (JudgedTests(2), red, JudgedTests(0)), strict=True):
        run.leave_proof(task, tests, b"" if tests is red else SOURCE)
        run.end(task, "failed", "check_failed")
    run.end("d", "failed", "check_failed")
    writer.write(run.status(), durable=False)
    found = {task: run.read(f"{task}.json") for task in "abcd"}
    resolved = {task: document["resolved"] for task, document in found.items()}
    assert resolved == {"a": True, "b": False, "c": False, "d": None}
    assert [document["prediction"] for document in found.values()] == [SOURCE.decode(), "", SOURCE.decode(), ""]
    assert found["b"]["final_test_results"] == {"passed": 2, "failed": 2, "errors": 1, "total": 5}
    assert (found["b"]["FAIL_TO_PASS_failed"], found["b"]["PASS_TO_PASS_failed"]) == (["t::x"], ["t::y", "t::z"])
    assert not any(document["success"] or document["infrastructure"] for document in found.values())
    assert "b" in run.predictions(), "an empty patch is a prediction, too"


def test_an_instance_that_is_tried_again_has_not_ended(tmp_path: Path) -> None:
    run = Run(tmp_path, "1", "a")
    writer = run.claim()
    run.end("a", "failed", "check_failed")
    writer.write(run.status(), durable=False)
    run.tasks["a"] = {**make_task("a"), "status": "running", "attempt": 2}
    writer.write(run.status(), durable=False)
    assert run.predictions() == []
    run.end("a")
    writer.write(run.status(), durable=False)
    assert run.predictions() == ["a"]
    assert run.read("a.json")["attempt"] == 2
    run.end("a", attempt=3)  # begun and ended between two writes
    writer.write(run.status(), durable=False)
    assert run.read("a.json")["attempt"] == 3


def test_a_second_session_of_the_run(tmp_path: Path) -> None:
    """What has ended is not run again, and stands in each file once; other files in the directory do no harm."""
    first = Run(tmp_path, "1", "abc")
    writer = first.claim()
    first.end("a")
    first.end("b", "failed", "auth")
    first.end("c", "cancelled", "cancelled")
    writer.write(first.status("2026-01-01T01:00:00.000Z"), durable=True)
    (first.folder / "notes.json").write_text("{}")
    (first.folder / "torn.json").write_text("{")
    second = Run(tmp_path, "2", "abcd")
    assert InstanceResults(second.export).carry_over(second.spec.tasks)[1] == {"a"}
    second.spec = replace(second.spec, tasks=second.spec.tasks[1:])
    del second.tasks["a"]
    later = second.claim()
    assert second.read("summary.json")["total_instances"] == 4
    for task in "bcd":
        second.end(task)
        later.write(second.status(), durable=False)
    assert second.predictions() == ["a", "b", "c", "d"]
    assert second.read("a.json")["session"] == str(first.session.path)
    # the first one, resumed, leaves alone what is the second one's
    problem = writer.write(first.status(), durable=False)
    assert problem == f"{first.folder} does not show all results: it belongs to a later session, and is left alone"
    assert (tmp_path / "runs" / "r").resolve() == second.session.path
    assert second.predictions() == ["a", "b", "c", "d"]
    assert find_behind(first.session, first.spec) == []


def test_the_directory_of_a_session_that_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Run(tmp_path, "1", "a"), Run(tmp_path, "2", "a")
    first.claim()
    lock = first.session.hold_lock("lock")
    try:
        with pytest.raises(InputError, match="is being written by session 1"):
            second.claim()
    finally:
        os.close(lock)
    second.claim()
    assert InstanceResults(second.export).find_owner().path == second.session.path  # type: ignore[union-attr]


def test_git_ignores_what_a_run_makes(tmp_path: Path) -> None:
    """Not a directory with files of the user's, nor against what the user says there."""
    ours, users, said = (tmp_path / name for name in ("ours", "users", "said"))
    for place, files in ((ours, {"instances.jsonl": ""}), (users, {"main.c": ""}), (said, {".gitignore": "x\n"})):
        place.mkdir()
        for name, content in files.items():
            (place / name).write_text(content)
        run = Run(tmp_path, place.name, "a")
        settings = {
            **run.export.settings,
            "runs_dir": str(place / "runs"),
            "outputs_dir": str(place / "results/r"),
        }
        run.spec = replace(run.spec, exports=(Export(INSTANCE_RESULTS, settings),))
        run.claim()
    assert (ours / ".gitignore").read_text() == "*\n"
    assert not (users / ".gitignore").exists()
    assert (said / ".gitignore").read_text() == "x\n"
