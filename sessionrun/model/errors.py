"""The few exceptions that cross module borders, told apart by exit code and by what has to be done.

A task's failure is data, never one of these.  Messages are one line: what, where, what to do; `name_some` and
`suggest` are parts of such lines.
"""

from collections.abc import Iterable, Sequence
from typing import Final


class SessionrunError(Exception):
    """Base of all expected errors.  ``exit_code`` is what the command line ends with."""

    exit_code = 3


class InputError(SessionrunError):
    """Bad input, bad usage or an unusable configuration; nothing was created."""

    exit_code = 2


class AgentNotFound(InputError):
    """The agent CLI that a task asks for cannot be started on this machine."""


class SessionNotFound(InputError):
    """No session, or more than one, matches the id that was given; or the session was removed meanwhile."""


class SessionGone(SessionrunError):
    """The session has not ended, but its processes are gone."""

    exit_code = 4


class NoSpace(SessionrunError):
    """The disk is nearly full; what asked for room waits, and nothing has failed."""


class StoreError(SessionrunError):
    """The session directory cannot be written or read (disk full, permission, damage)."""


class BusinessMissing(StoreError):
    """The session needs a business that was taken out of this program; with the whole program it can go on."""

    exit_code = 2


class JobFileError(SessionrunError):
    """A file in the folder of one job cannot be used: `path` says which, `why` what is wrong with it.

    It concerns that job alone; the session and its other tasks go on.
    """

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = str(path)
        self.why = why


class RepositoryFailed(SessionrunError):
    """A repository cannot be fetched, or lacks what was asked for: the PREPARE ends with `job_code`."""

    job_code: Final = 11


def name_some(names: Sequence[str], most: int) -> str:
    """Names for a sentence, at the most so many of them.

    >>> name_some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(printable, names[:most])) + more


def printable(name: str) -> str:
    """The name of a file, or words with it, for messages and records: these are UTF-8, and names need not be."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def suggest(word: str, known: Iterable[str]) -> str:
    """A "did you mean" for a word that is close to a known one, else ""."""
    from difflib import get_close_matches

    close = get_close_matches(word[:80], list(known), n=1, cutoff=0.75)
    return f' (did you mean "{close[0]}"?)' if close else ""
