"""Makes an input of what a command line says itself: prompts, items for which each is asked, keys of all tasks."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from sessionrun.client.planning.inputs import Given, read_source
from sessionrun.input.limits import MAX_INPUT_BYTES, has_half_character
from sessionrun.input.plan import Source
from sessionrun.model.errors import InputError
from sessionrun.model.keys import describe_id_problem

STDIN: Final = "-"

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

    def fill(self, text: str) -> str:
        """Put the item into the places of a text."""
        names = {"": self.text, ".": os.path.splitext(self.text)[0], "/": os.path.basename(self.text)}
        known = {**names, "n": str(self.number)}
        return _PLACES.sub(lambda place: _find(place, known), text)


def make_source(given: Given, options: Mapping[str, Any]) -> Source:
    """Read the input that is meant: prompts of the command line, or a file, and each task for each item.

    Args:
        given: as of `plan`; None if the prompts are the input.
        options: what is said beside it, of which these are read: `prompts`, a `title` for them, and `each`: a
            pattern of files, ``@`` and a file with a line for each item, or ``-``: lines on standard input.

    Raises:
        InputError: there are no items, standard input is to be read twice, or no place says where an item goes.
    """
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
    texts = [_read_stdin() if prompt == STDIN else prompt for prompt in prompts]
    tasks = [{"prompt": text, **({"title": title} if title else {})} for text in texts]
    if each is not None:
        tasks = list(_repeat(tasks, list_items(each), "-p"))
    return Source("-p", _spell("-p", tasks), str(Path.cwd()), str(Path.cwd()))


def list_items(each: str) -> list[Each]:
    """The items that `--each` names, in their order.

    Raises:
        InputError: there are none, or their file cannot be read.
    """
    if each == STDIN:
        texts, what = _split_lines(_read_stdin()), "standard input has no lines"
    elif each.startswith("@"):
        texts, what = _read_lines(each[1:]), f"{each[1:]} has no lines"
    else:
        texts, what = _match(each), f"no {'directory' if each.endswith('/') else 'file'} matches {each!r}"
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
    from sessionrun.input.parse import parse_document

    if source.folder is not None:
        raise InputError(f"{source.name}: {_NEEDS_LIST}")
    document = parse_document(source)
    value = document.value
    parse_document.cache_clear()
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


def _match(pattern: str) -> list[str]:
    """The files of a pattern, or its directories if it ends with a slash."""
    found = sorted(glob.glob(pattern, recursive=True))
    if pattern.endswith("/"):
        return [name.rstrip("/") or "/" for name in found]
    return [name for name in found if not os.path.isdir(name)]


def _repeat(tasks: Sequence[Any], items: Sequence[Each], whose: str) -> Iterator[dict[str, Any]]:
    records = [{"prompt": task} if isinstance(task, str) else task for task in tasks]
    if not all(isinstance(record, dict) for record in records):
        raise InputError(f"{whose}: --each needs prompts that are texts or objects")
    if not any(_PLACES.search(text) for record in records for text in _texts_of(record)):
        raise InputError(f"{whose}: --each has no effect: write {{}} (or {{.}}, {{/}}, {{n}}) where the item goes")
    named = {own for record in records if isinstance(own := _name(record.get("id")), str)}
    for one in items:
        for place, record in enumerate(records, 1):
            made = {key: _fill(value, one) if key in _TEXTS else value for key, value in record.items()}
            own = _name(record.get("id")) or (str(place) if len(records) > 1 else "")
            made["id"] = "-".join(filter(None, (one.id, own))) if isinstance(own, str) else own
            yield made | {key: _rename(record[key], named, one) for key in _NEEDS if key in record}


def _texts_of(record: Mapping[str, Any]) -> Iterator[str]:
    for key in _TEXTS:
        value = record.get(key)
        yield from (text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str))


def _fill(value: Any, one: Each) -> Any:
    if isinstance(value, list):
        return [_fill(part, one) for part in value]
    return one.fill(value) if isinstance(value, str) else value


def _rename(needs: Any, named: set[str], one: Each) -> Any:
    """A need of a task of the same file means the one of the same item."""
    if isinstance(needs, list):
        return [_rename(need, named, one) for need in needs]
    need = _name(needs)
    return f"{one.id}-{need}" if isinstance(need, str) and need in named else needs


def _name(task_id: Any) -> Any:
    """An id as text: a whole number is one, too (see `convert.as_id`)."""
    is_number = isinstance(task_id, int) and not isinstance(task_id, bool) and task_id != 0
    return str(task_id) if is_number else task_id


def _find(place: re.Match[str], known: Mapping[str, str]) -> str:
    return known[place[2]] if place[2] is not None else f"{{{place[1]}}}"


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


def _read_stdin() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("-: nothing is piped to standard input")
    return _decode("standard input", sys.stdin.buffer.read(MAX_INPUT_BYTES + 1))


def _read_lines(name: str) -> list[str]:
    try:
        with open(name, "rb") as stream:
            return _split_lines(_decode(name, stream.read(MAX_INPUT_BYTES + 1)))
    except OSError as error:
        raise InputError(f"--each: {name}: {error.strerror}") from None


def _split_lines(text: str) -> list[str]:
    # Not splitlines(): it also breaks at form feeds and U+2028.
    return [line.removesuffix("\r") for line in text.split("\n")]


def _decode(name: str, content: bytes) -> str:
    if len(content) > MAX_INPUT_BYTES:
        raise InputError(f"{name}: more than {MAX_INPUT_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{name}: is not text (UTF-8)") from None
