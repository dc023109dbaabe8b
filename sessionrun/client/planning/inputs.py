"""Reads what `run` is given: standard input, a file, or a directory of files that are one input together."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sessionrun.input.formats import DEFAULT_INPUTS, imply_dialect
from sessionrun.input.kinds import resolve, resolve_repo
from sessionrun.input.limits import MAX_INPUT_BYTES
from sessionrun.input.plan import Folder, Source
from sessionrun.input.rows import SETTINGS
from sessionrun.input.settings import read_values
from sessionrun.model.errors import InputError
from sessionrun.store.files import NotRegular, read_regular

JOBS: Final = "jobs"
"""The usual name of a project's directory of job files."""

VALUE: Final = "plan"
"""The name of an input that is a value: messages begin with it."""

_MAX_TEMPLATE_BYTES: Final = 1024 * 1024

PROJECT_SETTINGS: Final = "worksplit.toml"
STATUS: Final = "_jobstatus.json"


Given = str | Path | Mapping[str, Any] | list[Any] | None
"""An input: a file or directory by name, what its JSON would be as a value, or None for standard input."""


def find_input(given: Given, options: Mapping[str, Any]) -> tuple[Given, str | None]:
    """The input and the format that was asked for: of a format with a usual input, that if none is named.

    Raises:
        InputError: two inputs are named, or none is, and the usual one is not there.
    """
    named = options.get("instances")
    if named is not None and given is not None:
        raise InputError(f"FILE and --instances both name the input ({given} and {named}); keep one")
    dialect = options.get("dialect") or (imply_dialect(options) if given is None else None)
    given = given if named is None else named
    usual = DEFAULT_INPUTS.get(dialect or "")
    if given is not None or usual is None or "prompts" in options:
        return given, dialect
    if not os.path.exists(usual.file):
        raise InputError(f"no input, and {usual.file} is not there: {usual.hint}")
    return usual.file, dialect


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What is said beside an input: values, paths of tasks counted from here, and the text of a template.

    Raises:
        InputError: there is no such setting, a value does not fit, or the file of the template cannot be read.
    """
    options = read_values(SETTINGS, options)
    defaults, here = dict(options.get("defaults", {})), str(Path.cwd())
    if "cwd" in defaults:
        defaults["cwd"] = resolve(here, defaults["cwd"])
    if "repo" in defaults:
        defaults["repo"] = resolve_repo(here, defaults["repo"])
    options |= {"defaults": defaults} if defaults else {}
    if "prompt_template" in options:
        options["prompt_template"] = _read_template(options["prompt_template"])
    return options


def _read_template(path: str) -> str:
    try:
        return read_regular(Path(os.path.realpath(path)), _MAX_TEMPLATE_BYTES).decode()
    except UnicodeDecodeError:
        raise InputError(f"--prompt-template {path}: it is not UTF-8") from None
    except OSError as error:
        raise InputError(f"--prompt-template {path}: {error.strerror}") from None


def read_source(given: Given) -> Source:
    """Read an input.  If the input is a value, its relative paths begin at the current directory.

    Raises:
        InputError: there is no such file, the input is missing, or a value is not JSON.
    """
    if isinstance(given, (Mapping, list)):
        return Source(VALUE, _spell(given), str(Path.cwd()), str(Path.cwd()))
    file = None if given is None else str(given)
    if file is not None and file != "-":
        if os.path.isdir(file):
            return _read_directory(file, None)
        if file.endswith(".md") and os.path.isfile(file):
            return _read_directory(os.path.dirname(file) or ".", os.path.basename(file))
    name, text = _read_input(file)
    directory = Path.cwd() if name == "stdin" else Path(name).absolute().parent
    return Source(name, text, str(directory), str(Path.cwd()))


def _spell(given: Mapping[str, Any] | list[Any]) -> bytes:
    import orjson

    try:
        return orjson.dumps(given if isinstance(given, list) else dict(given))
    except TypeError as error:
        raise InputError(f"{VALUE}: {error}") from None


def _read_directory(name: str, only: str | None) -> Source:
    """A directory of job files, or the one beside ``worksplit.toml`` where its project is named."""
    if only is None and _has_jobs_below(name):
        name = os.path.join(name, JOBS)
    directory = os.path.realpath(name)
    project = _find_project(directory)
    settings_path = os.path.join(project, PROJECT_SETTINGS)
    settings = _read(settings_path) if os.path.lexists(settings_path) else None
    files = _read_files(name)
    folder = Folder(name, directory, project, files, settings, only)
    if only is None:
        return Source(name, b"", directory, str(Path.cwd()), folder)
    if only not in files:
        raise InputError(f"{os.path.join(name, only)}: a hidden file is not a job file")
    return Source(os.path.join(name, only), files[only], directory, str(Path.cwd()), folder)


def _has_jobs_below(name: str) -> bool:
    if not os.path.isdir(os.path.join(name, JOBS)):
        return False
    own = any(entry.name.endswith(".md") for entry in os.scandir(name))
    return os.path.isfile(os.path.join(name, PROJECT_SETTINGS)) or not own


def _find_project(directory: str) -> str:
    """Where the paths in job files begin: above their directory if that belongs to a project, else here."""
    parent = os.path.dirname(directory)
    if os.path.basename(directory) == JOBS or os.path.isfile(os.path.join(parent, PROJECT_SETTINGS)):
        return parent
    return str(Path.cwd())


def _read_files(name: str) -> dict[str, bytes]:
    """The Markdown files and the status file of a directory, without directories and hidden files."""
    try:
        entries = sorted(os.scandir(name), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}") from error
    names = [
        entry.name
        for entry in entries
        if entry.name == STATUS or (entry.name.endswith(".md") and not entry.name.startswith("."))
    ]
    return {file: _read(os.path.join(name, file)) for file in names if not os.path.isdir(os.path.join(name, file))}


def _read(path: str) -> bytes:
    try:
        return read_regular(Path(os.path.realpath(path)), MAX_INPUT_BYTES)
    except NotRegular:
        raise InputError(f"{path}: is not a regular file") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def _read_input(file: str | None) -> tuple[str, bytes]:
    """The input's name and bytes, at most one byte more than an input may have."""
    if file is None and sys.stdin.isatty():
        raise InputError("no input: give a FILE, or pipe prompts to standard input (see: sessionrun --help)")
    try:
        if file is None or file == "-":
            return "stdin", sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        with open(file, "rb") as stream:
            return file, stream.read(MAX_INPUT_BYTES + 1)
    except FileNotFoundError:
        what = "file" if "." in str(file) or "/" in str(file) else "file or verb"
        hint = f"; for a prompt: sessionrun -p {shlex.quote(str(file))}" if " " in str(file) else ""
        raise InputError(f"{file}: no such {what}{hint}") from None
    except OSError as error:
        raise InputError(f"{file or 'stdin'}: {error.strerror}") from error
