"""Dialects: foreign input in, a `Plan` out.  The table of them, and which one an input is.

Dialects import the model and the errors only.  They read no files: the command line reads bytes and passes
them on.  What an input is stands here, or in the table of the house, so that a launch imports the one dialect that
reads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, cast

from sessionrun.house import HOUSE, Format, load
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan
from sessionrun.input.rows import BY_NAME
from sessionrun.input.settings import Options
from sessionrun.input.text import plain, quote
from sessionrun.model.errors import InputError, suggest
from sessionrun.model.validation import validate_tasks

_MARKS: Final = ("models", "source_repo", "worktree_base", "outputs_dir", "results_file")
"""Beside "tasks", each tells a matrix: a user that forgets the models must not get a plan for the checkout."""


def _see_matrix(source: Source) -> str | None:
    form, value = source.document.format, source.document.value
    is_tasks = isinstance(value, dict) and "tasks" in value
    mark = next((key for key in _MARKS if key in value), None) if is_tasks else None
    return None if mark is None else f'{form} object with "tasks" and {quote(mark)}'


def keep_letters(key: str) -> str:
    """A key however it is spelled: in whatever letters, with whatever between its words."""
    return re.sub(r"[\W_]", "", key).casefold()


def _see_sign(one: Format, source: Source) -> str | None:
    """Why an input is of a format that is known by the name of its file, or by the keys of its first record."""
    if one.file:
        return "its name" if os.path.basename(source.name) == one.file else None
    document = source.document
    value = document.value
    begin = value[0] if isinstance(value, list) and value else value
    keys = set(map(keep_letters, begin)) if isinstance(begin, dict) else set()
    first, *others = map(keep_letters, one.keys)
    return f"{document.format} with {quote(one.keys[0])}" if first in keys and keys & set(others) else None


_LOOKED_AT: Final = 50
"""So many keys of a record are compared with a missing one: comparing is slow."""


def find_key(record: Mapping[str, Any], wanted: Sequence[str]) -> str | None:
    """One of the wanted keys, else a key that is close to one."""
    exact = next((key for key in wanted if key in record), None)
    return exact or next((key for key in islice(record, _LOOKED_AT) if suggest(key, wanted)), None)


def _see_prompts(source: Source) -> str | None:
    """A near miss is taken, too: `load` then says what to write instead."""
    document = source.document
    value = document.value
    if isinstance(value, dict):
        key = find_key(value, ("prompts", "tasks", "prompt", "feed"))
        return None if key is None else f"{document.format} object with {quote(key)}"
    if not isinstance(value, list):
        return None
    if value and isinstance(value[0], dict) and find_key(value[0], ("prompt", "prompts")) is None:
        return None
    return "JSON Lines, a prompt each" if document.lines else f"{document.format} list of prompts"


FORMATS: Final[Mapping[str, Format]] = {
    "markdown": Format("a directory of .md files with front matter, or one of them", lambda _: None),
    "matrix": Format('an object with "tasks" and "models"', _see_matrix, keyed=True),
    **{name: one for business in HOUSE for name, one in business.formats.items()},
    "prompts": Format('an object with "prompts", or a list of prompts', _see_prompts, keyed=True),
}
"""Asked in this order, those of the house in its order, the widest last."""


def load_plan(name: str, source: Source, options: Options) -> Plan:
    """Read an input of this format; what is alike for all of them is checked and settled here."""
    found = cast(Plan, load(FORMATS[name].module or f"input.{name}").load(source, options))
    try:
        validate_tasks(found.tasks, options.others, found.places)
    except InputError as error:
        raise InputError(f"{plain(source.name)}: {error}") from None
    given = options.given
    return replace(
        found,
        name=given.get("name", found.name),
        labels={**found.labels, **given.get("labels", {})},
        auto_release=found.auto_release and given.get("auto_release", True),
    )


def choose_format(source: Source, requested: str | None) -> tuple[str, str]:
    """Find the format of an input, and why it was chosen, for people.

    Raises:
        InputError: there is no such format, the input is of none, or it cannot be parsed at all.
    """
    if requested is not None:
        if requested not in FORMATS:
            raise InputError(f"no input format {requested!r}; there are: {', '.join(FORMATS)}")
        return requested, "asked for"
    if source.folder is not None:
        return "markdown", "a Markdown file" if source.folder.only else "a directory"
    for name, one in FORMATS.items():
        reason = one.recognise(source) if one.recognise else _see_sign(one, source)
        if reason:
            return name, reason
    wanted = "; ".join(f"{name}: {one.expects}" for name, one in FORMATS.items())
    raise InputError(
        f"{plain(source.name)}: no input format fits it; the shortest input is a list of prompts: "
        f'["Fix the bug"]; a prompt as plain text: sessionrun -p - ({wanted})'
    )


def refuse_others(dialect: str, options: Mapping[str, Any]) -> None:
    """Refuse what only other formats have.

    Raises:
        InputError: the first of it.
    """
    known = FORMATS[dialect]
    for name, value in options.items():
        row = BY_NAME[name]
        if row.format not in ("", dialect):
            raise InputError(
                f"{row.spell()} is an option of the input format {row.format}, "
                f"and this input is read as {dialect}; leave it out, or add --from {row.format}"
            )
        if row.keyed and not known.keyed and name not in known.takes:
            key = next(iter(value)) if name == "defaults" else name
            raise InputError(f"{key} has no effect: in the format {dialect} each task says that itself")
