"""The prompts dialect: what is accepted, examples against goldens, and who wins."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from dialect_plans import DATA, ROOT, load, one, only

from sessionrun.input.fields import TASK_FIELDS
from sessionrun.input.formats import choose_format, load_plan
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan
from sessionrun.input.settings import Options
from sessionrun.model.errors import InputError
from sessionrun.model.spec import Check, Prove, TaskSpec

EXAMPLES = sorted((ROOT / "examples" / "prompts").glob("*.*[!d]"))

OF_OTHERS = ("approve", "repository", "exports")
"""What only other dialects say."""

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

README_EXAMPLE = """\
{
    "prompts": [
        "Create a calculator web app",
        "Write unit tests for the calculator",
        {
            "id": "custom-uuid",
            "prompt": "Add documentation"
        }
    ]
}
"""


def told(plan: Plan) -> dict[str, Any]:
    """A plan without what is merely the model's default; generated ids are masked."""
    tasks = []
    for task in plan.tasks:
        silent = TaskSpec(id="", prompts=())
        said = {f.name for f in fields(task) if getattr(task, f.name) != getattr(silent, f.name)}
        record = {name: value for name, value in asdict(task).items() if name in said}
        record["id"] = "(generated)" if UUID4.fullmatch(task.id) else task.id
        tasks.append(record)
    return {name: value for name, value in {**asdict(plan), "tasks": tasks}.items() if name not in OF_OTHERS}


# --- what is accepted ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_against_golden(example: Path) -> None:
    plan = load(example.read_bytes(), example.name)
    found = json.dumps(told(plan), indent=2) + "\n"
    golden = DATA / f"{example.name}.plan.json"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(found)
    assert found == golden.read_text()
    assert plan.warnings == ()


def test_examples_are_all_there() -> None:
    assert [path.name for path in EXAMPLES] == [
        "diamond.yaml",
        "many.jsonl",
        "mixed.json",
        "release.yaml",
        "tour.json",
    ]


def test_readme_example_of_the_runner_whose_place_we_take() -> None:
    plan = load(README_EXAMPLE, "prompts.json")
    assert [task.prompts for task in plan.tasks] == [
        ("Create a calculator web app",),
        ("Write unit tests for the calculator",),
        ("Add documentation",),
    ]
    assert plan.tasks[2].id == "custom-uuid"
    assert all(UUID4.fullmatch(task.id) for task in plan.tasks[:2])
    assert (plan.agent, plan.max_parallel, plan.tasks[0].agent) == (None, None, "")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("p.json", '{"prompts": ["a", "b"]}', 'JSON object with "prompts"'),
        ("stdin", '{"tasks": ["a", "b"]}', 'JSON object with "tasks"'),
        ("stdin", '["a", "b"]', "JSON list of prompts"),
        ("stdin", "prompts: [a, b]", 'YAML object with "prompts"'),
        ("p.yml", "- a\n- b\n", "YAML list of prompts"),
        ("p.YAML", '{"prompts": ["a", b]}', 'YAML object with "prompts"'),
        ("stdin", '"a"\n"b"\n', "JSON Lines, a prompt each"),
        ("stdin", '{"prompt": "a"}\r\n\r\n{"prompt": "b"}', "JSON Lines, a prompt each"),
        ("p.json", '\n{"prompt": "a"}\n"b"', "JSON Lines, a prompt each"),
        ("p.jsonl", '"a"\n{"prompts": "b"}', "JSON Lines, a prompt each"),
        ("p.ndjson", '"a"\n"b"', "JSON Lines, a prompt each"),
        ("stdin", '"prompts": [a, b]', 'YAML object with "prompts"'),
        ("stdin", '\ufeff["a", "b"]', "JSON list of prompts"),
    ],
)
def test_spellings_of_the_same_list(name: str, text: str, reason: str) -> None:
    source = Source(name, text.encode(), "/plans")
    dialect, why = choose_format(source, None)
    assert why == reason
    assert [task.prompts for task in load_plan(dialect, source, Options()).tasks] == [("a",), ("b",)]


def test_one_object_with_a_prompt_is_a_list_of_one() -> None:
    assert only(load('{"prompt": "a", "id": "x"}')).id == "x"


def test_asking_for_the_dialect_by_name() -> None:
    source = Source("stdin", b'["a"]', "/")
    assert choose_format(source, "prompts")[1] == "asked for"
    with pytest.raises(InputError, match=r"no input format 'prompt'; there are: .*prompts"):
        choose_format(source, "prompt")


def test_every_task_field() -> None:
    task = only(
        load(
            one(
                id="build.1",
                title="Build it",
                agent="qwen",
                model="qwen3-coder",
                args=["--verbose"],
                cwd="../web",
                workspace={"kind": "mirror"},
                repo="../web",
                ref="v1",
                sandbox={"policy": "strict", "network": ["example.org"], "env": "TOKEN", "memory": "2G"},
                environment={"python": "3.11"},
                setup="npm ci",
                setup_timeout="20m",
                links=["node_modules"],
                needs=[],
                base="session",
                uses=["gpu", "licence", "gpu"],
                check={
                    "commands": ["npm test", "npm run lint"],
                    "timeout": "5m",
                    "uses": {"db": 2},
                    "verify": "Judge.",
                    "files": "src/a.py",
                    "rounds": 3,
                    "reset": "hard",
                    "report": "ignore",
                },
                brief={
                    "mode": "edit",
                    "system": "You edit.",
                    "context": ["docs/./a.md"],
                    "targets": "src/a.py",
                    "outputs": ["src/a.py"],
                    "room": 2,
                    "max_context_lines": 10,
                    "max_output_lines": 20,
                    "create_directories": False,
                    "protected": ["jobs/_*"],
                },
                rounds=3,
                timeout="1h30m",
                round_timeout="10m",
                idle_timeout=90,
                answer="text",
                prompt_mode="continue",
                retries=2,
                priority=-3,
                fallback=["codex", "aider/openai/gpt"],
                fallback_on="usage_limit",
                expect_change=True,
                prove={"red": False, "test_files": "checks/**", "own": "Makefile", "repeat": 3},
                budget_usd=1.5,
                env={"CI": "1"},
                labels={"team": "web"},
            )
        )
    )
    assert asdict(task) == {
        "id": "build.1",
        "prompts": ("p",),
        "title": "Build it",
        "agent": "qwen",
        "model": "qwen3-coder",
        "args": ("--verbose",),
        "cwd": "/web",
        "workspace": {"kind": "mirror", "branch": None, "directory": None},
        "upstream": {"repo": "/web", "ref": "v1", "mirror": "", "home": None, "history": None, "start": None},
        "environment": {"kind": "python", "python": "3.11"},
        "setup": ("npm ci",),
        "setup_timeout_s": 1200.0,
        "links": ("node_modules",),
        "needs": (),
        "base": "session",
        "uses": {"gpu": 2, "licence": 1},
        "check": {
            "commands": ("npm test", "npm run lint"),
            "timeout_s": 300.0,
            "uses": {"db": 2},
            "verify": "Judge.",
            "files": ("src/a.py",),
            "reset": "hard",
            "report": "ignore",
        },
        "brief": {
            "mode": "edit",
            "system": "You edit.",
            "context": ("docs/a.md",),
            "targets": ("src/a.py",),
            "outputs": ("src/a.py",),
            "room": 2,
            "max_context_lines": 10,
            "max_output_lines": 20,
            "create_directories": False,
            "protected": ("jobs/_*",),
        },
        "prove": {"red": False, "test_files": ("checks/**",), "own": ("Makefile",), "repeat": 3, "hidden": None},
        "rounds": 3,
        "timeout_s": 5400.0,
        "round_timeout_s": 600.0,
        "idle_timeout_s": 90.0,
        "linger_s": 60.0,
        "leftovers": "tell",
        "answer": "text",
        "prompt_mode": "continue",
        "retries": 2,
        "priority": -3,
        "fallback": ({"agent": "codex", "model": None}, {"agent": "aider", "model": "openai/gpt"}),
        "fallback_on": ("usage_limit",),
        "expect_change": True,
        "mend": None,
        "sandbox": {
            "policy": "strict",
            "network": "proxy",
            "hosts": ("example.org",),
            "env": ("TOKEN",),
            "read": (),
            "devices": (),
            "processes": None,
            "memory": 2 << 30,
            "cpus": None,
            "disk": None,
        },
        "budget_usd": 1.5,
        "env": {"CI": "1"},
        "labels": {"team": "web"},
    }


def test_the_proof_of_a_check_is_that_of_its_task() -> None:
    check = {"commands": "make test", "prove": {"repeat": 4}}
    defaults = {"check": {"commands": "true", "prove": True}}
    plan = load(json.dumps({"defaults": defaults, "prompts": ["p", {"prompt": "q", "check": check}]}))
    assert [task.prove for task in plan.tasks] == [Prove(), Prove(repeat=4)]
    assert only(load(one(check=check, prove={"repeat": 4}))).prove == Prove(repeat=4)
    off = {"defaults": defaults, "prompts": [{"prompt": "q", "prove": False}]}
    assert only(load(json.dumps(off))).prove is None
    with pytest.raises(InputError, match=r'check\.prove: .*"prove" beside the check .*keep one'):
        load(one(check=check, prove=True))
    with pytest.raises(InputError, match=r"check\.prove\.repeat: "):
        load(one(check={"commands": "true", "prove": {"repeat": "often"}}))


def test_the_rounds_of_a_check_are_those_of_its_task() -> None:
    check = {"commands": "make test", "rounds": 4}
    defaults = {"check": {"commands": "true", "rounds": 2}}
    plan = load(json.dumps({"defaults": defaults, "prompts": ["p", {"prompt": "q", "check": check}]}))
    assert [task.rounds for task in plan.tasks] == [2, 4]
    assert only(load(one(check=check, rounds=4))).rounds == 4
    assert only(load(json.dumps({"defaults": defaults, "prompts": [{"prompt": "q", "rounds": 9}]}))).rounds == 9
    with pytest.raises(InputError, match=r'check\.rounds: is 4, but "rounds" beside the check is 3; keep one'):
        load(one(check=check, rounds=3))


def test_every_top_level_field() -> None:
    top = {
        "schema_version": 1,
        "name": "nightly",
        "agent": "codex",
        "model": "m",
        "max_parallel": 4,
        "resources": {"gpu": 2},
        "limits": {"max_failures": 3},
        "labels": {"team": "web"},
        "defaults": {"retries": 1},
        "tasks": ["p"],
    }
    plan = load(json.dumps(top))
    assert (plan.name, plan.agent, plan.max_parallel) == ("nightly", "codex", 4)
    assert (plan.resources, plan.limits.max_failures, plan.labels) == ({"gpu": 2}, 3, {"team": "web"})
    task = only(plan)
    assert (task.agent, task.model, task.retries) == ("codex", "m", 1)


@pytest.mark.parametrize(
    ("said", "field", "value"),
    [
        ({"timeout": 0}, "timeout_s", None),
        ({"timeout_s": 1.5}, "timeout_s", 1.5),
        ({"timeout": "90"}, "timeout_s", 90.0),
        ({"timeout": "90s"}, "timeout_s", 90.0),
        ({"timeout": "0.5s"}, "timeout_s", 0.5),
        ({"timeout": "2d"}, "timeout_s", 172800.0),
        ({"id": ""}, "title", None),
        ({"id": 0}, "title", None),
        ({"id": 42}, "id", "42"),
        ({"id": None, "model": None}, "model", None),
        ({"uses": "gpu"}, "uses", {"gpu": 1}),
        ({"uses": {"gpu": 3}}, "uses", {"gpu": 3}),
        ({"check": []}, "check", None),
        ({"setup": ["a", "b"]}, "setup", ("a", "b")),
        ({"prompt": "null \0 byte"}, "prompts", ("null \0 byte",)),
        ({"prompt": None, "prompts": ["a", "b"]}, "prompts", ("a", "b")),
        ({"prompt": " spaces stay \n"}, "prompts", (" spaces stay \n",)),
        ({"prompt": "\U0001f680 \\ud800"}, "prompts", ("\U0001f680 \\ud800",)),
        ({"cwd": "/a/../b"}, "cwd", "/b"),
        ({"cwd": "."}, "cwd", "/plans"),
    ],
)
def test_values(said: Mapping[str, Any], field: str, value: Any) -> None:
    assert getattr(only(load(one(**said))), field) == value


def test_needs_are_ids_each_counted_once() -> None:
    text = '[{"id": "a", "prompt": "p"}, {"id": 2, "prompt": "p", "depends_on": ["a", "a"]},'
    plan = load(text + '{"prompt": "p", "needs": 2}]')
    assert [task.needs for task in plan.tasks] == [(), ("a",), ("2",)]


def test_yaml_has_no_surprises() -> None:
    text = """
    prompts:
      - prompt: on
        id: 010
        title: 2024-01-01
        labels: {no: "1", country: no, empty: ''}
      - >-
        folded
        text
      - !!str 12
    """
    plan = load(text)
    task = plan.tasks[0]
    assert (task.prompts, task.id, task.title) == (("on",), "010", "2024-01-01")
    assert task.labels == {"no": "1", "country": "no", "empty": ""}
    assert [task.prompts[0] for task in plan.tasks[1:]] == ["folded text", "12"]


# --- who wins -----------------------------------------------------------------------------------------------


def test_timeouts_from_weak_to_strong() -> None:
    fallback = Options({}, {"timeout_s": 1})
    assert only(load('["p"]', options=fallback)).timeout_s == 1
    defaults = '{"defaults": {"timeout": 2}, "prompts": [%s]}'
    assert only(load(defaults % '"p"', options=fallback)).timeout_s == 2
    flag = Options({"timeout_s": 3}, {"timeout_s": 1})
    assert only(load(defaults % '"p"', options=flag)).timeout_s == 3
    assert only(load(defaults % '{"prompt": "p", "timeout": 4}', options=flag)).timeout_s == 4
    assert only(load(defaults % '{"prompt": "p", "timeout": 0}', options=flag)).timeout_s is None
    assert only(load(defaults % '"p"', options=Options({"timeout_s": 0}))).timeout_s is None


@pytest.mark.parametrize(
    ("flag", "written", "configured", "settled"),
    [
        (None, None, None, None),
        (None, None, 4, 4),
        (None, 0, 4, None),
        (None, 3, 4, 3),
        (2, 3, 4, 2),
        (0, 3, 4, None),
    ],
)
def test_max_parallel(flag: int | None, written: int | None, configured: int | None, settled: int | None) -> None:
    options = Options({"max_parallel": flag}, {"max_parallel": configured})
    assert load(json.dumps({"max_parallel": written, "prompts": ["p"]}), options=options).max_parallel == settled


@pytest.mark.parametrize(
    ("flags", "top", "task", "agent", "model"),
    [
        ({}, {}, {}, "", None),
        ({}, {"agent": "claude", "model": "opus"}, {}, "claude", "opus"),
        ({}, {"agent": "claude", "model": "opus"}, {"agent": "codex"}, "codex", None),
        ({}, {"agent": "claude", "model": "opus"}, {"agent": "claude"}, "claude", "opus"),
        ({}, {"agent": "claude", "model": "opus"}, {"model": "haiku"}, "claude", "haiku"),
        ({}, {"model": "m"}, {"agent": "aider"}, "aider", "m"),
        ({"agent": "codex"}, {"agent": "claude", "model": "opus"}, {}, "codex", None),
        ({"model": "m"}, {"agent": "claude", "model": "opus"}, {}, "claude", "m"),
        ({"agent": "codex", "model": "m"}, {}, {"agent": "claude"}, "claude", None),
        ({"config": {"agent": "qwen", "model": "q"}}, {}, {}, "qwen", "q"),
        ({"config": {"agent": "qwen", "model": "q"}}, {"agent": "claude"}, {}, "claude", None),
        ({"config": {"model": "q"}}, {"agent": "claude"}, {}, "claude", "q"),
    ],
)
def test_agent_and_the_model_beside_it(
    flags: dict[str, Any], top: dict[str, Any], task: dict[str, Any], agent: str, model: str | None
) -> None:
    found = only(
        load(
            json.dumps({**top, "prompts": [{"prompt": "p", **task}]}),
            options=Options(flags, flags.pop("config", {})),
        )
    )
    assert (found.agent, found.model) == (agent, model)


def test_maps_add_to_the_defaults_and_lists_replace_them() -> None:
    defaults = {"env": {"A": "1", "B": "1"}, "uses": ["gpu"], "labels": {"x": "1"}, "setup": ["a"], "cwd": "d"}
    said = {"prompt": "p", "env": {"B": "2"}, "uses": {"gpu": 2, "db": 1}, "setup": "b"}
    plan = load(json.dumps({"defaults": defaults, "prompts": [said, "q"]}))
    task, plain = plan.tasks
    assert task.env == {"A": "1", "B": "2"}
    assert (task.uses, task.labels, task.setup) == ({"gpu": 2, "db": 1}, {"x": "1"}, ("b",))
    assert task.cwd == plain.cwd == "/plans/d"
    assert (plain.env, plain.setup) == ({"A": "1", "B": "1"}, ("a",))


def test_flags_beat_name_and_labels() -> None:
    text = '{"name": "n", "labels": {"a": "1", "b": "1"}, "prompts": ["p"]}'
    plan = load(text, options=Options({"name": "flag", "labels": {"b": "2"}}))
    assert (plan.name, plan.labels) == ("flag", {"a": "1", "b": "2"})


def test_the_manuals_examples_are_read() -> None:
    page = (ROOT / "man" / "sessionrun-input.5").read_text().replace("\\-", "-")
    first, plan, *_ = (block.partition(".EE")[0] for block in page.split(".EX\n")[1:])
    assert first == README_EXAMPLE
    api, docs = load(plan).tasks
    assert (api.check, api.rounds, api.uses) == (Check(("make test",)), 3, {"database": 1})
    assert (docs.needs, docs.agent, docs.timeout_s) == (("api",), "claude", 1800.0)


def test_the_manual_names_every_key() -> None:
    page = (ROOT / "man" / "sessionrun-input.5").read_text()
    assert [key for key in TASK_FIELDS if not re.search(rf"^\.BR? .*\b{key}\b", page, re.MULTILINE)] == []
