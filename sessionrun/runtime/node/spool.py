"""The files of a node's jobs, until their session has them: a folder for each job, as if it were the session's.

An order names files of the session by their paths at the session's end.  Here such a path is one below the job's
folder.  All that the job leaves there goes back: its outputs as they grow, and at its end the rest.

What else is to be known of a job is in the log ``orders`` beside these folders, written before the job starts: a
file for each would have to be made, and removed again.
"""

from __future__ import annotations

import base64
import errno
import os
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Final

import orjson

from sessionrun.cluster.messages import Message
from sessionrun.model.cluster import CACHE_TOKEN, NODE_TOKEN, PATH_TOKEN
from sessionrun.model.errors import StoreError
from sessionrun.model.events import JobLost
from sessionrun.runtime.executors.orders import describe_end, read_job
from sessionrun.runtime.executors.protocol import Exit
from sessionrun.runtime.jobs.logins import LOGINS
from sessionrun.runtime.keeper.wire import JobOrder
from sessionrun.store.files import make_directories, make_directory, open_regular, read_regular
from sessionrun.store.journal import AppendLog, parse_log
from sessionrun.walls.groups import GROUPS
from sessionrun.workspaces.registration import remove_tree
from sessionrun.workspaces.rescue_names import list_packs

ORDERS: Final = "orders"
MAX_LOG: Final = 4 << 20
"""With more bytes the log is written anew, without the jobs whose sessions have them."""

SCRATCH: Final = ".rescue"
"""Ending of a folder beside a job's, for what is made while its work in progress is packed."""

LOOK_S: Final = 0.1
"""How often to look at the outputs of a job that runs."""

MAX_FILES: Final = 10_000
CHUNK_BYTES: Final = 1 << 20
"""Most of a job's output in one tick, for all jobs together."""

LEASE_WORDS: Final = "its node had no contact with the cluster for longer than its lease, and ended it"

MAX_GONE: Final = 1000
"""So many folders may wait for their removal."""

_PACKAGE: Final = str(Path(__file__).resolve().parents[3])


class SpooledJob:
    """A job of this node, and what is known of its files; `end` is set once it has ended."""

    def __init__(self, job: str, folder: Path, order: Message) -> None:
        self.job = job
        self.folder = folder
        self.order = order
        self.outputs: list[str] = list(order["outputs"])
        self.rescue: str | None = order.get("rescue")
        self._packs: list[str] = []
        self.own_folder = folder / order.get("folder", ".")
        self.disk: int | None = order.get("disk")
        self.filled = False
        self.end: Message | None = None
        self.over = False
        self.begun_at: float | None = None
        self.wrote: dict[str, int] = {}
        self._brought: dict[str, list[int]] = order["brought"]
        self._sent: dict[str, tuple[int, float]] = {}
        self._look_at = 0.0

    def finish(self, end: Exit | JobLost) -> None:
        """It has ended, of itself or with the lease: now all of its files are known."""
        _settle_walls(self.own_folder)
        about = describe_end(end)
        if self.over:
            about = {**describe_end(JobLost(end.key, "lost", LEASE_WORDS, gone=True)), "kind": "lease"}
        self.end = {**about, "job": self.job, "files": dict(self._find_files())}

    def take_rescues(self) -> None:
        """Send the newest pack of work in progress, in the place of those before it."""
        if self.rescue is None:
            return
        packs = list_packs(self.folder / self.rescue)
        names = [str(path.relative_to(self.folder)) for path in packs]
        if self.end is None and names:
            self.outputs = [name for name in self.outputs if name not in self._packs] + names[:1]
            self._packs = names[:1]
            for old in packs[1:]:
                with suppress(OSError):  # the folder is the job's, which may have made anything of it
                    old.unlink()

    @property
    def has_rescue_to_send(self) -> bool:
        """Whether the session does not have the newest pack whole."""
        return any(self.wrote.get(name, 0) < self._measure(name) for name in self._packs)

    @property
    def scratch(self) -> Path:
        """Where a pack of work in progress is made."""
        return self.folder.with_name(self.folder.name + SCRATCH)

    def make_chunks(self, budget: int, again_s: float) -> Iterator[Message]:
        """What the session does not have yet, at most `budget` bytes; nothing is sent again within `again_s`."""
        now = time.monotonic()
        if self.end is not None:
            sizes = self.end["files"]
        elif now >= max(self._look_at, (self.begun_at or 0.0) + LOOK_S) and budget > 0:
            sizes, self._look_at = {name: self._measure(name) for name in self.outputs}, now + LOOK_S
        else:
            return
        for name, size in sizes.items():
            at = self.wrote.get(name, 0)
            sent_at, when = self._sent.get(name, (-1, 0.0))
            if at >= size or budget <= 0 or (sent_at == at and now - when < again_s):
                continue
            content = self._read(name, at, min(budget, size - at))
            budget -= len(content)
            self._sent[name] = at, now
            yield {"job": self.job, "name": name, "at": at, "content": base64.b64encode(content).decode()}

    @property
    def has_more(self) -> bool:
        """Whether it has ended, and left what was not sent so far."""
        sizes = self.end["files"] if self.end is not None else {}
        return any(
            at < size and self._sent.get(name, (-1, 0.0))[0] != at
            for name, size in sizes.items()
            for at in (self.wrote.get(name, 0),)
        )

    def note_written(self, name: str, size: int) -> None:
        """So many bytes of a file have arrived; fewer than before, if the session's machine has lost some."""
        self.wrote[name], self._look_at = size, 0.0

    def _measure(self, name: str) -> int:
        try:
            return os.lstat(f"{self.folder}/{name}").st_size
        except OSError:
            return 0

    def _read(self, name: str, at: int, size: int) -> bytes:
        try:
            fd = open_regular(self.folder / name)
        except OSError:
            return b"\0" * size  # the job has removed it since: its length was told already
        try:
            content = os.pread(fd, size, at)
            return content + b"\0" * (size - len(content))
        finally:
            os.close(fd)

    def _find_files(self) -> Iterator[tuple[str, int]]:
        """All regular files below the folder that the job made or changed; links are not followed.

        A name that is not UTF-8 cannot be in a message: such a file stays here.
        """
        base, found = str(self.folder), 0
        for path in _walk_files(base):
            relative = path[len(base) + 1 :]
            try:
                relative.encode()
                about = os.lstat(path)
            except (UnicodeEncodeError, OSError):
                continue
            is_changed = self._brought.get(relative) != [about.st_size, about.st_mtime_ns]
            if stat.S_ISREG(about.st_mode) and is_changed and found < MAX_FILES:
                found += 1
                yield relative, about.st_size


def _walk_files(top: str) -> Iterator[str]:
    """All that is no directory below `top`; `os.walk` fails if a job has made too many below each other."""
    left = [top]
    while left:
        place = left.pop()
        try:
            with os.scandir(place) as entries:
                named = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        yield from (entry.path for entry in named if not entry.is_dir(follow_symlinks=False))
        left += [entry.path for entry in reversed(named) if entry.is_dir(follow_symlinks=False)]


class Spool:
    """The folders of a node's jobs.  A thread removes those that are not needed any more: that takes long."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._node = str(directory.parent.parent)
        self._log = AppendLog(directory.with_name(ORDERS))
        self._renew_at = MAX_LOG
        self._gone: Queue[Path] = Queue(MAX_GONE)
        threading.Thread(target=self._remove, name="spool", daemon=True).start()

    def _remove(self) -> None:
        while True:
            _drop(self._gone.get())
            self._gone.task_done()

    def load(self) -> Iterator[SpooledJob]:
        """The jobs that the log has, also where a job has removed its own folder; other folders are removed.

        Raises:
            OSError: the log cannot be read.
        """
        orders = {order["job"]: order for order in map(orjson.loads, self._read_log())}
        jobs = [SpooledJob(job, self.folder_of(job), order) for job, order in orders.items()]
        for name in {*os.listdir(self._directory)}.difference(job.folder.name for job in jobs):
            _drop(self._directory / name)
        for job in jobs:
            job.take_rescues()
            yield job

    def _read_log(self) -> list[bytes]:
        """The records of the log, also those behind damage: none needs another one.  A torn tail is cut off."""
        content, payloads = read_regular(self._log.path), []
        while (found := parse_log(content)).damage_at is not None:
            payloads += found.payloads
            content = content[content.index(b"\n", found.damage_at) + 1 :]
        self._log.cut(self._log.end - len(content) + found.end)
        return payloads + found.payloads

    def place(self, job: str, order: Message) -> tuple[SpooledJob, JobOrder]:
        """Write the files of an order; returns the job, and the process to start once `note` has it.

        Raises:
            OSError: they cannot be written.
            NotSet: a variable is given by a name that this node does not have.
            ValueError, KeyError, TypeError: the order is damaged.
        """
        path = self.folder_of(job)
        folder = str(path)
        if os.path.lexists(folder):  # one that was interrupted, or is being removed
            self._gone.join()
            _drop(path)
        make_directory(folder, 0o700)
        brought = {}
        for name, content in order["files"].items():
            file = f"{folder}/{_check_name(name)}"
            make_directories(os.path.dirname(file), 0o700)
            decoded = base64.b64decode(content)
            if os.path.basename(file) in order["placed"]:
                decoded = self._move(decoded.decode(), order, folder).encode()
            about = _write_new(file, decoded)
            brought[name] = [about.st_size, about.st_mtime_ns]
        for name in order["folders"]:
            make_directories(f"{folder}/{_check_name(name)}", 0o700)
        outputs = [_check_name(order[name]) for name in ("stdout", "stderr")]
        kept: Message = {"job": job, "outputs": list(dict.fromkeys(outputs)), "brought": brought}
        kept["rescue"] = None if order.get("rescue") is None else _check_name(order["rescue"])
        kept |= {"folder": _check_name(order["folder"]), "disk": order["disk"]}
        for name in outputs:
            make_directories(os.path.dirname(f"{folder}/{name}"), 0o700)
        return SpooledJob(job, path, kept), self._translate(job, order, folder)

    def note(self, placed: Iterable[SpooledJob], all_jobs: Iterable[SpooledJob]) -> None:
        """Write to the log what is to be known of jobs; of all jobs, with these, where it is written anew.

        Raises:
            StoreError: the disk refuses; the log has none of them.
        """
        self._log.append([orjson.dumps(job.order) for job in placed])
        if self._log.end > self._renew_at:
            self.renew(all_jobs)

    def renew(self, jobs: Iterable[SpooledJob]) -> None:
        """Write the log anew, of these jobs alone; where the disk refuses, the old one goes on."""
        path = self._log.path
        beside = path.with_name(f".{path.name}.new")
        with suppress(StoreError, OSError):
            beside.unlink(missing_ok=True)
            log = AppendLog(beside)
            try:
                log.append([orjson.dumps(job.order) for job in jobs])
                log.sync()  # else, after a power failure, neither the old nor the new one may be there
                os.replace(beside, path)
            except (StoreError, OSError):
                log.close()
                raise
            log.path = path
            self._log.close()
            self._log = log
        self._renew_at = max(MAX_LOG, 2 * self._log.end)

    def _translate(self, job: str, order: Message, folder: str) -> JobOrder:
        """The process to start: paths of the session's directory, of its Python and its package become our own."""
        python: str = order["python"]

        def here(word: str) -> str:
            if word == python:
                return sys.executable
            if word.startswith(order["package"] + os.sep):
                word = _PACKAGE + word[len(order["package"]) :]
            return self._move(word, order, folder)

        if order["cwd"].startswith(NODE_TOKEN):
            make_directories(Path(here(order["cwd"])), 0o700)  # of a replica that is yet to be made
        outputs = {name: f"{folder}/{order[name]}" for name in ("stdout", "stderr")}
        return read_job({**order, "key": job, **outputs}, here)

    def _move(self, text: str, order: Message, folder: str) -> str:
        """A text in which paths of the session's directory, and of the node, are those that they are here."""
        text = text.replace(order["session"], folder).replace(NODE_TOKEN, self._node)
        if CACHE_TOKEN in text:
            from sessionrun.workspaces.repository import find_cache_folder  # most jobs have no environment

            text = text.replace(CACHE_TOKEN, str(find_cache_folder()))
        return text.replace(PATH_TOKEN, os.environ.get("PATH") or os.defpath)

    def folder_of(self, job: str) -> Path:
        """Where a job's files are; no part of its name holds a comma or slash but between the parts."""
        return self._directory / job.replace("/", ",")

    def forget(self, job: SpooledJob) -> None:
        """Let a job's files be removed."""
        self._gone.put(job.folder)
        if job.rescue is not None:
            self._gone.put(job.scratch)


def _settle_walls(folder: Path) -> None:
    """Do what is left to do for a job inside of walls."""
    if any(os.path.lexists(folder / name) for name in (LOGINS, GROUPS)):
        from sessionrun.runtime.jobs.elsewhere import settle  # most jobs have none

        settle(folder)


def _drop(folder: Path) -> None:
    """Remove a folder; what cannot be removed stays until the next link tries."""
    with suppress(OSError):
        remove_tree(folder)


def _write_new(path: str, content: bytes) -> os.stat_result:
    with open(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", buffering=0) as stream:
        if stream.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return os.fstat(stream.fileno())


def _check_name(name: str) -> str:
    """A path below the session's directory.

    Raises:
        ValueError: it leads out of it.
    """
    if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise ValueError(f"{name!r:.80} is not a path below the session's directory")
    return name
