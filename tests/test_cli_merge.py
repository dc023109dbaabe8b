"""`merge` as a user sees it: what real sessions left lands on a branch."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import eventually
from test_cli_worktrees import Finished, Project, finished, project, stage
from test_documents import Part, is_bold, iterate_keys, part

__all__ = ["finished", "project", "stage"]

GATE = "! grep -rqs BAD --include=*.txt ."
PLAN: list[dict[str, Any]] = [
    {"id": "one", "prompt": "echo one > one.txt", "title": "Write one"},
    {"id": "two", "prompt": "echo two > two.txt", "needs": ["one"], "setup": ["echo set > set.txt"]},
    {"id": "bad", "prompt": "echo BAD > bad.txt"},
    {"id": "clash", "prompt": "echo clash > one.txt"},
    {"id": "after", "prompt": "echo a > after.txt", "needs": ["bad"]},
    {"id": "idle", "prompt": "true"},
    {"id": "fails", "prompt": "echo half > half.txt; exit 3"},
]
ENDS = {
    "one": ("landed", None),
    "two": ("landed", None),
    "bad": ("bounced", "gate_red"),
    "clash": ("bounced", "conflict"),
    "after": ("waiting", "needs"),
    "idle": ("none", "no_change"),
    "fails": ("none", "not_succeeded"),
}


@pytest.fixture
def ended(finished: Finished) -> Project:
    return finished(PLAN)


def ends_of(record: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {task["id"]: (task["status"], task["reason_class"]) for task in record["tasks"]}


def test_the_work_of_a_session_lands(ended: Project) -> None:
    session = ended.sessions[0]
    before = ended.snapshot()
    forecast = ended.load("merge", session, "--dry-run", "--gate", GATE)
    assert ended.snapshot() == before, "a dry run changes nothing"
    assert ends_of(forecast) == ENDS | {
        "one": ("ready", None),
        "two": ("ready", None),
        "bad": ("ready", None),
        "after": ("ready", None),
    }
    assert forecast["tasks"][3]["against"] == ["one"] and forecast["gate_runs"] == 1

    done = ended("merge", session, "--gate", GATE, "--json")
    record = json.loads(done.stdout)
    assert (done.returncode, ends_of(record)) == (1, ENDS)
    assert (record["target"], record["new"]) == ("main", ended.git("rev-parse", "main"))
    assert ended.git("status", "--porcelain") == ""
    assert ended.git("diff", "--name-only", record["old"], "main") == "one.txt\ntwo.txt", (
        "what setup left is not there"
    )
    message = ended.git("log", "--format=%B", "--grep=Merge task one", "main").split("\n")
    assert message[0] == "Merge task one: Write one"
    assert {"Sessionrun-Task: one", f"Sessionrun-Session: {session}", "Sessionrun-Agent: shell"} <= set(message)
    contract = Part(part("sessionrun-files.5", "JSON OUTPUT").source)
    assert [key for key in iterate_keys(record) if not is_bold(contract, key)] == []

    again = ended("merge", session, "one", "2")
    assert again.returncode == 0
    landed = {task["id"]: task["commit"][:12] for task in record["tasks"] if task["commit"]}
    assert again.stdout.split("\n")[:2] == [f"one: landed {landed['one']}", f"two: landed {landed['two']}"]
    assert ended.git("rev-parse", "main") == record["new"], "what has landed does not land again"


def test_a_person_mends_a_conflict_on_the_branch(ended: Project) -> None:
    session = ended.sessions[0]
    assert ended("merge", session, "one", "clash").returncode == 1
    ended.git("checkout", "-q", "main-task-clash")
    ended.git("merge", "-q", "-X", "ours", "main")
    ended.git("checkout", "-q", "main")
    done = ended("merge", session, "clash", "--no-trailers")
    assert (done.returncode, ended.git("show", "main:one.txt")) == (0, "clash")
    assert "Sessionrun-" not in ended.git("log", "-1", "--format=%B", "main")


def test_a_hold_names_the_command_that_mends_it(ended: Project) -> None:
    session = ended.sessions[0]
    (ended.cwd / "one.txt").write_text("mine\n")
    done = ended("merge", session, "one")
    assert done.returncode == 75
    assert done.stdout.startswith("one: held: one.txt in ")
    assert f"mend: mv {ended.cwd}/one.txt {ended.cwd}/one.txt.mine" in done.stderr
    (ended.cwd / "one.txt").unlink()
    assert ended("merge", session, "one").returncode == 0


def test_it_lands_on_another_branch_and_says_what_is_wrong(ended: Project) -> None:
    session = ended.sessions[0]
    ended.git("branch", "-q", "other")
    assert ended("merge", session, "one", "--into", "other").returncode == 0
    assert ended.git("log", "-1", "--format=%s", "other") == "Merge task one: Write one"
    for words, problem in {
        (session, "--into", "nowhere"): "has no branch 'nowhere'",
        (session, "nobody"): "no task 'nobody'",
        (session, "--batch", "0"): "is not a whole number of 1 or more",
        (): "Missing argument 'ID'",
    }.items():
        done = ended("merge", *words)
        assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


def test_tasks_that_have_not_ended_wait(project: Project) -> None:
    plan = [
        {"id": "done", "prompt": "echo done > done.txt"},
        {"id": "runs", "prompt": "while ! [ -e ../../go ]; do sleep 0.1; done; echo runs > runs.txt"},
    ]
    session = project.start({"prompts": plan}, "--worktree")
    project.until(session, lambda view: view["tasks"][0]["outcome"])
    done = project("merge", session, "--json")
    assert (done.returncode, ends_of(json.loads(done.stdout))) == (
        1,
        {"done": ("landed", None), "runs": ("waiting", "not_ended")},
    )
    (project.cwd.parent / "go").touch()
    project.wait(session)
    assert eventually(lambda: project("merge", session).returncode == 0)
    assert {"done.txt", "runs.txt"} <= set(project.git("ls-tree", "--name-only", "main").split("\n"))


def test_a_session_without_worktrees_has_nothing_to_land(project: Project) -> None:
    session = project.finished({"prompts": ["true"]}, "--agent", "shell")
    done = project("merge", session, "--json")
    assert done.returncode == 2
    assert "has no worktrees of this repository" in json.loads(done.stdout)["error"]["message"]
