"""What callers get that pay for each byte: what changed, what is not fine, some fields, a digest within a size."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import Command
from hypothesis import given
from hypothesis import strategies as st
from test_looks import BEGAN, make_task, make_view

from sessionrun.cli.formats import FORMATS
from sessionrun.cli.render import encode, versioned
from sessionrun.cli.results import digest_lines
from sessionrun.client.reading.digest import BYTES_PER_TOKEN, describe_digest, divide
from sessionrun.model.errors import InputError
from sessionrun.store.session import SessionDir

MIXED: dict[str, Any] = {
    "max_parallel": 1,
    "prompts": [
        {"id": "a", "prompt": "echo one"},
        {"id": "bad", "prompt": "seq 1000; echo ValueError: lost; seq 1000; echo why >&2; exit 3"},
        {"id": "skipped", "prompt": "true", "needs": ["bad"]},
        {"id": "c", "prompt": "seq 3000"},
    ],
}


@pytest.fixture
def mixed(sessionrun: Command) -> str:
    """A session that has ended, whose tasks ran one after the other."""
    return sessionrun.finished(MIXED)


def names_of(record: dict[str, Any]) -> list[str]:
    """The ids of the tasks of an object."""
    return [task["id"] for task in record["tasks"]]


def test_only_what_changed_since_a_cursor(sessionrun: Command, mixed: str) -> None:
    ends = {task["id"]: task["ended_seq"] for task in sessionrun.load("status", mixed)["tasks"]}
    assert names_of(sessionrun.load("status", mixed, "--since", "0")) == ["a", "bad", "skipped", "c"]
    assert names_of(sessionrun.load("status", mixed, "--since", str(ends["a"]))) == ["bad", "skipped", "c"]
    last = sessionrun.load("status", mixed, "--since", str(ends["bad"]), "c", "a")
    assert (names_of(last), last["total"], last["cursor"]) == (["c"], 4, last["seq"])
    assert sessionrun.load("status", mixed, "--since", str(last["cursor"]))["tasks"] == []
    shown = sessionrun("status", mixed, "--since", str(ends["bad"])).stdout
    assert re.search(r"^\S+ succeeded  c  ", shown, re.MULTILINE) and shown.endswith(f"Cursor: {last['cursor']}\n")
    assert not re.search(r"^\S+ succeeded  a  ", shown, re.MULTILINE)
    done = sessionrun("status", mixed, "--since", str(last["cursor"] + 1))
    assert done.returncode == 2 and f"has only come to {last['cursor']}" in done.stderr


def test_brief_has_counts_and_what_is_not_fine(sessionrun: Command, mixed: str) -> None:
    brief = sessionrun.load("status", mixed, "--brief")
    assert (names_of(brief), brief["failed"], brief["skipped"]) == (["bad"], 1, 1)
    assert not [
        value for record in (brief, *brief["tasks"]) for value in record.values() if value in (None, [], {})
    ]
    shown = sessionrun("status", mixed, "--brief").stdout
    head, rest = shown.split("\n", 1)
    assert re.fullmatch(rf"{mixed[:8]}: ended, 4 tasks, \d+\.\d s", head)
    tail = "2 succeeded, 1 failed, 1 skipped\n1 failed: exit code 3\n    bad\n"
    assert rest == f"{tail}Cursor: {brief['cursor']}\n"


def test_only_some_fields(sessionrun: Command, mixed: str) -> None:
    record = sessionrun.load("status", mixed, "a", "bad", "--fields", "total, id,outcome")
    assert record.pop("cursor") and record == {
        "schema_version": 2,
        "session_id": mixed,
        "total": 4,
        "outcome": "failed",
        "tasks": [{"id": "a", "outcome": "succeeded"}, {"id": "bad", "outcome": "failed"}],
    }
    table = sessionrun("status", mixed, "bad", "--fields", "id,exit_code,needs,check").stdout
    assert [line.split() for line in table.splitlines()] == [
        ["ID", "EXIT_CODE", "NEEDS", "CHECK"],
        ["bad", "3", "[]"],
    ]


def test_only_results_that_failed_within_a_size(sessionrun: Command, mixed: str) -> None:
    assert names_of(sessionrun.load("results", mixed, "--failed")) == ["bad"]
    shown = sessionrun("results", mixed, "--max-bytes", "1200").stdout
    assert len(shown.encode()) <= 1200
    bad = shown.index(" bad failed: exit code 3\n  [standard error, last lines]\n    why\n")
    assert bad < shown.index(" a succeeded: ")
    for limit in ([], ["--max-bytes", "1200"]):
        record = sessionrun("results", mixed, *limit, "--format", "json").stdout
        assert record == sessionrun("results", mixed, *limit, "--json").stdout != ""
    record = sessionrun("results", mixed, "--max-tokens", "300", "--json").stdout
    assert len(record) <= 900 and "[...]" in record


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("status --fields id,exitcode", "no field 'exitcode' (did you mean \"exit_code\"?)"),
        ("status --fields id,,num", "write names with commas between them"),
        ("status --fields id --brief", "choose one of --brief and --fields"),
        ("status --by task --brief", "--by cannot be had with"),
        ("results --max-bytes 20", "20 bytes are too few"),
        ("results --max-bytes 2000 --tail 3", "leave out --raw and --tail"),
        ("results --max-bytes 2000 --format junit", "are for text and json"),
        ("results --raw --format junit", "--raw prints what"),
        ("results --format xml", "is not one of 'text', 'json', 'ndjson'"),
        ("results --max-bytes 0", "is not a whole number of 1 or more"),
    ],
)
def test_what_does_not_go_together(sessionrun: Command, mixed: str, words: str, says: str) -> None:
    done = sessionrun(*words.split())
    assert done.returncode == 2 and says in done.stderr


def make_tasks(folder: Path, outputs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Tasks whose answers lie in a folder; every third one failed."""
    tasks = []
    for num, (answer, errors) in enumerate(outputs, 1):
        (folder / f"{num}.txt").write_bytes(answer.encode("utf-8", "surrogateescape"))
        (folder / f"{num}.err").write_bytes(errors.encode("utf-8", "surrogateescape"))
        files = {"output": f"{num}.txt", "stderr": f"{num}.err"}
        failed: dict[str, Any] = {
            "outcome": "failed",
            "reason": "exit_code: exit code 3",
            "reason_class": "exit_code",
        }
        facts: dict[str, Any] = {"id": f"task-{num}", "title": f"do {num}", "attempt": 1, "check": None, **files}
        tasks.append(make_task(num, **facts, **(failed if num % 3 == 0 else {})))
    return tasks


def make_digest_view(folder: Path, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """The session of such tasks, which has ended."""
    ended: dict[str, Any] = {"status": "completed", "outcome": "failed", "ended_at": BEGAN, "disk_full": None}
    return make_view(tasks, name=None, session_id=str(uuid.uuid4()), results_dir=str(folder), **ended)


def spell(record: Mapping[str, Any]) -> bytes:
    return encode(versioned(record)) + b"\n"


HOSTILE = '<a b="c">]]>&\x1b[31m\x00\n```\n=cmd|x,"y"\r\n\ufffe'


def test_answers_in_formats_of_other_programs(tmp_path: Path) -> None:
    tasks = make_tasks(tmp_path, [(HOSTILE, ""), ("=1+1", ""), ("", HOSTILE)])
    for task in tasks:
        task |= {"title": HOSTILE, "agent": "shell", "duration_s": 1.5}
    view = {**make_digest_view(tmp_path, tasks), "name": HOSTILE}

    def read(task: Mapping[str, Any], key: str) -> str:
        return Path(tmp_path, task[key]).read_bytes().decode()

    made = {name: "".join(make(view, tasks, read)) for name, make in FORMATS.items()}
    records = [json.loads(line) for line in made["ndjson"].splitlines()]
    assert (records[0]["id"], records[0]["text"], records[0]["schema_version"]) == ("task-1", HOSTILE, 2)
    (suite,) = ElementTree.fromstring(made["junit"])
    assert (suite.get("tests"), suite.get("failures"), suite.get("time")) == ("3", "1", "4.500")
    good, _, bad = suite
    assert good.findtext("system-out", "").startswith('<a b="c">]]>&\ufffd[31m\ufffd\n')
    assert bad.find("failure") is not None and good.find("failure") is None
    assert "````text\n" + HOSTILE + "\n````\n" in made["markdown"]  # the fence is longer than any inside
    assert "\\<a b=" in made["markdown"].splitlines()[0]


TEXTS = st.text(alphabet='ab é"\\\n\x1b\udc80error', max_size=40).flatmap(
    lambda text: st.integers(0, 400).map(lambda times: text * times)
)


@given(outputs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=12), room=st.integers(700, 9000))
def test_a_digest_keeps_to_its_size_and_names_each_task_that_failed(
    tmp_path_factory: pytest.TempPathFactory, outputs: list[tuple[str, str]], room: int
) -> None:
    folder = tmp_path_factory.mktemp("digest")
    tasks = make_tasks(folder, outputs)
    failed = [task for task in tasks if task["outcome"] == "failed"]
    view = make_digest_view(folder, tasks)
    text = "\n".join(digest_lines(SessionDir(folder), {**view, "tasks": tasks}, tasks, room))
    assert len(text.encode()) < room
    unnamed = [task["id"] for task in failed if not re.search(rf"\b{task['id']}\b", text)]
    rest = re.search(r"\nand (?:(\d+) more, for .*?)?(?: and )?(?:(\d+) fine)?(?:: --failed .*)?$", text)
    counts = [int(count or 0) for count in rest.groups()] if rest else [0, 0]
    assert counts[0] == len(unnamed)
    shown_fine = len(re.findall(r"^\S+ task-\d+ succeeded: do \d+$", text, re.MULTILINE))
    assert shown_fine + counts[1] == len(tasks) - len(failed)
    record = describe_digest(SessionDir(folder), view, tasks, room, spell)
    assert len(spell(record)) <= room
    assert {task["id"] for task in failed} <= {*names_of(record), *record["more_failed"]}
    assert len(record["tasks"]) + len(record["more_failed"]) + record["more_fine"] == len(tasks)
    for shown in record["tasks"]:
        assert shown["text_bytes"] == (folder / f"{shown['num']}.txt").stat().st_size


def test_many_that_failed_are_named_by_number(tmp_path: Path) -> None:
    tasks = [task for task in make_tasks(tmp_path, [("x" * 9000, "")] * 900) if task["num"] % 3]
    for task in tasks:
        task["outcome"] = task["word"] = "failed"
    view = make_digest_view(tmp_path, tasks)
    with pytest.raises(InputError, match="600 tasks need attention"):
        describe_digest(SessionDir(tmp_path), view, tasks, 2500, spell)
    record = describe_digest(SessionDir(tmp_path), view, tasks, 8000, spell)
    assert record["more_failed"] == [] and record["more_failed_numbers"][-1] == "898-899"


def test_short_answers_leave_room_to_long_ones() -> None:
    assert divide([10, 1000, 20, 1000], 230) == [10, 100, 20, 100]
    assert divide([10, 20], 100) == [10, 20]
    assert divide([], 100) == []


@pytest.mark.slow
def test_a_token_is_counted_as_more_bytes_than_it_has(tmp_path: Path) -> None:
    """By a tokenizer that needs no network: 200 answers of 1 MB of code and words stay within 2,000 tokens."""
    if find_spec("mistral_common") is None:
        pytest.skip("mistral-common, which brings a tokenizer, is not installed: pip install -e .[tokens]")
    tekken = import_module("mistral_common.tokens.tokenizers.tekken")
    file = max((Path(str(tekken.__file__)).parents[2] / "data").glob("tekken*.json"))
    tokenizer = tekken.Tekkenizer.from_file(file)
    source = "".join(path.read_text() for path in sorted(Path(__file__).parents[1].rglob("test_*.py")))[:1_000_000]
    tasks = make_tasks(tmp_path, [(source[number:] + source[:number], source[:5000]) for number in range(200)])
    failed = [task for task in tasks if task["outcome"] == "failed"]
    view = make_digest_view(tmp_path, tasks)
    for limit in (2000, 8000):
        lines = digest_lines(SessionDir(tmp_path), {**view, "tasks": tasks}, tasks, BYTES_PER_TOKEN * limit)
        digest = describe_digest(SessionDir(tmp_path), view, tasks, BYTES_PER_TOKEN * limit, spell)
        as_json = spell(digest)
        for content in ("\n".join(lines).encode(), as_json):
            assert len(tokenizer.encode(content.decode(), bos=False, eos=False)) <= limit
            names = content.decode()
            assert all(re.search(rf"\b({task['id']}|{task['num']})\b", names) for task in failed)
