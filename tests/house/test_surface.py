"""The surface, all that users, scripts and other programs can name, is what it was: `surface.txt`.

`GOLDEN=write pytest tests/house/test_surface.py` writes it anew, so that each change is a line of a diff.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

import sessionrun
from sessionrun.cli.argv import VERBS, list_all, load_verb
from sessionrun.client.schemas import NAMES, describe
from sessionrun.input.rows import FILE_FIELDS

KEPT: Final = Path(__file__).with_name("surface.txt")
FEW_KEYS: Final = 3
VARIABLE: Final = re.compile(r"\b(?:SESSIONRUN|SWEBENCH)_[A-Z_]+[A-Z]\b")


def describe_surface() -> str:
    """Verbs with their options, settings, variables, exit codes, and the keys of all JSON."""
    keys = Keys()
    parts = {
        "verbs": _iterate_verbs(),
        "settings of a configuration file": iter(sorted(FILE_FIELDS)),
        "variables": iter(sorted(_find_variables())),
        "exit codes": _iterate_exit_codes(),
        "JSON": (line for name in NAMES for line in keys.describe(name, describe(name))),
    }
    return "\n".join(line for title, lines in parts.items() for line in (f"# {title}", *lines, ""))


def _iterate_verbs() -> Iterator[str]:
    for verb in VERBS:
        for command in list_all(load_verb(verb)):
            words = verb if command.name == verb else f"{verb} {command.name}"
            yield words + (" (hidden)" if command.hidden else "")
            for parameter in command.params:
                yield f"{words} {_describe_parameter(parameter)}"


def _describe_parameter(parameter: click.Parameter) -> str:
    metavar = parameter.metavar or parameter.type.name
    if not isinstance(parameter, click.Option):
        return f"[{metavar}]"
    spellings = " ".join((*parameter.opts, *parameter.secondary_opts))
    marks = [] if parameter.is_flag else [metavar]
    if isinstance(parameter.type, click.Choice):
        marks.append("|".join(map(str, parameter.type.choices)))
    marks += [word for word, so in (("repeatable", parameter.multiple), ("hidden", parameter.hidden)) if so]
    return f"{spellings} {', '.join(marks)}".rstrip()


def _find_variables() -> set[str]:
    source = (path.read_text() for path in Path(sessionrun.__file__).parent.rglob("*.py"))
    return {name for text in source for name in VARIABLE.findall(text)}


def _iterate_exit_codes() -> Iterator[str]:
    manual = Path(sessionrun.__file__).parent.parent / "man" / "sessionrun.1"
    section = manual.read_text().partition(".SH EXIT STATUS\n")[2].partition("\n.SH ")[0]
    return iter(re.findall(r"^\.B (\d+)$", section, re.MULTILINE))


class Keys:
    """The keys of JSON: a line for each, with what it may be, or where the same was described before."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}
        self._kinds: dict[str, set[str]] = {}

    def describe(self, name: str, schema: Mapping[str, Any]) -> list[str]:
        self._kinds = {}
        self._walk(schema, name)
        return [f"{path}: {' '.join(sorted(words))}" for path, words in sorted(self._kinds.items())]

    def _walk(self, schema: Any, path: str) -> None:
        if not isinstance(schema, Mapping):
            return
        kinds = self._kinds.setdefault(path, set())
        if "properties" in schema and len(schema["properties"]) > FEW_KEYS:
            own = {key: value for key, value in schema["properties"].items() if key != "schema_version"}
            required = [key for key in schema.get("required", ()) if key != "schema_version"]
            inside = {**schema, "properties": own, "required": required}  # as it is shown inside of another object
            first = self._seen.setdefault(json.dumps(inside, sort_keys=True), path)
            if first != path:
                kinds.add(f"as {first}")
                return
        if "$ref" in schema:
            kinds.add(schema["$ref"].rpartition("/")[2])
        for word in ("type", "const", "enum"):
            values = schema.get(word, [])
            kinds.update(map(str, values if isinstance(values, list) else [values]))
        for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
            self._walk(part, path)
        for name, part in schema.get("properties", {}).items():
            self._walk(part, f"{path}.{name}{'' if name in schema.get('required', ()) else '?'}")
        for name, part in schema.get("patternProperties", {}).items():
            self._walk(part, f"{path}.{name}")
        self._walk(schema.get("additionalProperties"), f"{path}.*")
        self._walk(schema.get("items"), f"{path}[]")
        for name, part in schema.get("$defs", {}).items():
            self._walk(part, f"{path}/{name}")


def test_the_surface_is_as_kept() -> None:
    if os.environ.get("GOLDEN") == "write":
        KEPT.write_text(describe_surface())
    kept, now = KEPT.read_text().splitlines(), describe_surface().splitlines()
    changed = "\n".join(difflib.unified_diff(kept, now, "kept", "now", lineterm="", n=0))
    assert not changed, f"GOLDEN=write writes it anew:\n{changed}"
