"""`schema`: what goes by a name as a JSON Schema: plans, files of a session, what each verb prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sessionrun.client import shapes
from sessionrun.client.shapes import FILES, Keys, Schema, describe_shape
from sessionrun.house import HOUSE, load
from sessionrun.input import fields
from sessionrun.input.kinds import TEXT, reference
from sessionrun.input.reading import NOTE, Field
from sessionrun.model.words import OUTPUT_VERSION

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

_OF_ALL: Final = (shapes.OUTPUTS, *(load(business.outputs) for business in HOUSE if business.outputs))
OUTPUTS: Final[Mapping[str, tuple[Keys, ...]]] = {verb: forms for part in _OF_ALL for verb, forms in part.items()}
"""By verb what it may print."""

NAMES: Final = ("plan", *FILES, *OUTPUTS)


def describe(name: str) -> Schema:
    """The JSON Schema of what goes by a name of `NAMES`; keys that it does not name may be there, too."""
    if name == "plan":
        return describe_plan()
    if name in FILES:
        return {"$schema": DRAFT, "title": name, **describe_shape(FILES[name])}
    variants = []
    for keys in OUTPUTS[name]:
        shape = describe_shape(keys)
        properties = {"schema_version": {"const": OUTPUT_VERSION}, **shape["properties"]}
        variants.append({**shape, "properties": properties, "required": ["schema_version", *shape["required"]]})
    body = variants[0] if len(variants) == 1 else {"anyOf": variants}
    return {"$schema": DRAFT, "title": f"sessionrun {name} --json", **body}


def describe_plan() -> Schema:
    """The schema of everything that a plan may be: an object with prompts, a list of them, or one of them."""
    lists = [{"required": [key]} for key, field in fields.TOP_FIELDS.items() if field.name in ("tasks", "feed")]
    task = _describe_record(fields.TASK_FIELDS)
    asked = [{"required": [key]} for key, field in fields.TASK_FIELDS.items() if field.name == "prompts"]
    kinds = [field.convert for field in (*fields.DEFAULT_FIELDS.values(), *fields.TOP_FIELDS.values())]
    nested = {kind.name: _describe_record(kind.table) for kind in kinds if kind.table}
    return {
        "$schema": DRAFT,
        "title": "sessionrun plan",
        "anyOf": [
            reference("plan"),
            {"type": "array", "items": reference("prompt"), "minItems": 1},
            reference("single"),
        ],
        "$defs": {
            "plan": {**_describe_record(fields.TOP_FIELDS), "anyOf": lists},
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
        "properties": {key: {"anyOf": [field.convert.schema, {"type": "null"}]} for key, field in table.items()},
        "patternProperties": {f"^{NOTE}": True},
        "additionalProperties": False,
    }
