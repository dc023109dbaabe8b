"""Log-ins of agents that rename a new file over their log-in: a job has a copy, and what it renewed is taken back.

A log-in is renewed with a token that holds once.  If the new one were lost with the job, the user would be
logged out.  So after the job, and only outside, its copy replaces the user's file: if it is a regular file and a
JSON object with a key of the user's, and if the user's file is what it was when the job began.  (Not with all of
its keys: qwen leaves some out.)  If another program renewed the user's own meanwhile, that one stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.model.frozen import frozen
from sessionrun.runtime.keeper.command import say
from sessionrun.store import locks
from sessionrun.store.files import read_regular, replace_file

LOGINS: Final = "walls-logins"
"""In the folder of a job: a list of `Copied`."""

MAX_LOGIN: Final = 1 << 20
"""The largest file that is a log-in (bytes)."""

_MAX_RECORD: Final = 1 << 20


@frozen
class Copied:
    """A log-in that a job has a copy of.

    Attributes:
        users: the user's file, where it really is.
        copy: the job's.
        digest: of the content when the job began.
    """

    users: str
    copy: str
    digest: str


def copy_logins(users: str, own: Path, names: Iterable[str], record: Path) -> None:
    """Copy log-ins from the user's folder into a task's, and record it before the job can change them.

    Raises:
        OSError: they cannot be copied.
    """
    copied = []
    for name in names:
        path = os.path.realpath(os.path.join(users, name))
        content = read_regular(path, MAX_LOGIN)
        replace_file(own / name, content, durable=False)
        copied.append(Copied(path, str(own / name), _digest(content)))
    if copied:
        replace_file(record, orjson.dumps(copied), durable=True)


def take_back(record: Path) -> None:
    """Put what a job renewed of its log-ins in the place of the user's; without a record nothing happens.

    A second call, after a crash, changes nothing more.  If a user's file cannot be replaced, the log says where
    the renewed one is, and the record stays.
    """
    try:
        entries = [Copied(**entry) for entry in orjson.loads(read_regular(record, _MAX_RECORD))]
    except (OSError, ValueError, TypeError):
        return
    done = [_take_one(entry) for entry in entries]
    if all(done):
        record.unlink(missing_ok=True)


def _take_one(entry: Copied) -> bool:
    """Whether nothing is left to do for it."""
    try:
        new = read_regular(entry.copy, MAX_LOGIN)
        if _digest(new) == entry.digest or os.path.realpath(entry.users) != entry.users:
            return True
        old = read_regular(entry.users, MAX_LOGIN)
    except OSError:
        return True  # it is no log-in any more
    if _digest(old) != entry.digest or not _is_renewed(new, old):
        return True
    try:
        return _replace(entry, new)
    except OSError as error:
        say(f"{entry.users} cannot be replaced: {error.strerror}; what an agent renewed is {entry.copy}")
        return False


def _replace(entry: Copied, new: bytes) -> bool:
    """Replace the user's file, unless another program is about to."""
    fd = locks.hold(Path(f"{entry.users}.lock"))  # codex holds the same while it renews
    if fd is None:
        return True
    try:
        if _digest(read_regular(entry.users, MAX_LOGIN)) == entry.digest:
            replace_file(Path(entry.users), new, durable=True)
    finally:
        os.close(fd)
    return True


def _is_renewed(new: bytes, old: bytes) -> bool:
    """Whether a content can stand in the place of another."""
    before, after = _parse(old), _parse(new)
    return after is not None and before is not None and bool(before.keys() & after.keys())


def _parse(content: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _digest(content: bytes) -> str:
    import hashlib  # few jobs need it, and every supervisor would wait for its import

    return hashlib.sha256(content).hexdigest()
