"""Rewrites the words on the command line into `VERB ...`, before Click sees them.  Pure.

So that the spellings of older tools work unchanged, ``--status ID`` and its like are verbs, and a command
line without a verb runs a file.  A verb wins over a file of that name: write ``./status`` for the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

VERBS: Final = ("run", "status", "results", "list", "overview", "wait", "logs", "cancel", "agents")
FLAG_VERBS: Final = {
    "--status": "status",
    "--results": "results",
    "--list": "list",
    "--overview": "overview",
}
_OWN: Final = ("--help", "-h", "--version", "-v")


def rewrite_argv(argv: Sequence[str]) -> list[str]:
    """The words with a verb in front.

    >>> rewrite_argv(["--json", "--status=abc"])
    ['status', '--json', 'abc']
    >>> rewrite_argv(["tasks.json", "--worktree"])
    ['run', 'tasks.json', '--worktree']
    """
    words = list(argv)
    if words and (words[0] in VERBS or words[0] in _OWN):
        return words
    for place, word in enumerate(words):
        if word == "--":
            break
        flag, equals, value = word.partition("=")
        if flag in FLAG_VERBS:
            return [FLAG_VERBS[flag], *words[:place], *([value] if equals else []), *words[place + 1 :]]
    return ["run", *words]
