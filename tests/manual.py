"""What is made of the manual: options, a page for each verb, and the keys of status.json.

``python -m tests.manual`` renews them all.

The help texts in ``sessionrun/cli`` are the source of the options in sessionrun(1), of which the pages of verbs
are made; the sentences in ``sessionrun/model/shown.py`` are that of the keys in sessionrun-files(5).  What is made
stands between two comments.  The page also shows options that the help hides, such as those of older tools.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from sessionrun import cli as command_line
from sessionrun.cli.argv import VERBS, list_all
from sessionrun.cli.argv import load_verb as load_own_verb

PAGE: Final = Path(__file__).resolve().parent.parent / "man" / "sessionrun.1"
VERB_PAGES: Final = PAGE.parent / "verbs"
RENEW: Final = "python -m tests.manual"
BEGIN: Final = f'.\\" Options of {{}}: from sessionrun/cli; to renew them: {RENEW}'
END: Final = '.\\" End of options'
FILES_PAGE: Final = PAGE.with_name("sessionrun-files.5")
SHOWN: Final = [
    PAGE.parent.parent / "sessionrun" / "model" / name
    for name in ("checks.py", "kinds.py", "places.py", "shown.py")
]
KEYS: Final = re.compile(r'^\.\\" (Keys|Names) of (.+?): .*\n(?:.*\n)*?\.\\" End of keys\n', re.MULTILINE)
EVERY: Final = "all verbs"
WITHOUT: Final = "the program"
"""In the place of a verb: the options that all verbs have, and those without a verb."""

FED: Final = "queue work"
"""This verb has the options of `run`, too, which it hides: the page has them there."""

_COMMON: Final = frozenset(("--json", "--results-dir", "--help"))
_BOLD: Final = re.compile(r"`([^`]+)`|(?<![\w-])(--?[a-z][a-z-]*)")
_WORDS: Final = {
    **dict.fromkeys(("int", "float", "Count", "Money", "Seconds"), "number"),
    "bool": "true or false",
    "Time": "time",
}
"""What a value is called in the page; a record is an object, and all else is text."""


def load_verb(name: str) -> click.Command:
    """The command of a verb; of a verb with verbs of its own, such as ``queue``, also of ``queue add``."""
    verb, _, inner = name.partition(" ")
    command = load_own_verb(verb)
    if inner:
        return next(one for one in list_all(command)[1:] if one.name == inner)
    return command


def leaves(verb: str) -> list[str]:
    """The names of the commands that do something: the verb itself, or its own verbs."""
    command = load_verb(verb)
    return [f"{verb} {inner.name}" for inner in list_all(command)[1:]] or [verb]


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
    options: dict[tuple[str, str], list[click.Option]] = {}
    helps: dict[str, str] = {}
    for option in options_of(verb):
        # of those that set one thing, each that means something else says so
        name = str(option.name)
        helps[name] = option.help or helps.get(name, "")
        options.setdefault((name, helps[name]), []).append(option)
    for spellings in options.values():
        yield ".TP"
        yield ", ".join(names(option, spellings[0]) for option in spellings)
        yield from sentences(next(option.help for option in spellings if option.help) or "")


def options_of(verb: str) -> Iterator[click.Option]:
    """The options that the page shows under a heading."""
    command = command_line.group if verb == WITHOUT else load_verb("run" if verb == EVERY else verb)
    for option in command.get_params(click.Context(command, help_option_names=["-h", "--help"])):
        is_common = not _COMMON.isdisjoint(option.opts)
        if (
            isinstance(option, click.Option)
            and is_common == (verb == EVERY)
            and not (option.hidden and verb == FED)
        ):
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
        sentence = re.sub(r"\*\*(.+?)\*\*", r"`\1`", sentence)
        marked = _BOLD.sub(lambda found: f"\\fB{found[1] or found[2]}\\fP", escape(sentence, dash="-"))
        yield marked.replace("--", r"\-\-").removesuffix(".") + ("" if marked.endswith(":") else ".")


def escape(text: str, dash: str = r"\-") -> str:
    """Text without what roff would read as its own."""
    return text.replace("\\", r"\e").replace("-", dash)


class Key(NamedTuple):
    """A key of a record: its type, as written, and what is said of it."""

    name: str
    type: ast.expr
    text: str


def load_records() -> dict[str, list[Key]]:
    """The keys of all records of `SHOWN`, each under the class that names it."""
    bodies = (ast.parse(path.read_text(encoding="utf-8")).body for path in SHOWN)
    classes = [node for body in bodies for node in body if isinstance(node, ast.ClassDef)]
    return {node.name: list(_iterate_keys(node.body)) for node in classes}


def _iterate_keys(body: list[ast.stmt]) -> Iterator[Key]:
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            said = (
                after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            )
            yield Key(node.target.id, node.annotation, str(said))


def renew_keys(text: str) -> str:
    """The page of files with its keys as they are now: tables of them and, where a block asks for names, lines."""
    records, shown = load_records(), set[str]()

    def renew_block(found: re.Match[str]) -> str:
        keys = [key for name in found[2].split(", ") for key in records[name]]
        names = ", ".join(rf"\fB{key.name}\fP" for key in keys)
        body = [line for key in keys for line in key_lines(key, records, shown)] if found[1] == "Keys" else [names]
        return "\n".join([found[0].partition("\n")[0], *body, '.\\" End of keys', ""])

    return KEYS.sub(renew_block, text)


def key_lines(key: Key, records: dict[str, list[Key]], shown: set[str]) -> Iterator[str]:
    """The lines of the page for a key; the keys of an object stand under the first key that has such."""
    yield f'.IP "\\fB{key.name}\\fP ({name_type(key.type, records)})"'
    head, *words = re.split(r"^ *- ", key.text, flags=re.MULTILINE)
    yield from sentences(_join(head)) if head.strip() else ()
    inner = next((node.id for node in ast.walk(key.type) if isinstance(node, ast.Name) and node.id in records), "")
    parts = [] if inner in shown or ast.unparse(key.type).startswith("dict") else records.get(inner, [])
    shown |= {inner} if parts else set()
    yield from [".RS"] if words or parts else ()
    for word in words:
        names, _, about = _join(word).partition(": ")
        tag = _BOLD.sub(r"\\fB\1\\fP", names)
        yield f'.IP "{tag}"'
        yield from sentences(about)
    for part in parts:
        yield from key_lines(part, records, shown)
    yield from [".RE"] if words or parts else ()


def name_type(node: ast.expr, records: dict[str, list[Key]]) -> str:
    """What a type is called: ``list of text, or null``."""
    if isinstance(node, ast.BinOp):
        kind = name_type(node.left, records)
        return f"{kind.replace(' or', ',')}{', or' if kind.startswith('list') else ' or'} null"
    if isinstance(node, ast.Subscript):
        inner = name_type(node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice, records)
        outer = ast.unparse(node.value)
        lists = f"list of {inner.replace('object', 'objects')}"
        return "text" if outer == "Literal" else lists if outer in ("list", "tuple", "Sequence") else "object"
    name = ast.unparse(node)
    return "object" if name in records else _WORDS.get(name, "text")


def _join(text: str) -> str:
    """A text on one line; two spaces part its sentences."""
    return re.sub(r"\s*\n\s*", " ", re.sub(r"(?<=\.)\n *", "  ", text)).strip()


def make_verb_pages(text: str) -> dict[str, str]:
    """The pages of the verbs by the names of their files, out of the text of sessionrun(1)."""
    synopsis = part(text, "SYNOPSIS")
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
                *part(text, verb, level="SS").splitlines(),
                ".SH SEE ALSO",
                ".BR sessionrun (1),",
                "which has the options of all verbs, and the sections whose names stand here in capitals,",
                ".BR sessionrun\\-files (5)",
            )
        )
    return pages


def part(text: str, heading: str, *, level: str = "SH") -> str:
    """What stands under a heading of a page; a section includes its subsections."""
    end = r"^\.SH " if level == "SH" else r"^\.S[HS] "
    found = re.search(rf"^\.{level} {re.escape(heading)}\n(.*?)(?={end}|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


if __name__ == "__main__":
    renewed = renew(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(renewed, encoding="utf-8")
    FILES_PAGE.write_text(renew_keys(FILES_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    VERB_PAGES.mkdir(exist_ok=True)
    for name, page in make_verb_pages(renewed).items():
        (VERB_PAGES / name).write_text(page, encoding="utf-8")
    sys.exit()
