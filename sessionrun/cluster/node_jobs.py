"""The files of a node's jobs, until their session has them: a folder for each job, as if it were the session's.

An order names files of the session by their paths at the session's end.  Here such a path is one below the job's
folder.  All that the job leaves there goes back: its outputs as they grow, and at its end the rest.

What else is to be known of a job is in a file beside its folder, where the job cannot remove it, written before it
starts.
"""

from __future__ import annotations

import asyncio
import base64
import os
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import orjson

from sessionrun.cluster.messages import Message, take_tokens
from sessionrun.cluster.rescues import list_packs
from sessionrun.keeper.wire import JobOrder, module_command, say
from sessionrun.model.asked import NODE_TOKEN
from sessionrun.model.events import JobLost
from sessionrun.session.executor import Exit, describe_end, fill_in, move, parse_order
from sessionrun.session.worker import Worker, serve
from sessionrun.store.files import make_directories, make_directory, open_regular, read_regular
from sessionrun.store.trees import remove_tree
from sessionrun.walls.agent_state import LOGINS
from sessionrun.walls.groups import GROUPS

KEPT: Final = ".json"
"""Ending of the file beside a job's folder."""

RESCUE_LOOK_S: Final = 1.0
"""How often to look whether it is time for a pack of work in progress."""

MAX_FILES: Final = 10_000
CHUNK_BYTES: Final = 1 << 20
"""Most of a job's output in one tick, for all jobs together."""

LEASE_WORDS: Final = "its node had no contact with the cluster for longer than its lease, and ended it"


class NodeJob:
    """A job of this node, and what is known of its files; `end` is set once it has ended."""

    def __init__(self, job: str, folder: Path, order: Message) -> None:
        self.job = job
        self.folder = folder
        self.outputs: list[str] = list(order["outputs"])
        self.rescue: str | None = order.get("rescue")
        self._packs: list[str] = []
        self.own_folder = folder / order.get("folder", ".")
        self.disk: int | None = order.get("disk")
        self.filled = False
        self.end: Message | None = None
        self.over = False
        self.packed_at = time.monotonic()
        self.wrote: dict[str, int] = {}
        self._brought: dict[str, list[int]] = order["brought"]
        self._sent: dict[str, tuple[int, float]] = {}

    def finish(self, end: Exit | JobLost) -> None:
        """It has ended, of itself or with the lease: now all of its files are known."""
        if any(os.path.lexists(self.own_folder / name) for name in (LOGINS, GROUPS)):
            from sessionrun.walls.enclosing import settle  # most jobs have no walls

            settle(self.own_folder)
        about = describe_end(end)
        if self.over:
            about = {**describe_end(JobLost(end.key, "lost", LEASE_WORDS, gone=True)), "kind": "lease"}
        self.end = {**about, "job": self.job, "files": dict(islice(self._find_files(), MAX_FILES))}

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
        return self.folder.with_name(f"{self.folder.name}.rescue")

    def make_chunks(self, budget: int, again_s: float) -> Iterator[Message]:
        """What the session does not have yet, at most `budget` bytes; nothing is sent again within `again_s`."""
        now = time.monotonic()
        names = self.outputs if self.end is None else self.end["files"]
        for name in names:
            size = self._measure(name) if self.end is None else self.end["files"][name]
            at = self.wrote.get(name, 0)
            sent_at, when = self._sent.get(name, (-1, 0.0))
            if at >= size or budget <= 0 or (sent_at == at and now - when < again_s):
                continue
            content = self._read(name, at, min(budget, size - at))
            budget -= len(content)
            self._sent[name] = at, now
            yield {"job": self.job, "name": name, "at": at, "content": base64.b64encode(content).decode()}

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
        base = str(self.folder)
        for path in _walk_files(base):
            relative = path[len(base) + 1 :]
            try:
                relative.encode()
                about = os.lstat(path)
            except (UnicodeEncodeError, OSError):
                continue
            is_changed = self._brought.get(relative) != [about.st_size, about.st_mtime_ns]
            if stat.S_ISREG(about.st_mode) and is_changed:
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


class JobFolders:
    """The folders of a node's jobs.  A thread removes those that are not needed any more: that takes long."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._node = str(directory.parent.parent)
        self._removal: Worker[Path, None] = Worker("removal", serve(_drop))

    def load(self) -> Iterator[NodeJob]:
        """The jobs that came, also where one has removed its own folder; what belongs to none is removed."""
        names = set(os.listdir(self._directory))
        for name in sorted(names):
            if not name.endswith(KEPT):
                if name + KEPT not in names:
                    _drop(self._directory / name)
                continue
            try:
                kept = orjson.loads(read_regular(self._directory / name))
                job = NodeJob(kept["job"], self.folder_of(kept["job"]), kept)
            except (OSError, ValueError, KeyError, TypeError):  # the link was killed while it wrote it
                _drop(self._directory / name.removesuffix(KEPT))
                with suppress(OSError):
                    os.unlink(self._directory / name)
                continue
            job.take_rescues()
            yield job

    def place(self, job: str, order: Message) -> tuple[NodeJob, JobOrder]:
        """Write the files of an order; returns the job, and the process to start.

        Raises:
            OSError: they cannot be written.
            NotSet: a variable is given by a name that this node does not have.
            ValueError, KeyError, TypeError: the order is damaged.
        """
        path = self.folder_of(job)
        folder = str(path)
        _drop(path)  # one that was interrupted
        self._kept_path(job).unlink(missing_ok=True)
        make_directory(folder, 0o700)
        here = partial(take_tokens, folder=folder, node=self._node)
        outputs, rescue = [order["stdout"], order["stderr"]], order.get("rescue")
        places = [*outputs, order["folder"], *([] if rescue is None else [rescue])]
        for name in (*order["files"], *order["folders"], *places):
            if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
                raise ValueError(f"{name!r:.80} is not a path below the session's directory")
        for name in order["folders"]:
            make_directories(f"{folder}/{name}", 0o700)
        for name in (*order["files"], *outputs):
            make_directories(os.path.dirname(f"{folder}/{name}"), 0o700)
        brought = {}
        for name, content in order["files"].items():
            decoded = base64.b64decode(content)
            if os.path.basename(name) in order["placed"]:
                decoded = here(decoded.decode()).encode()
            about = _write_new(f"{folder}/{name}", decoded)
            brought[name] = [about.st_size, about.st_mtime_ns]
        if order["cwd"].startswith(NODE_TOKEN):
            make_directories(Path(here(order["cwd"])), 0o700)  # of a replica that is yet to be made
        paths = {name: f"{folder}/{order[name]}" for name in ("stdout", "stderr")}
        process = fill_in(move(parse_order({**order, "key": job, **paths}), here))
        kept: Message = {"job": job, "outputs": list(dict.fromkeys(outputs)), "brought": brought}
        kept |= {"rescue": rescue, "folder": order["folder"], "disk": order["disk"]}
        _write_new(str(self._kept_path(job)), orjson.dumps(kept))
        return NodeJob(job, path, kept), process

    def folder_of(self, job: str) -> Path:
        """Where a job's files are; no part of its name holds a comma or slash but between the parts."""
        return self._directory / job.replace("/", ",")

    def _kept_path(self, job: str) -> Path:
        return self.folder_of(job).with_name(self.folder_of(job).name + KEPT)

    def forget(self, job: NodeJob) -> None:
        with suppress(OSError):  # else the next link forgets it: its ledger says so
            self._kept_path(job.job).unlink()
        self._put_aside(job.folder)
        if job.rescue is not None:
            self._put_aside(job.scratch)

    def _put_aside(self, folder: Path) -> None:
        """Let a folder be removed under a name that no order uses: its job may come again meanwhile."""
        aside = folder.with_name(f"gone-{os.urandom(8).hex()}")
        with suppress(OSError):  # the job has removed it
            folder.rename(aside)
            self._removal.ask(aside)


async def make_rescues(jobs: Mapping[str, NodeJob], interval_s: float) -> None:
    """Make packs of the work in progress of jobs: of each every so many seconds (0: never), one after the other.

    Git may take long, and the link must answer the cluster; so a process of its own makes each pack.
    """
    while interval_s > 0:
        now = time.monotonic()
        running = [job for job in jobs.values() if job.rescue is not None and job.end is None]
        due = [job for job in running if now - job.packed_at >= interval_s and not job.has_rescue_to_send]
        if not due:
            await asyncio.sleep(min(RESCUE_LOOK_S, interval_s))
            continue
        job = min(due, key=lambda job: job.packed_at)
        job.packed_at = now
        argv = module_command("sessionrun.cluster.rescues", str(job.folder / str(job.rescue)), str(job.scratch))
        try:
            await (await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL)).wait()
        except OSError as error:
            say(f"{job.job}: its work cannot be packed: {error.strerror}")
        job.take_rescues()


def _drop(folder: Path) -> tuple[()]:
    """Remove a folder; what cannot be removed stays until the next link tries."""
    with suppress(OSError):
        remove_tree(folder)
    return ()


def _write_new(path: str, content: bytes) -> os.stat_result:
    with open(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as stream:
        stream.write(content)
        stream.flush()
        return os.fstat(stream.fileno())
