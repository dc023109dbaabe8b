"""The matrix dialect: the configuration of the Qwen Concurrent Runner, every option of it, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sessionrun.input.formats import choose_format, load_plan
from sessionrun.input.matrix import SETUP
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan, RepositoryWish
from sessionrun.input.settings import Options
from sessionrun.model.spec import Check, Limits, Workspace

ROOT = Path(__file__).resolve().parent.parent
TASK = {"id": "t", "name": "Task", "prompts": ["a", "b"]}
SMALL = {"tasks": [TASK], "models": ["m"]}


def read(text: str | bytes, options: Options | None = None, *, requested: str | None = None) -> Plan:
    raw = text if isinstance(text, bytes) else text.encode()
    source = Source("c.json", raw, "/of/file", "/started")
    dialect, _ = choose_format(source, requested)
    assert dialect == "matrix"
    return load_plan(dialect, source, options or Options())


def plan_of(options: Options | None = None, **top: Any) -> Plan:
    return read(json.dumps({**SMALL, **top}), options)


def cells(plan: Plan) -> list[tuple[str, ...]]:
    return [tuple(task.labels[name] for name in ("task", "model", "agent", "sample")) for task in plan.tasks]


def test_the_defaults_are_those_of_the_document() -> None:
    plan = plan_of()
    (task,) = plan.tasks
    assert re.fullmatch(r"[0-9a-f]{8}", task.id)
    assert (task.prompts, task.title, task.agent, task.model) == (("a\nb",), "Task (m)", "qwen", "m")
    assert task.args == ("--openai-logging", "--openai-logging-dir={task_dir}/logs")
    assert task.workspace == Workspace("worktree", f"run-{task.id}", f"run-{task.id}")
    assert (task.setup, task.cwd, task.check) == ((SETUP,), "/started", None)
    assert (plan.max_parallel, plan.approve, plan.agent) == (4, None, None)
    keys = {"path": "source_repo", "--base": "branch", "--worktree-dir": "worktree_base"}
    home = str(Path("~/.qwen/worktrees").expanduser())
    assert plan.repository == RepositoryWish("/started", None, home, None, keys)
    (view,) = plan.exports
    assert view.kind == "matrix-results"
    assert view.settings == {
        "results_file": "/started/results.json",
        "outputs_dir": "/started/outputs",
        "shown_as": "outputs",
        "kept": {},
    }
    assert plan.warnings == ()


def test_every_option_of_the_document() -> None:
    plan = plan_of(
        concurrency=7,
        yolo=False,
        source_repo="../repo",
        branch="release/1",
        worktree_base="/elsewhere",
        outputs_dir="/abs/out",
        results_file="r/x.json",
        keep_worktree=True,
        models=["m", {"name": "n", "auth_type": "openai"}, {"name": "o", "authType": "qwen-oauth"}],
    )
    assert (plan.max_parallel, plan.approve) == (7, False)
    assert (plan.repository.path, plan.repository.base) == ("/repo", "release/1")
    assert (plan.repository.worktree_dir, plan.repository.keep) == ("/elsewhere", "always")
    settings = plan.exports[0].settings
    assert (settings["outputs_dir"], settings["shown_as"]) == ("/abs/out", "/abs/out")
    assert settings["results_file"] == "/started/r/x.json"
    plain, openai, oauth = plan.tasks
    assert (plain.args[0], openai.args[0], oauth.args[0]) == (
        "--openai-logging",
        "--auth-type=openai",
        "--auth-type=qwen-oauth",
    )
    assert openai.labels["auth_type"] == "openai"
    assert plain.workspace.branch == f"{{base}}-run-{plain.id}"


def test_null_is_as_good_as_nothing() -> None:
    assert plan_of(branch=None).repository.base is None
    assert plan_of(concurrency=0).max_parallel is None


@pytest.mark.parametrize("name", ["config.json", "samples.json"])
def test_the_examples_are_read_without_a_warning(name: str) -> None:
    plan = read((ROOT / "examples" / "matrix" / name).read_bytes())
    assert plan.warnings == ()
    assert len(plan.tasks) == {"config.json": 2, "samples.json": 12}[name]


def test_the_runs_come_task_by_task_and_model_by_model() -> None:
    plan = plan_of(
        tasks=[{**TASK, "id": "t"}, {**TASK, "id": "u"}],
        models=["m", "n"],
        agents=["qwen", "claude"],
        samples=2,
        exclude=[{"model": "n", "agent": "claude"}, {"task": "u", "sample": 2}],
    )
    assert cells(plan) == [
        ("t", "m", "qwen", "1"),
        ("t", "m", "qwen", "2"),
        ("t", "m", "claude", "1"),
        ("t", "m", "claude", "2"),
        ("t", "n", "qwen", "1"),
        ("t", "n", "qwen", "2"),
        ("u", "m", "qwen", "1"),
        ("u", "m", "claude", "1"),
        ("u", "n", "qwen", "1"),
    ]
    assert len({task.id for task in plan.tasks}) == 9
    assert {task.args for task in plan.tasks if task.agent == "claude"} == {()}


def test_keys_of_the_plan_format_for_all_and_for_one() -> None:
    other = {**TASK, "id": "u", "setup": [], "check": ["make u"], "env": {"B": "2"}, "timeout": 0}
    plan = plan_of(
        tasks=[TASK, other],
        setup="make",
        check="make t",
        env={"A": "1"},
        timeout="5m",
        retries=1,
        limits={"max_failures": 2},
        name="bench",
    )
    first, second = plan.tasks
    assert (first.setup, first.check, first.timeout_s, first.retries) == (("make",), Check(("make t",)), 300.0, 1)
    assert (second.setup, second.check, second.timeout_s) == ((), Check(("make u",)), None)
    assert (first.env, second.env) == ({"A": "1"}, {"A": "1", "B": "2"})
    assert (plan.limits, plan.name) == (Limits(max_failures=2), "bench")


def test_flags_take_the_place_of_an_axis_and_beat_the_input() -> None:
    options = Options(
        {
            "agent": "claude",
            "model": "opus",
            "max_parallel": 2,
            "name": "n",
            "timeout_s": 9.0,
            "labels": {"a": "b"},
        }
    )
    plan = plan_of(options, agents=["qwen"], models=["m", "n"], concurrency=5, timeout=3, name="x")
    assert cells(plan) == [("t", "opus", "claude", "1")]
    assert (plan.max_parallel, plan.name, plan.agent, plan.labels) == (2, "n", "claude", {"a": "b"})
    assert plan.tasks[0].timeout_s == 9.0


def test_the_configuration_counts_where_the_input_is_silent() -> None:
    options = Options({}, {"agent": "codex", "model": "x", "max_parallel": 9})
    assert cells(plan_of(options)) == [("t", "m", "codex", "1")]
    assert plan_of(options).max_parallel == 9
    assert plan_of(options, concurrency=1, agents=["qwen"]).max_parallel == 1


def test_an_unknown_key_is_told() -> None:
    plan = plan_of(concurency=2, tasks=[{**TASK, "promts": []}])
    assert plan.warnings == (
        'c.json: unknown key concurency, ignored (did you mean "concurrency"?)',
        'c.json: unknown key tasks[0].promts, ignored (did you mean "prompts"?)',
    )


def test_a_plan_with_one_model_is_no_matrix() -> None:
    text = b'{"tasks": ["a"], "model": "m"}'
    assert choose_format(Source("p.json", text, "/"), None)[0] == "prompts"


def test_a_matrix_without_models_is_no_plan_for_the_checkout() -> None:
    text = json.dumps({"source_repo": ".", "tasks": [TASK]}).encode()
    dialect, why = choose_format(Source("c.json", text, "/"), None)
    assert (dialect, why) == ("matrix", 'JSON object with "tasks" and "source_repo"')


def test_the_manual_names_every_key() -> None:
    from sessionrun.input import axes, matrix

    page = (ROOT / "man" / "sessionrun-input.5").read_text()
    section = page[page.index(".SH MATRIX") : page.index(".SH WHO WINS")]
    tables = (matrix._TOP_FIELDS, matrix._TASK_FIELDS, axes._MODEL_FIELDS, axes._RULE_FIELDS)
    keys = {key for table in tables for key in table if not key.endswith("_s")}
    assert [
        key for key in sorted(keys) if not re.search(rf"^\.BR? .*\b{key}\b|\\fB{key}\\fP", section, re.MULTILINE)
    ] == []


def test_a_task_without_a_name_takes_its_id() -> None:
    plan = plan_of(tasks=[{"id": "t", "prompts": ["a"]}])
    assert {(task.labels["name"], str(task.title).split(" (")[0]) for task in plan.tasks} == {("t", "t")}
