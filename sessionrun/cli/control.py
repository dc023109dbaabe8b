"""What the verbs share that ask a session's supervisor for something."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click

from sessionrun.cli.options import Duration
from sessionrun.cli.selecting import selector_options, words_argument
from sessionrun.client.asking.control import TAKEN_TIMEOUT_S

EXIT_TIMEOUT: Final = 124
NOT_TAKEN: Final = "asked for; the session has not taken the request yet"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def taken_timeout_option(done: str) -> Callable[[_Command], _Command]:
    """`--timeout`, of verbs that ask a session for something; `done` is what they wait for."""
    return click.option(
        "--timeout",
        type=Duration(),
        default=TAKEN_TIMEOUT_S,
        metavar="TIME",
        help=f"How long to wait until {done}; 0 = only ask.  [default: 60s]",
    )


def control_options(command: _Command) -> _Command:
    """`ID [TASK]...`, selectors and `--timeout`, of every verb that asks for something to be done."""
    command = taken_timeout_option("it is done")(command)
    return words_argument(selector_options(command))


def count_words(counts: Iterable[tuple[int, str]]) -> str:
    """Those counts that are not 0, for people."""
    return ", ".join(f"{count} {word}" for count, word in counts if count)
