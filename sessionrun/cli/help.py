"""`help`: pages of help that are not those of one verb: the options of `run` by topic, and examples; and `man`.

The options come from the command itself; the table of settings says the topic of each.  What is no setting, but
says what the command line does, has its topic here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click

from sessionrun.cli.argv import KNOWN, VERBS, expand_alias, load_verb
from sessionrun.input.rows import BY_NAME
from sessionrun.input.settings import TOPICS
from sessionrun.model.errors import InputError, suggest

BY_HAND: Final[Mapping[str, tuple[str, str]]] = {
    "into": ("tasks", "What"),
    "held": ("limits", ""),
    "ready": ("agents", ""),
    "sync": ("output", "Then"),
    "quiet": ("output", "Then"),
    "as_json": ("output", "Then"),
    "dry_run": ("output", "Then"),
    "verbose": ("output", ""),
    "results_dir": ("output", ""),
    "help_all": ("output", ""),
}
"""Options of `run` that are no settings: the topic, and the heading on the first page."""

HEADINGS: Final = ("What", "Where", "Who", "Good?", "Land", "How many", "Then")
_WIDTH: Final = 80

EXAMPLES: Final = "examples"
ALL: Final = "all"
_EXAMPLES: Final = """\
A task at once, and what came of it:
  sessionrun -p "Fix the login" --sync
Tasks of a file, each on a branch of its own, four at a time:
  sessionrun plan.yaml --worktree -j 4
Work that counts only once the tests pass, and then goes to your branch:
  sessionrun plan.yaml --worktree --check "make test" --land --gate "make test"
One task for each file:
  sessionrun -p "Add types to {}" --each "src/*.py" --worktree
Overnight, with a limit of money and an agent that takes over at a usage limit:
  sessionrun plan.yaml --worktree --budget 20 --fallback codex --retries 1
What came out, why not, and again:
  sessionrun status; sessionrun results --failed; sessionrun retry --failed
Wait at most 90 seconds, and ask again at exit code 124:
  sessionrun wait last --timeout 90"""

_NOTES: Final[Mapping[str, str]] = {
    "swebench": "In this format -j is 4, --timeout is of each round and 10m, --rounds is 5, --agent is claude, "
    "--name is run-DATE-TIME, and what is made lies below artifacts/.",
    "tasks": "--job and --resume are for Markdown job files.",
}


class Line(NamedTuple):
    """An option as a page of help shows it."""

    topic: str
    heading: str
    option: str
    text: str


def list_lines(command: click.Command) -> list[Line]:
    """The options of `run`, in their order, but for its help."""
    lines = []
    for param in (param for param in command.params if isinstance(param, click.Option)):
        name = param.name or ""
        row = None if name in BY_HAND else BY_NAME[name]
        topic, heading = (row.topic, row.first) if row else BY_HAND[name]
        words = row.shown if row else [*param.opts, *param.secondary_opts]
        option = ", ".join(word.removeprefix("/").replace("/", ", ") for word in words)
        option += f" {param.metavar}" if param.metavar else ""
        lines.append(Line(topic, heading, option, param.help or ""))
    return lines


def write_first_page(command: click.Command) -> str:
    """The options that most sessions use, on one screen."""
    lines = list_lines(command)
    page = ["sessionrun [run] [OPTIONS] [FILE]     start the tasks of FILE, of -p or of stdin", ""]
    for heading in HEADINGS:
        # the column is narrow: the default in brackets alone, and no full stop
        entries = [
            (line.option, line.text.replace("  [default: ", " [").replace(". [", " [").rstrip("."))
            for line in lines
            if line.heading == heading
        ]
        page += _write_group(f"{heading:<10}", entries, 21)
    page += ["", "All options by topic: sessionrun help TOPIC, or run --help-all", f"  {' '.join(TOPICS)}"]
    page += ["Examples: sessionrun help examples    Formats of FILE: man 5 sessionrun-input"]
    return "\n".join(page)


def write_topic(command: click.Command, topic: str) -> str:
    entries = [(line.option, line.text) for line in list_lines(command) if line.topic == topic]
    import textwrap  # here: each launch imports this module

    note = [textwrap.fill(_NOTES[topic], _WIDTH)] if topic in _NOTES else []
    return "\n".join([f"{topic}:", *_write_group("  ", entries, 28), *note])


def _write_group(begin: str, entries: list[tuple[str, str]], wide: int) -> Iterator[str]:
    import textwrap

    rest = " " * (len(begin) + wide + 1)
    for number, (option, text) in enumerate(entries):
        left = f"{'' if number else begin:<{len(begin)}}{option:<{wide}} "
        if len(left) > len(rest):  # the text begins below it
            yield left.rstrip()
            left = rest
        yield from textwrap.wrap(text, _WIDTH, initial_indent=left, subsequent_indent=rest)


class RunCommand(click.Command):
    """Its help is one screen."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(write_first_page(self) + "\n")


def print_all(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo("\n\n".join(write_topic(context.command, topic) for topic in TOPICS))
        context.exit()


@click.command("help")
@click.argument("words", nargs=-1, metavar="[VERB|TOPIC]")
@click.pass_context
def command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a VERB; or the options of `run` that belong to a TOPIC; or `examples`; or `all` verbs."""
    words = tuple(expand_alias(words))
    topic = words[0] if words else ""
    if topic in TOPICS:
        click.echo(write_topic(load_verb("run"), topic))
    elif topic == EXAMPLES:
        click.echo(_EXAMPLES)
    elif topic == ALL:
        click.echo("\n".join(f"{verb:<12}{line}" for verb, line in VERBS.items()))
    elif topic and topic not in KNOWN:
        known = (*TOPICS, EXAMPLES, ALL)
        raise InputError(
            f"no topic or verb {topic!r}{suggest(topic, (*known, *VERBS))}; topics: {', '.join(known)}; "
            "verbs: sessionrun --help"
        )
    else:
        assert context.parent is not None
        context.parent.command.main([*words, "--help"], prog_name="sessionrun", standalone_mode=False)


@click.command("man")
@click.argument("page", required=False, metavar="[VERB|input|files]")
def manual(page: str | None) -> None:
    """Show the manual of all of sessionrun, of a verb, of the formats of input, or of the files of a session."""
    # installers of tools link no pages where the program `man` looks
    from importlib.metadata import distributions

    name = f"sessionrun{f'-{page}' if page else ''}.{5 if page in ('input', 'files') else 1}"
    files = (file for one in distributions(name="sessionrun") for file in one.files or ())
    found = [Path(str(file.locate())).resolve() for file in files if file.name == name]
    if not found:
        raise InputError(f"{name}: is not installed; there are pages of verbs, of input and of files")
    try:
        os.execvp("man", ["man", str(found[0])])
    except OSError:
        raise InputError(f"the program `man` is not installed; the page is {found[0]}") from None
