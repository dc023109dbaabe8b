"""The JSON Schema of the native plan format, made from the tables of fields by which plans are read.

A converter that is not in the table here is a bug, and found by a test.  The schema is wider than the reader: what
one value alone does not show (ids, needs, paths) is the reader's to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, get_args

from sessionrun.dialects import convert, fields, pace, paths, prompts, sandbox
from sessionrun.dialects.fields import Field
from sessionrun.model.places import PLACEMENTS
from sessionrun.model.reasons import OF_WORK
from sessionrun.model.sandbox import NETWORKS, POLICIES
from sessionrun.model.spec import SCHEMA_VERSION, EnvironmentKind, WorkspaceKind

Schema = dict[str, Any]

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

_TEXT: Final[Schema] = {"type": "string", "minLength": 1}
_NUMBER: Final[Schema] = {"type": "number", "minimum": 0}
_AMOUNT: Final[Schema] = {"type": "integer", "minimum": 1}
_ID: Final[Schema] = {"anyOf": [{"type": "string", "maxLength": 128}, {"type": "integer"}]}


def _one_or_more(schema: Schema, least: int = 0) -> Schema:
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": least}]}


def _map_of(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


_FRAGMENTS: Final[Mapping[Callable[..., Any], Schema]] = {
    convert.as_line: _TEXT,
    convert.as_prompt: _TEXT,
    convert.as_sole_prompt: _TEXT,
    convert.as_prompts: _one_or_more(_TEXT, 1),
    convert.as_id: _ID,
    convert.as_repo: _TEXT,
    convert.as_ref: _TEXT,
    convert.as_needs: _one_or_more(_ID),
    convert.as_commands: _one_or_more(_TEXT),
    convert.as_links: _one_or_more(_TEXT),
    paths.as_project_paths: _one_or_more(_TEXT),
    convert.as_argv: {"type": "array", "items": {"type": "string"}},
    convert.as_alternatives: _one_or_more(_TEXT),
    convert.as_reason_classes: _one_or_more({"enum": list(OF_WORK)}),
    convert.as_duration: {"anyOf": [_NUMBER, _TEXT]},
    convert.as_limit: {"type": "integer", "minimum": 0},
    convert.as_money: _NUMBER,
    convert.as_budget: {"type": "number", "exclusiveMinimum": 0},
    convert.as_flag: {"type": "boolean"},
    pace.as_load: _NUMBER,
    sandbox.as_cpus: {"anyOf": [{"const": 0}, {"type": "number", "minimum": 0.01, "maximum": 1000000}]},
    pace.as_size: {"anyOf": [{"type": "integer", "minimum": 0}, _TEXT]},
    convert.as_amounts: {"anyOf": [_map_of(_AMOUNT), *_one_or_more(_TEXT)["anyOf"]]},
    convert.as_capacities: _map_of(_AMOUNT),
    convert.as_environment: _map_of({"type": "string"}),
    convert.as_labels: _map_of({"type": "string"}),
    convert.as_record: _ref("defaults"),
    convert.as_workspace: {"anyOf": [{"enum": list(get_args(WorkspaceKind))}, _ref("workspace")]},
    fields.as_check: {"anyOf": [*_one_or_more(_TEXT)["anyOf"], _ref("check")]},
    fields.as_prove: {"anyOf": [{"type": "boolean"}, _ref("prove")]},
    fields.as_environment_wish: {"anyOf": [{"enum": list(get_args(EnvironmentKind))}, _ref("environment")]},
    sandbox.as_sandbox: {"anyOf": [{"enum": list(POLICIES)}, _ref("sandbox")]},
    sandbox.as_network: {"anyOf": [{"enum": list(NETWORKS)}, {"type": "array", "items": {"type": "string"}}]},
    sandbox.as_names: _one_or_more(_TEXT),
    sandbox.as_paths: _one_or_more(_TEXT),
    fields.as_landing: {"anyOf": [{"const": True}, _TEXT, _ref("land")]},
    fields.as_seats: {"anyOf": [{"enum": list(PLACEMENTS)}, _ref("worktrees")]},
    fields.as_limits: _ref("limits"),
    fields.as_brief: _ref("brief"),
    prompts.as_schema_version: {"const": SCHEMA_VERSION},
    prompts.as_task_list: {"type": "array", "items": _ref("prompt"), "minItems": 1},
}
"""What each converter takes."""


def describe_plan() -> Schema:
    """The schema of everything that a plan may be: an object with prompts, a list of them, or one of them."""
    lists = [{"required": [key]} for key, field in prompts.TOP_FIELDS.items() if field.name == "tasks"]
    task = _describe_record(fields.TASK_FIELDS)
    asked = [{"required": [key]} for key, field in fields.TASK_FIELDS.items() if field.name == "prompts"]
    nested = {name: _describe_record(table) for name, table in fields.NESTED.items() if isinstance(table, Mapping)}
    return {
        "$schema": DRAFT,
        "title": "sessionrun plan",
        "anyOf": [_ref("plan"), {"type": "array", "items": _ref("prompt"), "minItems": 1}, _ref("single")],
        "$defs": {
            "plan": {**_describe_record(prompts.TOP_FIELDS), "anyOf": lists},
            "prompt": {"anyOf": [_TEXT, _ref("task")]},
            "task": {**task, "anyOf": asked},
            "single": {**task, "required": ["prompt"]},
            "defaults": _describe_record(fields.DEFAULT_FIELDS),
            "workspace": _close({"kind": {"enum": list(get_args(WorkspaceKind))}}),
            **nested,
        },
    }


def _describe_record(table: Mapping[str, Field]) -> Schema:
    """An object; null is as good as leaving a key out."""
    return _close({key: {"anyOf": [_describe(field.convert), {"type": "null"}]} for key, field in table.items()})


def _close(properties: Schema) -> Schema:
    """An object of these keys and the user's notes, whatever they hold."""
    notes = {f"^{fields.NOTE}": True}
    return {
        "type": "object",
        "properties": properties,
        "patternProperties": notes,
        "additionalProperties": False,
    }


def _describe(converter: Callable[[Any], Any]) -> Schema:
    if isinstance(converter, partial):
        (argument,) = converter.args
        if converter.func is convert.to_choice:
            return {"enum": list(argument)}
        return {"type": "integer", "minimum": argument}
    return _FRAGMENTS[converter]
