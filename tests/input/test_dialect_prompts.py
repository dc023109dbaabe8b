"""The prompts dialect: what is accepted, who wins, what is warned of and refused, and any bytes at all.

The JSON Schema of plans takes what the reader takes, and refuses slips of the pen.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sessionrun.client.schemas import describe_plan
from sessionrun.input.fields import DEFAULT_FIELDS, TASK_FIELDS, TOP_FIELDS
from sessionrun.input.formats import FORMATS, choose_format, load_plan
from sessionrun.input.limits import MAX_INPUT_BYTES
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan
from sessionrun.input.settings import Options
from sessionrun.model.errors import InputError
from sessionrun.model.reasons import OF_WORK
from sessionrun.model.spec import Check, TaskSpec

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "dialects"
SCHEMA = describe_plan()
EXAMPLES = sorted((ROOT / "examples" / "prompts").glob("*.*[!d]"))


def load(text: str | bytes, name: str = "stdin", options: Options | None = None) -> Plan:
    raw = text.encode() if isinstance(text, str) else text
    source = Source(name, raw, "/plans")
    dialect, _ = choose_format(source, None)
    return load_plan(dialect, source, options or Options())


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


def fits(value: Any, schema: dict[str, Any]) -> bool:
    return bool(Draft202012Validator(schema).is_valid(value))


# --- what is accepted ---


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


# --- who wins ---


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
    assert first == json.loads((DATA / "plans" / "prompts-readme.json").read_text())["text"]
    api, docs = load(plan).tasks
    assert (api.check, api.rounds, api.uses) == (Check(("make test",)), 3, {"database": 1})
    assert (docs.needs, docs.agent, docs.timeout_s) == (("api",), "claude", 1800.0)


# --- the schema ---


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_fit(example: Any) -> None:
    document = Source(example.name, example.read_bytes(), "/").document
    assert fits(document.value, SCHEMA)


def test_every_field_of_the_reader_is_in_it() -> None:
    parts = {"plan": TOP_FIELDS, "task": TASK_FIELDS, "defaults": DEFAULT_FIELDS}
    for name, table in parts.items():
        assert set(SCHEMA["$defs"][name]["properties"]) == set(table)
    assert {"check", "land", "limits", "brief", "workspace"} <= set(SCHEMA["$defs"])


@pytest.mark.parametrize(
    "plan",
    [
        {"prompts": []},
        {"promts": ["x"]},
        {"prompts": [{"id": "a"}]},
        {"prompts": [{"prompt": "x", "rounds": 0}]},
        {"prompts": [{"prompt": "x", "rounds": True}]},
        {"prompts": [{"prompt": "x", "fallback_on": "check_failed"}]},
        {"prompts": [{"prompt": "x", "brief": {"mode": "guess"}}]},
        {"prompts": [{"prompt": "x", "check": {"commands": 3}}]},
        {"prompts": ["x"], "resources": {"gpu": 0}},
        {"prompts": ["x"], "schema_version": 2},
        [],
        7,
    ],
)
def test_slips_do_not_fit(plan: Any) -> None:
    assert not fits(plan, SCHEMA)


# --- keys that nobody knows ---

MEND = 'correct it, leave it out, or begin it with "x-" to keep it as a note'


def test_a_key_that_nobody_knows_is_refused_with_a_guess() -> None:
    prompts = [{"prompt": "p", "timout": 3, "check": {"commands": "true", "when": 1}}] * 3
    told = refusal(json.dumps({"prompts": prompts}), "p.json")
    assert told == f'p.json: unknown key prompts[0].timout (did you mean "timeout"?): {MEND}'
    told = refusal(json.dumps({"prompts": ["p"], "colour of it": 1}), "p.json")
    assert told == f'p.json: unknown key ["colour of it"]: {MEND}'


@pytest.mark.parametrize(
    ("place", "plan"),
    [
        ("KEY", {"prompts": ["p"], "KEY": 1}),
        ("defaults.KEY", {"prompts": ["p"], "defaults": {"KEY": 1}}),
        ("defaults.check.KEY", {"prompts": ["p"], "defaults": {"check": {"commands": "a", "KEY": 1}}}),
        ("prompts[1].KEY", {"prompts": ["p", {"prompt": "p", "KEY": 1}]}),
        ("tasks[0].KEY", {"tasks": [{"prompt": "p", "KEY": 1}]}),
        ("[0].KEY", [{"prompt": "p", "KEY": 1}]),
        ("prompts[0].workspace.KEY", {"prompts": [{"prompt": "p", "workspace": {"kind": "none", "KEY": 1}}]}),
        ("prompts[0].brief.KEY", {"prompts": [{"prompt": "p", "brief": {"targets": ["a"], "KEY": 1}}]}),
        ("land.KEY", {"prompts": ["p"], "land": {"into": "main", "KEY": 1}}),
        ("limits.KEY", {"prompts": ["p"], "limits": {"KEY": 1}}),
    ],
)
def test_slips_are_refused_and_notes_are_kept_at_every_place(place: str, plan: object) -> None:
    """The schema agrees with the reader."""
    wrong, noted = (json.loads(json.dumps(plan).replace("KEY", key)) for key in ("timeot", "x-timeot"))
    assert f"stdin: unknown key {place.replace('KEY', 'timeot')}" in refusal(json.dumps(wrong))
    assert load(json.dumps(noted)).warnings == ()
    assert not fits(wrong, SCHEMA)
    assert fits(noted, SCHEMA)


def test_keys_of_maps_are_names_and_never_notes() -> None:
    text = one(env={"x-a": "1"}, labels={"x-b": "2"}, uses={"x-c": 1})
    task = only(load(text))
    assert (dict(task.env), dict(task.labels), dict(task.uses)) == ({"x-a": "1"}, {"x-b": "2"}, {"x-c": 1})


def test_an_editor_may_name_the_schema() -> None:
    plan = {"$schema": "https://example.org/plan.json", "prompts": ["p"]}
    assert load(json.dumps(plan)).tasks
    assert fits(plan, SCHEMA)


def test_unknown_keys_line_by_line() -> None:
    assert refusal('"a"\n\n{"prompt": "b", "y": 1}', "p.jsonl") == f"p.jsonl: unknown key line 3: y: {MEND}"


def test_unknown_keys_without_end_are_not_told_without_end() -> None:
    text = json.dumps({"prompts": ["p"], **{f"k{n}": 1 for n in range(5000)}})
    assert refusal(text) == f"stdin: unknown key k0: {MEND}"


def test_formats_of_other_programs_warn() -> None:
    matrix = {"models": ["m"], "tasks": [{"id": "t", "name": "n", "prompts": ["p"], "promts": 1}], "concurency": 1}
    assert load(json.dumps(matrix)).warnings == (
        'stdin: unknown key concurency, ignored (did you mean "concurrency"?)',
        'stdin: unknown key tasks[0].promts, ignored (did you mean "prompts"?)',
    )
    *told, last = load(json.dumps({**matrix, **{f"key{number}": 1 for number in range(25)}})).warnings
    assert (len(told), last) == (20, "stdin: 7 more unknown keys, ignored")


# --- what is refused ---

OUT_OF_RANGE = "is out of range: whole numbers lie within 2^53 of 0; quote it if it is text"
DEEP = "[" * 65 + "]" * 65

REFUSED: list[tuple[str, str | bytes, str]] = [
    *(tuple(row) for row in json.loads((DATA / "refused.json").read_text())),
    ("stdin", b'["a",\n"\xff"]', "stdin: line 2: byte 0xff is not UTF-8; save it as UTF-8"),
    (
        "stdin",
        '["a"]'.encode("utf-16-le"),
        "stdin: line 1, column 2: not valid JSON: "
        "a value is missing here: text in double quotes, true, false and null in small letters",
    ),
    ("stdin", b"\xff\xfe[\0]\0", "stdin: line 1: byte 0xff is not UTF-8; save it as UTF-8"),
    ("stdin", DEEP, "stdin: nesting deeper than 64 levels"),
    ("stdin", "[" * 100_000, "stdin: nesting deeper than 64 levels"),
    ("p.yaml", f"x: {DEEP[1:-1]}", "p.yaml: line 1, column 67: nesting deeper than 64 levels"),
    ("p.yaml", "- " * 70 + "a", "p.yaml: line 1, column 129: nesting deeper than 64 levels"),
    (
        "stdin",
        '[{"prompt": "p", "fallback_on": "check_failed"}]',
        "stdin: [0].fallback_on: must be one of " + ", ".join(OF_WORK) + ', not the text "check_failed"',
    ),
    ("stdin", '["a", ' + "9" * 5000 + "]", f"stdin: {'9' * 40}... {OUT_OF_RANGE}"),
]
"""Name of the input, the input, the message."""


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_refused(name: str, text: str | bytes, message: str) -> None:
    assert refusal(text, name) == message


@pytest.mark.parametrize("text", ["Write some tests", '{"instances": []}', "# nothing\n"])
def test_refused_by_all(text: str) -> None:
    expected = "; ".join(f"{name}: {one.expects}" for name, one in FORMATS.items())
    assert refusal(text) == (
        f'stdin: no input format fits it; the shortest input is a list of prompts: ["Fix the bug"]; '
        f"a prompt as plain text: sessionrun -p - ({expected})"
    )


def test_refused_by_the_yaml_parser() -> None:
    assert re.fullmatch(r"p\.yml: line \d, column \d+: not valid YAML: .*", refusal("prompts: [a", "p.yml"))
    assert re.fullmatch(r"p\.yml: line \d, column \d+: not valid YAML: .*", refusal("prompts: [a\0]", "p.yml"))


@pytest.mark.parametrize(("name", "text", "message"), [case for case in REFUSED if case[0] == "p.yaml"])
def test_refused_without_libyaml(
    name: str, text: str | bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("yaml.CLoader", raising=False)
    assert refusal(text, name) == message


BAD_FIELDS: list[tuple[dict[str, Any], str]] = json.loads((DATA / "refused-fields.json").read_text())
"""What one prompt object says beside its prompt, the message behind its place."""


@pytest.mark.parametrize(("said", "message"), BAD_FIELDS)
def test_refused_field(said: dict[str, Any], message: str) -> None:
    assert refusal(one(**said), "p.json") == f"p.json: prompts[0].{message}"


def test_refused_for_its_size() -> None:
    text = b'["' + b"a" * MAX_INPUT_BYTES + b'"]'
    assert refusal(text) == "stdin: 64.0 MiB of input, more than 64 MiB; split it"


def test_names_of_files_are_shown_on_one_line() -> None:
    assert refusal("[]", "a\nb.json").startswith('"a\\nb.json": expected')


# --- anything at all ---

NAMES = st.sampled_from(["stdin", "p.json", "p.jsonl", "p.yaml", "p.md"])
KEYS = st.sampled_from([*TASK_FIELDS, "tasks", "defaults", "resources", "limits", "commands", "kind", "promt"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["a", "5m"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=6),
    max_leaves=12,
)


ANYTHING = {
    "bytes": st.binary(max_size=200),
    "punctuation": st.text(alphabet="{}[]\"'\\,:&*!|>-# \nabp019.eudNn~\t?%@", max_size=60).map(str.encode),
    "values": st.tuples(st.dictionaries(KEYS, VALUES, max_size=5), st.lists(VALUES, max_size=3)).map(
        lambda both: json.dumps({**both[0], "prompts": both[1]}).encode()
    ),
    "fields of a task": st.dictionaries(KEYS, VALUES, max_size=5).map(
        lambda said: json.dumps([{"prompt": "p", **said}]).encode()
    ),
}


@pytest.mark.parametrize("kind", ANYTHING)
@given(st.data(), NAMES)
def test_anything_is_a_plan_or_a_refusal(kind: str, data: st.DataObject, name: str) -> None:
    try:
        plan = load(data.draw(ANYTHING[kind]), name)
    except InputError as error:
        message = str(error)
        assert message.isprintable()
        assert len(message) < 500
    else:
        assert plan.tasks
        assert all(warning.isprintable() for warning in plan.warnings)
