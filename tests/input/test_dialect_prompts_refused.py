"""What the prompts dialect warns of and refuses, each with its words, and any bytes at all."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from dialect_plans import DATA, load, one, only, refusal
from hypothesis import given
from hypothesis import strategies as st
from test_schema import SCHEMA, fits

from sessionrun.input.fields import TASK_FIELDS
from sessionrun.input.formats import FORMATS
from sessionrun.input.limits import MAX_INPUT_BYTES
from sessionrun.model.errors import InputError
from sessionrun.model.reasons import OF_WORK

# --- keys that nobody knows ---------------------------------------------------------------------------------

MEND = 'correct it, leave it out, or begin it with "x-" to keep it as a note'


def test_a_key_that_nobody_knows_is_refused_with_a_guess() -> None:
    prompts = [{"prompt": "p", "timout": 3, "check": {"commands": "true", "when": 1}}] * 3
    told = refusal(json.dumps({"prompts": prompts}), "p.json")
    where = "p.json: unknown key prompts[0].timout and 2 more like it"
    assert told == f'{where} (did you mean "timeout"?): {MEND} (1 other unknown key)'
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
    assert refusal(text) == f"stdin: unknown key k0: {MEND} (4999 other unknown keys)"


def test_formats_of_other_programs_warn() -> None:
    matrix = {"models": ["m"], "tasks": [{"id": "t", "name": "n", "prompts": ["p"], "promts": 1}], "concurency": 1}
    assert load(json.dumps(matrix)).warnings == (
        'stdin: unknown key concurency, ignored (did you mean "concurrency"?)',
        'stdin: unknown key tasks[0].promts, ignored (did you mean "prompts"?)',
    )


# --- what is refused ----------------------------------------------------------------------------------------

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


# --- anything at all ----------------------------------------------------------------------------------------

NAMES = st.sampled_from(["stdin", "p.json", "p.jsonl", "p.yaml", "p.md"])
KEYS = st.sampled_from([*TASK_FIELDS, "tasks", "defaults", "resources", "limits", "commands", "kind", "promt"])
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


@given(st.lists(VALUES, max_size=3), st.dictionaries(KEYS, VALUES, max_size=5), NAMES)
def test_any_values(tasks: list[Any], top: dict[str, Any], name: str) -> None:
    check_plan_or_refusal(json.dumps({**top, "prompts": tasks}).encode(), name)


@given(st.dictionaries(KEYS, VALUES, max_size=5), NAMES)
def test_any_fields_of_a_task(said: dict[str, Any], name: str) -> None:
    check_plan_or_refusal(json.dumps([{"prompt": "p", **said}]).encode(), name)
