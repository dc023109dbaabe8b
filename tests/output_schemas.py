"""Each JSON that a verb prints in a test is held against its schema, here without room for keys that it lacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from sessionrun.cli.argv import expand_alias, rewrite_argv
from sessionrun.client.schemas import NAMES, describe

MAX_CHECKED = 300_000
"""The validator takes a second for a megabyte; longer outputs have more of the same."""


def close(schema: Any) -> Any:
    """The same schema, but objects with named keys have no others."""
    if isinstance(schema, list):
        return [close(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(value) for key, value in schema.items()}
    return {**closed, "additionalProperties": False} if "required" in schema else closed


@cache
def make_validator(name: str) -> Draft202012Validator:
    """What checks the closed schema of a name."""
    return Draft202012Validator(close(describe(name)), format_checker=Draft202012Validator.FORMAT_CHECKER)


def check(name: str, record: Any) -> None:
    """An AssertionError tells what does not fit."""
    fault = next(make_validator(name).iter_errors(record), None)
    if fault is not None:
        variants = sorted(fault.context or [], key=lambda one: (len(one.path), str(one.message)))
        told = [f"{one.json_path}: {one.message[:300]}" for one in (fault, *variants)]
        raise AssertionError(f"not as `schema {name}` says: " + "\n".join(told))


_FINE: set[tuple[str, Any]] = set()
"""Records of each name that were found to fit, as `shape_of` has them: most outputs of a run are alike."""


def shape_of(value: Any) -> Any:
    """Keys, types and words of a record, without what no schema looks at."""
    if isinstance(value, dict):
        return tuple((key, one if key == "schema_version" else shape_of(one)) for key, one in value.items())
    if isinstance(value, list):
        return frozenset(map(shape_of, value))
    if isinstance(value, str):
        return value if value.isidentifier() else value[10:11] == "T"
    return value if isinstance(value, bool) or value is None else (type(value), value < 0)


def check_output(words: Sequence[str], out: str) -> None:
    """What a command line with `--json` printed."""
    if "--json" not in words or not out.strip() or len(out) > MAX_CHECKED:
        return
    verb = rewrite_argv(expand_alias(words))[0]
    if verb not in NAMES or "--help" in words:
        return
    for line in out.split("\n"):
        if line.strip():
            record = json.loads(line)
            assert next(iter(record)) == "schema_version", line[:80]
            name = "error" if isinstance(record, dict) and "error" in record else verb
            shape = name, shape_of(record)
            if shape not in _FINE:
                check(name, record)
                _FINE.add(shape)
