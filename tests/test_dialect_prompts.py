"""The prompts dialect: examples against goldens, every refusal with its message, and any bytes at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionrun.dialects import MAX_INPUT_BYTES, Fallback, Options, Plan, Source, choose_dialect
from sessionrun.errors import InputError
from sessionrun.model import TaskSpec

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "prompts").glob("*.*[!d]"))
GOLDENS = ROOT / "tests" / "data" / "dialects"

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


def load(text: str | bytes, name: str = "stdin", options: Options | None = None) -> Plan:
    raw = text.encode() if isinstance(text, str) else text
    source = Source(name, raw, "/plans")
    dialect, _ = choose_dialect(source, None)
    return dialect.load(source, options or Options())


def refusal(text: str | bytes, name: str = "stdin", options: Options | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load(text, name, options)
    assert caught.value.exit_code == 2
    return str(caught.value)


def only(plan: Plan) -> TaskSpec:
    (task,) = plan.tasks
    return task


def one(**task: Any) -> str:
    return json.dumps({"prompts": [{"prompt": "p", **task}]})


def told(plan: Plan) -> dict[str, Any]:
    """A plan without what is merely the model's default; generated ids are masked."""
    tasks = []
    for task in plan.tasks:
        silent = TaskSpec(id="", prompts=())
        said = {f.name for f in fields(task) if getattr(task, f.name) != getattr(silent, f.name)}
        record = {name: value for name, value in asdict(task).items() if name in said}
        record["id"] = "(generated)" if UUID4.fullmatch(task.id) else task.id
        tasks.append(record)
    return {**asdict(plan), "tasks": tasks}


# --- what is accepted ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_against_golden(example: Path) -> None:
    plan = load(example.read_bytes(), example.name)
    found = json.dumps(told(plan), indent=2) + "\n"
    golden = GOLDENS / f"{example.name}.plan.json"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(found)
    assert found == golden.read_text()
    assert plan.warnings == ()


def test_examples_are_all_there() -> None:
    assert [path.name for path in EXAMPLES] == ["diamond.yaml", "many.jsonl", "mixed.json", "tour.json"]


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


def test_readme_example_from_standard_input() -> None:
    plan = load('{"prompts":["Create a web app","Write tests"]}\n')
    assert [task.prompts[0] for task in plan.tasks] == ["Create a web app", "Write tests"]


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
    dialect, why = choose_dialect(source, None)
    assert why == reason
    assert [task.prompts for task in dialect.load(source, Options()).tasks] == [("a",), ("b",)]


def test_one_object_with_a_prompt_is_a_list_of_one() -> None:
    assert only(load('{"prompt": "a", "id": "x"}')).id == "x"


def test_asking_for_the_dialect_by_name() -> None:
    source = Source("stdin", b'["a"]', "/")
    assert choose_dialect(source, "prompts")[1] == "asked for"
    with pytest.raises(InputError, match="no dialect 'prompt'; there are: prompts"):
        choose_dialect(source, "prompt")


def test_every_task_field() -> None:
    task = only(
        load(
            one(
                id="build.1",
                title="Build it",
                agent="qwen",
                model="qwen3-coder",
                cwd="../web",
                workspace={"kind": "worktree"},
                setup="npm ci",
                links=["node_modules"],
                needs=[],
                uses=["gpu", "licence", "gpu"],
                check={"commands": ["npm test", "npm run lint"], "timeout": "5m", "uses": {"db": 2}},
                land="main",
                rounds=3,
                timeout="1h30m",
                idle_timeout=90,
                retries=2,
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
        "cwd": "/web",
        "workspace": {"kind": "worktree"},
        "setup": ("npm ci",),
        "links": ("node_modules",),
        "needs": (),
        "uses": {"gpu": 2, "licence": 1},
        "check": {"commands": ("npm test", "npm run lint"), "timeout_s": 300.0, "uses": {"db": 2}},
        "land": {"target": "main", "uses": {}},
        "rounds": 3,
        "timeout_s": 5400.0,
        "idle_timeout_s": 90.0,
        "retries": 2,
        "env": {"CI": "1"},
        "labels": {"team": "web"},
    }


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
    fallback = Options(fallback=Fallback(timeout_s=1))
    assert only(load('["p"]', options=fallback)).timeout_s == 1
    defaults = '{"defaults": {"timeout": 2}, "prompts": [%s]}'
    assert only(load(defaults % '"p"', options=fallback)).timeout_s == 2
    flag = Options(timeout_s=3, fallback=Fallback(timeout_s=1))
    assert only(load(defaults % '"p"', options=flag)).timeout_s == 3
    assert only(load(defaults % '{"prompt": "p", "timeout": 4}', options=flag)).timeout_s == 4
    assert only(load(defaults % '{"prompt": "p", "timeout": 0}', options=flag)).timeout_s is None
    assert only(load(defaults % '"p"', options=Options(timeout_s=0))).timeout_s is None


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
    options = Options(max_parallel=flag, fallback=Fallback(max_parallel=configured))
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
        ({"fallback": Fallback(agent="qwen", model="q")}, {}, {}, "qwen", "q"),
        ({"fallback": Fallback(agent="qwen", model="q")}, {"agent": "claude"}, {}, "claude", None),
        ({"fallback": Fallback(model="q")}, {"agent": "claude"}, {}, "claude", "q"),
    ],
)
def test_agent_and_the_model_beside_it(
    flags: dict[str, Any], top: dict[str, Any], task: dict[str, Any], agent: str, model: str | None
) -> None:
    found = only(load(json.dumps({**top, "prompts": [{"prompt": "p", **task}]}), options=Options(**flags)))
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
    plan = load(text, options=Options(name="flag", labels={"b": "2"}))
    assert (plan.name, plan.labels) == ("flag", {"a": "1", "b": "2"})


# --- warnings -----------------------------------------------------------------------------------------------


def test_unknown_keys_are_told_once_with_a_guess() -> None:
    prompts = [{"prompt": "p", "timout": 3, "check": {"commands": "true", "when": 1}}] * 3
    plan = load(json.dumps({"prompts": prompts, "max_paralel": 1, "colour of it": 1}), "p.json")
    assert plan.warnings == (
        'p.json: unknown key max_paralel, ignored (did you mean "max_parallel"?)',
        'p.json: unknown key ["colour of it"], ignored',
        'p.json: unknown key prompts[0].timout and 2 more like it, ignored (did you mean "timeout"?)',
        "p.json: unknown key prompts[0].check.when and 2 more like it, ignored",
    )


def test_unknown_keys_line_by_line() -> None:
    plan = load('"a"\n\n{"prompt": "b", "x": 1}', "p.jsonl")
    assert plan.warnings == ("p.jsonl: unknown key line 3: x, ignored",)


def test_unknown_keys_without_end_are_not_told_without_end() -> None:
    text = json.dumps({"prompts": ["p"], **{f"k{n}": 1 for n in range(5000)}})
    assert load(text).warnings[20:] == ("stdin: 4980 more unknown keys, ignored",)


# --- what is refused ----------------------------------------------------------------------------------------

DEEP = "[" * 65 + "]" * 65

REFUSED: list[tuple[str, str | bytes, str]] = [
    # the text
    ("stdin", "", 'stdin: empty input; write {"prompts": ["..."]}'),
    ("p.yaml", " \n", 'p.yaml: empty input; write {"prompts": ["..."]}'),
    ("stdin", b'["a",\n"\xff"]', "stdin: line 2: byte 0xff is not UTF-8; save it as UTF-8"),
    ("stdin", '["a"]'.encode("utf-16"), "stdin: line 1: byte 0xff is not UTF-8; save it as UTF-8"),
    ("p.json", '{"prompts": ["a",\n"b" "c"]}', "p.json: line 2, column 5: not valid JSON: expecting ',' delimiter"),
    ("stdin", '["a"] ["b"]', "stdin: line 1, column 7: not valid JSON: extra data"),
    ("p.jsonl", '"a"\n["b"', "p.jsonl: line 2, column 5: not valid JSON: expecting ',' delimiter (JSON Lines: one prompt a line)"),
    ("p.json", "prompts: [a]", "p.json: line 1, column 1: not valid JSON: expecting value"),
    ("p.yaml", "prompts: [a]\n---\n", "p.yaml: line 2, column 1: a second document begins; put all prompts into one"),
    ("p.yaml", "a: &x [1]\nprompts: *x", 'p.yaml: line 2, column 10: aliases ("*name") are not read; write the value out, or use "defaults"'),
    ("p.yaml", "prompts: !mine [a]", 'p.yaml: line 1, column 10: tag "!mine" is not read; remove it'),
    ("p.yaml", "prompts: [!!int '3']", 'p.yaml: line 1, column 11: tag "tag:yaml.org,2002:int" is not read; remove it'),
    ("p.yaml", "? [a]\n: b", "p.yaml: line 1, column 3: a key must be plain text"),
    # our rules about values
    ("p.json", '{"prompts": ["a"],\n "x": 1, "x": 2}', 'p.json: line 2, column 10: key "x" is given twice; keep one'),
    ("p.json", '[{"prompt": "a", "env": {"A": "1",\n"\\u0041": "2"}}]', 'p.json: line 2, column 1: key "A" is given twice; keep one'),
    ("p.jsonl", '"a"\n{"prompt": "b", "prompt": "c"}', 'p.jsonl: line 2, column 17: key "prompt" is given twice; keep one'),
    ("p.yaml", "prompts: [a]\nx: {y: 1, y: 2}", 'p.yaml: line 2, column 11: key "y" is given twice; keep one'),
    ("stdin", '{"prompts": ["a"], "x": NaN}', "stdin: line 1, column 25: NaN is not a finite number"),
    ("stdin", '{"prompts": ["a"], "x": [-Infinity]}', "stdin: line 1, column 26: -Infinity is not a finite number"),
    ("stdin", '{"prompts": ["a"], "x": 1e999}', "stdin: line 1, column 25: 1e999 is not a finite number"),
    ("p.yaml", "prompts: [a]\nx: -.inf", "p.yaml: line 2, column 4: -.inf is not a finite number"),
    ("stdin", '{"prompts": ["a"], "x": 9007199254740993}', "stdin: line 1, column 25: 9007199254740993 is out of range: whole numbers lie within 2^53 of 0; quote it if it is text"),
    ("p.yaml", "prompts: [a]\nx: -9007199254740993", "p.yaml: line 2, column 4: -9007199254740993 is out of range: whole numbers lie within 2^53 of 0; quote it if it is text"),
    ("stdin", '["a", ' + "9" * 5000 + "]", f"stdin: line 1, column 7: {'9' * 40}... is out of range: whole numbers lie within 2^53 of 0; quote it if it is text"),
    ("stdin", DEEP, "stdin: line 1, column 65: nesting deeper than 64 levels"),
    ("stdin", "[" * 100_000, "stdin: line 1, column 65: nesting deeper than 64 levels"),
    ("p.yaml", "x: " + DEEP[1:-1] + "\nprompts: [a]", "p.yaml: line 1, column 67: nesting deeper than 64 levels"),
    ("p.yaml", "".join(" " * n + "-\n" for n in range(70)), "p.yaml: line 65, column 65: nesting deeper than 64 levels"),
    ("stdin", '["a", "\\ud800"]', "stdin: line 1, column 7: text holds half of a surrogate pair (\\ud800 to \\udfff); write the whole character"),
    ("stdin", '["\\ude80\\ud83d"]', "stdin: line 1, column 2: text holds half of a surrogate pair (\\ud800 to \\udfff); write the whole character"),
    # the outline
    ("stdin", "Write some tests", 'stdin: no dialect takes this input (prompts: an object with "prompts", or a list of prompts)'),
    ("stdin", '{"instances": []}', 'stdin: no dialect takes this input (prompts: an object with "prompts", or a list of prompts)'),
    ("stdin", "# nothing\n", 'stdin: no dialect takes this input (prompts: an object with "prompts", or a list of prompts)'),
    ("stdin", '{"promtps": ["a"]}', 'stdin: the object has no "prompts"; is "promtps" meant?'),
    ("stdin", '{"prompts": null}', "stdin: prompts: must be a list of prompts, not null"),
    ("stdin", "[]", 'stdin: expected an object with "prompts", or a list of prompts, not an empty list'),
    ("p.json", '{"prompts": []}', "p.json: prompts: must not be an empty list; write at least one prompt"),
    ("p.json", '{"prompts": "a"}', 'p.json: prompts: must be a list of prompts, not the text "a"'),
    ("p.json", '{"prompts": ["a"], "tasks": ["b"]}', "p.json: prompts and tasks mean the same; keep one"),
    ("p.json", '{"prompts": ["a"], "schema_version": 2}', "p.json: schema_version: must be 1, not the number 2"),
    ("p.json", '{"prompts": ["a"], "max_parallel": -1}', "p.json: max_parallel: must be 0 (unlimited) or more, not -1"),
    ("p.json", '{"prompts": ["a"], "max_parallel": true}', "p.json: max_parallel: must be a whole number, not true"),
    ("p.json", '{"prompts": ["a"], "resources": {"gpu": 0}}', "p.json: resources.gpu: must be 1 or more, not 0"),
    ("p.json", '{"prompts": ["a"], "resources": {"slot": 2}}', 'p.json: resources: "slot" is what max_parallel counts, and every task holds one; use max_parallel'),
    ("p.json", '{"prompts": ["a"], "limits": {"max_failures": 1.5}}', "p.json: limits.max_failures: must be a whole number, not the number 1.5"),
    ("p.json", '{"prompts": ["a"], "limits": 3}', "p.json: limits: must be an object, not the number 3"),
    ("p.json", '{"prompts": ["a"], "name": ""}', "p.json: name: must not be empty"),
    ("p.json", '{"prompts": ["a"], "labels": {"a=b": "1"}}', 'p.json: labels["a=b"]: is no label: a key is one line of text without "="'),
    ("p.json", '{"prompts": ["a"], "labels": {"a": 1}}', "p.json: labels.a: must be text, not the number 1; quote it"),
    ("p.json", '{"prompts": ["a"], "defaults": ["a"]}', "p.json: defaults: must be an object, not a list"),
    ("p.json", '{"prompts": ["a"], "defaults": {"id": "x"}}', "p.json: defaults.id: belongs to one task, not to all"),
    ("p.json", '{"prompts": ["a"], "defaults": {"needs": []}}', "p.json: defaults.needs: belongs to one task, not to all"),
    # the list
    ("p.json", '{"prompts": ["a", ""]}', "p.json: prompts[1]: must not be empty"),
    ("p.json", '{"tasks": ["a", " \\n"]}', "p.json: tasks[1]: must not be empty"),
    ("p.json", '["a", 3]', "p.json: [1]: must be text or an object, not the number 3"),
    ("p.json", '["a", null]', "p.json: [1]: must be text or an object, not null"),
    ("p.jsonl", '"a"\n\n[]', "p.jsonl: line 3: must be text or an object, not a list"),
    ("p.jsonl", '"a"\n{"prompt": "b", "rounds": 0}', "p.jsonl: line 2: rounds: must be 1 or more, not 0"),
    ("p.json", '{"prompts": [{}]}', 'p.json: prompts[0]: has no "prompt"'),
    ("p.json", '{"prompts": [{"promt": "a"}]}', 'p.json: prompts[0]: has no "prompt"; is "promt" meant?'),
    ("p.yaml", "prompts:\n- Fix: the bug\n", 'p.yaml: prompts[0]: has no "prompt"; a text with ": " in it must be quoted'),
    ("p.json", '[{"prompt": "a", "prompts": ["b"]}]', "p.json: [0]: prompt and prompts mean the same; keep one"),
    ("p.json", '[{"prompt": "a", "timeout": 1, "timeout_s": 1}]', "p.json: [0]: timeout and timeout_s mean the same; keep one"),
    ("p.json", '[{"prompts": []}]', "p.json: [0].prompts: must not be an empty list"),
    ("p.json", '[{"prompts": ["a", ""]}]', "p.json: [0].prompts[1]: must not be empty"),
    ("p.json", '[{"id": "a", "prompt": "p"}, "b", {"id": "a", "prompt": "p"}]', 'p.json: [2].id: "a" is used twice, first by [0]; ids must differ in more than case'),
    ("p.jsonl", '{"id": "Ab", "prompt": "p"}\n{"id": "aB", "prompt": "p"}', 'p.jsonl: line 2: id: "aB" is used twice, first by line 1; ids must differ in more than case'),
    ("p.json", '[{"id": "a", "prompt": "p", "needs": "a"}]', "p.json: tasks need each other in a circle: a -> a"),
    ("p.json", '[{"id": "a", "prompt": "p", "needs": "b"}, {"id": "b", "prompt": "p", "needs": ["a"]}]', "p.json: tasks need each other in a circle: a -> b -> a"),
    ("p.json", '[{"id": "build", "prompt": "p"}, {"prompt": "p", "needs": ["biuld"]}]', 'p.json: [1].needs: "biuld" is no task of this input (did you mean "build"?)'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_refused(name: str, text: str | bytes, message: str) -> None:
    assert refusal(text, name) == message


def test_refused_by_the_yaml_parser() -> None:
    assert re.fullmatch(r"p\.yml: line \d, column \d+: not valid YAML: .*", refusal("prompts: [a", "p.yml"))
    assert re.fullmatch(r"p\.yml: line \d, column \d+: not valid YAML: .*", refusal("prompts: [a\0]", "p.yml"))


@pytest.mark.parametrize(("name", "text", "message"), [case for case in REFUSED if case[0] == "p.yaml"])
def test_refused_without_libyaml(
    name: str, text: str | bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("yaml.CLoader", raising=False)
    assert refusal(text, name) == message


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 3}, "prompt: must be text, not the number 3"),
    ({"prompt": ["a"]}, "prompt: must be text, not a list"),
    ({"id": "a/b"}, "id: \"a/b\" must be 1 to 128 letters, digits, '.', '_' or '-', and begin with a letter or digit"),
    ({"id": "../a"}, "id: \"../a\" must be 1 to 128 letters, digits, '.', '_' or '-', and begin with a letter or digit"),
    ({"id": "a\0b"}, "id: \"a\\x00b\" must be 1 to 128 letters, digits, '.', '_' or '-', and begin with a letter or digit"),
    ({"id": "a..b"}, "id: \"a..b\" must not hold '..' nor end in '.' or '.lock'"),
    ({"id": 1.5}, "id: must be text, not the number 1.5"),
    ({"id": True}, "id: must be text, not true"),
    ({"title": "a\nb"}, "title: must be one line without control characters"),
    ({"agent": ""}, "agent: must not be empty"),
    ({"agent": ["a"]}, "agent: must be text, not a list"),
    ({"model": "a\0"}, "model: must be one line without control characters"),
    ({"cwd": "a\0"}, "cwd: must be one line without control characters"),
    ({"workspace": "branch"}, 'workspace: must be one of none, worktree, slot, mirror, not "branch"'),
    ({"workspace": {}}, 'workspace: needs "kind"'),
    ({"setup": [1]}, "setup[0]: must be text, not the number 1"),
    ({"setup": "a\0"}, "setup: must not hold a NUL character"),
    ({"links": {"a": "b"}}, "links: must be text or a list of text, not an object"),
    ({"needs": [""]}, "needs[0]: must be the id of a task"),
    ({"uses": {"gpu": "2"}}, 'uses.gpu: must be a whole number, not the text "2"'),
    ({"uses": {"gpu": False}}, "uses.gpu: must be a whole number, not false"),
    ({"uses": ["slot"]}, 'uses[0]: "slot" is what max_parallel counts, and every task holds one; use max_parallel'),
    ({"check": {"timeout": 3}}, 'check: needs "commands": text or a list of text'),
    ({"check": {"commands": [""]}}, "check.commands[0]: must not be empty"),
    ({"check": {"commands": "a", "timeout": "soon"}}, 'check.timeout: must be seconds or text such as "90s", "15m", "2h", not the text "soon"'),
    ({"land": {}}, 'land: needs "target": the branch to land on'),
    ({"rounds": 0}, "rounds: must be 1 or more, not 0"),
    ({"rounds": 2.0}, "rounds: must be a whole number, not the number 2.0"),
    ({"timeout": True}, 'timeout: must be seconds or text such as "90s", "15m", "2h", not true'),
    ({"timeout": ""}, 'timeout: must be seconds or text such as "90s", "15m", "2h", not the text ""'),
    ({"timeout": "5 minutes"}, 'timeout: must be seconds or text such as "90s", "15m", "2h", not the text "5 minutes"'),
    ({"timeout": -1}, "timeout: must lie between 0 (no limit) and 100000000 seconds, not the number -1"),
    ({"idle_timeout": 1e300}, "idle_timeout: must lie between 0 (no limit) and 100000000 seconds, not the number 1e+300"),
    ({"retries": -1}, "retries: must be 0 or more, not -1"),
    ({"env": {"A=B": "1"}}, 'env["A=B"]: is no name for an environment variable'),
    ({"env": {"A": 1}}, "env.A: must be text, not the number 1; quote it"),
    ({"env": {"A": "\0"}}, "env.A: must not hold a NUL character"),
    ({"labels": {"a": "x\ny"}}, "labels.a: must be one line without control characters"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "message"), BAD_FIELDS)
def test_refused_field(said: dict[str, Any], message: str) -> None:
    assert refusal(one(**said), "p.json") == f"p.json: prompts[0].{message}"


def test_refused_for_its_size() -> None:
    text = b'["' + b"a" * MAX_INPUT_BYTES + b'"]'
    assert refusal(text) == "stdin: 64.0 MiB of input, more than 64 MiB; split it"


def test_names_of_files_are_shown_on_one_line() -> None:
    assert refusal("[]", "a\nb.json").startswith('"a\\nb.json": expected')


def test_negative_flag() -> None:
    message = refusal('["p"]', options=Options(max_parallel=-1))
    assert message == "max-parallel must be 0 (unlimited) or more, not -1"


# --- anything at all ----------------------------------------------------------------------------------------

NAMES = st.sampled_from(["stdin", "p.json", "p.jsonl", "p.yaml", "p.md"])
KEYS = st.sampled_from(
    ["id", "title", "prompt", "prompts", "tasks", "agent", "model", "cwd", "workspace", "setup", "links", "needs", "uses", "check", "land", "rounds", "timeout", "env", "labels", "defaults", "resources", "limits", "max_parallel", "schema_version", "commands", "kind", "target", "promt"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["a", "5m"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=6),
    max_leaves=12,
)


def check_plan_or_refusal(text: bytes, name: str) -> None:
    try:
        plan = load(text, name)
    except InputError as error:
        message = str(error)
        assert message.isprintable()
        assert len(message) < 500
    else:
        assert plan.tasks
        assert all(warning.isprintable() for warning in plan.warnings)


@given(st.binary(max_size=200), NAMES)
def test_any_bytes(text: bytes, name: str) -> None:
    check_plan_or_refusal(text, name)


@given(st.text(alphabet="{}[]\"'\\,:&*!|>-# \nabp019.eudNn~\t?%@", max_size=60), NAMES)
def test_any_punctuation(text: str, name: str) -> None:
    check_plan_or_refusal(text.encode(), name)


@settings(max_examples=200)
@given(st.lists(VALUES, max_size=3), st.dictionaries(KEYS, VALUES, max_size=5), NAMES)
def test_any_values(tasks: list[Any], top: dict[str, Any], name: str) -> None:
    check_plan_or_refusal(json.dumps({**top, "prompts": tasks}).encode(), name)


@given(st.dictionaries(KEYS, VALUES, max_size=5), NAMES)
def test_any_fields_of_a_task(said: dict[str, Any], name: str) -> None:
    check_plan_or_refusal(json.dumps([{"prompt": "p", **said}]).encode(), name)
