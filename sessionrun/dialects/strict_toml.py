"""TOML to plain values, with problems told in one line.  Must not know what the values mean, nor files."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from sessionrun.model.errors import InputError


def parse_toml(raw: bytes, name: str) -> dict[str, Any]:
    """Read a TOML document; `name` begins the message about what is wrong with it.

    Raises:
        InputError: not UTF-8, not TOML, or nested too deeply.
    """
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return dict(toml.loads(raw.decode("utf-8").removeprefix("\ufeff")))
    except UnicodeDecodeError:
        raise InputError(f"{name}: is not UTF-8") from None
    except RecursionError:
        raise InputError(f"{name}: is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{name}: not valid TOML: {' '.join(str(error).split())}") from None
