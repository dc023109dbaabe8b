"""Dialects: foreign input in, a `Plan` out.  The table of them, and which one an input is.

Dialects import the model and the errors only.  They read no files: the command line reads bytes and passes
them on.  A launch imports only the dialects that may take its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from sessionrun.input.limits import plain
from sessionrun.input.plan import Plan, Source
from sessionrun.input.rows import BY_NAME
from sessionrun.input.settings import Options
from sessionrun.model.errors import InputError


class Dialect(Protocol):
    """What a dialect's module offers."""

    @property
    def NAME(self) -> str: ...  # noqa: N802

    @property
    def EXPECTS(self) -> str:  # noqa: N802
        """What its input looks like, for the message when nothing matches."""

    def matches(self, source: Source) -> str | None:
        """Why it takes this input, in a few words for people; None when it does not."""

    def load(self, source: Source, options: Options) -> Plan:
        """Read the input; `InputError` tells the first problem in one line."""


DIALECTS: Final[Mapping[str, Literal["folder", "text"]]] = {
    "markdown": "folder",
    "matrix": "text",
    "swebench": "text",
    "dispatch_config": "text",
    "prompts": "text",
}
"""The modules, and what each takes: a directory of files, or a text.  Asked in this order, the widest last."""


KEYED: Final = ("prompts", "matrix", "dispatch_config")
"""The formats whose tasks have the keys of the native one, so that the command line has defaults for them."""


class DefaultInput(NamedTuple):
    """The input of a format where none is named: a file below the current directory, and how one comes by it."""

    file: str
    hint: str


DEFAULT_INPUTS: Final[Mapping[str, DefaultInput]] = {
    "swebench": DefaultInput(
        "artifacts/instances.jsonl",
        "give a FILE of instances (JSON or JSON Lines; - is standard input). Those of SWE-bench are data sets of "
        "huggingface.co, such as princeton-nlp/SWE-bench_Verified: with the package datasets, "
        "load_dataset(NAME, split='test').to_json('artifacts/instances.jsonl')",
    )
}
"""The formats that have one."""


def load_dialect(name: str) -> Dialect:
    """Import a dialect of the table."""
    return cast(Dialect, import_module(f"sessionrun.input.{name}"))


def choose_dialect(source: Source, requested: str | None) -> tuple[Dialect, str]:
    """Find the dialect for an input, and why it was chosen, for people.

    Raises:
        InputError: no such dialect, none takes the input, or it cannot be parsed at all.
    """
    if requested is not None:
        if requested not in DIALECTS:
            raise InputError(f"no input format {requested!r}; there are: {', '.join(DIALECTS)}")
        return load_dialect(requested), "asked for"
    given = "text" if source.folder is None else "folder"
    for dialect in (load_dialect(name) for name, takes in DIALECTS.items() if takes == given):
        reason = dialect.matches(source)
        if reason:
            return dialect, reason
    wanted = "; ".join(f"{name}: {load_dialect(name).EXPECTS}" for name in DIALECTS)
    raise InputError(
        f"{plain(source.name)}: no input format fits it; the shortest input is a list of prompts: "
        f'["Fix the bug"]; a prompt as plain text: sessionrun -p - ({wanted})'
    )


def imply_dialect(options: Mapping[str, Any]) -> str | None:
    """The one format that has what was options; None: any format has all of it."""
    return next((BY_NAME[name].format for name in options if BY_NAME[name].format), None)


def refuse_others(dialect: str, options: Mapping[str, Any]) -> None:
    """Refuse what only other formats have.

    Raises:
        InputError: the first of it.
    """
    for name, value in options.items():
        row = BY_NAME[name]
        if row.format not in ("", dialect):
            raise InputError(
                f"{row.spell()} is an option of the input format {row.format}, "
                f"and this input is read as {dialect}; leave it out, or add --from {row.format}"
            )
        if row.keyed and dialect not in KEYED and not (name == "rounds" and dialect == "swebench"):
            key = next(iter(value)) if name == "defaults" else name
            raise InputError(f"{key} has no effect: in the format {dialect} each task says that itself")
