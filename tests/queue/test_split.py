"""`split`: a goal becomes a group of small tasks, by an agent's answer or by rule."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from beads_standin import install
from conftest import Command
from queue_contract import find_ready

from sessionrun.model.errors import InputError
from sessionrun.queue.lists import name_group, read_answer, split_by_rule, write_prompt
from sessionrun.queue.open import open_queue
from sessionrun.queue.split import split
from sessionrun.queue.task import Draft, QueueTask, Worker

GOAL = "Fix the login, then describe it in docs/login.md and test it."
PARTS = ["Fix the login", "describe it in docs/login.md", "test it"]
GOOD = "- Fix the redirect in src/login.py\n- Describe the login in docs/login.md\n"
ANSWERED = ["Fix the redirect in src/login.py", "Describe the login in docs/login.md"]


def play(sessionrun: Command, *answers: str) -> None:
    """Let the agent `model` give these answers, one in each session, and keep what it was asked."""
    for number, answer in enumerate(answers):
        (sessionrun.cwd / f"answer-{number}").write_text(answer)
    script = sessionrun.cwd / "model"
    script.write_text("#!/bin/sh\nn=$(ls asked-* 2>/dev/null | wc -l)\ncat > asked-$n\ncat answer-$n || exit 9\n")
    script.chmod(0o755)
    (sessionrun.cwd / "sessionrun.toml").write_text(
        f'[agents.model]\nargv = ["{script}", "{{approve_args}}"]\napprove_args = ["--change-all"]\n'
    )


def tasks(**wanted: Any) -> list[QueueTask]:
    found = open_queue().load()
    return [task for task in found if all(getattr(task, key) == value for key, value in wanted.items())]


@pytest.mark.parametrize(
    ("goal", "parts"),
    [
        (GOAL, PARTS),
        ("a1; b2;c3. D4, e5 and f6 then g7", ["a1", "b2", "c3", "D4", "e5", "f6", "g7"]),
        ("say \"a, b and c; d\" and `x; y`, and then 'p, q'", ['say "a, b and c; d"', "`x; y`", "'p, q'"]),
        ("don't stop and don't wait", ["don't stop", "don't wait"]),
        ("Use e.g. tar, i.e. no zip", ["Use e.g. tar", "i.e. no zip"]),
        ("bump 1,000 to 1.5 and end", ["bump 1,000 to 1.5", "end"]),
        ("- one\n- two\n\n3. three", ["one", "two", "three"]),
        ("same and Same and SAME and other", ["same", "other"]),
        ("Sandy then handy", ["Sandy", "handy"]),
        ("; . ,", []),
        ("only this", ["only this"]),
    ],
)
def test_the_rule(goal: str, parts: list[str]) -> None:
    assert split_by_rule(goal, 10) == parts


def test_the_rule_leaves_the_rest_in_the_last_part() -> None:
    assert split_by_rule("a; b; c; d", 2) == ["a", "b; c; d"]


@pytest.mark.parametrize(
    "answer", [GOOD, f"```\n{GOOD}```\n", '1. Fix `a && b` in run.sh\n2) Say "Hi. You!" in hello.py\n']
)
def test_a_good_answer(answer: str) -> None:
    assert len(read_answer(answer, 2)) == 2


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "it has 0 tasks, not 2 to 3"),
        ("Fix a.py\n", "it has 1 task, not 2 to 3"),
        ("Fix a.py\nFix b.py\nFix c.py\nFix d.py\n", "it has 4 tasks, not 2 to 3"),
        ("Fix a.py\nfix  A.py.\n", "the line 'fix A.py.' is there twice"),
        (f"Fix a.py\nFix {'b' * 200}\n", "has more than 200 characters"),
        ("Fix a.py\nb.py\n", "the line 'b.py' is not a task"),
        ("Here are the tasks:\nFix a.py\nFix b.py\n", "is talk"),
        ("Fix a.py\nFix b.py\nShall I go on?\n", "is talk"),
        ("I'll fix a.py\nFix b.py\n", "is talk"),
        ("Fix a.py. It is broken.\nFix b.py\n", "is talk"),
        ("$ sed -i s/a/b/ a.py\nFix b.py\n", "is code"),
        ("Fix a.py && rm b.py\nFix b.py\n", "is code"),
        ('{"tasks": ["Fix a.py"]}\nFix b.py\n', "is code"),
        ("git -C . status\nFix b.py\n", "is code"),
        ("# The tasks\nFix a.py\nFix b.py\n", "is code"),
    ],
)
def test_a_bad_answer(answer: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_answer(answer, 3)


def test_names_of_groups() -> None:
    assert name_group("Fix the Login!", []) == "fix-the-login"
    assert name_group("Fix the Login!", ["FIX-the-login", "fix-the-login-2"]) == "fix-the-login-3"
    assert name_group("\u4f60", []) == "goal"
    assert len(name_group("long " * 40, [])) <= 30


def test_an_agent_splits_a_goal_and_the_group_closes_with_its_tasks(sessionrun: Command) -> None:
    play(sessionrun, GOOD)
    done = sessionrun("split", GOAL, "--agent", "model", "--max-subtasks", "3")
    group = "fix-the-login-then-describe-it"
    assert done.stdout == f"{group}: {GOAL}\n" + "".join(
        f"  task-{number}: {title}\n" for number, title in enumerate(ANSWERED, 1)
    )
    assert done.stderr.startswith("session: ")
    asked = (sessionrun.cwd / "asked-0").read_text()
    assert asked.strip() == write_prompt(GOAL, 3).strip()
    session = sessionrun.load("status", "split")  # kept like any other
    assert session["session_id"] == done.stderr.split()[1]
    spec = json.loads((sessionrun.directory(session["session_id"]) / "spec.json").read_bytes())
    assert spec["approve"] is False
    feed = open_queue()
    assert [task.id for task in find_ready(feed, group)] == ["task-1", "task-2"]
    assert {task.body for task in find_ready(feed, group)} == {f"Part of: {GOAL}"}
    feed.close("task-1")
    assert feed.show(group).status == "open"
    feed.close("task-2")
    assert (feed.show(group).status, feed.show(group).title) == ("closed", GOAL)


@pytest.mark.slow
def test_a_bad_answer_is_asked_for_once_more_then_the_rule(sessionrun: Command) -> None:
    play(sessionrun, "Sure! Here they are:\n", GOOD, "Fix it\n")
    found = sessionrun.load("split", GOAL, "--agent", "model", "--dry-run")
    assert (found["by"], found["titles"], len(found["session_ids"])) == ("agent", ANSWERED, 2)
    assert (found["group"], found["tasks"], tasks()) == (None, [], [])
    assert "Another answer was refused: the line 'Sure! Here they are:' is talk" in (
        (sessionrun.cwd / "asked-1").read_text()
    )
    done = sessionrun("split", GOAL, "--agent", "model", "--json")  # one bad answer, then it fails
    found = json.loads(done.stdout)
    assert (done.returncode, found["by"], found["titles"]) == (0, "rule", PARTS)
    assert "a bad answer: it has 1 task, not 2 to 10" in done.stderr
    assert "a bad answer: the agent failed: exit_code: exit code 9" in done.stderr
    assert "the agent gave no good answer; the goal is split by rule" in done.stderr
    assert [task["id"] for task in found["tasks"]] == ["task-1", "task-2", "task-3"]
    assert {task["group"] for task in found["tasks"]} == {found["group"]["id"]}


def test_without_an_agent_the_rule_splits(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    done = sessionrun("split", GOAL, "--dry-run")
    assert done.stdout == "".join(f"would add: {part}\n" for part in PARTS)
    assert "no agent CLI found on PATH" in done.stderr
    assert done.stderr.rstrip().endswith("; the goal is split by rule")
    assert sessionrun("split", GOAL, "--dry-run", "--no-llm").stderr == ""
    assert not sessionrun.results.exists()
    for words, problem in (
        (("--agent", "nosuch"), "unknown agent 'nosuch'"),
        (("--agent", "shell"), "agent 'shell' runs prompts as scripts, so it cannot split a goal"),
        (("--agent", "shell", "--no-llm"), "--no-llm excludes --agent"),
    ):
        done = sessionrun("split", GOAL, *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert problem in done.stderr
    assert tasks() == []


def test_a_task_of_the_queue_becomes_the_group(sessionrun: Command) -> None:
    feed = open_queue()
    feed.create([Draft("Before"), Draft("The login", "- Fix it\n- Test it\n", 3, ("task-1",))])
    done = sessionrun("split", "--bead", "task-2", "--no-llm")
    assert done.stdout == "task-2: The login\n  task-3: Fix it\n  task-4: Test it\n"
    assert [(task.title, task.priority, task.blocked_by) for task in tasks(group="task-2")] == [
        ("Fix it", 3, ("task-1",)),
        ("Test it", 3, ("task-1",)),
    ]
    assert feed.show("task-2").body == "- Fix it\n- Test it\n"
    assert "a group already" in sessionrun("split", "--id", "task-2", "--no-llm").stderr
    for task_id in ("task-1", "task-3", "task-4"):
        feed.close(task_id)
    assert feed.show("task-2").status == "closed"
    assert "it is closed; reopen it first" in sessionrun("split", "--id", "task-2").stderr


def test_what_is_refused(own_place: Path) -> None:
    feed = open_queue()
    feed.create([Draft("One and two"), Draft("Only this")])
    feed.claim("task-1", Worker("w1", "a-session"))
    for options, problem in (
        ({"task_id": "task-1"}, "task-1: it is claimed; reopen it first"),
        ({"task_id": "task-2"}, "the rule finds only one part"),
        ({"task_id": "nosuch"}, "the queue has no task"),
        ({}, "give a goal, or --id"),
        ({"goal": " "}, "give a goal, or --id"),
        ({"goal": "a and b", "task_id": "task-2"}, "give a goal, or --id"),
        ({"goal": "a and b", "maximum": 1}, "--max-subtasks is 2 or more"),
    ):
        with pytest.raises(InputError) as caught:
            split(**options, by_rule=True)
        assert problem in str(caught.value)
    assert len(tasks()) == 2


@pytest.mark.slow
def test_into_beads(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_place / ".git").mkdir()
    (own_place / ".beads").mkdir()
    monkeypatch.setenv("PATH", f"{install(own_place.parent / 'programs')}{os.pathsep}{os.defpath}")
    found = split("Fix it and test it", by_rule=True)
    assert found.group is not None
    assert (found.group.title, found.group.is_group) == ("Fix it and test it", True)
    assert {task.group for task in found.tasks} == {found.group.id}
    feed = open_queue()
    for task in found.tasks:
        feed.close(task.id)
    assert feed.show(found.group.id).status == "closed"
