"""What comes back of a session's jobs on nodes: files in chunks, and ends, which count once their files are whole.

A chunk is written where the file belongs, at its offset.  What has arrived is counted in memory: another
supervisor has all of a job's files sent again, for it cannot know what a power failure took, or what in a folder
that the jobs of a task share is an older file of the same name.  Nothing of that is left once the end counts.
"""

from __future__ import annotations

import base64
import errno
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Final

from sessionrun.cluster.ends import Head
from sessionrun.cluster.messages import Message, key_of
from sessionrun.cluster.rescues import drop_older
from sessionrun.store.files import NotRegular, make_directories, open_regular
from sessionrun.store.session import SessionDir

ALL: Final = 1 << 62
"""A size that says: send no more of it."""

_IN_THE_WAY: Final = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of a path that another try would have again: something else lies there, or it is too long here."""


class Arrivals:
    """All of it is done in the carrier's thread, as all that is done with the head.

    `_have` is, job by job, how much of each file has arrived; `_ends` are those whose files are not whole.
    """

    def __init__(self, session: SessionDir, head: Head, log: Callable[[object], None]) -> None:
        self._session = session
        self._head = head
        self._log = log
        self._have: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._ends: dict[str, Message] = {}

    def keep(self, reply: Message) -> list[tuple[str, Message]]:
        """Write what a reply brought; what has begun, what is dead, and the ends whose files are whole."""
        heard: list[tuple[str, Message]] = [
            ("begun", about) for about in reply["begun"] if self._is_open(about["job"])
        ]
        grown: set[str] = set()
        for chunk in reply["out"]:
            job, name = chunk["job"], str(chunk.get("name"))
            # if the disk refuses it, the node sends it again
            if self._is_open(job) and self._try(job, name, partial(self._write, job, name, chunk)):
                self._head.wrote(job, name, self._have[job][name])
                grown.add(job)
        for end in reply["ends"]:
            if self._is_open(end["job"]):
                self._ends[end["job"]] = end
                grown.add(end["job"])
        whole = [job for job in sorted(grown & self._ends.keys()) if self._is_whole(job)]
        heard += [("end", self._ends[job]) for job in whole]
        dead = [about for about in reply["dead"] if self._is_open(about["job"])]
        heard += [("dead", about) for about in dead]
        for job in (*whole, *(about["job"] for about in dead)):
            self._have.pop(job, None)
            self._ends.pop(job, None)
        return heard

    def _is_open(self, job: str) -> bool:
        """Whether the journal has the job open; of another one the scheduler hears that it may forget it."""
        if job in self._head.opened:
            return True
        self._head.drop(job)
        return False

    def _try(self, job: str, name: str, work: Callable[[], object]) -> bool:
        """Work with a file; False: the disk refuses.

        What cannot be had, however often it is tried, is done without: its job's end must not wait for it.
        """
        try:
            work()
            return True
        except (ValueError, KeyError, TypeError) as error:
            why = f"what its node sends of it cannot be read: {error}"
        except OSError as error:
            why = error.strerror or str(error)
            if not isinstance(error, NotRegular) and error.errno not in _IN_THE_WAY:
                self._log(f"{job}: {name!r:.140} cannot be written: {why}")
                return False
        self._log(f"{job}: {name!r:.140} does not come home: {why}")
        self._have[job][name] = ALL
        return True

    def _write(self, job: str, name: str, chunk: Message) -> None:
        """Write a chunk, unless bytes before it are missing, or it is here.

        Raises:
            OSError: the disk refuses.
            ValueError, KeyError, TypeError: it is damaged.
        """
        at, content = int(chunk["at"]), base64.b64decode(chunk["content"], validate=True)
        path, have = find_path(self._session, key_of(job).task, name), self._have[job]
        size = have.setdefault(name, 0 if path is not None else ALL)
        if path is None or not at <= size < at + len(content):
            return
        with _open(path) as stream:
            if at == 0:
                drop_older(path)
            stream.seek(at)
            have[name] = at + stream.write(content)

    def _is_whole(self, job: str) -> bool:
        """Whether all files of a job that has ended are here; else its node hears what is not."""
        for name, size in self._ends[job]["files"].items():
            have = self._have[job].get(name, 0)
            if have < size:  # its node may have sent more to a supervisor before this one
                self._head.wrote(job, name, have)
                return False
            if have != ALL and not self._try(job, name, partial(self._finish, job, name, size)):
                return False
        return True

    def _finish(self, job: str, name: str, size: int) -> None:
        """Give a file that is here its size, also an empty one.  OSError: something else lies there."""
        path = find_path(self._session, key_of(job).task, name)
        if path is not None:
            with _open(path) as stream:
                stream.truncate(size)


def find_path(session: SessionDir, task: str, name: str) -> Path | None:
    """Where a file that a node sends belongs: below the jobs of its task, or among its outputs; None: nowhere."""
    top = {f"task-{task}.{ending}" for ending in ("txt", "err", "raw")}
    parts: Sequence[str] = name.split("/")
    inside = name.startswith(f"jobs/{task}/") and not any(part in ("", ".", "..") for part in parts)
    return session.path / name if (name in top or inside) and "\0" not in name else None


def _open(path: Path) -> FileIO:
    try:
        fd = open_regular(path, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        make_directories(path.parent, 0o700)
        fd = open_regular(path, os.O_RDWR | os.O_CREAT)
    return FileIO(fd, "r+")
