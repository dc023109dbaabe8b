"""Short ways to a plan, or to the refusal of one, for the tests of dialects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sessionrun.input.formats import choose_format, load_plan
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan
from sessionrun.input.settings import Options
from sessionrun.model.errors import InputError
from sessionrun.model.spec import TaskSpec

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data" / "dialects"


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
