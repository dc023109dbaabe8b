"""Dialects: foreign input in, a `Plan` out.  The table of them, and which one an input is.

Dialects import the model and the errors only.  They read no files: the command line reads bytes and passes
them on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from sessionrun.dialects import markdown, matrix, prompts
from sessionrun.dialects.limits import MAX_INPUT_BYTES, plain
from sessionrun.dialects.plan import Fallback, Folder, Options, Plan, RepositoryWish, Source
from sessionrun.model.errors import InputError

__all__ = [
    "DIALECTS",
    "MAX_INPUT_BYTES",
    "Dialect",
    "Fallback",
    "Folder",
    "Options",
    "Plan",
    "RepositoryWish",
    "Source",
    "choose_dialect",
]


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


DIALECTS: Final[Mapping[str, Dialect]] = {
    "markdown": markdown,
    "matrix": matrix,
    "prompts": prompts,
}
"""Asked in this order; the widest comes last."""


def choose_dialect(source: Source, requested: str | None) -> tuple[Dialect, str]:
    """Find the dialect for an input, and why it was chosen, for people.

    Raises:
        InputError: no such dialect, none takes the input, or it cannot be parsed at all.
    """
    if requested is not None:
        if requested not in DIALECTS:
            raise InputError(f"no dialect {requested!r}; there are: {', '.join(DIALECTS)}")
        return DIALECTS[requested], "asked for"
    for dialect in DIALECTS.values():
        reason = dialect.matches(source)
        if reason:
            return dialect, reason
    wanted = "; ".join(f"{name}: {dialect.EXPECTS}" for name, dialect in DIALECTS.items())
    raise InputError(f"{plain(source.name)}: no dialect takes this input ({wanted})")
