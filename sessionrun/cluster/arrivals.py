"""What comes back of a session's jobs on nodes: files in chunks, and ends, which count once their files are whole.

A chunk is written where the file belongs, at its offset.  Files in a job's own folder, and its outputs, are the
job's alone: what is there is what has arrived.  In folders that the jobs of a task share there may be an older
file of the same name; it counts for nothing, and goes with the first chunk.
"""

from __future__ import annotations

import base64
import errno
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from sessionrun.cluster.ends import Head
from sessionrun.cluster.messages import Message, key_of
from sessionrun.cluster.rescues import drop_older
from sessionrun.model.keys import JobKey
from sessionrun.store.files import NotRegular, make_directories, open_regular
from sessionrun.store.session import SessionDir

ALL: Final = 1 << 62
"""A size that says: send no more of it."""

_IN_THE_WAY: Final = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of a path that another try would have again: something else lies there, or it is too long here."""


class _Arriving:
    """One job: how much of its files in shared folders has arrived, which files cannot be had, and its end."""

    def __init__(self) -> None:
        self.shared: dict[str, int] = {}
        self.lost: set[str] = set()
        self.end: Message | None = None


class Arrivals:
    """All of it is done in the carrier's thread, as all that is done with the head."""

    def __init__(self, session: SessionDir, head: Head, log: Callable[[object], None]) -> None:
        self._session = session
        self._head = head
        self._log = log
        self._jobs: dict[str, _Arriving] = {}

    def keep(self, reply: Message) -> list[tuple[str, Message]]:
        """Write what a reply brought; what has begun, what is dead, and the ends whose files are whole."""
        heard: list[tuple[str, Message]] = [
            ("begun", about) for about in reply["begun"] if self._is_open(about["job"])
        ]
        grown: set[str] = set()
        for chunk in reply["out"]:
            if self._is_open(chunk["job"]) and self._keep_chunk(chunk):
                grown.add(chunk["job"])
        for end in reply["ends"]:
            if self._is_open(end["job"]):
                self._find(end["job"]).end = end
                grown.add(end["job"])
        whole = [job for job in sorted(grown) if self._is_whole(job)]
        heard += [("end", self._jobs.pop(job).end or {}) for job in whole]
        for dead in reply["dead"]:
            if self._is_open(dead["job"]):
                self._jobs.pop(dead["job"], None)
                heard.append(("dead", dead))
        return heard

    def _find(self, job: str) -> _Arriving:
        return self._jobs.setdefault(job, _Arriving())

    def _is_open(self, job: str) -> bool:
        """Whether the journal has the job open; of another one the scheduler hears that it may forget it."""
        if job in self._head.opened:
            return True
        self._head.drop(job)
        return False

    def _keep_chunk(self, chunk: Message) -> bool:
        """Write a chunk, and tell how much of its file is here; whether that was possible."""
        job, name = chunk["job"], str(chunk.get("name"))
        size = self._try(job, name, lambda: self._write(job, name, chunk))
        if size is None:  # the node sends it again
            return False
        self._head.wrote(job, name, size)
        return True

    def _try(self, job: str, name: str, work: Callable[[], int]) -> int | None:
        """What a work with a file returns: how much of it is here.  None: the disk refuses.

        What cannot be had, however often it is tried, is done without: its job's end must not wait for it.
        """
        try:
            return work()
        except (ValueError, KeyError, TypeError) as error:
            why = f"what its node sends of it cannot be read: {error}"
        except OSError as error:
            why = error.strerror or str(error)
            if not isinstance(error, NotRegular) and error.errno not in _IN_THE_WAY:
                self._log(f"{job}: {name!r:.140} cannot be written: {why}")
                return None
        self._log(f"{job}: {name!r:.140} does not come home: {why}")
        self._find(job).lost.add(name)
        return ALL

    def _write(self, job: str, name: str, chunk: Message) -> int:
        """Write a chunk, unless bytes before it are missing; how many bytes of the file there are now.

        Raises:
            OSError: the disk refuses.
            ValueError, KeyError, TypeError: it is damaged.
        """
        key, at, content = key_of(job), int(chunk["at"]), base64.b64decode(chunk["content"], validate=True)
        path, is_own = find_path(self._session, key.task, name), self._is_own(key, name)
        if path is None:
            return ALL
        fd = _open(path)
        try:
            size = os.fstat(fd).st_size if is_own else self._find(job).shared.get(name, 0)
            if at == 0:
                drop_older(path)
            if size < at or size >= at + len(content):
                return size
            if not is_own and at == 0:
                os.ftruncate(fd, 0)
            size = at + os.pwrite(fd, content, at)
            if not is_own:
                self._find(job).shared[name] = size
            return size
        finally:
            os.close(fd)

    def _is_own(self, key: JobKey, name: str) -> bool:
        """Whether no other job has a file of this name: it is in the job's own folder, or one of its outputs."""
        if "/" not in name:
            return True
        return name.startswith(f"{self._session.job_path(key).relative_to(self._session.path)}/")

    def _is_whole(self, job: str) -> bool:
        """Whether a job has ended and all of its files are here, empty ones made; else its node hears what is not.

        A node may believe that more has arrived: if the power of this machine failed, the disk may not have it.
        """
        arriving = self._jobs.get(job)
        if arriving is None or arriving.end is None:
            return False
        for name, size in arriving.end["files"].items():
            have = ALL if name in arriving.lost else self._try(job, name, partial(self._measure, job, name, size))
            if have is None:
                return False
            if have < size:
                self._head.wrote(job, name, have)
                return False
        return True

    def _measure(self, job: str, name: str, size: int) -> int:
        """How many of a file's bytes are here.  OSError: it cannot be made, or something else lies there."""
        key = key_of(job)
        path = find_path(self._session, key.task, name)
        if path is None:
            return size
        if not self._is_own(key, name) and size > 0:
            return self._find(job).shared.get(name, 0)
        try:
            about = os.lstat(path)
            if stat.S_ISREG(about.st_mode) and (size > 0 or not about.st_size):
                return about.st_size
        except FileNotFoundError:
            pass
        fd = _open(path)
        os.ftruncate(fd, 0)
        os.close(fd)
        return 0


def find_path(session: SessionDir, task: str, name: str) -> Path | None:
    """Where a file that a node sends belongs: below the jobs of its task, or among its outputs; None: nowhere."""
    top = {f"task-{task}.{ending}" for ending in ("txt", "err", "raw")}
    parts: Sequence[str] = name.split("/")
    inside = name.startswith(f"jobs/{task}/") and not any(part in ("", ".", "..") for part in parts)
    return session.path / name if (name in top or inside) and "\0" not in name else None


def _open(path: Path) -> int:
    try:
        return open_regular(path, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        make_directories(path.parent, 0o700)
        return open_regular(path, os.O_RDWR | os.O_CREAT)
