"""The results file of a matrix: what its runs look like there, and which of them need not run again.

The keys and words are those of the Qwen Concurrent Runner's ``results.json``; sessionrun-files(5) lists them.
Pure: everything comes out of the object of status.json and the export's settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sessionrun.model.errors import InputError
from sessionrun.model.spec import TaskSpec

_WAITS: Final = ("queued", "preparing", "initializing")
"""Our phases before the agent's work, which that file calls the same; all others are its `running`."""

ENDS: Final = ("succeeded", "failed")
"""The words of a run that has ended."""

_CELL: Final = (("task_id", ""), ("model", ""), ("agent", ""), ("sample", 1))
"""The keys of a run that tell its cell, and what stands for one that is not there."""

LINKS: Final[Mapping[str, str]] = {
    "stdout_file": "stdout.txt",
    "stderr_file": "stderr.txt",
    "logs_dir": "logs",
    "diff_file": "diff.patch",
}
"""What a run's directory holds, by the key that names it."""


def project_runs(
    status: Mapping[str, Any], settings: Mapping[str, Any], *, worktree_dir: str, session: str, now: float
) -> dict[str, Any]:
    """The object of the results file.

    Args:
        status: the object of status.json.
        settings: of the export; `kept` are runs of older sessions by their place in the order.
        worktree_dir: where the worktrees are.
        session: the session's directory, by which the file tells whose it is.
        now: wall time in seconds since the epoch.
    """
    kept: Mapping[str, Any] = settings["kept"]
    tasks = [task for task in status["tasks"] if not task.get("mends")]  # a mend is no run of the input
    fresh = [_project_run(task, settings["shown_as"], worktree_dir) for task in tasks]
    runs = []
    waiting = iter(fresh)
    for place in range(len(fresh) + len(kept)):
        run = kept.get(str(place)) or next(waiting, None)
        runs += [] if run is None else [run]
    updated_at = datetime.fromtimestamp(now).isoformat(timespec="seconds")
    return {"updated_at": updated_at, "session": session, "runs": runs}


def read_runs(document: Any, name: str) -> list[dict[str, Any]]:
    """The runs of a results file.

    Raises:
        InputError: the document is not a results file.
    """
    runs = document.get("runs") if isinstance(document, Mapping) else None
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise InputError(
            f'{name} has no list "runs", so it is not a results file: move it away or name another one'
        )
    return runs


def find_done(runs: Iterable[Mapping[str, Any]], tasks: Sequence[TaskSpec]) -> dict[int, Mapping[str, Any]]:
    """The runs that succeeded, by the place of the task that would do the same again."""
    done = {_cell_of(run): run for run in runs if run.get("status") == "succeeded"}
    by_place: dict[int, Mapping[str, Any]] = {}
    for place, task in enumerate(tasks):
        cell = next((cell for cell in _cells_of(task.labels) if cell in done), None)
        if cell is not None:
            by_place[place] = done[cell]
    return by_place


def find_others(runs: Sequence[Mapping[str, Any]], tasks: Sequence[TaskSpec]) -> dict[int, Mapping[str, Any]]:
    """The runs that none of the tasks would do again, by their places."""
    wanted = {cell for task in tasks for cell in _cells_of(task.labels)}
    return {place: run for place, run in enumerate(runs) if _cell_of(run) not in wanted}


def _cell_of(run: Mapping[str, Any]) -> tuple[str, ...]:
    """Where in the matrix a run of a results file is; files of the other program name no agent and no sample."""
    return tuple(str(run.get(key, other)) for key, other in _CELL)


def _cells_of(labels: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """How a results file may name the cell of a task with these labels."""
    task, model, sample = (labels.get(name, "") for name in ("task", "model", "sample"))
    return (task, model, labels.get("agent", ""), sample), (task, model, "", sample)


def _project_run(task: Mapping[str, Any], shown_as: str, worktree_dir: str) -> dict[str, Any]:
    labels, outcome = task["labels"], task["outcome"]
    folder = f"{shown_as}/{task['id']}"
    shown = {key: f"{folder}/{name}" for key, name in LINKS.items()}
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
        "diff_file": shown["diff_file"] if has_diff(task) else None,
        "started_at": _local_time(task["started_at"]),
        "ended_at": _local_time(task["ended_at"]),
        "duration_s": task["duration_s"],
        "exit_code": task["exit_code"],
        "error_message": (task["reason"] or outcome) if outcome not in (None, "succeeded") else None,
        "outcome": outcome,
        "session_id": task["conversation"],
        "usage": task["usage"],
    }


def has_diff(task: Mapping[str, Any]) -> bool:
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
