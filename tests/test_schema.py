"""The JSON Schema of plans: it takes what the reader takes, and refuses slips of the pen."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from conftest import Command
from dialect_plans import ROOT

from sessionrun.dialects.fields import DEFAULT_FIELDS, TASK_FIELDS
from sessionrun.dialects.parse import parse_document
from sessionrun.dialects.plan import Source
from sessionrun.dialects.prompts import TOP_FIELDS
from sessionrun.dialects.schema import describe_plan

SCHEMA = describe_plan()
EXAMPLES = sorted((ROOT / "examples" / "prompts").glob("*.*[!d]"))
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def fits(value: Any, schema: dict[str, Any] | bool) -> bool:
    """Whether a value fits, by the few words that our schema uses."""
    if isinstance(schema, bool):
        return schema
    known = {
        "$schema",
        "title",
        "$defs",
        "$ref",
        "anyOf",
        "type",
        "enum",
        "const",
        "properties",
        "patternProperties",
        "required",
        "items",
    }
    known |= {"additionalProperties", "minItems", "minLength", "maxLength", "minimum", "exclusiveMinimum"}
    assert set(schema) <= known
    if "$ref" in schema:
        return fits(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    if "anyOf" in schema and not any(fits(value, one) for one in schema["anyOf"]):
        return False
    if "type" in schema:
        is_flag = isinstance(value, bool) and schema["type"] != "boolean"
        if is_flag or not isinstance(value, TYPES[schema["type"]]):
            return False
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return bool(value >= schema.get("minimum", value) and value > schema.get("exclusiveMinimum", value - 1))
    if isinstance(value, list):
        return len(value) >= schema.get("minItems", 0) and all(fits(one, schema.get("items", {})) for one in value)
    if isinstance(value, dict):
        named = schema.get("properties", {})
        rest = schema.get("additionalProperties", {})
        shapes = schema.get("patternProperties", {})
        free = {key: next((one for shape, one in shapes.items() if re.search(shape, key)), rest) for key in value}
        inside = all(fits(one, named.get(key, free[key])) for key, one in value.items())
        return inside and all(key in value for key in schema.get("required", []))
    if isinstance(value, str):
        return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))
    return True


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_fit(example: Any) -> None:
    document = parse_document(Source(example.name, example.read_bytes(), "/"))
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
    assert sessionrun("schema", "nothing").returncode == 2
