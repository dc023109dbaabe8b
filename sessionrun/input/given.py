"""Reads what `run` is given: a file, standard input, a directory; prompts, and items for which each is asked."""

from __future__ import annotations

import glob
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from sessionrun.input.formats import FORMATS
from sessionrun.input.kinds import resolve_paths
from sessionrun.input.parse import PROJECT_SETTINGS, STATUS_FILE, Folder, Source, decode
from sessionrun.input.rows import BY_NAME
from sessionrun.input.settings import read_values
from sessionrun.input.text import MAX_INPUT_BYTES, has_half_character
from sessionrun.model.errors import InputError
from sessionrun.model.keys import describe_id_problem
from sessionrun.store.files import read_regular

STDIN: Final = "-"

JOBS: Final = "jobs"
"""The usual name of a project's directory of job files."""

VALUE: Final = "plan"
"""The name of an input that is a value: messages begin with it."""


Given = str | Path | Mapping[str, Any] | list[Any] | None
"""An input: a file or directory by name, what its JSON would be as a value, or None for standard input."""


def find_input(given: Given, options: Mapping[str, Any]) -> tuple[Given, str | None]:
    """The input and the format that was asked for: of a format with a usual input, that if none is named."""
    named = options.get("instances")
    if named is not None and given is not None:
        raise InputError(f"FILE and --instances both name the input ({given} and {named}); keep one")
    dialect = options.get("dialect")
    if given is None and not dialect:  # one format alone may have what was given
        dialect = next((BY_NAME[name].format for name in options if BY_NAME[name].format), None)
    given = given if named is None else named
    known = FORMATS.get(dialect or "")
    usual = known.usual if known is not None else None
    if given is not None or usual is None or "prompts" in options:
        return given, dialect
    file, hint = usual
    if not os.path.exists(file):
        raise InputError(f"no input, and {file} is not there: {hint}")
    return file, dialect


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What is said beside an input: values, paths of tasks counted from here, and the text of a template."""
    options = read_values(BY_NAME, options)
    if "defaults" in options:
        options["defaults"] = resolve_paths(str(Path.cwd()), options["defaults"])
    if "prompt_template" in options:
        path = options["prompt_template"]
        options["prompt_template"] = read_text(path, f"--prompt-template {path}")
    return options


def read_source(given: Given) -> Source:
    """Read an input.  If the input is a value, its relative paths begin at the current directory."""
    here = str(Path.cwd())
    if isinstance(given, (Mapping, list)):
        return Source(VALUE, _spell(VALUE, given if isinstance(given, list) else dict(given)), here, here)
    file = None if given is None else str(given)
    if file not in (None, STDIN):
        if os.path.isdir(file):
            return _read_directory(file, None)
        if file.endswith(".md") and os.path.isfile(file):
            return _read_directory(os.path.dirname(file) or ".", os.path.basename(file))
    if file is None and sys.stdin.isatty():
        raise InputError("no input: give a FILE, or pipe prompts to standard input (see: sessionrun --help)")
    try:
        content = _read_stream(STDIN if file is None else file)
    except FileNotFoundError:
        what = "file" if "." in str(file) or "/" in str(file) else "file or verb"
        hint = f"; for a prompt: sessionrun -p {shlex.quote(str(file))}" if " " in str(file) else ""
        raise InputError(f"{file}: no such {what}{hint}") from None
    except OSError as error:
        raise InputError(f"{file or 'stdin'}: {error.strerror}") from error
    if file is None or file == STDIN:
        return Source("stdin", content, here, here)
    return Source(file, content, str(Path(file).absolute().parent), here)


def _read_stream(name: str) -> bytes:
    """What a file or standard input holds, at most one byte more than an input may have."""
    with nullcontext(sys.stdin.buffer) if name == STDIN else open(name, "rb") as stream:
        return stream.read(MAX_INPUT_BYTES + 1)


def _read_directory(name: str, only: str | None) -> Source:
    """A directory of job files, or the one beside ``worksplit.toml`` where its project is named."""
    jobs = os.path.join(name, JOBS)
    if only is None and os.path.isdir(jobs):
        has_own = any(entry.name.endswith(".md") for entry in os.scandir(name))
        name = jobs if os.path.isfile(os.path.join(name, PROJECT_SETTINGS)) or not has_own else name
    directory = os.path.realpath(name)
    # the paths in job files begin above their directory if that belongs to a project, else here
    project = os.path.dirname(directory)
    if os.path.basename(directory) != JOBS and not os.path.isfile(os.path.join(project, PROJECT_SETTINGS)):
        project = str(Path.cwd())
    settings_path = os.path.join(project, PROJECT_SETTINGS)
    settings = _read(settings_path) if os.path.lexists(settings_path) else None
    try:
        entries = sorted(os.scandir(name), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}") from error
    files = {}
    for entry in entries:
        is_job_file = entry.name.endswith(".md") and not entry.name.startswith(".")
        if (is_job_file or entry.name == STATUS_FILE) and not os.path.isdir(entry.path):
            files[entry.name] = _read(entry.path)
    folder = Folder(name, directory, project, files, settings, only)
    if only is None:
        return Source(name, b"", directory, str(Path.cwd()), folder)
    if only not in files:
        raise InputError(f"{os.path.join(name, only)}: a hidden file is not a job file")
    return Source(os.path.join(name, only), files[only], directory, str(Path.cwd()), folder)


def _read(path: str) -> bytes:
    try:
        return read_regular(Path(os.path.realpath(path)), MAX_INPUT_BYTES)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def read_text(name: str, what: str = "", *, typed: bool = False) -> str:
    """The text of a file, or of standard input if its name is ``-``; `what` it is begins messages.

    With `typed` a person may write it at the terminal.

    Raises:
        InputError: it cannot be read, is too large, or is not UTF-8.
    """
    what = what or (name if name != STDIN else "standard input")
    if name == STDIN and (sys.stdin is None or (sys.stdin.isatty() and not typed)):
        raise InputError(f"{what}: nothing is piped to it")
    try:
        content = _read_stream(name)
    except OSError as error:
        raise InputError(f"{what}: {error.strerror}") from error
    if len(content) > MAX_INPUT_BYTES:
        raise InputError(f"{what}: more than {MAX_INPUT_BYTES} bytes")
    return decode(content, what)


# --- prompts of the command line, and items ---

_PLACES: Final = re.compile(r"\{\{(|\.|/|n)\}\}|\{(|\.|/|n)\}")
"""``{}`` and its like stand for the item; in two pairs of braces they stand for themselves."""

_NEEDS_LIST: Final = "--each needs a list of prompts, or a plan"

_LISTS: Final = ("prompts", "tasks")
_NEEDS: Final = ("needs", "depends_on")
_TEXTS: Final = ("prompt", "prompts", "title")


class Each(NamedTuple):
    """One of the items, from 1: what the places stand for, and the beginning of its task's id."""

    text: str
    number: int
    id: str

    def fill(self, value: Any) -> Any:
        """Put the item into the places of a text, or of those of a list."""
        if isinstance(value, list):
            return [self.fill(part) for part in value]
        if not isinstance(value, str):
            return value
        names = {"": self.text, ".": os.path.splitext(self.text)[0], "/": os.path.basename(self.text)}
        known = {**names, "n": str(self.number)}
        return _PLACES.sub(lambda place: f"{{{place[1]}}}" if place[2] is None else known[place[2]], value)


def make_source(given: Given, options: Mapping[str, Any]) -> Source:
    """Read the input that is meant: prompts of the command line, or a file, and each task for each item."""
    prompts, each, title = options.get("prompts", ()), options.get("each"), options.get("title")
    if not prompts:
        if title is not None:
            raise InputError("--title needs -p: in a file each task has its own title")
        if each == STDIN and given in (None, STDIN):
            raise InputError("--each - reads standard input: give the prompts with -p, or as a FILE")
        source = read_source(given)
        if each is not None and not source.text.strip() and given in (None, STDIN):
            raise InputError("--each needs prompts with {} in them: give them with -p, or as a FILE")
        return source if each is None else _multiply(source, list_items(each))
    if given is not None:
        raise InputError(f"-p and {given}: give prompts or a file, not both")
    if (*prompts, each).count(STDIN) > 1:
        raise InputError("standard input can be read only once: give - to one option")
    texts = [read_text(STDIN) if prompt == STDIN else prompt for prompt in prompts]
    tasks = [{"prompt": text, **({"title": title} if title else {})} for text in texts]
    if each is not None:
        tasks = list(_repeat(tasks, list_items(each), "-p"))
    return Source("-p", _spell("-p", tasks), str(Path.cwd()), str(Path.cwd()))


def list_items(each: str) -> list[Each]:
    """The items of `--each`: a pattern of files, ``@`` and a file of lines, or ``-``: standard input."""
    if each == STDIN or each.startswith("@"):
        name, what = (each, "standard input") if each == STDIN else (each[1:], each[1:])
        # Not splitlines(): it also breaks at form feeds and U+2028.
        texts = [line.removesuffix("\r") for line in read_text(name, f"--each: {what}").split("\n")]
        what = f"{what} has no lines"
    else:
        what = f"no {'directory' if each.endswith('/') else 'file'} matches {each!r}"
        texts = sorted(glob.glob(each, recursive=True))
        if each.endswith("/"):
            texts = [name.rstrip("/") or "/" for name in texts]
        else:
            texts = [name for name in texts if not os.path.isdir(name)]
    texts = [text for text in texts if text.strip()]
    for text in texts:
        if has_half_character(text):
            raise InputError(f"--each: {text!r}: the name is not text (UTF-8)")
    if not texts:
        raise InputError(f"--each: {what}")
    ids = _name_items(texts)
    return [Each(text, number, name) for number, (text, name) in enumerate(zip(texts, ids, strict=True), 1)]


def _multiply(source: Source, items: Sequence[Each]) -> Source:
    """The input in which each task of a plan is there once for each item."""
    if source.folder is not None:
        raise InputError(f"{source.name}: {_NEEDS_LIST}")
    document = source.document
    value = document.value
    key = next((name for name in _LISTS if isinstance(value, dict) and isinstance(value.get(name), list)), None)
    tasks = value[key] if key is not None else [value] if isinstance(value, dict) else value
    if not isinstance(tasks, list):
        raise InputError(f"{source.name}: {_NEEDS_LIST}")
    made = list(_repeat(tasks, items, source.name))
    whole = {**value, key: made} if key is not None else made
    lines = made if document.format == "JSON Lines" else [whole]
    text = b"\n".join(_spell(source.name, line) for line in lines)
    return Source(source.name, text, source.directory, source.started_in)


def _spell(name: str, value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise InputError(f"{name}: {error}") from None


def _repeat(tasks: Sequence[Any], items: Sequence[Each], whose: str) -> Iterator[dict[str, Any]]:
    records = [{"prompt": task} if isinstance(task, str) else task for task in tasks]
    if not all(isinstance(record, dict) for record in records):
        raise InputError(f"{whose}: --each needs prompts that are texts or objects")
    nothing = Each("", 0, "")
    if all(nothing.fill(record.get(key)) == record.get(key) for record in records for key in _TEXTS):
        raise InputError(f"{whose}: --each has no effect: write {{}} (or {{.}}, {{/}}, {{n}}) where the item goes")
    named = {own for record in records if isinstance(own := _name(record.get("id")), str)}
    for one in items:
        for place, record in enumerate(records, 1):
            made = {key: one.fill(value) if key in _TEXTS else value for key, value in record.items()}
            own = _name(record.get("id")) or (str(place) if len(records) > 1 else "")
            made["id"] = "-".join(filter(None, (one.id, own))) if isinstance(own, str) else own
            yield made | {key: _rename(record[key], named, one) for key in _NEEDS if key in record}


def _rename(needs: Any, named: set[str], one: Each) -> Any:
    """A need of a task of the same file means the one of the same item."""
    if isinstance(needs, list):
        return [_rename(need, named, one) for need in needs]
    need = _name(needs)
    return f"{one.id}-{need}" if isinstance(need, str) and need in named else needs


def _name(task_id: Any) -> Any:
    """An id as text: a whole number is one, too (see `input.kinds.as_id`)."""
    is_number = isinstance(task_id, int) and not isinstance(task_id, bool) and task_id != 0
    return str(task_id) if is_number else task_id


def _name_items(texts: Sequence[str]) -> list[str]:
    """An id for each: its own characters as far as an id may have them, and a number if that is taken."""
    taken: set[str] = set()
    names = []
    for number, text in enumerate(texts, 1):
        wanted = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:60].rstrip("-.")
        if not wanted or describe_id_problem(wanted) is not None:
            wanted = f"item-{number}"
        while wanted.casefold() in taken:
            wanted = f"{wanted}-{number}"
        taken.add(wanted.casefold())
        names.append(wanted)
    return names
