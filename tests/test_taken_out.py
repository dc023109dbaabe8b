"""A business is taken out: the program that is left does all else, and says plainly what it cannot do.

On those below no other room stands.  Walls and worktrees cannot go alone: landing and cluster are built on both.
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
from stages import make_repository_of

import sessionrun as package
from sessionrun.cli.argv import KNOWN
from sessionrun.input.rows import SETTINGS
from sessionrun.input.settings import TOPICS

pytestmark = pytest.mark.check

BUSINESSES = ("checks", "landing", "queue", "cluster")
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
    there = place / "sessionrun"
    shutil.copytree(Path(package.__file__).parent, there, ignore=shutil.ignore_patterns("__pycache__"))
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


class Left:
    """The program that is left, in a repository."""

    def __init__(self, name: str, code: Path, place: Path) -> None:
        self.name = name
        self.lack = f"this program has no {name}; install sessionrun whole"
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
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

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
