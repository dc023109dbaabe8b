"""The JSON Schema of the native plan format, made from the tables of fields by which plans are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sessionrun.input import fields
from sessionrun.input.kinds import TEXT, Kind, Schema, reference
from sessionrun.input.plan_fields import TOP_FIELDS
from sessionrun.input.reading import NOTE, Field

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def describe_plan() -> Schema:
    """The schema of everything that a plan may be: an object with prompts, a list of them, or one of them."""
    lists = [{"required": [key]} for key, field in TOP_FIELDS.items() if field.name in ("tasks", "feed")]
    task = _describe_record(fields.TASK_FIELDS)
    asked = [{"required": [key]} for key, field in fields.TASK_FIELDS.items() if field.name == "prompts"]
    kinds = [field.convert for field in (*fields.DEFAULT_FIELDS.values(), *TOP_FIELDS.values())]
    nested = {kind.name: _describe_record(kind.table) for kind in kinds if isinstance(kind, Kind) and kind.table}
    return {
        "$schema": DRAFT,
        "title": "sessionrun plan",
        "anyOf": [
            reference("plan"),
            {"type": "array", "items": reference("prompt"), "minItems": 1},
            reference("single"),
        ],
        "$defs": {
            "plan": {**_describe_record(TOP_FIELDS), "anyOf": lists},
            "prompt": {"anyOf": [TEXT, reference("task")]},
            "task": {**task, "anyOf": asked},
            "single": {**task, "required": ["prompt"]},
            "defaults": _describe_record(fields.DEFAULT_FIELDS),
            **nested,
        },
    }


def _describe_record(table: Mapping[str, Field]) -> Schema:
    """An object of these keys and the user's notes; null is as good as leaving a key out."""
    return {
        "type": "object",
        "properties": {
            key: {"anyOf": [field.convert.schema, {"type": "null"}]}
            for key, field in table.items()
            if isinstance(field.convert, Kind)
        },
        "patternProperties": {f"^{NOTE}": True},
        "additionalProperties": False,
    }
