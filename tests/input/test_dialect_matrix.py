"""The matrix dialect: the configuration of the Qwen Concurrent Runner, every option of it, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sessionrun.input.formats import choose_format, load_plan
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan
from sessionrun.input.settings import Options

ROOT = Path(__file__).resolve().parents[2]
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


def test_a_plan_with_one_model_is_no_matrix() -> None:
    text = b'{"tasks": ["a"], "model": "m"}'
    assert choose_format(Source("p.json", text, "/"), None)[0] == "prompts"


def test_a_matrix_without_models_is_no_plan_for_the_checkout() -> None:
    text = json.dumps({"source_repo": ".", "tasks": [TASK]}).encode()
    dialect, why = choose_format(Source("c.json", text, "/"), None)
    assert (dialect, why) == ("matrix", 'JSON object with "tasks" and "source_repo"')


def test_the_manual_names_every_key() -> None:
    from sessionrun.input import matrix

    page = (ROOT / "man" / "sessionrun-input.5").read_text()
    section = page[page.index(".SH MATRIX") : page.index(".SH WHO WINS")]
    tables = (matrix._TOP_FIELDS, matrix._TASK_FIELDS, matrix._MODEL_FIELDS, matrix._RULE_FIELDS)
    keys = {key for table in tables for key in table if not key.endswith("_s")}
    assert [
        key for key in sorted(keys) if not re.search(rf"^\.BR? .*\b{key}\b|\\fB{key}\\fP", section, re.MULTILINE)
    ] == []
