"""The account of a session of job files: what passed, what came out, in the words of the files' own program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sessionrun.model.checks import CheckReport
from sessionrun.model.spec import JOB_STATUS, SessionSpec
from sessionrun.session.exports import find_behind, word_job
from sessionrun.store.jobfiles import ANSWER, load_usable
from sessionrun.store.session import SessionDir


def summarise_jobs(session: SessionDir, spec: SessionSpec, status: Mapping[str, Any]) -> dict[str, Any] | None:
    """Counts and one result for each job file; None for a session without job files."""
    exports = [export for export in spec.exports if export.kind == JOB_STATUS]
    if not exports:
        return None
    tasks = {task["id"]: task for task in status["tasks"]}
    results = [
        _describe(session, job_id, [tasks[part] for part in parts if part in tasks])
        for export in exports
        for job_id, parts in export.settings["jobs"].items()
    ]
    return count_jobs(results)


def count_jobs(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The account of job files that came to these results."""
    words = [result["status"] for result in results]
    passed, failed = words.count("pass"), words.count("fail") + words.count("partial")
    return {
        "processed": passed + failed,
        "passed": passed,
        "failed": failed,
        "skipped": len(words) - passed - failed,
        "results": results,
    }


def find_export_problems(session: SessionDir, spec: SessionSpec, status: Mapping[str, Any]) -> list[str]:
    """A line for each export that is not up to date, of a session that has ended."""
    problems = list(status.get("view_problems") or ())
    why = f"{session.path / 'supervisor.log'} says why"
    return problems or [f"{path} could not be brought up to date: {why}" for path in find_behind(session, spec)]


def _describe(session: SessionDir, job_id: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    word, error = word_job(parts)
    skipped = next((task["reason"] for task in parts if task["outcome"] in ("skipped", "cancelled")), None)
    tests: dict[str, int] = {}
    work: dict[str, int] = {}
    earlier: list[str] = []
    for task in parts:
        folders = session.find_jobs(task["id"], task["attempt"], "check", max(1, task["round"]))
        # one that cannot be read shows nothing here: the supervisor has judged by it
        reports = (load_usable(folder / ANSWER, CheckReport) for folder in folders)
        if (report := next(filter(None, reports), None)) is not None:
            (tests if task["id"] == f"{job_id}.test" else work).update(report.written)
            earlier += report.earlier
    return {
        "job_id": job_id,
        "status": "skipped" if word == "created" else word,
        "error": error or skipped,
        "output_paths": list(work),
        "output_lines": sum(work.values()) if work else None,
        "test_path": next(iter(tests), None),
        "test_lines": next(iter(tests.values()), None),
        "retry_attempted": any(task["round"] > 1 or task["attempt"] > 1 for task in parts),
        "implicit_context_files": list(dict.fromkeys(earlier)),
    }
