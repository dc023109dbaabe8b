"""Runs jobs on the nodes of a cluster; a LAND runs here, where the repository is.

The journal is the fence: a claim names the node and the epoch of the scheduler, and is durable before the order
leaves.  An end that a node tells is dropped at the scheduler only when the journal has it.
"""

from __future__ import annotations

import base64
import errno
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from io import FileIO
from operator import methodcaller
from pathlib import Path
from typing import Any, Final

from sessionrun import __version__
from sessionrun.cluster.dask_carrier import Carrier, Contact, Deed
from sessionrun.cluster.ends import Head, Opened
from sessionrun.cluster.messages import KILL, TERM, Message, key_of
from sessionrun.cluster.orders import Replicas, find_prepare, make_order
from sessionrun.cluster.replica import ObjectsMissing
from sessionrun.cluster.rescues import drop_older
from sessionrun.git.mirrors import hold_mirror
from sessionrun.model.asked import SUGGESTIONS, Cluster, Sandbox, SlotsOffered
from sessionrun.model.errors import SessionrunError, StoreError
from sessionrun.model.events import HoldPlaced, JobClaimed, JobLost, JobStarted
from sessionrun.model.keys import WORKSPACE_PHASES, JobKey
from sessionrun.model.spec import SLOT, WALLS_PREFIX, Job, SessionSpec
from sessionrun.session.executor import Executor, Exit, Notice, read_end
from sessionrun.store.files import NotRegular, make_directories, open_regular
from sessionrun.store.jobfiles import REQUEST, load_record
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.request import WorkspaceRequest, load_place

NODE_RETRY_S: Final = 1.0


class DaskExecutor:
    """The executor of a session whose jobs run on nodes; `local` is that of this machine.

    `gen` counts the lives of the supervisor.  Its journal has `opened` jobs on nodes, and `held` resources.
    `connect` makes what carries the calls, and `clock` is monotonic (seconds).
    """

    needs_sync = True

    def __init__(
        self,
        session: SessionDir,
        spec: SessionSpec,
        local: Executor,
        gen: int,
        opened: Mapping[JobKey, Opened],
        held: Iterable[str],
        log: Callable[[object], None],
        *,
        connect: Callable[[Cluster, Head, Contact, Callable[[Message], list[Any]]], Carrier] = Carrier,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._clock = clock
        self._local = local
        self._log = log
        self._told: list[str] = []
        self._begun: set[str] = set()
        self._waiting: dict[str, tuple[JobKey, str]] = {}
        self._claimed: dict[JobKey, tuple[Opened, int | None]] = {}
        self._offered: SlotsOffered | None = None
        self._slots: dict[str, int] = {}
        self._used = Counter(at.node for at in opened.values())
        self._brings = SUGGESTIONS if spec.feed is not None else None
        self._unfit = {name.removeprefix(WALLS_PREFIX) for name in held if name.startswith(WALLS_PREFIX)}
        self._replicas: dict[str, Replicas] = {}
        self._mirrors = ExitStack()
        self._held: set[str] = set()
        assert spec.cluster is not None
        self._epoch = ""
        self._nodes: dict[str, Message] = {}
        self._opened = {self._name(key): at for key, at in opened.items()}
        head = Head(session.session_id, gen, self._opened)
        self._carrier = connect(spec.cluster, head, Contact(session, log), Arrivals(session, head, log).keep)

    def _name(self, key: JobKey) -> str:
        return f"{self._session.session_id}/{key.text()}"

    # --- the supervisor's thread ---

    def claim(self, key: JobKey, node: str | None, sandbox: Sandbox | None) -> JobClaimed:
        """See `Executor.claim`: the node that has the task's worktree, else the one with most room."""
        if key.phase == "land":
            return JobClaimed(key)
        needs = sandbox.needs if sandbox is not None else ()
        unfit = [
            name for name, seen in self._nodes.items() if needs and not seen["walls"].keys().isdisjoint(needs)
        ]
        if node is None or key.phase == "prepare" or find_prepare(self._session, key) is None:
            free = choose_node(self._slots, self._used, unfit)
            node = free or choose_node(self._slots, self._used) or "none"
        self._used[node] += 1
        self._claimed[key] = Opened(node, self._epoch), sandbox.disk if sandbox is not None else None
        return JobClaimed(key, node, self._epoch)

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        notices, deeds = list[Notice](), list[Deed]()
        here = [job for job in jobs if job.key.phase == "land"]
        if here:
            notices += self._local.start(here)
        for job in jobs:
            if job.key not in self._claimed:
                continue
            at, disk = self._claimed.pop(job.key)
            try:
                folder = find_prepare(self._session, job.key)
                asked = load_record(folder / REQUEST, WorkspaceRequest) if folder is not None else None
                place = load_place(folder) if folder is not None else None
                order = make_order(self._session, job, asked.repository if asked else None, place)
                order["disk"] = disk
                if asked is not None:
                    self._find_replicas(asked).equip(at.node, job, order, asked, place)
            except (OSError, SessionrunError) as error:
                notices.append(JobLost(job.key, "void", f"its files cannot be sent: {error}"))
                self._used[at.node] -= 1
                continue
            waits = asked is not None and job.key.phase != "prepare"
            name = self._name(job.key)
            self._opened[name] = at
            deeds.append(methodcaller("submit", name, at, order, waits=waits))
            if waits:  # it is for this node alone; while the node is gone its time runs
                self._waiting[name] = job.key, at.node
        for at, _ in self._claimed.values():  # what could not be built
            self._used[at.node] -= 1
        self._claimed.clear()
        self._carrier.ask(*deeds)  # at once, so that it tells them in one call
        return [*notices, *self._begin_where_gone()]

    def _find_replicas(self, asked: WorkspaceRequest) -> Replicas:
        """What is known of the replicas of a repository; a mirror is not removed as long as the session lives."""
        found = self._replicas.get(asked.repository.top)
        if found is None:
            if asked.upstream is not None and asked.upstream.mirror not in self._held:
                self._held.add(asked.upstream.mirror)
                self._mirrors.enter_context(hold_mirror(asked.upstream))
            found = self._replicas[asked.repository.top] = Replicas(self._session, asked, self._brings)
        return found

    def _begin_where_gone(self) -> list[Notice]:
        """The time runs of jobs that wait for a node that is gone: as if they had their turn, which they print."""
        gone = {node for node, seen in self._nodes.items() if not seen["lives"]}
        begun = [(name, key) for name, (key, node) in self._waiting.items() if node in gone]
        for name, key in begun:
            del self._waiting[name]
            self._begun.add(name)
            try:
                if key.phase in WORKSPACE_PHASES:
                    stdout = self._session.make_job_path(key) / "stdout"
                    with open(open_regular(stdout, os.O_WRONLY | os.O_CREAT), "wb") as stream:
                        stream.write(b"begun\n")
            except OSError as error:
                self._log(f"{name}: its time does not run: {error.strerror}")
        return [JobStarted(key, 0, 0, 0) for _, key in begun]

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        if key.phase == "land":
            self._local.stop(key, now=now)
            return
        self._carrier.ask(methodcaller("stop", self._name(key), KILL if now else TERM))

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Notice]:
        """See `Executor.wait`.

        Raises:
            KeeperGone: the keeper of this machine is dead.
            StoreError: the scheduler refuses this session.
        """
        notices = self._local.wait(timeout_s, self._carrier.worker.fd, *wake_fds)
        heard_all = self._carrier.worker.take()
        for kind, about in heard_all:
            if kind == "epoch":
                self._epoch = about
            elif kind == "nodes":
                self._nodes = about
            else:
                notices += self._hear(kind, about)
        if heard_all:
            notices += [*self._begin_where_gone(), *self._offer()]
        if self._carrier.worker.fault is not None:
            raise StoreError(self._carrier.worker.fault)
        return notices

    def _offer(self) -> list[Notice]:
        """What the nodes that can be used offer now, if that has changed."""
        usable = [
            seen
            for seen in self._nodes.values()
            if seen["lives"] and seen["slots"] > 0 and seen["version"] == __version__
        ]
        self._slots = {seen["id"]: seen["slots"] for seen in usable}
        # tasks whose walls no node can build wait for as long as that is so
        missing = {
            name for seen in usable[:1] for name in seen["walls"] if all(name in one["walls"] for one in usable)
        }
        notices = list[Notice]()
        for name in sorted(missing - self._unfit):
            why = f"no node of the cluster can build its walls: {usable[0]['name']}: {usable[0]['walls'][name]}"
            notices.append(HoldPlaced(f"{WALLS_PREFIX}{name}", why))
        for name in sorted(self._unfit - missing) if usable else ():
            why = "a node has come that can build its walls"
            notices.append(HoldPlaced(f"{WALLS_PREFIX}{name}", why, self._clock()))
        self._unfit = missing if usable else self._unfit
        offered = SlotsOffered(sum(self._slots.values()), len(self._slots))
        if offered != self._offered:
            self._offered = offered
            notices.append(offered)
        return notices

    def _hear(self, kind: str, about: Message) -> list[Notice]:
        """What an end, a death or a beginning means."""
        job = about["job"]
        try:
            key = key_of(job)
            self._waiting.pop(job, None)
            if kind == "dead":
                self._told.append(job)
                self._note_prepared(key, ok=False)
                reason = f"{about['reason']} (node {self._node_of(job)})"
                return [JobLost(key, "lost", reason)] if about["ran"] else self._call_off(key, reason)
            begun = [] if job in self._begun else [JobStarted(key, 0, 0, 0)]
            self._begun.add(job)
            if kind == "begun":
                return [*begun]
            self._told.append(job)
            self._begun.discard(job)
            end = read_end(about, key, f"node {self._node_of(job)}")
        except (ValueError, KeyError, TypeError) as error:
            self._log(f"{job}: its end cannot be read: {error}")
            self._note_prepared(key_of(job), ok=False)
            return [JobLost(key_of(job), "lost", "what its node told of its end cannot be read")]
        status = end.wait_status if isinstance(end, Exit) else None
        self._note_prepared(key, ok=status == 0)
        if key.phase == "prepare" and status == ObjectsMissing.job_code << 8:
            return self._call_off(key, "the replica on its node lacks what it begins with")  # it brings all now
        ran = not (isinstance(end, JobLost) and end.verdict == "void")
        return [*(begun if ran else ()), end]

    def _note_prepared(self, key: JobKey, *, ok: bool) -> None:
        for replicas in self._replicas.values() if key.phase == "prepare" else ():
            replicas.note_end(key, ok=ok)

    def _call_off(self, key: JobKey, why: str) -> list[Notice]:
        """A job never ran, for no fault of its own: it starts anew in a moment."""
        hold = HoldPlaced(SLOT, why, until=self._clock() + NODE_RETRY_S)
        return [hold, JobLost(key, "void", why, counts=False)]

    def _node_of(self, job: str) -> str:
        at = self._opened.get(job)
        seen = self._nodes.get(at.node) if at is not None else None
        return str(seen["name"]) if seen is not None else at.node if at is not None else "unknown"

    def settle(self) -> None:
        """See `Executor.settle`: the scheduler may forget the jobs whose ends were told."""
        ended, self._told = self._told, []
        for job in ended:
            if (at := self._opened.pop(job, None)) is not None:
                self._used[at.node] -= 1
        if ended:
            self._carrier.ask(*(methodcaller("drop", job) for job in ended))

    def close(self) -> None:
        self.settle()
        self._carrier.close()
        self._mirrors.close()
        self._local.close()


def choose_node(slots: Mapping[str, int], used: Mapping[str, int], without: Collection[str] = ()) -> str | None:
    """The node with most room for its size, but for those `without`; None: none can be used."""
    fit = [(used.get(node, 0) / count, node) for node, count in slots.items() if node not in without]
    return min(fit)[1] if fit else None


# --- the carrier's thread: what comes back of the jobs ---

ALL: Final = 1 << 62
"""A size that says: send no more of it."""

_IN_THE_WAY: Final = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of a path that another try would have again: something else lies there, or it is too long here."""


class Arrivals:
    """What comes back: files in chunks, and ends, which count once their files are whole.

    A chunk is written where the file belongs, at its offset.  What has arrived is counted in memory: another
    supervisor has all of a job's files sent again, for it cannot know what a power failure took, or what in a
    folder that the jobs of a task share is an older file of the same name.  Nothing of that is left once the end
    counts.

    All of it is done in the carrier's thread, as all that is done with the head.  `_have` is, job by job, how much
    of each file has arrived; `_ends` are those whose files are not whole, `_refused` are jobs of which all has
    arrived, but the disk did not let a file have its size: with the next reply that is tried again.
    """

    def __init__(self, session: SessionDir, head: Head, log: Callable[[object], None]) -> None:
        self._session = session
        self._head = head
        self._log = log
        self._have: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._ends: dict[str, Message] = {}
        self._refused: set[str] = set()

    def keep(self, reply: Message) -> list[tuple[str, Message]]:
        """Write what a reply brought; what has begun or is dead, and the ends whose files are whole."""
        heard = list[tuple[str, Message]]()
        grown, self._refused = self._refused, set()
        for chunk in reply["out"]:
            job, name = chunk["job"], str(chunk.get("name"))
            # if the disk refuses it, the node sends it again
            if self._is_open(job) and self._change(job, name, partial(_write, chunk)):
                self._head.wrote(job, name, self._have[job][name])
                grown.add(job)
        for kind, about in reply["news"]:
            job = about["job"]
            if not self._is_open(job):
                continue
            if kind == "ended":
                self._ends[job] = about
                grown.add(job)
            else:
                heard.append((kind, about))
        heard += [("ended", self._ends[job]) for job in sorted(grown & self._ends.keys()) if self._is_whole(job)]
        for job in (about["job"] for kind, about in heard if kind != "begun"):
            self._have.pop(job, None)
            self._ends.pop(job, None)
        return heard

    def _is_open(self, job: str) -> bool:
        """Whether the journal has the job open; of another one the scheduler hears that it may forget it."""
        if job in self._head.opened:
            return True
        self._head.drop(job)
        return False

    def _change(self, job: str, name: str, change: Callable[[FileIO, int], int]) -> bool:
        """Change a file of which so many bytes are here, and note how many are then; False: the disk refuses.

        What cannot be had, however often it is tried, is done without: its job's end must not wait for it.
        """
        path, have = find_path(self._session, key_of(job).task, name), self._have[job].get(name, 0)
        if path is None or have == ALL:
            self._have[job][name] = ALL
            return True
        try:
            with _open(path) as stream:
                if have == 0:
                    drop_older(path)
                self._have[job][name] = change(stream, have)
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

    def _is_whole(self, job: str) -> bool:
        """Whether all files of a job that has ended are here; else its node hears what is not."""
        for name, size in self._ends[job]["files"].items():
            have = self._have[job].get(name, 0)
            if have < size:  # its node may have sent more to a supervisor before this one
                self._head.wrote(job, name, have)
                return False
            if not self._change(job, name, partial(_cut, size)):
                self._refused.add(job)
                return False
        return True


def _cut(size: int, stream: FileIO, have: int) -> int:
    """Give a file its size: an older one of its name may be longer, and an empty one has no chunk."""
    return stream.truncate(size)


def _write(chunk: Message, stream: FileIO, have: int) -> int:
    """Write a chunk, unless bytes before it are missing, or it is here.  ValueError, ...: it is damaged."""
    at, content = int(chunk["at"]), base64.b64decode(chunk["content"], validate=True)
    if not at <= have < at + len(content):
        return have
    stream.seek(at)
    return at + stream.write(content)


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
