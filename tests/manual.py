"""The options in sessionrun(1), made from the options of the verbs, and a page for each verb, made from that one.

``python -m tests.manual`` renews them all.

The help texts in ``sessionrun/cli`` are the source.  In the page, the options of a verb stand between two
comments, `BEGIN` and `END`.  The page also shows options that the help hides, such as those of older tools.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from sessionrun import cli as command_line
from sessionrun.cli import load_verb as load_own_verb
from sessionrun.cli.argv import VERBS

PAGE: Final = Path(__file__).resolve().parent.parent / "man" / "sessionrun.1"
VERB_PAGES: Final = PAGE.parent / "verbs"
RENEW: Final = "python -m tests.manual"
BEGIN: Final = f'.\\" Options of {{}}: from sessionrun/cli; to renew them: {RENEW}'
END: Final = '.\\" End of options'
EVERY: Final = "all verbs"
WITHOUT: Final = "the program"
"""In the place of a verb: the options that all verbs have, and those without a verb."""

_COMMON: Final = frozenset(("--json", "--results-dir", "--help"))
_BOLD: Final = re.compile(r"`([^`]+)`|(?<![\w-])(--?[a-z][a-z-]*)")


def load_verb(name: str) -> click.Command:
    """The command of a verb; of a verb with verbs of its own, such as ``queue``, also of ``queue add``."""
    verb, _, inner = name.partition(" ")
    command = load_own_verb(verb)
    if inner:
        assert isinstance(command, click.Group)
        return command.commands[inner]
    return command


def leaves(verb: str) -> list[str]:
    """The names of the commands that do something: the verb itself, or its own verbs."""
    command = load_verb(verb)
    return [f"{verb} {inner}" for inner in command.commands] if isinstance(command, click.Group) else [verb]


def headings() -> list[str]:
    """All names under which the page has options, in its order."""
    return [EVERY, WITHOUT, *(name for verb in VERBS for name in leaves(verb))]


def renew(text: str) -> str:
    """The page with its options as they are now."""
    for verb in headings():
        begin = BEGIN.format(verb)
        head, found, rest = text.partition(begin + "\n")
        if found:
            text = head + found + "".join(f"{line}\n" for line in lines(verb)) + END + rest.partition(END)[2]
    return text


def lines(verb: str) -> Iterator[str]:
    """The lines of the page for the options of a verb, in the order of its help."""
    options: dict[str, list[click.Option]] = {}
    for option in options_of(verb):
        options.setdefault(str(option.name), []).append(option)
    for spellings in options.values():
        yield ".TP"
        yield ", ".join(names(option, spellings[0]) for option in spellings)
        yield from sentences(next(option.help for option in spellings if option.help) or "")


def options_of(verb: str) -> Iterator[click.Option]:
    """The options that the page shows under a heading."""
    command = command_line.group if verb == WITHOUT else load_verb("run" if verb == EVERY else verb)
    for option in command.get_params(click.Context(command, help_option_names=["-h", "--help"])):
        is_common = not _COMMON.isdisjoint(option.opts)
        if isinstance(option, click.Option) and is_common == (verb == EVERY):
            yield option


def names(option: click.Option, first: click.Option) -> str:
    """The spellings of an option and what its value is called, which `first` says of its other spellings, too."""
    words = (*option.opts, *option.secondary_opts)
    value = "" if option.is_flag else " " + shape(first)
    return ", ".join(f"\\fB{escape(word)}\\fP" for word in words) + value


def shape(option: click.Option) -> str:
    """How a value is named: italic; the words of a choice are bold."""
    if option.metavar is None and isinstance(option.type, click.Choice):
        return "|".join(f"\\fB{escape(word)}\\fP" for word in option.type.choices)
    return f"\\fI{escape(option.metavar or option.type.name.upper())}\\fP"


def sentences(text: str) -> Iterator[str]:
    """A help text in the markup of the page, a sentence a line."""
    for sentence in re.sub(r"\[default: (.*)\]$", r"Default: \1.", text).split(".  "):
        marked = _BOLD.sub(lambda found: f"\\fB{found[1] or found[2]}\\fP", escape(sentence, dash="-"))
        yield marked.replace("--", r"\-\-").removesuffix(".") + "."


def escape(text: str, dash: str = r"\-") -> str:
    """Text without what roff would read as its own."""
    return text.replace("\\", r"\e").replace("-", dash)


def make_verb_pages(text: str) -> dict[str, str]:
    """The pages of the verbs by the names of their files, out of the text of sessionrun(1)."""
    synopsis = _part(text, ".SH SYNOPSIS")
    pages = {}
    for verb, told in VERBS.items():
        (usage,) = re.findall(rf'^\.BR "?sessionrun"? ?"? ?(?:\[" )?{verb}\b.*$', synopsis, re.MULTILINE)
        pages[f"sessionrun-{verb}.1"] = "".join(
            f"{line}\n"
            for line in (
                f'.\\" Made from sessionrun.1: change that, then {RENEW}',
                f'.TH SESSIONRUN\\-{verb.upper()} 1 "" sessionrun',
                ".SH NAME",
                rf"sessionrun\-{verb} \- {escape(told[0].lower() + told[1:].rstrip('.'))}",
                ".SH SYNOPSIS",
                ".nf",
                usage,
                ".fi",
                ".SH DESCRIPTION",
                *_part(text, f".SS {verb}").splitlines(),
                ".SH SEE ALSO",
                ".BR sessionrun (1),",
                "which has the options of all verbs, and the sections whose names stand here in capitals,",
                ".BR sessionrun\\-files (5)",
            )
        )
    return pages


def _part(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^\.S[HS] )", text, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


if __name__ == "__main__":
    renewed = renew(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(renewed, encoding="utf-8")
    VERB_PAGES.mkdir(exist_ok=True)
    for name, page in make_verb_pages(renewed).items():
        (VERB_PAGES / name).write_text(page, encoding="utf-8")
    sys.exit()
