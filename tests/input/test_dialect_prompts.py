"""The prompts dialect: what is accepted, examples against goldens, and who wins."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from dialect_plans import ROOT, load, one, only

from sessionrun.input.fields import TASK_FIELDS
from sessionrun.input.formats import choose_format, load_plan
from sessionrun.input.parse import Source
from sessionrun.input.settings import Options
from sessionrun.model.errors import InputError
from sessionrun.model.spec import Check, Prove

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


# --- what is accepted ---------------------------------------------------------------------------------------


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
