"""The exercises of CONTRIBUTING.md, done in a copy of the package from its text alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stages import make_program

import sessionrun as package

PAGE = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
MOST_LINES = 60
FILE = re.compile(r"Write\s+`([\w/]+\.py)`:\n\n```python\n(.*?)```", re.DOTALL)
ROW = re.compile(r"In `([\w/]+\.py)`, after `(.*?)`,\s+add\s+`(.*?)`\.")
WORD = re.compile(r"In `([\w/]+\.py)`, in place of `(.*?)`, write `(.*?)`\.")


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a copy of the package in which all exercises are done."""
    place = tmp_path_factory.mktemp("exercises")
    there = place / "sessionrun"
    shutil.copytree(Path(package.__file__).parent, there, ignore=shutil.ignore_patterns("__pycache__"))
    files, rows, words = FILE.findall(PAGE), ROW.findall(PAGE), WORD.findall(PAGE)
    counting = ("counting/__init__.py", "counting/run.py", "counting/phases.py")
    deadlines = ("deadlines/__init__.py", "deadlines/steps.py", "deadlines/findings.py")
    single = ("agents/greeter.py", "input/lines.py", "cli/ids.py")
    assert [name for name, _ in files] == [*single, *counting, *deadlines]
    assert (len(rows), len(words)) == (13, 3)
    for name, text in files:
        assert text.count("\n") <= MOST_LINES
        assert not (there / name).exists()
        (there / name).parent.mkdir(exist_ok=True)
        (there / name).write_text(text)
    for name, after, row in rows:
        lines = (there / name).read_text().splitlines()
        assert lines.count(after) == 1, f"{name}: {after}"
        lines.insert(lines.index(after) + 1, row)
        (there / name).write_text("\n".join(lines) + "\n")
    for name, old, new in words:
        content = (there / name).read_text()
        assert content.count(old) == 1, f"{name}: {old}"
        (there / name).write_text(content.replace(old, new))
    return place


def call(code: Path, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
    if path is not None:
        env["PATH"] = f"{path}{os.pathsep}{env['PATH']}"
    return subprocess.run([sys.executable, "-m", "sessionrun", *words], env=env, capture_output=True, text=True)


def run(code: Path, *words: str, path: Path | None = None) -> str:
    done = call(code, *words, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_add_an_agent_an_input_format_and_a_verb(code: Path, own_place: Path) -> None:
    programs = make_program(own_place / "programs" / "greeter", 'echo "$2 says hello to $(cat)"').parent
    (own_place / "two.lines").write_text("Ann\n\nBob\n")
    words = ("--sync", "--json", "--agent", "greeter", "--model", "m1", "two.lines")
    status = json.loads(run(code, *words, path=programs))
    assert (status["dialect"], status["agent"]) == ("lines", "greeter")
    assert [(task["id"], task["outcome"]) for task in status["tasks"]] == [
        ("line-1", "succeeded"),
        ("line-2", "succeeded"),
    ]
    assert (Path(status["results_dir"]) / status["tasks"][1]["output"]).read_text() == "m1 says hello to Bob\n"
    assert (status["schema_version"], status["tasks"][1]["text"]) == (2, "m1 says hello to Bob\n")
    assert json.loads(run(code, "ids", "--json"))["session_ids"] == [status["session_id"]]
    assert run(code, "ids") == f"{status['session_id']}\n"
    assert "ids " in run(code, "help", "all")


@pytest.mark.slow
def test_add_a_setting(code: Path, own_place: Path) -> None:
    plan = json.dumps(
        {"prompts": [{"id": "own", "prompt": "true", "priority": 1}, {"id": "none", "prompt": "true"}]}
    )
    (own_place / "plan.json").write_text(plan)
    session_id = run(code, "--agent", "shell", "--priority", "7", "-q", "plan.json").strip()
    spec = json.loads((own_place / "results" / f"session-{session_id}" / "spec.json").read_text())
    assert {task["id"]: task["priority"] for task in spec["tasks"]} == {"own": 1, "none": 7}
    assert "--priority N" in run(code, "help", "limits")
    for words, problem in (
        (("--priority", "x"), "a whole number"),
        (("--from", "markdown", "--priority", "1", "."), "markdown"),
    ):
        with pytest.raises(AssertionError, match=problem):
            run(code, *words)


@pytest.mark.slow
def test_add_a_phase(code: Path, own_place: Path) -> None:
    (own_place / "plan.json").write_text(
        '[{"id": "two", "prompt": "echo 1; echo 2"}, {"id": "none", "prompt": ":"}]'
    )
    with pytest.raises(AssertionError):  # a task has failed
        run(code, "--sync", "-q", "--agent", "shell", "plan.json")
    (status,) = json.loads(run(code, "list", "--json"))["sessions"]
    status = json.loads(run(code, "status", "--json", status["session_id"]))
    assert [(task["id"], task["outcome"], task["reason"]) for task in status["tasks"]] == [
        ("two", "succeeded", None),
        ("none", "failed", "check_failed: its answer has no line"),
    ]
    jobs = own_place / "results" / f"session-{status['session_id']}" / "jobs"
    assert json.loads((jobs / "two" / "a1-r1-count" / "answer.json").read_text())["lines"] == 2


@pytest.mark.slow
def test_add_a_business(code: Path, own_place: Path) -> None:
    (own_place / "sessionrun.toml").write_text('due = "9999-12-31"\n')
    try:
        for words in ((), ("--due", "2001-02-03")):
            run(code, "--hold", "-q", "--agent", "shell", *words, "-p", "true")
        found = call(code, "doctor").stdout
    finally:
        run(code, "cancel", "--state", "running")
    labels = [session["labels"] for session in json.loads(run(code, "list", "--json"))["sessions"]]
    assert labels == [{"due": "2001-02-03"}, {"due": "9999-12-31"}]
    assert found.count("it was due on") == found.count("it was due on 2001-02-03, and has not ended") == 1
    assert "it was due" not in call(code, "doctor").stdout
    with pytest.raises(AssertionError, match="--due soon: is not a date"):
        run(code, "--agent", "shell", "--due", "soon", "-p", "true")
