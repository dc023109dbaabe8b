"""Turns what our code raises for a bad value in a session's file into an error that names the file.

Logs and spec are checked when they are read, but a good record can still not fit the records before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionrun.model.errors import StoreError

FAULTS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What code raises that meets a value which it does not expect."""


@contextmanager
def told_as_damage(path: Path, place: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn such an exception into a StoreError: the file is damaged, at the `place` that is asked for then."""
    try:
        yield
    except FAULTS as error:
        raise StoreError(f"{path} is damaged{place()}: {describe_fault(error)}") from error


def describe_rest(session_id: str) -> str:
    """What can still be done with a session whose logs are damaged: `resume` refuses it."""
    return (
        f"to read what its tasks printed: sessionrun logs {session_id}; its worktrees are kept; "
        f"to remove it: sessionrun clean --state interrupted {session_id}"
    )


def describe_fault(error: BaseException) -> str:
    """What is wrong, in one line; an exception without words of ours is shown as it is."""
    return str(error) if type(error) is ValueError else repr(error)
