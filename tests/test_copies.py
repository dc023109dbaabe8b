"""Copies of the package that are changed: the exercises of CONTRIBUTING.md, and a business that is taken out.

The exercises are done from the text alone.  Where a business is taken out, the program that is left does all else,
and says plainly what it cannot do.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stages import copy_package, make_program, make_repository_of

from sessionrun.cli.argv import KNOWN
from sessionrun.input.rows import SETTINGS
from sessionrun.input.settings import TOPICS


class Copy:
    """The program of a copy, run in a directory."""

    def __init__(self, code: Path, place: Path) -> None:
        self.place = place
        self.env = {**os.environ, "PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "sessionrun", *words]
        done = subprocess.run(
            argv, cwd=self.place, env=self.env, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def run(self, *words: str) -> str:
        done = self.call(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


# --- exercises ---

PAGE = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
MOST_LINES = 60
FILE = re.compile(r"Write\s+`([\w/]+\.py)`:\n\n```python\n(.*?)```", re.DOTALL)
ROW = re.compile(r"In `([\w/]+\.py)`, after `(.*?)`,\s+add\s+`(.*?)`\.")
WORD = re.compile(r"In `([\w/]+\.py)`, in place of `(.*?)`, write `(.*?)`\.")


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a copy of the package in which all exercises are done."""
    place = tmp_path_factory.mktemp("exercises")
    there = copy_package(place)
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


@pytest.fixture
def done(code: Path, own_place: Path) -> Copy:
    return Copy(code, own_place)


@pytest.mark.slow
def test_add_an_agent_an_input_format_and_a_verb(done: Copy, own_place: Path) -> None:
    programs = make_program(own_place / "programs" / "greeter", 'echo "$2 says hello to $(cat)"').parent
    done.env["PATH"] = f"{programs}{os.pathsep}{done.env['PATH']}"
    (own_place / "two.lines").write_text("Ann\n\nBob\n")
    words = ("--sync", "--json", "--agent", "greeter", "--model", "m1", "two.lines")
    status = json.loads(done.run(*words))
    assert (status["dialect"], status["agent"]) == ("lines", "greeter")
    assert [(task["id"], task["outcome"]) for task in status["tasks"]] == [
        ("line-1", "succeeded"),
        ("line-2", "succeeded"),
    ]
    assert (Path(status["results_dir"]) / status["tasks"][1]["output"]).read_text() == "m1 says hello to Bob\n"
    assert (status["schema_version"], status["tasks"][1]["text"]) == (2, "m1 says hello to Bob\n")
    assert json.loads(done.run("ids", "--json"))["session_ids"] == [status["session_id"]]
    assert done.run("ids") == f"{status['session_id']}\n"
    assert "ids " in done.run("help", "all")


@pytest.mark.slow
def test_add_a_setting(done: Copy, own_place: Path) -> None:
    plan = json.dumps(
        {"prompts": [{"id": "own", "prompt": "true", "priority": 1}, {"id": "none", "prompt": "true"}]}
    )
    (own_place / "plan.json").write_text(plan)
    session_id = done.run("--agent", "shell", "--priority", "7", "-q", "plan.json").strip()
    spec = json.loads((own_place / "results" / f"session-{session_id}" / "spec.json").read_text())
    assert {task["id"]: task["priority"] for task in spec["tasks"]} == {"own": 1, "none": 7}
    assert "--priority N" in done.run("help", "limits")
    for words, problem in (
        (("--priority", "x"), "a whole number"),
        (("--from", "markdown", "--priority", "1", "."), "markdown"),
    ):
        with pytest.raises(AssertionError, match=problem):
            done.run(*words)


@pytest.mark.slow
def test_add_a_phase(done: Copy, own_place: Path) -> None:
    (own_place / "plan.json").write_text(
        '[{"id": "two", "prompt": "echo 1; echo 2"}, {"id": "none", "prompt": ":"}]'
    )
    with pytest.raises(AssertionError):  # a task has failed
        done.run("--sync", "-q", "--agent", "shell", "plan.json")
    (status,) = json.loads(done.run("list", "--json"))["sessions"]
    status = json.loads(done.run("status", "--json", status["session_id"]))
    assert [(task["id"], task["outcome"], task["reason"]) for task in status["tasks"]] == [
        ("two", "succeeded", None),
        ("none", "failed", "check_failed: its answer has no line"),
    ]
    jobs = own_place / "results" / f"session-{status['session_id']}" / "jobs"
    assert json.loads((jobs / "two" / "a1-r1-count" / "answer.json").read_text())["lines"] == 2


@pytest.mark.slow
def test_add_a_business(done: Copy, own_place: Path) -> None:
    (own_place / "sessionrun.toml").write_text('due = "9999-12-31"\n')
    try:
        for words in ((), ("--due", "2001-02-03")):
            done.run("--hold", "-q", "--agent", "shell", *words, "-p", "true")
        found = done.call("doctor").stdout
    finally:
        done.run("cancel", "--state", "running")
    labels = [session["labels"] for session in json.loads(done.run("list", "--json"))["sessions"]]
    assert labels == [{"due": "2001-02-03"}, {"due": "9999-12-31"}]
    assert found.count("it was due on") == found.count("it was due on 2001-02-03, and has not ended") == 1
    assert "it was due" not in done.call("doctor").stdout
    with pytest.raises(AssertionError, match="--due soon: is not a date"):
        done.run("--agent", "shell", "--due", "soon", "-p", "true")


# --- a business is taken out ---

BUSINESSES = ("checks", "landing", "queue", "cluster")
"""On these no other room stands.  Walls and worktrees cannot go alone: landing and cluster are built on both."""

AGENT = ("--agent", "shell")
LEFT_ALONE = ("sessionrun.api", "sessionrun.doors.server", "sessionrun.doors.mcp")
"""What programs import that are no verbs."""

PLANS: dict[str, dict[str, object]] = {
    "checks": {"defaults": {"check": "true"}},
    "landing": {"land": True},
    "queue": {"feed": {"watch": True}},
    "cluster": {},
}
"""What a plan says to have it."""

FILES = {
    "queue": {"dispatch_config.json": "{}"},
    "checks": {
        "instances.json": '[{"instance_id": "a", "repo": "o/r", "problem_statement": "p", "base_commit": "c"}]'
    },
}
"""Inputs of its formats."""

ASKED = {
    "landing": {"landing": {"target": "refs/heads/main"}},
    "queue": {"feed": {"top": "/nowhere", "backend": "file"}},
    "cluster": {"cluster": {"address": "slurm"}},
}
"""What the spec of a session says that has it."""


def take_out(name: str, place: Path) -> Path:
    """A directory with a copy of the package that lacks a business: its row, and its folder."""
    there = copy_package(place)
    house = there / "house.py"
    text = house.read_text()
    (row,) = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Business"
        and ast.literal_eval(node.args[0]) == name
    )
    lines = text.splitlines(keepends=True)
    house.write_text("".join([*lines[: row.lineno - 1], *lines[row.end_lineno :]]))
    shutil.rmtree(there / name)
    return place


class Left(Copy):
    """The program that is left, in a repository."""

    def __init__(self, name: str, code: Path, place: Path) -> None:
        super().__init__(code, place)
        self.name = name
        self.lack = f"this program has no {name}; install sessionrun whole"

    def refuse(self, *words: str, code: int = 2) -> None:
        """They are refused in one line, which says first where that was asked for."""
        done = self.call(*words)
        (line,) = (done.stdout if "--json" in words else done.stderr).splitlines()
        assert done.returncode == code, (words, line)
        assert f": {self.lack}" in line.removeprefix("sessionrun: error"), (words, line)


@pytest.fixture(scope="module", params=BUSINESSES)
def taken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a business, and where the package without it is."""
    return request.param, take_out(request.param, tmp_path_factory.mktemp("left"))


@pytest.fixture
def left(taken: tuple[str, Path], own_place: Path) -> Left:
    make_repository_of(own_place, {})
    return Left(*taken, own_place)


@pytest.mark.check
def test_all_else_works(left: Left) -> None:
    plain = left.run("--sync", "-q", *AGENT, "-p", "echo hello").strip()
    work = left.run("--sync", "-q", *AGENT, "--worktree", "-p", "echo new > new").strip()
    assert "hello" in left.run("results", plain)
    assert "+new" in left.run("diff", work)
    assert "1 succeeded" in left.run("wait", "last")
    for verb in ("status", "results", "explain", "report", "cost", "logs"):
        left.run(verb, work)
    assert left.run("list").count("1 succeeded") == 2
    assert "Nothing is wrong" in left.run("doctor")
    left.run("config")
    left.run("schema", "plan")
    assert left.run("clean", plain).startswith("removed")
    subprocess.run([sys.executable, "-c", f"import {', '.join(LEFT_ALONE)}"], env=left.env, check=True)


@pytest.mark.check
def test_help_has_what_is_there(left: Left) -> None:
    gone = {verb for verb, row in KNOWN.items() if row.business == left.name}
    assert {line.split()[0] for line in left.run("help", "all").splitlines()} == KNOWN.keys() - gone
    for page in ("run --help", "help examples"):
        left.run(*page.split())
    assert not [
        verb
        for verb in gone
        if re.search(rf"(^|  ){verb}( |$)|sessionrun {verb} ", left.run("--help"), re.MULTILINE)
    ]
    options = [row.spell() for row in SETTINGS if row.business == left.name and row.option is not None]
    pages = left.run("run", "--help-all").split("\n  --")
    assert not [
        page for page in pages if f"--{page.split()[0].strip(',')}" in options and "no" not in page.split()
    ]
    left.run("merge" if left.name != "landing" else "queue", "--help")
    names = left.call("schema").stderr.replace(",", "").split()
    assert "status" in names and not gone.intersection(names[names.index("plan") :])


@pytest.mark.check
def test_its_words_are_refused_by_name(left: Left) -> None:
    for verb in (verb for verb, row in KNOWN.items() if row.business == left.name):
        for words in ((verb,), (verb, "--json"), ("--json", verb), (verb, "x", "--help")):
            left.refuse(*words)
        if verb in TOPICS:
            assert left.lack in " ".join(left.run("help", verb).split())
        else:
            left.refuse("help", verb)
    for row in (row for row in SETTINGS if row.business == left.name):
        if row.option is not None:
            left.refuse(*AGENT, "-p", "true", row.spell(), *(["a=1"] if row.metavar else []))
        if row.config:
            (left.place / "sessionrun.toml").write_text(f"{row.name} = true\n")
            left.refuse(*AGENT, "-p", "true")
            (left.place / "sessionrun.toml").unlink()
    for key, value in PLANS[left.name].items():
        (left.place / "plan.json").write_text(json.dumps({"prompts": ["true"], key: value}))
        left.refuse(*AGENT, "plan.json")
    for name, text in FILES.get(left.name, {}).items():
        (left.place / name).write_text(text)
        assert "no input format fits it" in left.call(*AGENT, name).stderr
    if left.name == "checks":
        (left.place / "job.md").write_text("---\nid: a\noutput_file: a.txt\n---\nWrite it.\n")
        left.refuse(*AGENT, "job.md")
    assert not (left.place / "results").exists(), "nothing was started"


@pytest.mark.check
def test_its_sessions_of_before_are_refused(left: Left) -> None:
    """What is decided from their journal; what status.json shows is shown."""
    session_id = left.call("--sync", "-q", *AGENT, "-p", "false").stdout.strip()
    file = left.place / "results" / f"session-{session_id}" / "spec.json"
    spec = json.loads(file.read_text())
    if left.name == "checks":
        spec["tasks"][0]["check"] = {"commands": ["true"]}
    file.write_text(json.dumps({**spec, **ASKED.get(left.name, {})}))
    assert "1 failed" in left.run("status") and "1 failed" in left.run("list")
    left.refuse("explain")
    left.refuse("continue", session_id, "1", "more")
    left.refuse("retry", session_id, code=4)  # the request stays: the whole program takes it
    shown = left.call("doctor").stdout
    assert left.lack in shown and "error" not in shown
