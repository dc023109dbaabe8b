"""The JSON Schema of plans: it takes what the reader takes, and refuses slips of the pen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Command
from dialect_plans import ROOT
from jsonschema import Draft202012Validator

from sessionrun.client.schemas.schemas import describe_plan
from sessionrun.input.fields import DEFAULT_FIELDS, TASK_FIELDS
from sessionrun.input.parse import Source
from sessionrun.input.plan_fields import TOP_FIELDS

SCHEMA = describe_plan()
EXAMPLES = sorted((ROOT / "examples" / "prompts").glob("*.*[!d]"))


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value fits."""
    return bool(Draft202012Validator(schema).is_valid(value))


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


def test_the_verb_prints_it(sessionrun: Command) -> None:
    done = sessionrun("schema", "plan")
    assert done.returncode == 0
    assert json.loads(done.stdout) == json.loads(json.dumps(SCHEMA))
