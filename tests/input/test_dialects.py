"""Input formats: what each input becomes, who wins, what is warned of and refused, and any bytes at all.

The JSON Schema of plans takes what the reader of prompts takes, and refuses slips of the pen.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.client.schemas import describe_plan
from sessionrun.input import matrix
from sessionrun.input.fields import TASK_FIELDS
from sessionrun.input.formats import FORMATS, choose_format, load_plan
from sessionrun.input.given import find_input
from sessionrun.input.job_files import FIELDS
from sessionrun.input.parse import Folder, Source
from sessionrun.input.plan import Plan
from sessionrun.input.rows import BY_NAME
from sessionrun.input.settings import Options, read_values
from sessionrun.input.text import MAX_INPUT_BYTES
from sessionrun.model.errors import InputError
from sessionrun.model.spec import Check, Prove, TaskSpec
from sessionrun.model.words import OF_WORK

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


# --- who wins ---


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


# --- what inputs of each format become ---

CASES = sorted((DATA / "plans").glob("*.json"))
"""The input (`text`, or `files` of a directory of job files, or an `example` of ours), its `name`, what is said
beside it (`given`, `config`, `settings`: ``worksplit.toml``), and the `plan` without what is the default.
UPDATE_GOLDENS=1 writes the plans anew."""
FRESH: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})?")
"""An id that was generated."""


def make_source(case: dict[str, Any]) -> Source:
    if "files" in case:
        files = {name: text.encode() for name, text in case["files"].items()}
        settings = case["settings"].encode() if "settings" in case else None
        return Source("jobs", b"", "/p/jobs", "/p", Folder("jobs", "/p/jobs", "/p", files, settings))
    if "example" in case:
        path = ROOT / "examples" / case["example"]
        return Source(path.name, path.read_bytes(), "/plans", "/started")
    text = case["text"] if isinstance(case["text"], str) else json.dumps(case["text"])
    return Source(case.get("name", "stdin"), text.encode(), "/plans", "/started")


def tell(plan: Plan) -> str:
    """A plan as JSON; ids that were generated are masked, wherever they stand."""
    silent, empty = asdict(TaskSpec("", ())), asdict(Plan(()))
    record = {name: value for name, value in asdict(plan).items() if value != empty[name] and name != "places"}
    record["tasks"] = [
        {name: value for name, value in asdict(task).items() if value != silent[name]} for task in plan.tasks
    ]
    text = json.dumps(record)
    for number, task in enumerate(plan.tasks, 1):
        text = text.replace(task.id, f"(fresh {number})") if FRESH.fullmatch(task.id) else text
    return text


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_an_input_becomes_this_plan(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    case = json.loads(path.read_text())
    given, config = (read_values(BY_NAME, case.get(key, {})) for key in ("given", "config"))
    source = make_source(case)
    dialect, _ = choose_format(source, None)
    assert dialect == path.stem.partition("-")[0]
    found = json.loads(tell(load_plan(dialect, source, Options(given, config, stamp="20260102-030405"))))
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(json.dumps({**case, "plan": found}, indent=1, ensure_ascii=False) + "\n")
    assert found == case.get("plan")


def test_every_field_of_a_task_is_in_a_plan() -> None:
    """But for those that no input says."""
    task = json.loads((DATA / "plans" / "prompts-every-field.json").read_text())["plan"]["tasks"][0]
    assert {field.name for field in fields(TaskSpec)} - {*task} == {"needs", "linger_s", "leftovers", "mend"}


@pytest.mark.parametrize(
    ("plan", "dialect", "why"),
    [
        ({"tasks": ["a"], "model": "m"}, "prompts", 'JSON object with "tasks"'),
        ({"source_repo": ".", "tasks": [{"id": "t"}]}, "matrix", 'JSON object with "tasks" and "source_repo"'),
    ],
    ids=["a-plan-with-one-model", "a-matrix-without-models"],
)
def test_a_matrix_and_a_plan_are_told_apart(plan: object, dialect: str, why: str) -> None:
    assert choose_format(Source("c.json", json.dumps(plan).encode(), "/"), None) == (dialect, why)


def test_the_check_of_a_whole_matrix_may_ask_for_proof() -> None:
    check = {"commands": "true", "prove": True}
    text = json.dumps({"models": ["m"], "tasks": [{"id": "t", "prompts": ["p"]}], "check": check})
    assert only(load(text)).prove == Prove()


MATRIX_TABLES = (matrix._TOP_FIELDS, matrix._TASK_FIELDS, matrix._MODEL_FIELDS, matrix._RULE_FIELDS)


@pytest.mark.parametrize(
    ("first", "end", "keys"),
    [
        ("PROMPTS", "MATRIX", TASK_FIELDS),
        ("MATRIX", "MARKDOWN", {key for table in MATRIX_TABLES for key in table if not key.endswith("_s")}),
        ("MARKDOWN", "SWE", FIELDS),
    ],
)
def test_the_manual_names_every_key(first: str, end: str, keys: Iterable[str]) -> None:
    page = (ROOT / "man" / "sessionrun-input.5").read_text()
    text = page[page.index(f".SH {first}") : page.index(f".SH {end}")]
    assert [key for key in keys if not re.search(rf"(?m)^\.BR? .*\b{key}\b|\\fB{key}\\fP", text)] == []


# --- swebench ---

PATCH = "diff --git a/tests/test_a.py b/tests/test_a.py\n--- a/tests/test_a.py\n+++ b/tests/test_a.py\n"
INSTANCE: dict[str, Any] = {
    "instance_id": "o__r-1",
    "repo": "o/r",
    "base_commit": "a" * 40,
    "problem_statement": "It is {broken}.",
    "hints_text": "a hint",
    "patch": "the fix",
    "test_patch": PATCH,
    "FAIL_TO_PASS": '["tests/test_a.py::test_b"]',
    "PASS_TO_PASS": ["tests/test_a.py::test_c"],
    "version": "1.0",
    "environment_setup_commit": "b" * 40,
    "created_at": "2024-01-01T00:00:00Z",
}


def read(entries: Any, options: Options | None = None) -> Plan:
    text = entries if isinstance(entries, str) else "\n".join(map(json.dumps, entries))
    return load(text, "i.jsonl", options or Options(stamp="20260102-030405"))


def many(count: int) -> list[dict[str, Any]]:
    return [{**INSTANCE, "instance_id": f"o__r-{number}"} for number in range(count)]


def ids(plan: Plan) -> list[str]:
    return [task.id for task in plan.tasks]


def test_the_agent_does_not_learn_the_fix_or_the_tests() -> None:
    plan = read([{**INSTANCE, "patch": "THE-FIX", "test_patch": PATCH + "THE-TESTS"}])
    (prompt,) = plan.tasks[0].prompts
    assert "It is {broken}." in prompt, "braces in the issue are text"
    assert "o/r at commit aaaa" in prompt
    for secret in ("THE-FIX", "THE-TESTS", "test_b", "test_c", "a hint"):
        assert secret not in prompt
    assert "THE-FIX" not in repr(plan.tasks) + repr(plan.exports)


@pytest.mark.parametrize(
    ("own", "chosen"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"sample": 2}, [0, 1]),
        ({"start": 4}, [4, 5]),
        ({"start": 1, "sample": 2}, [1, 2]),
        ({"sample": 100}, [0, 1, 2, 3, 4, 5]),
        ({"instance": ("o__r-3", "o__r-1")}, [1, 3]),
        ({"filter": "[24]$"}, [2, 4]),
        ({"filter": "r-", "start": 5}, [5]),
    ],
)
def test_which_instances(own: dict[str, Any], chosen: list[int]) -> None:
    assert ids(read(many(6), Options(own))) == [f"o__r-{number}" for number in chosen]


def test_shuffled_alike() -> None:
    first = ids(read(many(20), Options({"shuffle": 7})))
    assert first == ids(read(many(20), Options({"shuffle": 7}))) != ids(read(many(20), Options({"shuffle": 8})))
    assert sorted(first) == sorted(ids(read(many(20))))
    assert ids(read(many(20), Options({"shuffle": 7, "start": 3, "sample": 4}))) == first[3:7]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FAIL_TO_PASS", {"fail_to_pass": ["tests/test_a.py::test_b"]}),
        ("FAIL_TO_PASS", {"failToPass": ["tests/test_a.py::test_b"]}),
        ("FAIL_TO_PASS", {"FAIL_TO_PASS": "['tests/test_a.py::test_b']"}),
        ("base_commit", {"Base-Commit": "a" * 40}),
        ("test_patch", {"test_patch": PATCH.rstrip()}),
        ("test_patch", {"testPatch": PATCH.replace("\n", "\r\n")}),
        ("instance_id", {"Instance ID": "o__r-1"}),
    ],
)
def test_near_keys_and_spellings_are_read(old: str, new: dict[str, Any]) -> None:
    near = {**{key: value for key, value in INSTANCE.items() if key != old}, **new}
    assert read([near]) == read([INSTANCE])


def test_a_patch_to_lines_that_end_in_a_carriage_return_stays_as_it_is() -> None:
    patch = PATCH + "@@ -1 +1 @@\n-a\r\n+b\r\n"
    (task,) = read([{**INSTANCE, "test_patch": patch}]).tasks
    assert task.prove is not None and task.prove.hidden is not None and task.prove.hidden.patch == patch


def test_instances_without_tests_or_with_those_that_pass_alone_are_a_warning() -> None:
    bare = {"instance_id": "a", "repo": "./r", "problem_statement": "p", "test_patch": PATCH}
    (warning,) = read([INSTANCE, bare]).warnings
    assert '1 of 2 instances to run name no tests, such as "a"' in warning
    assert read([INSTANCE, bare], Options({"sample": 1})).warnings == (), "those that do not run do not matter"
    (warning,) = read([INSTANCE, {**INSTANCE, "instance_id": "x", "FAIL_TO_PASS": []}]).warnings
    assert '1 of 2 instances to run name no test of FAIL_TO_PASS, such as "x"' in warning


def test_docker_by_a_variable(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other formats do not know it, and 0 asks for nothing."""
    Path("i.jsonl").write_text(json.dumps(INSTANCE))
    monkeypatch.setenv("SWEBENCH_USE_DOCKER", "1")
    assert plan_input(["true"], {"agent": "shell"}, preview=True)
    for value in ("0", ""):
        monkeypatch.setenv("SWEBENCH_USE_DOCKER", value)
        assert plan_input("i.jsonl", {"agent": "shell"}, preview=True)


def test_the_input_that_is_usual(own_place: Path) -> None:
    assert find_input("f", {}) == ("f", None)
    assert find_input(None, {"instances": "f"}) == ("f", "swebench")
    assert find_input(None, {}) == (None, None), "standard input"
    assert find_input("-", {"sample": 5, "dialect": "swebench"}) == ("-", "swebench")
    for options in ({"dialect": "swebench"}, {"sample": 5}):
        with pytest.raises(InputError, match=r"artifacts/instances.jsonl is not there: .*SWE-bench_Verified"):
            find_input(None, options)
    os.makedirs("artifacts")
    Path("artifacts/instances.jsonl").write_text("{}")
    assert find_input(None, {"sample": 5}) == ("artifacts/instances.jsonl", "swebench")
    with pytest.raises(InputError, match="both name the input"):
        find_input("f", {"instances": "g"})


def test_the_instances_of_the_example() -> None:
    text = (ROOT / "examples" / "swebench" / "instances.in.jsonl").read_text().replace("BASE_COMMIT", "c" * 40)
    plan = read(text)
    assert len(plan.tasks) == 3
    assert plan.warnings == ()
    for task in plan.tasks:
        assert task.prove is not None and task.prove.hidden is not None and task.prove.hidden.fail_to_pass


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
