"""Reads the files of a job's folder back into records, and checks them: kind of file, JSON, keys and types.

Every task can write into the folders of the others.  A file that is damaged, or is another thing than a file, is
one exception, `JobFileError`: the failure of the one job that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import orjson

from sessionrun.model.errors import JobFileError
from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import Count, Moment, PathText
from sessionrun.store.codec import decode
from sessionrun.store.files import list_folders, read_end, read_regular, replace_file

if TYPE_CHECKING:
    from sessionrun.store.session import SessionDir

MAX_BYTES: Final = 64 * 1024 * 1024
"""A larger file is none of ours: the longest are requests, with the rules of what git ignores."""

REQUEST: Final = "request.json"
ANSWER: Final = "answer.json"
"""How a process of ours is asked, and how it answers (see `session.job`)."""

CLAIM: Final = "claim.json"
"""In the folder of a PREPARE: what it is about to make, so that `clean` can find what a crash left behind."""

NOT_BEGUN: Final = "not-begun"
"""In the folder of a WORK job whose agent was not started, because the worktree could not be set back: why."""

FEEDBACK: Final = "feedback"
"""In the folder of a CHECK or WORK: what the next round is told, in words of ours."""

KNOWN: Final = "known.json"
"""In the folder of a SETUP: the tests to run before the work begins."""

REPLICA: Final = "replica.json"
"""In a job's folder on a node: its repository is a replica."""

LEFT: Final = "left"
"""In the folder of a RELEASE on a node: that file of the worktree which its session asks for."""

FOLDERS: Final = "walls-folders"
"""In the folder of a job whose disk has a limit: a JSON list of the folders that are measured."""

TAIL_BYTES: Final = 16 * 1024
"""How much of what a job printed is read: the next round is told so much of a failed check's output."""

_Record = TypeVar("_Record")


def load_record(path: Path, cls: type[_Record]) -> _Record:
    """Read a JSON object into a dataclass; keys that it does not know are left out.

    Raises:
        JobFileError: it is not there, no regular file, no JSON, or does not fit.
    """
    try:
        content = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise JobFileError(path, error.strerror or str(error)) from error
    try:
        return decode(cls, content)
    except msgspec.DecodeError as error:
        raise JobFileError(path, "it is damaged: no JSON") from error
    except ValueError as error:
        raise JobFileError(path, f"it is damaged: {error}") from error


def load_record_if_any(path: Path, cls: type[_Record]) -> _Record | None:
    """As `load_record`; None where nothing lies there.

    Raises:
        JobFileError: something lies there, and it cannot be used.
    """
    try:
        return load_record(path, cls)
    except JobFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def load_usable(path: Path, cls: type[_Record]) -> _Record | None:
    """As `load_record`; None where there is none that can be used."""
    try:
        return load_record(path, cls)
    except JobFileError:
        return None


def write_record(path: Path, record: object, *, durable: bool = False) -> None:
    """Leave a record for `load_record`: it is there in whole, or as it was before."""
    replace_file(path, orjson.dumps(record), durable=durable)


def load_answer(folder: Path, cls: type[_Record]) -> _Record | None:
    """What a job of ours answered; None when it did not come so far.

    Raises:
        JobFileError: an answer is there and cannot be used.
    """
    return load_record_if_any(folder / ANSWER, cls)


@frozen
class _Claim:
    worktree: PathText


def load_worktree(session: SessionDir, task: str, attempt: int) -> str | None:
    """Where the worktree of an attempt is, or was: its claim says so when the worktree is gone, too."""
    folder = next(session.find_jobs(task, attempt, "prepare"), None)
    claim = None if folder is None else load_usable(folder / CLAIM, _Claim)
    return claim.worktree if claim is not None else None


def read_tail(path: Path) -> bytes:
    """The end of what a job printed; nothing where it printed nothing or something else lies there."""
    return read_end(path, TAIL_BYTES)


NETWORK: Final = "network-"
"""The beginning of the names of a job's folders for the network."""

LIST: Final = "list.json"
DOOR: Final = "door"
SOCKET: Final = "socket"
DENIED: Final = "denied.json"


def list_networks(job: Path) -> Iterator[Path]:
    """The folders for the network of a job, in the order in which they were made."""
    number = 1
    while (folder := job / f"{NETWORK}{number}").is_dir():
        yield folder
        number += 1


def read_denials(session: Path, task: str) -> list[dict[str, Any]]:
    """The hosts that a task's jobs were denied, those that were asked for most often first.

    Each has `host`, `port`, `count`, `first_at` and `last_at` (seconds since the epoch) and `why`.
    """
    hosts: dict[tuple[str, int], dict[str, Any]] = {}
    jobs = session / "jobs" / task
    networks = (network for job in list_folders(jobs) for network in list_networks(jobs / job))
    for file in (load_usable(network / DENIED, _Denials) for network in networks):
        for found in map(asdict, file.hosts if file is not None else ()):
            known = hosts.setdefault((found["host"], found["port"]), {**found, "count": 0})
            known["count"] += found["count"]
            known["first_at"] = min(known["first_at"], found["first_at"])
            known["last_at"] = max(known["last_at"], found["last_at"])
    return sorted(hosts.values(), key=lambda found: (-found["count"], found["host"], found["port"]))


@frozen
class _Denial:
    host: str
    port: int
    count: Count
    first_at: Moment
    last_at: Moment
    why: str


@frozen
class _Denials:
    hosts: tuple[_Denial, ...]
