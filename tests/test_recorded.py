"""A session of the version before the rooms, kept as it was recorded, reads and compares equal."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from conftest import Command

import sessionrun as sessionrun_package
from sessionrun.model.spec import Export
from sessionrun.model.spec_records import spec_from_record
from sessionrun.runtime.jobs.check.request import CheckRequest
from sessionrun.store.jobfiles import ANSWER, REQUEST

RECORDED = Path(__file__).parent / "data" / "recorded" / "before-rooms"
PLACE = "/tmp/sample"
"""Where it was recorded."""

NEW_KEYS = {
    "explain_json": {"damage", "denied", "feed", "landings", "parent", "worktree_kept", "worktree_remark"},
    "results_json": {"telling", "hidden_tests"},
}
"""What JSON has now that it had not then, by output."""

EXIT_CODES = {"wait_json": 1}


@pytest.fixture
def recorded(sessionrun: Command) -> str:
    """The recorded session in the test's own results directory; its id."""
    shutil.copytree(RECORDED / "sessions", sessionrun.results)
    (folder,) = sessionrun.results.iterdir()
    return folder.name.removeprefix("session-")


def without(value: Any, keys: set[str]) -> Any:
    """The value without these keys, at any depth."""
    if isinstance(value, dict):
        return {key: without(one, keys) for key, one in value.items() if key not in keys}
    return [without(one, keys) for one in value] if isinstance(value, list) else value


def migrate(verb: str, before: Any) -> dict[str, Any]:
    """What version 1 of the JSON said, in the words of version 2: the table in CHANGELOG.md."""
    if verb == "list":
        return {"sessions": without(before, {"schema_version"})}
    if verb == "overview":
        return {"session_counts": before["sessions"], "task_counts": before["tasks"]}
    if verb == "cost":
        total = before["total"]
        total["task_count"], total["unpriced_task_count"] = total.pop("tasks"), total.pop("unpriced_tasks")
        before["session_ids"] = before.pop("sessions")
    if verb == "results":
        for task in before["tasks"]:
            task["text"], task["output"] = task["output"], task.pop("output_file")
            task["stderr_text"], task["stderr"] = task["stderr"], task.pop("stderr_file")
    return dict(before)


@pytest.mark.parametrize("file", sorted((RECORDED / "out").iterdir()), ids=lambda file: file.name)
def test_what_a_reader_says_is_the_same(sessionrun: Command, recorded: str, file: Path) -> None:
    verb, _, as_json = file.name.partition("_")
    words = [verb, *(["--json"] if as_json else []), *([] if verb in ("list", "overview") else [recorded])]
    done = sessionrun(*words)
    assert done.returncode == EXIT_CODES.get(file.name, 0), done.stderr
    said = done.stdout.replace(str(sessionrun.cwd), PLACE)
    before = file.read_text()
    if as_json:
        now = without(json.loads(said), NEW_KEYS.get(file.name, set()) | {"ended_seq"})
        assert now == {**migrate(verb, json.loads(before)), "schema_version": 2}
    else:
        assert said == before


def test_a_supervisor_is_started_again_by_the_name_that_it_had(sessionrun: Command) -> None:
    """A keeper of that version starts supervisors so; it outlives an upgrade of the package."""
    plan = sessionrun.cwd / "plan.json"
    plan.write_text('{"prompts": ["echo fine", {"prompt": "echo more", "check": ["true", "true"]}]}')
    code = (
        "import sys\n"
        "from sessionrun.runtime import launch\n"
        "launch.start_detached.__kwdefaults__['program'] = 'sessionrun.detached'\n"
        "from sessionrun.cli import main\n"
        "sys.exit(main(['-q', '--agent', 'shell', 'plan.json']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=sessionrun.cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sessionrun.wait(done.stdout.strip())["outcome"] == "succeeded"


@pytest.mark.parametrize(
    "program", [("answers/job.py",), ("runtime/jobs/check/job.py",), ("runtime/jobs/job.py", "check")], ids=str
)
def test_a_check_is_started_by_the_path_that_it_had(program: tuple[str, ...], own_place: Path) -> None:
    """A supervisor of an older version, still alive, names the program of a CHECK with a brief so."""
    path, *words = program
    old = Path(sessionrun_package.__file__).parent / path
    request = CheckRequest(directory=str(own_place), prompt="p", commands=("touch done",))
    (own_place / REQUEST).write_bytes(orjson.dumps(request))
    done = subprocess.run([sys.executable, old, *words, own_place], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (own_place / "done").exists()
    assert json.loads((own_place / ANSWER).read_text())["problem"] is None


def test_a_workspace_job_is_started_by_the_path_that_it_had(own_place: Path) -> None:
    old = Path(sessionrun_package.__file__).parent / "workspaces" / "job.py"
    done = subprocess.run([sys.executable, old, "prepare", own_place], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "begun\n")
    assert done.stderr.endswith("request.json: No such file or directory\n")


def test_the_exports_of_an_older_session_are_found() -> None:
    """A version before called them views."""
    (path,) = (Path(__file__).parent / "data" / "recorded" / "before-rooms" / "sessions").glob("*/spec.json")
    record = json.loads(path.read_bytes())
    record["views"] = [{"kind": "job-status", "settings": {"path": "x"}}]
    assert spec_from_record(record).exports == (Export("job-status", {"path": "x"}),)
