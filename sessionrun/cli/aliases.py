"""Words of other programs that stand for a verb, and a hint for a first word that is no verb.

A file goes before an alias: `sessionrun ls` runs the file `ls` if there is one, as before there were aliases.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

import click

from sessionrun.cli.argv import FLAG_VERBS, KNOWN, VERBS, find_first
from sessionrun.model.errors import InputError

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "ls": ("list",),
    "ps": ("list", "--state", "running,recovering"),
    "overview": ("list", "--totals"),
    "stop": ("cancel",),
    "kill": ("cancel", "--now"),
    "rm": ("clean",),
    "dispatch": ("queue", "work"),
    "split": ("queue", "split"),
    "ingest": ("queue", "take"),
    "version": ("--version",),
    "-V": ("--version",),
}
"""What is read in the place of the first word."""

_MEANT: Final[Mapping[str, str]] = {
    "agents": "doctor agents",
    "attach": "watch",
    "delete": "clean",
    "info": "explain",
    "land": "merge",
    "log": "logs",
    "pause": "hold",
    "remove": "clean",
    "restart": "retry",
    "show": "status",
    "start": "run",
    "tail": "logs --follow",
    "top": "watch",
    "unpause": "release",
}
"""Verbs of other programs that are too far from ours to be read as theirs."""

_MEANT_OPTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("clean", "all"): "clean --keep 0",
    ("logs", "tail"): "logs --lines N",
    ("status", "follow"): "watch",
    ("status", "watch"): "watch",
}
"""Options of other programs, without their dashes, and what there is in their place."""


def expand_alias(words: Sequence[str]) -> list[str]:
    """The words with an alias in the place of the verb written out."""
    place = 0 if words[:1] and words[0] in ALIASES else find_first(words)
    word = "".join(words[place : place + 1])
    if word not in ALIASES or os.path.lexists(word):
        return list(words)
    return [*ALIASES[word], *words[:place], *words[place + 1 :]]


def refuse_mistyped_verb(words: Sequence[str]) -> None:
    """Refuse a first word that is no verb, no option and no file, if it looks like a mistyped verb.

    Raises:
        InputError: it does.
    """
    word = "".join(words[(place := find_first(words)) : place + 1])
    if word in KNOWN or not re.fullmatch("[a-zA-Z][a-zA-Z-]*", word) or os.path.lexists(word):
        return
    if any(option.partition("=")[0] in FLAG_VERBS for option in words):
        return
    from difflib import get_close_matches

    close = get_close_matches(word.lower(), [*VERBS, *ALIASES], n=1, cutoff=0.7)
    meant = _MEANT.get(word) or next(iter(close), None)
    if meant:
        raise InputError(
            f"{word}: no such verb or file; did you mean `sessionrun {meant}`? (all: sessionrun --help)"
        )


def hint_option(given: Sequence[str], words: Sequence[str], error: click.NoSuchOption) -> str:
    """What may help where `words`, which were made of `given`, have an option that their verb does not have."""
    from sessionrun.client.lookup import STATES

    verb, name = words[0], error.option_name.removeprefix("--")
    has_states = error.ctx is not None and any("--state" in one.opts for one in error.ctx.command.params)
    by_state = f"{verb} --state {name}" if has_states and name in STATES else None
    meant = _MEANT_OPTIONS.get((verb, name)) or by_state
    if meant:
        return f"; did you mean `sessionrun {meant}`?"
    if verb != "run" and given[:1] != words[:1]:
        return f"; write {verb} first, and only options of {verb} after the verb"
    return ""
