"""The process that links a node's keeper to the cluster; it stands where a session has its supervisor.

It decides nothing: it hands orders to the keeper, and ends and output to the cluster's scheduler, which it calls.
It dies with its keeper, and the next keeper starts another one, which finds everything in the ledger and in the
folders of the jobs.  It calls only while something guards the node (`node_directory`).
"""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sessionrun import __version__
from sessionrun.cluster.dask_carrier import ask, keep_calling, open_rpc, word_fault
from sessionrun.cluster.ends import CALL_SLACK_S, Link, find_lease
from sessionrun.cluster.messages import ABANDON, KILL, Message, key_of
from sessionrun.cluster.node_directory import CONTACT, GUARD_LOCK, JOBS, LEFT, SETTINGS, load_site
from sessionrun.cluster.node_jobs import CHUNK_BYTES, JobFolders, NodeJob, make_rescues
from sessionrun.keeper.lease import boot_ns
from sessionrun.keeper.wire import EXIT_REFUSED, EXIT_TAKEN, Connection, say
from sessionrun.model.errors import StoreError
from sessionrun.model.events import JobLost
from sessionrun.session.executor import Exit, KeeperGone, NotSet, describe_end, greet, judge_job, read_frame
from sessionrun.store import locks
from sessionrun.store.files import open_regular, replace_file
from sessionrun.store.logs import fold_ledger, parse_log
from sessionrun.store.processes import die_with_parent
from sessionrun.walls.disk import DiskLook
from sessionrun.walls.trial import list_problems
from sessionrun.walls.wish import FILLED

LOCK_TIMEOUT_S: Final = 5.0
GUARD_LOOK_S: Final = 0.5


def main() -> None:
    """Link the node in ``argv[1]``; ``argv[2]`` is the descriptor of the socket to the keeper."""
    gc.freeze()
    gc.enable()
    die_with_parent()
    end = socket.socket(fileno=int(sys.argv[2]))
    end.set_inheritable(False)
    directory = Path(sys.argv[1])
    if locks.hold(directory / "lock", timeout_s=LOCK_TIMEOUT_S) is None:
        sys.exit(EXIT_TAKEN)
    try:
        asyncio.run(LinkProcess(directory, end).run())
    except KeeperGone:
        sys.exit(0)
    except (StoreError, OSError, ValueError, KeyError) as error:
        say(f"{type(error).__name__}: {error}")
        sys.exit(EXIT_REFUSED if isinstance(error, StoreError) else 1)


class LinkProcess:
    """Everything of one life of this process."""

    def __init__(self, directory: Path, end: socket.socket) -> None:
        self._settings = (directory.parent / SETTINGS).stat().st_mtime_ns
        self._site = site = load_site(directory)
        self._keeper = Connection(end)
        _, _, offset, early = greet(self._keeper)
        own = {"node": site.node_id, "name": site.name, "slots": site.slots, "version": __version__}
        self._link = Link({**own, "walls": list_problems(), "boot": site.boots})
        self._folders = JobFolders(site.path / JOBS)
        self._disks = DiskLook()
        self._jobs: dict[str, NodeJob] = {}
        self._scheduler: Any = None
        self._contact: str | None = None
        self._alone_since: float | None = None
        self._leaves = False
        self._has_news = False
        self._woken, self._poked = asyncio.Event(), asyncio.Event()
        # what the node has, by its ledger: jobs that run, and ends that no session has acknowledged
        with open(open_regular(site.path / "ledger"), "rb") as stream:
            ledger = fold_ledger(parse_log(stream.read(offset)).payloads)
        for job in self._folders.load():
            about = ledger.jobs.get(job.job)
            if about is None or about.acked:
                self._folders.forget(job)  # its order is offered again; or its end is known
                continue
            job.over = about.over
            self._jobs[job.job] = job
            notice = judge_job(key_of(job.job), about, ledger, offset, was_seen=False)
            if isinstance(notice, (Exit, JobLost)):
                job.finish(notice)
        self._hear_keeper(early)

    async def run(self) -> None:
        """Go on until the keeper is gone."""
        for fd in (self._keeper.fileno(), *self._disks.fds):
            asyncio.get_running_loop().add_reader(fd, self._woken.set)
        ticks = keep_calling(self._tick, lambda: self._has_news, self._poked)
        beside = asyncio.gather(ticks, make_rescues(self._jobs, self._site.rescue_s))
        beside.add_done_callback(lambda _: self._woken.set())
        while not beside.done():
            self._keeper.flush()
            await self._wait()
            try:
                self._hear_keeper(self._keeper.receive())
            except EOFError:
                raise KeeperGone from None
            self._end_full()
            if self._leaves or time.monotonic() > self._find_end():
                # keeper and root end with this process; ends that no session has stay in their folders
                self._keeper.send("Q")
                self._keeper.flush()
                sys.exit(0)
        beside.result()

    def _end_full(self) -> None:
        """End the jobs that have filled more of the disk than they may; the file says to their session why."""
        limited = {
            job.job: (job.own_folder, job.disk)
            for job in self._jobs.values()
            if job.disk is not None and job.end is None and not job.filled
        }
        for job in map(self._jobs.__getitem__, self._disks.look(limited, time.monotonic())):
            job.filled = True
            try:
                replace_file(job.own_folder / FILLED, b"", durable=False)
            except OSError as error:
                say(f"{job.job}: the reason of its end cannot be told: {error.strerror}")
            self._keeper.send("T", job.job, True)

    def _find_end(self) -> float:
        """When this node ends by itself: nothing runs, and nothing has guarded it for as long as a lease."""
        if self._alone_since is None or any(job.end is None for job in self._jobs.values()):
            return math.inf
        return self._alone_since + self._link.timers.lease + self._link.timers.margin

    # --- ticks ---

    async def _tick(self, waits: bool) -> bool:
        """One tick and its answer, once something guards the node; whether one came."""
        while not self._is_guarded():
            self._woken.set()
            await asyncio.sleep(GUARD_LOOK_S)
        self._has_news, wait_s = False, self._link.timers.tick if waits else 0.0
        ends = [job.end for job in self._jobs.values() if job.end is not None]
        held = [name for name, job in self._jobs.items() if job.end is None]
        out, budget = list[Message](), CHUNK_BYTES
        for job in self._jobs.values():
            for chunk in job.make_chunks(budget, self._link.timers.tick + CALL_SLACK_S):
                out.append(chunk)
                budget -= len(chunk["content"]) * 3 // 4
        tick = self._link.make_tick(boot_ns(), held=held, ends=ends, out=out, wait=wait_s)
        try:
            self._scheduler = self._scheduler or open_rpc(self._site.cluster)
            answer = await ask(self._scheduler, "sr_node", tick, wait_s + CALL_SLACK_S)
        except Exception as error:  # whatever the library raises: the call has failed
            self._has_news = True
            self._note_contact(word_fault(error))
            return False
        refusal = answer.get("refused") if answer is not None else "it has none of our plug-ins"
        self._note_contact("" if refusal is None else f"it refuses this node: {refusal}")
        if refusal is None and self._link.take(answer):
            self._obey(answer)
        return refusal is None

    def _tell_soon(self) -> None:
        self._has_news = True
        self._poked.set()

    def _is_guarded(self) -> bool:
        """Whether something guards this node.  If that has come anew, with other settings, this process ends."""
        folder = self._site.path.parent
        if not locks.is_held(folder / GUARD_LOCK):
            self._alone_since = self._alone_since or time.monotonic()
            return False
        self._alone_since = None
        with suppress(OSError):  # if they are gone, those that it has go on
            if (folder / SETTINGS).stat().st_mtime_ns != self._settings:
                say("the node was given other settings: its link begins anew")
                sys.exit(EXIT_TAKEN)  # which the keeper counts as no failure
        return True

    async def _wait(self) -> None:
        loop, fd = asyncio.get_running_loop(), self._keeper.fileno()
        if self._keeper.has_more:
            loop.add_writer(fd, self._woken.set)
        else:
            loop.remove_writer(fd)
        look_at = math.inf if self._disks.look_at is None else self._disks.look_at
        with suppress(asyncio.TimeoutError):
            wait_s = max(0.0, min(self._find_end(), look_at) - time.monotonic())
            await asyncio.wait_for(self._woken.wait(), wait_s)
        self._woken.clear()

    # --- what comes ---

    def _note_contact(self, fault: str) -> None:
        """Leave for people whether there is contact with the scheduler, and why not."""
        if fault != self._contact:
            self._contact = fault
            try:
                replace_file(self._site.path / CONTACT, fault.encode(), durable=False)
            except OSError as error:
                say(f"{CONTACT} cannot be written: {error.strerror}")

    def _obey(self, answer: Message) -> None:
        if answer["leave"]:
            replace_file(self._site.path / LEFT, b"", durable=False)
            self._leaves = True
        if (lease := find_lease(answer)) is not None:
            self._keeper.send("V", *lease)
        for name, order in answer["orders"].items():
            self._start(name, order)
        for name, level in answer["stop"]:
            job = self._jobs.get(name)
            if job is not None and job.end is None:
                if level == ABANDON:
                    self._keeper.send("O", name)
                else:
                    self._keeper.send("T", name, level == KILL)
        for name in answer["void"]:
            if name in self._jobs:
                self._keeper.send("T", name, True)
        for name, file, size in answer["wrote"]:
            if name in self._jobs:
                self._jobs[name].wrote[file] = size  # fewer than before, if the session's machine has lost some
        known = [job for name in answer["ack"] if (job := self._jobs.pop(name, None)) is not None]
        for job in known:
            self._keeper.send("A", job.job)
        self._keeper.flush()
        self._woken.set()
        for job in known:
            self._folders.forget(job)

    def _start(self, name: str, order: Message) -> None:
        """Have the keeper start a job, once its files are there; an order that cannot be used ends."""
        if name in self._jobs:
            return
        try:
            self._jobs[name], process = self._folders.place(name, order)
            self._keeper.send("J", *process)
        except NotSet as fault:
            self._refuse(name, Exit(key_of(name), None, detail=str(fault)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            say(f"{name}: its order cannot be used: {why}")
            reason = f"its order cannot be used on this node: {why}"
            self._refuse(name, JobLost(key_of(name), "void", reason))

    def _refuse(self, name: str, end: Exit | JobLost) -> None:
        """Tell that it did not start.  It is not in the ledger: if this is forgotten, its order comes again."""
        empty: Message = {"job": name, "outputs": [], "brought": {}}
        job = self._jobs[name] = NodeJob(name, self._folders.folder_of(name), empty)
        job.end = {**describe_end(end), "job": name, "files": {}}  # what lies there is only what the order brought
        self._tell_soon()

    def _hear_keeper(self, frames: list[list[Any]]) -> None:
        for fields in frames:
            job = self._jobs.get(fields[1])
            if job is None or job.end is not None:
                continue
            if fields[0] == "O":
                job.over = True
                continue
            for notice in read_frame(fields, key_of(job.job)):
                if isinstance(notice, (Exit, JobLost)):
                    job.finish(notice)
                    self._tell_soon()
