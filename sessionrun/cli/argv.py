"""Rewrites the words on the command line into `VERB ...`, before Click sees them; hints for wrong words.

So that the spellings of older tools work unchanged, ``--status ID`` and its like are verbs, and a command
line without a verb runs a file.  A verb wins over a file of that name: write ``./status`` for the file.  A
file wins over a word of another program: `sessionrun ls` runs the file `ls` if there is one.  Which options have a
value is asked of Click, but only where one stands before the verb: a poll begins with that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Final, NamedTuple

import click

from sessionrun.house import describe_lack
from sessionrun.model.errors import InputError


class Verb(NamedTuple):
    """A verb: its line in the list of verbs, its module if that has another name, and whose business it is.

    Where that business was taken out, the verb is refused.
    """

    line: str
    module: str = ""
    business: str = ""


KNOWN: Final[Mapping[str, Verb]] = {
    "run": Verb("Start a session from a file or standard input (the default verb)."),
    "demo": Verb("Show in a minute what sessionrun does.", business="landing"),
    "status": Verb("Show where a session and its tasks stand."),
    "results": Verb("Print what the tasks of a session answered."),
    "report": Verb("Make one HTML page of a session.", "ports"),
    "list": Verb("List sessions."),
    "wait": Verb("Block until tasks have ended."),
    "watch": Verb("Show a session on the whole screen, as it goes."),
    "logs": Verb("Print or follow the output of tasks."),
    "cancel": Verb("Stop a session or some of its tasks.", "control"),
    "resume": Verb("Let a session go on whose processes were killed.", "control"),
    "retry": Verb("Try tasks again that did not succeed.", "control"),
    "continue": Verb("Ask more of a task that has ended, in its conversation.", "control"),
    "hold": Verb("Start nothing more of a session or of some tasks.", "control"),
    "release": Verb("Let go on what was held.", "control"),
    "set": Verb("Change how many tasks of a session run at once.", "control"),
    "explain": Verb("Say why tasks do not run, or what became of them."),
    "cost": Verb("Show what sessions used up and cost."),
    "diff": Verb("Show what tasks changed in their worktrees.", business="worktrees"),
    "merge": Verb("Land the work of tasks on a branch, after gates.", business="landing"),
    "clean": Verb("Remove old sessions, worktrees or mirrors that nothing needs."),
    "queue": Verb("Keep tasks in a repository; let agents work through them.", business="queue"),
    "doctor": Verb("Check sessions and the environment, and repair."),
    "precache": Verb("Fetch ahead the repositories that tasks name; build environments.", business="worktrees"),
    "serve": Verb("Show sessions to a browser, as they go.", "ports"),
    "cluster": Verb("Run the jobs of sessions on several machines.", business="cluster"),
    "mcp": Verb("Serve sessions as tools for an agent (MCP).", "ports"),
    "config": Verb("Show the settings in use, and where they are written."),
    "schema": Verb("Print the JSON Schema of plans, of files or of output.", "config"),
    "completion": Verb("Print what a shell has to read to complete words."),
    "man": Verb("Show the manual.", "help"),
    "help": Verb("Show options by topic, examples, or the help of a verb."),
}
"""The verbs in the order of the manual."""

VERBS: Final = {verb: row.line for verb, row in KNOWN.items() if not describe_lack(row.business)}
"""Those that are there, with a line for the list of them."""

FLAG_VERBS: Final = {"--status": "status", "--results": "results", "--list": "list", "--overview": "list --totals"}
BY_FLAG: Final = "flag"
"""What verbs find as the object of their context if they were asked for by such a flag."""

OWN: Final = ("--help", "-h", "--version", "-v")

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


def find_home(verb: str) -> str:
    return f"sessionrun.cli.{KNOWN[verb].module or verb}"


def load_verb(verb: str) -> click.Command:
    """Import the command of a verb.

    Raises:
        InputError: its business was taken out.
    """
    lack = describe_lack(KNOWN[verb].business)
    if lack:
        raise InputError(f"{verb}: {lack}")
    there = vars(import_module(find_home(verb))).values()
    return next(each for each in there if isinstance(each, click.Command) and each.name == verb)


def expand_alias(words: Sequence[str]) -> list[str]:
    """The words with an alias in the place of the verb written out."""
    if words and words[0] in (*KNOWN, *OWN):  # a poll names its verb
        return [*words]
    place = 0 if words[:1] and words[0] in ALIASES else find_first(words)
    word = "".join(words[place : place + 1])
    if word not in ALIASES or os.path.lexists(word):
        return [*words]
    return [*ALIASES[word], *words[:place], *words[place + 1 :]]


def rewrite_argv(argv: Sequence[str]) -> list[str]:
    """The words with a verb in front.

    >>> rewrite_argv(["--json", "--status=abc"])
    ['status', '--json', 'abc']
    >>> rewrite_argv(["--json", "status"])
    ['status', '--json']
    >>> rewrite_argv(["tasks.json", "--worktree"])
    ['run', 'tasks.json', '--worktree']
    """
    words = list(argv)
    if words and (words[0] in KNOWN or words[0] in OWN):
        return words
    for place in (place for place, is_option in _walk(words) if is_option):
        flag, equals, value = words[place].partition("=")
        if flag in FLAG_VERBS:
            return [*FLAG_VERBS[flag].split(), *words[:place], *([value] if equals else []), *words[place + 1 :]]
    place = find_first(words)
    if words[place : place + 1] and words[place] in KNOWN:
        return [words[place], *words[:place], *words[place + 1 :]]
    return ["run", *words]


def find_first(words: Sequence[str]) -> int:
    """The place of the first word that is neither an option nor the value of one: of the verb or the file.

    Without such a word it is the place behind the last, or that of ``--``.
    """
    return next((place for place, is_option in _walk(words) if not is_option), len(words))


def _walk(words: Sequence[str]) -> Iterator[tuple[int, bool]]:
    """The places of the words up to ``--`` but for values of options, and whether an option is there."""
    is_value = False
    for place, word in enumerate(words):
        if is_value:
            is_value = False
            continue
        is_option = word.startswith("-") and word not in ("-", "--")
        yield place, is_option
        if word == "--":
            return
        if is_option and word not in FLAG_VERBS and "=" not in word:  # of `run` or else of another verb
            is_value = next((own[word] for own in map(_find_options, VERBS) if word in own), False)


def list_all(command: click.Command) -> list[click.Command]:
    """A command, and the verbs of its own that it may have."""
    if not isinstance(command, click.Group):
        return [command]
    context = click.Context(command)
    return [
        command,
        *filter(None, (command.get_command(context, name) for name in command.list_commands(context))),
    ]


@cache
def _find_options(verb: str) -> dict[str, bool]:
    command = load_verb(verb)
    options = [one for each in list_all(command) for one in each.params if isinstance(one, click.Option)]
    return {name: not one.is_flag for one in options for name in (*one.opts, *one.secondary_opts)}


# --- hints for wrong words ---


def refuse_mistyped_verb(words: Sequence[str]) -> None:
    """Refuse a first word that is no verb, no option and no file, if it looks like a mistyped verb.

    Raises:
        InputError: it does.
    """
    word = "".join(words[(place := find_first(words)) : place + 1])
    if word in KNOWN or not re.fullmatch("[a-zA-Z][a-zA-Z-]*", word) or os.path.lexists(word):
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
