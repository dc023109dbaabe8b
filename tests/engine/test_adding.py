"""Tasks that a command line says: prompts, a task for each item, keys of all; and those that are added later.

`run --into ID` adds them to a session that runs; with real processes, and as a fold.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from simulation import Drive, Fate, SimulatedExecutor, as_read, make_session
from stages import git, make_repository_of

from sessionrun.client.planning.plan import Planned
from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.client.planning.preview import describe_plan
from sessionrun.engine.fold import apply
from sessionrun.engine.requests import find_fault, widen_spec
from sessionrun.input.given import list_items
from sessionrun.model.asked import Sandbox
from sessionrun.model.errors import InputError
from sessionrun.model.events import Entry, LimitHeard, TasksAdded
from sessionrun.model.landings import Mend
from sessionrun.model.places import Repository
from sessionrun.model.spec import AgentSpec, TaskSpec, Workspace
from sessionrun.session.history import begin, load_spec_now
from sessionrun.session.partners import LimitSharing, find_files, write_limit
from sessionrun.store.requests import parse_request
from sessionrun.store.session import SessionDir


def planned(given: Any, **asked: Any) -> dict[str, TaskSpec]:
    made = plan_input(given, {"agent": "shell", **asked})
    assert isinstance(made, Planned)
    return {task.id: task for task in made.spec.tasks}


# --- items ---


def test_what_the_places_in_a_prompt_stand_for(own_place: Path) -> None:
    (own_place / "src" / "c.py").mkdir(parents=True)
    for name in ("b.py", "a.py"):
        (own_place / "src" / name).touch()
    assert [one.text for one in list_items("src/*/")] == ["src/c.py"], "directories are meant only with a slash"
    tasks = planned(None, prompts=("{n} {} {.} {/} {{}} {{n}} {x} {",), each="src/*.py", title="of {/}")
    assert {name: (task.prompts, task.title) for name, task in tasks.items()} == {
        "src-a.py": (("1 src/a.py src/a a.py {} {n} {x} {",), "of a.py"),
        "src-b.py": (("2 src/b.py src/b b.py {} {n} {x} {",), "of b.py"),
    }


def test_a_task_for_each_line_and_each_prompt(own_place: Path) -> None:
    (own_place / "list").write_bytes(b"\xef\xbb\xbfFix it\r\n\r\n../x y\r\nfix it\r\n???\r\n")
    assert [one.id for one in list_items("@list")] == ["Fix-it", "x-y", "fix-it-3", "item-4"]
    tasks = planned(None, prompts=("a {}", "b {}"), each="@list")
    assert list(tasks) == [
        f"{name}-{number}" for name in ("Fix-it", "x-y", "fix-it-3", "item-4") for number in (1, 2)
    ]
    assert tasks["x-y-2"].prompts == ("b ../x y",)


def test_each_task_of_a_plan_is_there_for_each_item(own_place: Path) -> None:
    (own_place / "list").write_text("one\ntwo\n")
    (own_place / "plan.json").write_text(
        '{"max_parallel": 1, "prompts": ['
        '{"id": "a", "prompt": "make {}"}, {"id": "b", "prompt": "x", "needs": "a"}]}'
    )
    tasks = planned("plan.json", each="@list")
    expected = {"one-a": (), "one-b": ("one-a",), "two-a": (), "two-b": ("two-a",)}
    assert {name: task.needs for name, task in tasks.items()} == expected
    assert tasks["two-a"].prompts == ("make two",)
    numbered = [{"id": 1, "prompt": "{}"}, {"prompt": "x", "depends_on": [1]}]
    assert planned(numbered, each="@list")["two-2"].needs == ("two-1",)
    (own_place / "lines.jsonl").write_text('{"id": "a", "prompt": "make {}"}\n{"prompt": "x\\u2028{}"}\n')
    assert list(planned("lines.jsonl", each="@list")) == ["one-a", "one-2", "two-a", "two-2"]


def test_of_two_chains_the_first_one_is_shown() -> None:
    tasks = [{"id": name, "prompt": "x"} for name in "ab"]
    tasks += [{"id": "c", "prompt": "x", "needs": "b"}, {"id": "d", "prompt": "x", "needs": "a"}]
    made = plan_input({"prompts": tasks}, {"agent": "shell"})
    assert isinstance(made, Planned) and describe_plan(made)["critical_path"] == ["b", "c"]


def test_a_name_that_is_no_text(own_place: Path) -> None:
    (own_place / "\udcff.py").touch()
    with pytest.raises(InputError, match=r"the name is not text \(UTF-8\)"):
        planned(None, prompts=("{}",), each="\udcff*")


# --- keys of all tasks ---


def test_keys_of_the_command_line_beat_defaults_and_give_way_to_tasks() -> None:
    value = {
        "defaults": {"retries": 1, "env": {"A": "plan", "B": "plan"}, "priority": 5},
        "prompts": ["x", {"id": "own", "prompt": "x", "retries": 7}],
    }
    keys = {"retries": 2, "env": {"A": "line"}, "check": ["true"], "rounds": 3}
    first, own = planned(value, defaults=keys).values()
    assert (first.retries, first.env, first.rounds, first.priority) == (2, {"A": "line", "B": "plan"}, 3, 5)
    assert first.check is not None and first.check.commands == ("true",)
    assert own.retries == 7


# --- tasks that are added later ---


def add(sessionrun: Command, session_id: str, given: object, *words: str) -> subprocess.CompletedProcess[str]:
    return sessionrun("run", "--into", session_id, *words, stdin=json.dumps(given))


def outcomes(view: dict[str, Any]) -> dict[str, Any]:
    return {task["id"]: task["outcome"] for task in view["tasks"]}


def test_tasks_are_added_to_a_running_session(sessionrun: Command) -> None:
    session_id = sessionrun.start(sessionrun.waiting("a"))
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    elsewhere = sessionrun.cwd / "elsewhere"
    elsewhere.mkdir()
    plan = {"prompts": [{"id": "b", "prompt": "echo b >>ran", "needs": ["a"]}, {"id": "c", "prompt": "pwd"}]}
    done = add(sessionrun, session_id, plan)
    assert (done.returncode, done.stdout) == (0, f"{session_id[:8]}: 2 added\n"), done.stderr
    there = {"id": "d", "prompt": "pwd", "cwd": "elsewhere", "labels": {"late": "yes"}}
    told = json.loads(add(sessionrun, session_id, {"prompts": [there]}, "--json").stdout)
    assert ([task["id"] for task in told["tasks"]], told["total"]) == (["d"], 4)
    assert add(sessionrun, session_id, ["echo e"], "-q").stdout == f"{session_id}\n"
    (sessionrun.cwd / "sessionrun.toml").write_text('[agents.cat]\nargv = ["cat"]\n')
    done = add(sessionrun, session_id, {"prompts": [{"id": "f", "prompt": "x", "agent": "cat"}]})
    assert done.returncode == 0, done.stderr
    (sessionrun.cwd / "sessionrun.toml").unlink()  # an agent that the session does not know comes along
    view = sessionrun.until(session_id, lambda view: view["completed"] == 4)
    assert [(task["num"], task["agent"]) for task in view["tasks"]] == [
        *((num, "shell") for num in range(1, 6)),
        (6, "cat"),
    ]
    assert outcomes(view)["b"] is None
    assert add(sessionrun, session_id, ["true"], "--dry-run").returncode == 0
    refused = add(sessionrun, session_id, [{"id": "B", "prompt": "true"}])
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused
    sessionrun.let_go("a")
    view = sessionrun.wait(session_id)
    assert (view["total"], view["successful"], view["outcome"]) == (6, 6, "succeeded")
    assert (sessionrun.cwd / "ran").read_text() == "b\n"
    folder = sessionrun.directory(session_id)
    assert (folder / "task-c.txt").read_text() == f"{sessionrun.cwd}\n"
    assert (folder / "task-d.txt").read_text() == f"{elsewhere}\n"
    assert [*(folder / "requests").iterdir()] == []
    spec, now = SessionDir(folder).load_spec(), load_spec_now(SessionDir(folder))
    expected = (["a"], ["shell"], ["cat", "shell"])
    assert ([task.id for task in spec.tasks], [*spec.agents], sorted(now.agents)) == expected
    assert [task.id for task in now.tasks][:4] == ["a", "b", "c", "d"]
    for verb in ("status", "results", "explain", "cost", "logs"):
        assert sessionrun(verb, session_id).returncode == 0, verb
    assert sessionrun("results", session_id, "d").stdout.endswith(f"{elsewhere}\n")
    for verb in ("logs", "results", "explain"):
        assert sessionrun(verb, session_id, "f").returncode == 0, verb
    assert "nothing to retry" in sessionrun("retry", session_id).stdout


# --- the fold ---


def fold(events: Iterable[TasksAdded]) -> Any:
    state = begin(make_session([TaskSpec("a", ("x",))], resources={"slot": 1}))
    for seq, event in enumerate(events, 1):
        apply(state, Entry(seq, 0.0, 0.0, event))
    return state


def test_an_id_that_is_taken_twice_counts_once() -> None:
    event = TasksAdded("r", (TaskSpec("b", ("x",)),), {"new": AgentSpec("new", ("new",))}, resources={"db": 2})
    once, twice = fold([event]), fold([event, event])
    twice.seq = once.seq
    assert once == twice
    assert [task.num for task in once.tasks.values()] == [1, 2]
    assert (once.free, once.spec.resources) == ({"slot": 1, "db": 2}, {"slot": 1, "db": 2})
    assert "new" in once.spec.agents
    entry = Entry(1, 0.0, 0.0, event)
    assert as_read(entry) == entry


def test_tasks_of_one_request_may_need_each_other_in_any_order() -> None:
    tasks = (TaskSpec("c", ("x",), agent="one", needs=("b", "a")), TaskSpec("b", ("x",), agent="one"))
    spec, executor = make_session([TaskSpec("a", ("x",))]), SimulatedExecutor(lambda job: Fate(duration_s=2.0))
    drive = Drive(spec, executor, [(1.0, TasksAdded("r", tasks))]).run()
    assert drive.outcomes == dict.fromkeys("abc", "succeeded")


ADDED = TaskSpec("b", ("x",), agent="one")
TAKEN = "counts from a session's launch on"


def find_request_fault(**record: Any) -> str | None:
    """Why a request as a file is not done; None: it is."""
    state = begin(make_session([TaskSpec("a", ("x",))], resources={"slot": 3}))
    try:
        return find_fault(state, parse_request({"request_id": "r", **record}, "r"))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("width", [-1, "3", True, None])
def test_a_width_of_any_other_shape_is_refused(width: object) -> None:
    assert find_request_fault(kind="set", max_parallel=3) is None
    assert find_request_fault(kind="set", max_parallel=width)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "../b"},
        {"prompts": "true"},
        {"needs": ["b"]},
        {"workspace": {"kind": "worktree"}},
        {"mend": {"task": "no", "number": 1, "source": "no", "reason_class": "conflict", "reason": "x"}},
        {"timeout_s": 1e300},
        {"uses": {"slot": -1}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_task_of_any_other_shape_is_refused(wrong: dict[str, Any]) -> None:
    good = {"id": "b", "prompts": ["true"], "agent": "one"}
    assert find_request_fault(kind="add", tasks=[good]) is None
    for tasks in (None, [], [{"id": "b"}], [good, {**good, "id": "B"}], [{**good, **wrong}]):
        assert find_request_fault(kind="add", tasks=tasks), tasks


@pytest.mark.parametrize(
    ("has", "changes", "resources", "why"),
    [
        ({"slot": 1}, {"workspace": Workspace("worktree")}, {}, "wants a worktree"),
        ({"slot": 1}, {"sandbox": Sandbox("strict")}, {}, "has walls, which need a worktree"),
        ({"slot": 1}, {"agent": "nonesuch"}, {}, "has the agent 'nonesuch', which the session does not know"),
        ({"slot": 1}, {"needs": ("x",)}, {}, "needs 'x', which is not a task of this session"),
        ({"slot": 1}, {"id": "a"}, {}, "has a task 'a' already"),
        ({"slot": 1}, {"uses": {"slot": 2}}, {}, "uses 2 of 'slot', but there are 1"),
        ({"slot": 1}, {"mend": Mend("a", 1, "a", "conflict", "x")}, {}, "has a mend"),
        ({}, {}, {"slot": 1}, TAKEN),  # jobs would hold some of it already
        ({}, {}, {"provider:first": 1}, TAKEN),
        ({}, {}, {"budget": 1}, TAKEN),
        ({"slot": 1}, {}, {"slot": 2}, "the session has 1 of the resource 'slot', not 2"),
    ],
)
def test_what_does_not_fit_is_named(
    has: dict[str, int], changes: Any, resources: dict[str, int], why: str
) -> None:
    state = begin(make_session([TaskSpec("a", ("x",))], resources=has))
    event = TasksAdded("r", (replace(ADDED, **changes),), resources=resources)
    assert find_fault(state, replace(event, tasks=(ADDED,), resources=has)) is None
    assert why in (find_fault(state, event) or "")
    state.cancelled = True
    assert find_fault(state, event) == "the session is being cancelled"


def test_what_a_new_agent_leaves_is_ignored_and_the_rules_of_the_user_come_last() -> None:
    place = Repository("/r", "/r/.git", "main", "c" * 40, "/w", excludes="mine")
    spec = replace(make_session([TaskSpec("a", ("x",))]), repository=place)
    event = TasksAdded("r", (TaskSpec("b", ("x",)),), leavings=("theirs", "mine"))
    wide = widen_spec(spec, event)
    assert wide.repository is not None
    assert wide.repository.excludes == "theirs\nmine"
    assert widen_spec(wide, event).repository == wide.repository


def test_an_agent_that_comes_later_shares_its_limits(tmp_path: Path) -> None:
    """A session of scripts has no account, until an agent with one comes along."""
    script = AgentSpec("shell", ("/bin/sh",), prompt_kind="script")
    state = begin(replace(make_session([TaskSpec("a", ("x",))]), agents={"shell": script}))
    said: list[str] = []
    shared = LimitSharing(state.spec, os.environ, said.append)
    one = AgentSpec("one", ("one",))
    late = TasksAdded("r", (TaskSpec("b", ("x",), agent="one"),), {"one": one})
    limit = LimitHeard("one", "limit", "no more", until_at=100.0, met_at=1.0, session="other", strikes=1)
    (path,) = find_files(replace(state.spec, agents={"one": one}), os.environ).values()
    write_limit(path, limit, 1.0)
    assert shared.hear(state, 2.0, 2.0) == []
    apply(state, Entry(1, 0.0, 0.0, late))
    (heard,) = shared.hear(state, 3.0, 3.0)
    assert isinstance(heard, LimitHeard) and heard.provider == "provider:one"
    assert said == []


@pytest.mark.slow
def test_tasks_with_worktrees_are_added(sessionrun: Command) -> None:
    """They begin where the worktrees of the session do, or with the work of its tasks."""
    make_repository_of(sessionrun.cwd, {})
    go = sessionrun.cwd / "go"
    prompt = f"while ! [ -e {go} ]; do sleep 0.05; done; echo a >a"
    session_id = sessionrun.start({"prompts": [{"id": "a", "prompt": prompt}]}, "--worktree")
    sessionrun.until(session_id, lambda view: view["tasks"][0]["phase"] == "running")
    git(sessionrun.cwd, "commit", "-q", "--allow-empty", "-m", "two")
    plan = [{"id": "b", "prompt": "ls; echo b >b", "needs": ["a"]}, {"id": "c", "prompt": "echo c >c"}]
    done = add(sessionrun, session_id, {"prompts": plan}, "--worktree")
    assert done.returncode == 0, done.stderr
    make_repository_of(sessionrun.cwd / "other", {})
    other = Command(sessionrun.cwd / "other", sessionrun.results)
    words = ("run", "--into", session_id, "--worktree", "--results-dir", str(sessionrun.results))
    done = other(*words, stdin='{"prompts": ["x"]}')
    assert (done.returncode, f"and {other.cwd} is not in it" in done.stderr) == (2, True), done.stderr
    done = add(sessionrun, session_id, {"prompts": ["x"]}, "--worktree", "--base", "main")
    assert (done.returncode, "--base holds for a whole session" in done.stderr) == (2, True)
    go.touch()
    view = sessionrun.wait(session_id)
    assert set(outcomes(view).values()) == {"succeeded"}, view["tasks"]
    assert len({task["base_commit"] for task in view["tasks"] if task["id"] != "b"}) == 1
    assert (sessionrun.directory(session_id) / "task-b.txt").read_text() == "a\n"
    assert git(sessionrun.cwd, "ls-tree", "--name-only", view["tasks"][1]["branch"]).split() == ["a", "b"]


WHOLE = "holds for a whole session, and --into adds to one that runs"


@pytest.mark.parametrize(
    ("given", "asked", "why"),
    [
        (["x"], {"name": "x"}, f"--name {WHOLE}"),
        (["x"], {"approve": False}, f"--no-yolo {WHOLE}"),
        (["x"], {"land": True}, f"--land {WHOLE}"),
        (["x"], {"max_parallel": 2}, " --max-parallel N)"),
        (["x"], {"worktree": True}, "was started without a repository"),
        ({"feed": True}, {}, f"feed {WHOLE}"),
        ({"prompts": ["x"], "land": True}, {}, f"land {WHOLE}"),
        ({"prompts": ["x"], "worktrees": "sibling"}, {}, f"worktrees {WHOLE}"),
        ({"prompts": ["x"], "limits": {"halt": "now"}}, {}, f"halt {WHOLE}"),
        ({"prompts": ["x"], "limits": {"max_failures": 1}}, {}, f"max_failures {WHOLE}"),
        ({"prompts": ["x"], "limits": {"budget_usd": 3}}, {}, f"budget_usd {WHOLE}"),
        ({"prompts": ["x"], "limits": {"stagger": "1s"}}, {}, f"stagger_s {WHOLE}"),
        ([{"prompt": "x", "needs": ["x"]}], {}, "needs 'x', which is not a task of this session"),
        ([{"prompt": "x", "uses": {"db": 1}}], {}, "uses 'db': add it to"),
        ([{"id": "A", "prompt": "x"}], {}, "the session has a task 'A' already ('a'; ids differ"),
    ],
)
def test_what_cannot_be_added_is_refused(own_place: Path, given: Any, asked: dict[str, Any], why: str) -> None:
    make_repository_of(own_place, {})
    begun = plan_input([{"id": "a", "prompt": "x"}], {"agent": "shell", "worktree": True})
    assert isinstance(begun, Planned)
    into = replace(begun.spec, repository=None) if "repository" in why else begun.spec
    with pytest.raises(InputError) as refused:
        plan_input(given, {"agent": "shell", **asked}, into=into)
    assert why in str(refused.value)


def test_runs_of_a_matrix_are_added_and_the_results_file_of_that_input_is_not_written(own_place: Path) -> None:
    make_repository_of(own_place, {})
    (own_place / "m.json").write_text('{"tasks": [{"id": "t", "name": "t", "prompts": ["x"]}], "models": ["m"]}')
    matrix = {"agent": "shell", "worktree": True}
    begun = plan_input("m.json", matrix)
    assert isinstance(begun, Planned)
    added = plan_input("m.json", matrix, into=begun.spec)
    assert isinstance(added, Planned) and (len(added.spec.tasks), added.spec.exports) == (1, ())
    assert any(line.startswith("the results file of this input is not written: ") for line in added.warnings)
