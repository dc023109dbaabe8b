"""What inputs of each format become: a file for each in ``data/dialects/plans``, with the whole plan.

A file has the input (`text`, or `files` of a directory of job files, or an `example` of ours), its `name`, what is
said beside it (`given`, `config`, `settings`: ``worksplit.toml``), and the `plan` without what is the default.
UPDATE_GOLDENS=1 writes the plans anew.
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
from test_dialect_prompts import DATA, ROOT, load, only

from sessionrun.input import matrix
from sessionrun.input.fields import TASK_FIELDS
from sessionrun.input.formats import choose_format, load_plan
from sessionrun.input.job_files import FIELDS
from sessionrun.input.parse import Folder, Source
from sessionrun.input.plan import Plan
from sessionrun.input.rows import SETTINGS
from sessionrun.input.settings import Options, read_values
from sessionrun.model.spec import Prove, TaskSpec

CASES = sorted((DATA / "plans").glob("*.json"))
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
    given, config = (read_values(SETTINGS, case.get(key, {})) for key in ("given", "config"))
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
