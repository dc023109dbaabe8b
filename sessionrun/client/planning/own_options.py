"""Options that only one input format has: which input they mean where none is named, and files that they name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sessionrun.client.planning.inputs import Given
from sessionrun.dialects.own_options import DEFAULT_INPUTS, OWN_OPTIONS, OWN_VARIABLES, imply_dialect
from sessionrun.model.errors import InputError
from sessionrun.store.files import read_regular

MAX_FILE_BYTES = 1024 * 1024


def find_input(given: Given, own: Mapping[str, Any], dialect: str | None) -> tuple[Given, str | None]:
    """The input and the format that was asked for: of a format with a usual input, that if none is named.

    Raises:
        InputError: two inputs are named, or none is, and the usual one is not there.
    """
    named = own.get("instances")
    if named is not None and given is not None:
        raise InputError(f"FILE and --instances both name the input ({given} and {named}); keep one")
    dialect = dialect or (imply_dialect(own) if given is None else None)
    given = given if named is None else named
    usual = DEFAULT_INPUTS.get(dialect or "")
    if given is not None or usual is None:
        return given, dialect
    if not os.path.exists(usual.file):
        raise InputError(f"no input, and {usual.file} is not there: {usual.hint}")
    return usual.file, dialect


def read_own(own: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the texts of the files that they name.

    Raises:
        InputError: a file cannot be read.
    """
    values = dict(own)
    for option in (option for options in OWN_OPTIONS.values() for option in options):
        if option.value == "file" and option.name in values:
            path = values[option.name]
            try:
                values[option.name] = read_regular(os.path.realpath(path), MAX_FILE_BYTES).decode()
            except UnicodeDecodeError:
                raise InputError(f"{option.spellings[0]} {path}: it is not UTF-8") from None
            except OSError as error:
                raise InputError(f"{option.spellings[0]} {path}: {error.strerror}") from None
    return values


def add_variables(dialect: str, own: Mapping[str, Any], environ: Mapping[str, str]) -> Mapping[str, Any]:
    """The options with those that environment variables say; a variable of another format says nothing.

    Raises:
        InputError: a variable is no flag.
    """
    from sessionrun.client.config import read_flag
    from sessionrun.dialects.convert import Misfit

    variables = {}
    for variable, name in OWN_VARIABLES.get(dialect, {}).items():
        try:
            if environ.get(variable) and read_flag(environ[variable]):
                variables[name] = variable
        except Misfit as misfit:
            raise InputError(f"{variable}: {misfit.problem}") from None
    return {**variables, **own}
