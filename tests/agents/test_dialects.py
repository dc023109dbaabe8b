"""The matrix and the Markdown dialect with the real qwen.

Its models, log files, branches, and prompts as one conversation; jobs that build on each other, with verdicts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from .stage import MODELS, Stage, find_agent

pytestmark = [
    pytest.mark.agents,
    pytest.mark.skipif(find_agent("qwen") is not None, reason=find_agent("qwen") or ""),
]

TASKS: Final = [
    {
        "id": "note",
        "name": "Write a note",
        "prompts": ["First part.", "write[[note.txt=from the tool]] answer[[written]]"],
    },
    {
        "id": "talk",
        "name": "Say something",
        "prompts": ["Say alpha answer[[the first]]", "Say beta answer[[the second]]"],
    },
]
JOBS: Final = {
    "a_001_first.md": "---\noutput_file: first.txt\n---\nwrite[[first.txt=one line]]\n",
    "a_002_second.md": "---\ncontext_files:\n  - first.txt\noutput_file: second.txt\n---\n"
    "write[[second.txt=another line]]\n",
    "_systemprompt_verify.md": "Judge it. answer[[PASS\nLooks right.]]\n",
}


def run(stage: Stage, **said: Any) -> list[dict[str, Any]]:
    """Run the configuration to its end; the runs of the results file."""
    config = {
        "worktree_base": "../trees",
        "setup": "true",
        "tasks": TASKS,
        "models": ["test-model", {"name": "other-model", "authType": "openai"}],
        **said,
    }
    (stage.repository / "config.json").write_text(json.dumps(config))
    done = stage.command("-q", "config.json")
    assert done.returncode == 0, done.stderr
    stage.command.sessions.append(done.stdout.strip())
    stage.finish(stage.command.sessions[-1])
    runs: list[dict[str, Any]] = json.loads((stage.repository / "results.json").read_text())["runs"]
    return runs


def test_a_matrix_of_tasks_and_models(stage: Stage) -> None:
    runs = run(stage)
    assert [run["status"] for run in runs] == ["succeeded"] * 4, runs
    assert {(run["task_id"], run["model"]) for run in runs} == {
        (task, model) for task in ("note", "talk") for model in ("test-model", "other-model")
    }
    assert {request.model for request in stage.server.told("First part.")} == {"test-model", "other-model"}
    for run_of in runs:
        folder = stage.repository / run_of["output_dir"]
        note = run_of["task_id"] == "note"
        assert (folder / "stdout.txt").read_text().strip() == ("written" if note else "the second")
        logs = sorted((folder / "logs").glob("openai-*.json"))
        assert logs, list(folder.iterdir())
        assert run_of["model"] in logs[0].read_text()
        assert (folder / "diff.patch").exists() == note  # there is none where nothing was changed
        assert not note or "+from the tool" in (folder / "diff.patch").read_text()
    assert not list(Path(stage.repository, "../trees").glob("run-*"))


def test_prompts_as_one_conversation(stage: Stage) -> None:
    runs = run(stage, prompt_mode="continue", models=["test-model"], tasks=TASKS[1:])
    assert [run["status"] for run in runs] == ["succeeded"], runs
    assert stage.server.told("Say alpha", "the first", "Say beta")


def test_a_directory_of_jobs(stage: Stage) -> None:
    (stage.repository / "jobs").mkdir()
    for name, content in JOBS.items():
        (stage.repository / "jobs" / name).write_text(content)
    done = stage.command("-q", "--agent", "qwen", "--model", MODELS["qwen"], "jobs")
    assert done.returncode == 0, done.stderr
    stage.command.sessions.append(done.stdout.strip())
    tasks = stage.finish(stage.command.sessions[-1])
    assert {task_id: task["outcome"] for task_id, task in tasks.items()} == dict.fromkeys(
        ("a_001_first", "a_002_second"), "succeeded"
    ), tasks
    assert (stage.repository / "first.txt").read_text().rstrip() == "one line"
    assert (stage.repository / "second.txt").read_text().rstrip() == "another line"
    assert stage.server.told("first.txt", "one line", "another line"), (
        "the second job was not shown the first file"
    )
    assert len(stage.server.told("Judge it.")) >= 2
