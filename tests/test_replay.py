"""`replay`: a session again without models, in a clone of its own; what came out differently is told."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agent_samples import EXPECTED, STREAMS, Sample
from conftest import Command, eventually
from dialect_plans import ROOT
from test_cli_worktrees import Project
from test_cli_worktrees import project as project

from sessionrun.store.session import SessionDir

PLAN = {
    "prompts": [
        {"id": "a", "prompt": "sleep 1; echo new > new.txt; echo did a; echo err >&2", "check": "test -e new.txt"},
        {"id": "b", "prompt": "echo try >> tries; cp tries kept.txt; exit 3", "retries": 1},
        {"id": "c", "prompt": "echo half; sleep 600", "timeout": "1s"},
        {"id": "k", "prompt": "trap 'exit 143' TERM; sleep 600 & wait", "timeout": "1s"},
        {"id": "d", "prompt": "cat new.txt; printf 'a\\\\0b' > d.bin; rm start.txt", "needs": ["a"]},
        {"id": "e", "prompt": "kill -9 $$"},
        {"id": "f", "prompt": "echo BAD > f.txt"},
        {
            "id": "g",
            "rounds": 3,
            "prompt": "[ -e g.txt ] && echo two > g.txt || echo one > g.txt",
            "check": "grep two g.txt",
        },
        {"id": "h", "prompt": "echo h > h.txt"},
        {"id": "i", "prompt": "true", "needs": ["b"]},
    ],
}


@pytest.fixture
def recorded(project: Project) -> str:
    """The id of a session of all kinds of ends, whose work landed."""
    (project.cwd / "start.txt").write_text("start\n")
    project.git("add", "start.txt")
    project.git("commit", "-qm", "start")
    words = ("--land", "--gate", "! grep -rqs BAD .", "--max-parallel", "3", "--name", "orig")
    session_id = project.start(PLAN, "--worktree", *words)
    project.wait(session_id)
    eventually(lambda: not SessionDir(project.directory(session_id)).is_alive())
    return session_id


def replay(sessionrun: Command, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and what is told."""
    done = sessionrun("replay", *words, "--json", "--speed", "1000")
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_all_ends_are_the_same_and_nothing_of_the_user_changes(project: Project, recorded: str) -> None:
    before, refs = project.snapshot(), project.git("for-each-ref")
    landed = {
        task["id"]: task["landing"] and task["landing"]["status"] for task in project.status(recorded)["tasks"]
    }
    assert landed["a"] == landed["d"] == "landed" and "bounced" in landed.values()
    code, told = replay(project, recorded)
    assert (code, told["differences"]) == (0, [])
    assert (project.snapshot(), project.git("for-each-ref")) == (before, refs)
    place = Path(told["results_dir"]).parent.parent
    assert place == project.results / f"replay-{recorded[:8]}"
    assert project.git("show", "main:new.txt", cwd=place / "repository") == project.git("show", "main:new.txt")
    again = project("status", "--json", "--results-dir", str(place / "results"))
    tasks = {task["id"]: task for task in json.loads(again.stdout)["tasks"]}
    assert (tasks["e"]["signal"], tasks["b"]["attempt"], tasks["g"]["round"]) == (9, 2, 2)
    output = place / "results" / f"session-{told['session_id']}"
    assert (output / "task-a.txt").read_text() == "did a\n" and (output / "task-a.err").read_text() == "err\n"
    _, second = replay(project, recorded)
    assert Path(second["results_dir"]).parent.parent.name == f"replay-{recorded[:8]}-2"


@pytest.mark.slow
def test_a_difference_is_told(project: Project) -> None:
    plan = {"prompts": [{"id": "a", "prompt": "echo new > new.txt", "check": "test -e new.txt"}, "echo b"]}
    session_id = project.finish(plan)
    patch = project.directory(session_id) / "jobs" / "a" / "a1-diff.patch"
    patch.write_text("")
    done = project("replay", session_id, "--speed", "1000")
    assert done.returncode == 1, done.stderr
    assert "a: outcome: recorded 'succeeded', now 'failed'" in done.stdout.splitlines()
    assert done.stdout.endswith("2 tasks, 1 of them with differences\n")
    patch.write_text("no patch at all\n")
    _, told = replay(project, session_id)
    keys = {one["key"]: one["replayed"] for one in told["differences"]}
    assert keys["exit_code"] == 70
    errors = (Path(told["results_dir"]) / "task-a.err").read_text()
    assert errors.startswith("sessionrun replay: the recorded changes do not apply: ")


@pytest.mark.slow
def test_what_agents_print_is_read_as_before_without_any_of_them(sessionrun: Command) -> None:
    samples = [Sample(**json.loads(line)) for line in EXPECTED.read_text().splitlines()]
    good = {sample.agent: sample for sample in samples if sample.reason_class is None}
    tables = []
    for name in STREAMS:
        program = sessionrun.cwd / f"{name}.sh"
        program.write_text(f"#!/bin/sh\ncat '{good[name].path}'\n")
        program.chmod(0o755)
        tables.append(f'[agents.x{name}]\nargv = ["{program}"]\noutput = "{name}"\n')
    (sessionrun.cwd / "sessionrun.toml").write_text("\n".join(tables))
    plan = {"prompts": [{"id": name, "prompt": "do it", "agent": f"x{name}"} for name in STREAMS]}
    session_id = sessionrun.start(plan)
    assert sessionrun.wait(session_id)["successful"] == len(STREAMS)
    for name in STREAMS:
        (sessionrun.cwd / f"{name}.sh").unlink()
    code, told = replay(sessionrun, session_id)
    assert (code, told["differences"]) == (0, [])
    agents = SessionDir(Path(told["results_dir"])).load_spec().agents.values()
    assert {agent.provider for agent in agents} == {"replay"}, "a limit that is met again holds no real account"
    before, after = (
        {
            task["id"]: (task["usage"], task["model"], task["conversation"], task["text"])
            for task in record["tasks"]
        }
        for record in (
            sessionrun.load("results", session_id),
            sessionrun.load("results", told["session_id"], "--results-dir", str(Path(told["results_dir"]).parent)),
        )
    )
    assert after == before and any(usage for usage, *_ in before.values())


TASK = {"id": "a", "prompt": "echo x > x.txt", "check": "test -e x.txt", "workspace": "worktree"}
MATRIX = {
    "source_repo": ".",
    "agents": ["shell"],
    "models": ["m"],
    "tasks": [{"id": "t", "name": "T", "prompts": ["echo x > x.txt"]}],
}
JOB = "---\noutput_dir: out\noutput_file: o.txt\n---\nmkdir -p out; echo x > out/o.txt\n"
INPUTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "prompts": ("i.json", json.dumps({"prompts": [TASK, {**TASK, "id": "b", "cwd": "sub"}]}), ()),
    "yaml": ("i.yaml", f"tasks:\n  - {json.dumps(TASK)}\n", ()),
    "lines": ("i.jsonl", json.dumps(TASK), ()),
    "matrix": ("i.json", json.dumps(MATRIX), ("--from", "matrix")),
    "markdown": ("jobs/one.md", JOB, ()),
    "swebench": (
        "i.jsonl",
        json.dumps(
            {"instance_id": "o__r-1", "repo": ".", "problem_statement": "x", "FAIL_TO_PASS": ["t.py::test"]}
        ),
        ("--from", "swebench", "--no-environment", "--iterations", "1", "--prompt-template", "template"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", INPUTS)
def test_a_session_of_each_input_is_played_again(project: Project, kind: str) -> None:
    """Also where tasks begin in a directory of their own, which is nowhere in the clone."""
    name, text, words = INPUTS[kind]
    for path, content in ((name, text), ("sub/s", "s"), ("template", ": '{problem_statement}'\necho y > y.py\n")):
        (project.cwd / path).parent.mkdir(exist_ok=True)
        (project.cwd / path).write_text(content)
    project.git("add", "sub")
    project.git("commit", "-qm", "sub")
    project.to_end("run", "--sync", *words, "--agent", "shell", name.split("/")[0])
    before = project.snapshot()
    code, told = replay(project, "last")
    assert (code, told["differences"], project.snapshot()) == (0, [], before)


def test_a_session_that_runs_is_refused(sessionrun: Command) -> None:
    session_id = sessionrun.start({"prompts": ["sleep 600"]})
    done = sessionrun("replay", session_id)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "has not ended" in done.stderr and not list(sessionrun.results.glob("replay-*"))


@pytest.mark.slow
def test_a_bundle_stands_for_a_repository_that_is_gone(project: Project, tmp_path: Path) -> None:
    session_id = project.finish({"prompts": [{"id": "a", "prompt": "echo new > new.txt"}]})
    bundle = tmp_path / "base.bundle"
    project.git("bundle", "create", "-q", str(bundle), "main")
    away = project.cwd.with_name("away")
    shutil.move(project.cwd, away)
    project.cwd.mkdir()
    refused = project("replay", session_id)
    assert refused.returncode == 2 and "name the repository with --repository" in refused.stderr
    assert refused.stderr.count("\n") == 1 and not list(project.results.glob("replay-*"))
    place = tmp_path / "there"
    code, told = replay(project, session_id, "--repository", str(bundle), "--directory", str(place))
    assert (code, told["differences"]) == (0, []) and Path(told["results_dir"]).is_relative_to(place)
    taken = project("replay", session_id, "--repository", str(bundle), "--directory", str(place))
    assert taken.returncode == 2 and "is there already" in taken.stderr
    (tmp_path / "empty.bundle").write_bytes(b"no bundle")
    for path in ("nosuch", str(tmp_path / "empty.bundle")):
        wrong = project(
            "replay", session_id, "--repository", path, "--directory", str(tmp_path / f"new{len(path)}")
        )
        assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1, wrong.stderr


@pytest.mark.slow
def test_the_recorded_session_of_real_agents(sessionrun: Command, tmp_path: Path) -> None:
    example = ROOT / "examples" / "replay"
    before = {path: path.read_bytes() for path in example.rglob("*") if path.is_file()}
    words = ("--repository", str(example / "base.bundle"), "--directory", str(tmp_path / "replayed"))
    code, told = replay(sessionrun, "six-agents", "--results-dir", str(example / "results"), *words)
    assert (code, told["differences"]) == (0, [])
    assert {path: path.read_bytes() for path in example.rglob("*") if path.is_file()} == before
    git = ("git", "-C", str(tmp_path / "replayed" / "repository"), "show", "main:claude.txt")
    assert subprocess.run(git, capture_output=True, text=True).stdout == "from claude\n\n"
    usage = sessionrun.load("cost", told["session_id"], "--results-dir", str(Path(told["results_dir"]).parent))
    assert usage["total"]["task_count"] == 6 and usage["total"]["output_tokens"] > 0
