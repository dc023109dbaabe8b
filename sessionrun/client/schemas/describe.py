"""`schema`: the JSON Schema of what a verb prints, or of a file."""

from __future__ import annotations

from typing import Final

from sessionrun.client.schemas.outputs import FILES, OUTPUTS
from sessionrun.client.schemas.shape import Schema, describe_shape
from sessionrun.model.words import OUTPUT_VERSION

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
NAMES: Final = ("plan", *FILES, *OUTPUTS)


def describe(name: str) -> Schema:
    """The JSON Schema of what goes by a name of `NAMES`; keys that it does not name may be there, too."""
    if name == "plan":
        from sessionrun.input.schema import describe_plan

        return describe_plan()
    if name in FILES:
        return {"$schema": DRAFT, "title": name, **describe_shape(FILES[name])}
    variants = [_add_version(describe_shape(keys)) for keys in OUTPUTS[name]]
    body = variants[0] if len(variants) == 1 else {"anyOf": variants}
    return {"$schema": DRAFT, "title": f"sessionrun {name} --json", **body}


def _add_version(schema: Schema) -> Schema:
    properties = {"schema_version": {"const": OUTPUT_VERSION}, **schema["properties"]}
    return {**schema, "properties": properties, "required": ["schema_version", *schema["required"]]}
