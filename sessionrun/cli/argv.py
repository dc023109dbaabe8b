"""Rewrites the words on the command line into `VERB ...`, before Click sees them.

So that the spellings of older tools work unchanged, ``--status ID`` and its like are verbs, and a command
line without a verb runs a file.  A verb wins over a file of that name: write ``./status`` for the file.
Which options have a value is asked of Click, but only where one stands before the verb: a poll begins with that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Final

import click

VERBS: Final[Mapping[str, str]] = {
    "run": "Start a session from a file or standard input (the default verb).",
    "demo": "Show in a minute what sessionrun does.",
    "status": "Show where a session and its tasks stand.",
    "results": "Print what the tasks of a session answered.",
    "report": "Make one HTML page of a session.",
    "list": "List sessions.",
    "wait": "Block until tasks have ended.",
    "watch": "Show a session on the whole screen, as it goes.",
    "logs": "Print or follow the output of tasks.",
    "cancel": "Stop a session or some of its tasks.",
    "resume": "Let a session go on whose processes were killed.",
    "retry": "Try tasks again that did not succeed.",
    "continue": "Ask more of a task that has ended, in its conversation.",
    "hold": "Start nothing more of a session or of some tasks.",
    "release": "Let go on what was held.",
    "set": "Change how many tasks of a session run at once.",
    "explain": "Say why tasks do not run, or what became of them.",
    "cost": "Show what sessions used up and cost.",
    "diff": "Show what tasks changed in their worktrees.",
    "merge": "Land the work of tasks on a branch, after gates.",
    "clean": "Remove old sessions, worktrees or mirrors that nothing needs.",
    "queue": "Keep tasks in a repository; let agents work through them.",
    "doctor": "Check sessions and the environment, and repair.",
    "replay": "Play a session again without models.",
    "precache": "Fetch ahead the repositories that tasks name; build environments.",
    "serve": "Show sessions to a browser, as they go.",
    "cluster": "Run the jobs of sessions on several machines.",
    "mcp": "Serve sessions as tools for an agent (MCP).",
    "config": "Show the settings in use, and where they are written.",
    "schema": "Print the JSON Schema of plans, of files or of output.",
    "completion": "Print what a shell has to read to complete words.",
    "man": "Show the manual.",
    "help": "Show options by topic, examples, or the help of a verb.",
}
"""The verbs in the order of the manual, with a line for the list of them."""

HOMES: Final = {
    **dict.fromkeys(("cancel", "continue", "hold", "release", "resume", "retry", "set"), "control"),
    **dict.fromkeys(("mcp", "serve", "report"), "ports"),
    "man": "help",
    "schema": "config",
}
"""The modules of this package that have several verbs; each other verb is a module by its name."""

FLAG_VERBS: Final = {
    "--status": "status",
    "--results": "results",
    "--list": "list",
    "--overview": "list --totals",
}
BY_FLAG: Final = "flag"
"""What verbs find as the object of their context if they were asked for by such a flag."""

OWN: Final = ("--help", "-h", "--version", "-v")


def load_verb(verb: str) -> click.Command:
    """Import the command of a verb."""
    module = import_module(f"sessionrun.cli.{HOMES.get(verb, verb)}")
    commands: tuple[click.Command, ...] = getattr(module, "COMMANDS", None) or (module.command,)
    return next(command for command in commands if command.name == verb)


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
    if words and (words[0] in VERBS or words[0] in OWN):
        return words
    for place in iterate_options(words):
        flag, equals, value = words[place].partition("=")
        if flag in FLAG_VERBS:
            return [*FLAG_VERBS[flag].split(), *words[:place], *([value] if equals else []), *words[place + 1 :]]
    place = find_first(words)
    if words[place : place + 1] and words[place] in VERBS:
        return [words[place], *words[:place], *words[place + 1 :]]
    return ["run", *words]


def find_first(words: Sequence[str]) -> int:
    """The place of the first word that is neither an option nor the value of one: of the verb or the file.

    Without such a word it is the place behind the last, or that of ``--``.
    """
    return next((place for place, is_option in _walk(words, "run") if not is_option), len(words))


def iterate_options(words: Sequence[str], verb: str = "run") -> Iterator[int]:
    """The places of the words that are options: not values of options, and nothing behind ``--``."""
    return (place for place, is_option in _walk(words, verb) if is_option)


def _walk(words: Sequence[str], verb: str) -> Iterator[tuple[int, bool]]:
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
        is_value = is_option and _takes_value(word, verb)


def asks_for_json(words: Sequence[str]) -> bool:
    """Whether ``--json`` is among the options of a verb and its words, for errors while Click parses them."""
    verb = words[0] if words and words[0] in VERBS else "run"
    return any(words[place] == "--json" for place in iterate_options(words, verb))


def _takes_value(word: str, verb: str = "run") -> bool:
    """Whether the next word is the value of an option, of the verb or else of another, whatever it looks like."""
    if word in FLAG_VERBS or "=" in word:
        return False
    known = (_find_options(name) for name in dict.fromkeys((verb, "run", *VERBS)))
    return next((options[word] for options in known if word in options), False)


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
    """The options of a verb, and whether each has a value."""
    command = load_verb(verb)
    options = [one for each in list_all(command) for one in each.params if isinstance(one, click.Option)]
    return {name: not one.is_flag for one in options for name in (*one.opts, *one.secondary_opts)}
