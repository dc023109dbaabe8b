"""Says of each setting of the configuration what it is, and where that is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.agents.table import BUILTIN
from sessionrun.client.config import ENVIRONMENT, Config, lay_over, load_config, read_levels, variables

DEFAULT: Final = "default"
_TABLES: Final = ("agents", "prices")


class Setting(NamedTuple):
    """A setting, its value (None: it is not set), and a file, a variable or `DEFAULT`."""

    name: str
    value: Any
    origin: str


def trace_settings(cwd: Path, environ: Mapping[str, str]) -> list[Setting]:
    """All settings in use, also those that are not set, then the agents and prices that files name.

    Raises:
        InputError: a file that cannot be read or parsed, an unknown key, a value that does not fit.
    """
    load_config(cwd, environ, BUILTIN)  # it refuses what does not fit
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    tables: dict[tuple[str, str], Setting] = {}
    for file, values in read_levels(cwd, environ):
        for table in _TABLES:
            for name, value in values.pop(table, {}).items():
                tables[table, name] = Setting(f"{table}.{name}", value, str(file))
        for name in values:
            origins[name] = _find_variable(name, environ) if file == ENVIRONMENT else str(file)
        merged = lay_over(merged, values)
    names = [one.name for one in fields(Config) if one.name not in _TABLES]
    settings = [Setting(name, merged.get(name), origins[name] if name in merged else DEFAULT) for name in names]
    return [*settings, *tables.values()]


def _find_variable(name: str, environ: Mapping[str, str]) -> str:
    """The variable that says a setting; of two the later one counts."""
    found = [
        variable for variable, (setting, _) in variables().items() if setting == name and environ.get(variable)
    ]
    return found[-1] if found else os.fspath(ENVIRONMENT)
