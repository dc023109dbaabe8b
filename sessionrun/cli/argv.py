"""Rewrites the words on the command line into `VERB ...`, before Click sees them.

So that the spellings of older tools work unchanged, ``--status ID`` and its like are verbs, and a command
line without a verb runs a file.  A verb wins over a file of that name: write ``./status`` for the file.
Which options have a value is asked of Click, but only where one stands before the verb: a poll begins with that.
"""

from __future__ import annotations

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


def find_home(verb: str) -> str:
    """The module of a verb."""
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
        is_value = is_option and _takes_value(word)


def _takes_value(word: str) -> bool:
    """Whether the next word is the value of an option, of `run` or else of another verb."""
    if word in FLAG_VERBS or "=" in word:
        return False
    known = (_find_options(name) for name in VERBS)
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
    command = load_verb(verb)
    options = [one for each in list_all(command) for one in each.params if isinstance(one, click.Option)]
    return {name: not one.is_flag for one in options for name in (*one.opts, *one.secondary_opts)}
