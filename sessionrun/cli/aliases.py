"""Words of other programs that stand for a verb, and a hint for a first word that is no verb.

A file goes before an alias: `sessionrun ls` runs the file `ls` if there is one, as before there were aliases.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

from sessionrun.cli.argv import FLAG_VERBS, VERBS
from sessionrun.model.errors import InputError

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "ls": ("list",),
    "ps": ("list", "--state", "running,recovering"),
    "stop": ("cancel",),
    "kill": ("cancel", "--now"),
    "rm": ("clean",),
    "version": ("--version",),
    "-V": ("--version",),
}
"""What is read in the place of the first word; `help` is read by `expand_alias`."""

HELP: Final = "help"

_MEANT: Final[Mapping[str, str]] = {
    "attach": "logs --follow",
    "delete": "clean",
    "info": "explain",
    "log": "logs",
    "pause": "hold",
    "remove": "clean",
    "restart": "retry",
    "show": "status",
    "start": "run",
    "tail": "logs --follow",
    "top": "status",
    "unpause": "release",
    "watch": "wait",
}
"""Verbs of other programs that are too far from ours to be read as theirs."""

_BARE: Final = re.compile(r"[a-zA-Z][a-zA-Z-]*")


def expand_alias(words: Sequence[str]) -> list[str]:
    """The words with an alias at their beginning written out."""
    if not words or words[0] in VERBS or os.path.lexists(words[0]):
        return list(words)
    if words[0] == HELP:
        topics = expand_alias(words[1:])
        return [topics[0], "--help"] if topics and not topics[0].startswith("-") else ["--help"]
    return [*ALIASES.get(words[0], words[:1]), *words[1:]]


def refuse_mistyped_verb(words: Sequence[str]) -> None:
    """Refuse a first word that is no verb, no option and no file, if it looks like a mistyped verb.

    Raises:
        InputError: it does.
    """
    word = words[0] if words else ""
    if word in VERBS or not _BARE.fullmatch(word) or os.path.lexists(word):
        return
    if any(option.partition("=")[0] in FLAG_VERBS for option in words):
        return
    meant = _MEANT.get(word) or _find_close(word)
    if meant:
        raise InputError(
            f"{word}: no such verb or file; did you mean `sessionrun {meant}`? (all: sessionrun --help)"
        )


def _find_close(word: str) -> str | None:
    from difflib import get_close_matches

    close = get_close_matches(word.lower(), [*VERBS, *ALIASES, HELP], n=1, cutoff=0.7)
    return close[0] if close else None
