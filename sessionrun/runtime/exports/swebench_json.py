"""What the files of a SWE-bench run look like: one for each instance, the predictions, the summary.  Pure.

The keys are those of the SWE-Bench Runner, and the predictions those of the official harness; sessionrun-files(5)
lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from sessionrun.model.reasons import INFRASTRUCTURE, NO_TESTS
from sessionrun.model.words import JUDGED
from sessionrun.runtime.jobs.prove.request import JudgedTests

SUMMARY: Final = "summary.json"
PREDICTIONS: Final = "predictions.json"
PREDICTION_LINES: Final = "predictions.jsonl"

SUMMED_UP: Final = ("instance_id", "success", "duration", "iterations", "reason_class", "infrastructure")
"""What the summary says of each instance."""

UNOFFICIAL: Final = (
    "unofficial: tests ran on this machine, without the containers of the official harness; "
    "give it predictions.jsonl for a score that counts"
)


def is_infrastructure(task: Mapping[str, Any]) -> bool:
    """Whether a task of status.json that has ended says nothing about its agent: it is run again by default."""
    outcome = task["outcome"]
    return outcome not in JUDGED or (outcome != "succeeded" and task["reason_class"] in INFRASTRUCTURE)


def project_instance(
    task: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    prediction: str,
    answer: str,
    tests: JudgedTests | None,
    session: str,
    readable: bool,
) -> dict[str, Any]:
    """The object of an instance's file.

    Args:
        task: of status.json; it has ended.
        settings: of the export.
        prediction: the patch of the source.
        answer: the end of what the agent answered.
        tests: what the hidden tests came to; None: they were not run.
        session: the session's directory.
        readable: whether the agent could have read the hidden tests.
    """
    instance = settings["instances"].get(task["id"], {})
    success = task["outcome"] == "succeeded"
    return {
        "instance_id": task["id"],
        "repo": instance.get("repo"),
        "base_commit": task["base_commit"] or instance.get("base_commit"),
        "problem_statement": instance.get("problem_statement"),
        "success": success,
        "resolved": None if tests is None else is_resolved(tests),
        "duration": task["duration_s"],
        "iterations": task["round"],
        "timestamp": task["ended_at"],
        "model": settings["model"],
        "prediction": prediction,
        "problem_solving_summary": answer,
        "error": None if success else task["reason"] or task["outcome"],
        "outcome": task["outcome"],
        "reason_class": task["reason_class"],
        "infrastructure": is_infrastructure(task),
        "final_test_results": None if tests is None else _count_tests(tests),
        "FAIL_TO_PASS_failed": None if tests is None else list(tests.failed),
        "PASS_TO_PASS_failed": None if tests is None else list(tests.broken),
        "PASS_TO_PASS_failed_before": None if tests is None else list(tests.red_before),
        "hidden_readable": readable,
        "usage": task["usage"],
        "attempt": task["attempt"],
        "score": UNOFFICIAL,
        "session": session,
    }


def is_resolved(tests: JudgedTests) -> bool:
    """Whether there are hidden tests, and all have passed."""
    return tests.total > 0 and not tests.failed and not tests.broken


def _count_tests(tests: JudgedTests) -> dict[str, int]:
    bad = len(tests.failed) + len(tests.broken)
    counts = {"passed": tests.total - bad, "failed": bad - tests.errors, "errors": tests.errors}
    return {**counts, "total": tests.total}


def list_predictions(documents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The predictions, as the official harness reads them: one for each instance that an agent worked on."""
    return [
        {
            "instance_id": document["instance_id"],
            "model_name_or_path": document["model"],
            "model_patch": document["prediction"] or "",
        }
        for document in documents
        if not document["infrastructure"]
    ]


def dump_lines(predictions: Sequence[Mapping[str, Any]]) -> bytes:
    """One prediction a line."""
    return b"".join(orjson.dumps(prediction, option=orjson.OPT_APPEND_NEWLINE) for prediction in predictions)


def project_summary(
    status: Mapping[str, Any],
    settings: Mapping[str, Any],
    documents: Sequence[Mapping[str, Any]],
    *,
    session: str,
) -> dict[str, Any]:
    """The object of the summary.

    Args:
        status: the object of status.json.
        settings: of the export.
        documents: of all instances of the run that have ended, also those of earlier sessions.
        session: the session's directory, by which the file tells whose it is.
    """
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
        "score": UNOFFICIAL,
        "judged": len(documents) - infrastructure - unjudged,
        "infrastructure": infrastructure,
        "running": sum(task["status"] == "running" for task in waiting),
        "pending": sum(task["status"] == "pending" for task in waiting),
        "started_at": status["started_at"],
        "ended_at": status["ended_at"],
        "model": settings["model"],
        "session": session,
        "instances": [{key: document[key] for key in SUMMED_UP} for document in documents],
    }
