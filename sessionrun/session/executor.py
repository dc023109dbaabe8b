"""What the supervisor asks of an executor: start jobs, stop jobs, tell what happened; and that of this machine.

The order of one job is a frame to the keeper of this machine, or JSON for nodes of ours and Slurm's.

    Job -> as_order -> JobOrder -> a frame to the keeper                              this machine
                                -> describe_order -> JSON -> parse_order -> JobOrder  nodes of ours, and Slurm's

A value of a variable that is ``{env:NAME}`` is that of NAME where the job runs.  So a secret is in no plan, spec
or order: the last of our processes before the job's own looks it up.  What runs around a job at Slurm imports this
module without site-packages.
"""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, Protocol, TypeAlias

from sessionrun.keeper.wire import Connection, JobOrder, count_ms
from sessionrun.model.asked import Sandbox, SlotsOffered
from sessionrun.model.errors import SessionrunError
from sessionrun.model.events import HoldPlaced, JobClaimed, JobLost, JobStarted
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey, parse_job_key
from sessionrun.model.kinds import Seconds
from sessionrun.model.places import KILLED_BY_AGENT, STOPPED_BY_US, Leftover
from sessionrun.model.spec import SLOT, Job
from sessionrun.store.logs import KILLED, Ledger, LedgerJob


@frozen
class Exit:
    """The end of a job as the system told it; `wait_status` is the raw status of wait(2).

    `errno` is set, and `wait_status` None, when the program could not be started at all; `detail` then says
    what was at fault.  `left` names the processes that the job left behind: how each ended, and its command.
    """

    key: JobKey
    wait_status: int | None
    ledger: int | None = None
    cpu_s: Seconds | None = None
    errno: int | None = None
    detail: str | None = None
    left: tuple[Leftover, ...] = ()


def name_left(left: Iterable[tuple[str, str]]) -> tuple[Leftover, ...]:
    """What the keeper says that a job left, in words."""
    return tuple(Leftover(command, KILLED_BY_AGENT if how == KILLED else STOPPED_BY_US) for how, command in left)


REFUSED_RETRY_S: Final = 1.0
UNSEEN: Final = "its end was not seen: the process that had started it was dead by then"

Notice: TypeAlias = JobStarted | Exit | JobLost | HoldPlaced | SlotsOffered


class Executor(Protocol):
    """Runs jobs somewhere: it owns processes and nothing else, no policy and no journal."""

    needs_sync: bool
    """Whether a claim has to be durable before its job is started: nothing else keeps it from a second start."""

    def claim(self, key: JobKey, node: str | None, sandbox: Sandbox | None) -> JobClaimed:
        """The claim of a job that is to be started now; `node` is where the task's attempt was."""

    def settle(self) -> None:
        """All that was told is recorded durably."""

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        """Claim all of `jobs` durably, then start them; tell of each what became of it."""

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        """Begin to stop a job's process tree: TERM, its grace, KILL; with `now` KILL, whatever was begun before.

        Its `Exit` comes later, as always.
        """

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Notice]:
        """Block until something ended, one of `wake_fds` is readable or the time (seconds) is up."""

    def close(self) -> None:
        """Give up descriptors.  Running jobs go on."""


def read_frame(fields: list[Any], key: JobKey) -> list[Notice]:
    """Return the notices of a job that a frame of the keeper holds (see `keeper.wire`)."""
    kind, rest = fields[0], fields[2:]
    if kind == "P":
        return [JobStarted(key, *rest)]
    if kind == "X":
        status, cpu_s, ledger, left = rest
        return [Exit(key, status, ledger, cpu_s, left=name_left(left))]
    if kind == "F":
        number, detail, ledger = rest
        return [Exit(key, None, ledger, errno=number, detail=detail)]
    if kind == "L":
        return [JobLost(key, "lost", UNSEEN, gone=True)]
    if kind == "R":
        reason = os.fsencode(rest[0]).decode("utf-8", "replace")  # it may name a path; the journal is UTF-8
        hold = HoldPlaced(SLOT, reason, until=time.monotonic() + REFUSED_RETRY_S, until_exit=True)
        return [hold, JobLost(key, "void", reason, counts=False)]
    if kind == "D":
        return [JobLost(key, "lost", "its start was claimed before, and nothing more is known of it")]
    return []


_BY_NAME: Final = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


class NotSet(SessionrunError):
    """A variable that a job needs is not set on its machine."""


def as_order(job: Job) -> JobOrder:
    """The order for a job; its variables are yet to be looked up."""
    places = (job.cwd, job.stdin or "", job.stdout, job.stderr)
    return JobOrder(job.key.text(), job.stop_grace_s, *places, [*job.argv], {**job.env}, job.keeps)


def fill_in(order: JobOrder) -> JobOrder:
    """An order with the values of the variables that are given by name: where its job runs.

    Raises:
        NotSet: one has none.
    """
    return order._replace(env=look_up(order.env, os.environ))


def move(order: JobOrder, place: Callable[[str], str]) -> JobOrder:
    """An order whose words are those of another place."""
    return order._replace(
        cwd=place(order.cwd),
        stdin=place(order.stdin),
        argv=[place(word) for word in order.argv],
        env={name: place(value) for name, value in order.env.items()},
    )


def describe_order(order: JobOrder) -> dict[str, Any]:
    """An order as JSON.  What its job may leave behind is of one machine."""
    about = order._asdict()
    del about["keeps"]
    return about


def parse_order(about: Mapping[str, Any]) -> JobOrder:
    """The order that was described, among other things.

    Raises:
        KeyError: it is damaged.
    """
    return JobOrder(*(about[name] for name in JobOrder._fields if name != "keeps"))


def describe_end(end: Exit | JobLost) -> dict[str, Any]:
    """An end as JSON.  Where a ledger has it means nothing elsewhere."""
    about = {**asdict(end), "key": end.key.text()}
    if isinstance(end, Exit):
        return {**about, "kind": "exit", "ledger": None, "left": [*about["left"]]}
    return {**about, "kind": "lost"}


def read_end(end: Mapping[str, Any], key: JobKey, where: str) -> Exit | JobLost:
    """The end of a job that was described; `where` it was is told to people.

    Raises:
        ValueError, KeyError: it is damaged.
    """
    from sessionrun.store.codec import build  # Slurm's node has no library, and reads no end

    about = {**end, "key": key.text()}
    if end["kind"] == "exit":
        left = build(Exit, about)
        return replace(left, detail=left.detail and f"{left.detail} on {where}")
    lost = build(JobLost, about)
    return replace(lost, reason=f"{lost.reason} ({where})")


def look_up(env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a job, with the values of those that are given by name.

    Raises:
        NotSet: one has none.
    """
    values = dict(env)
    for name, value in list_named(env).items():
        wanted = value[len("{env:") : -1]
        if wanted not in environ:
            raise NotSet(f"the variable {wanted}, which {name} is to be, is not set")
        values[name] = environ[wanted]
    return values


def list_named(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if _BY_NAME.fullmatch(value)}


# --- what the ledger says to a new supervisor, and to a node's new link ---


def judge_job(key: JobKey, job: LedgerJob | None, ledger: Ledger, offset: int, *, was_seen: bool) -> Notice | None:
    """The end of a job by the ledger; None: it runs.  `was_seen`: the journal has seen its process.

    The journal says what was decided, the ledger what became of it; the ledger wins:

    | the ledger says of a job whose end the journal does not tell | then |
    |---|---|
    | less than the journal, which has seen its process | lost |
    | nothing; or claimed, not tried, and on this boot; or refused for lack of room | never ran: started anew |
    | it could not be started | it failed |
    | it ended, and nothing of its tree is left | judged now |
    | it was spawned, no end, its keeper watches it | it runs; its end will be told |
    | its end was not seen | lost |
    | any of it on another boot, without an end | interrupted |
    """
    if job is not None and job.wait_status is not None:
        return Exit(key, job.wait_status, offset, left=name_left(job.left)) if job.gone else None
    same_boot = job is not None and (job.boot_id, job.pid_ns) == (ledger.boot_id, ledger.pid_ns)
    if job is None or (job.never_ran and (same_boot or job.tried)):
        if was_seen and (job is None or job.errno is None):
            # the ledger was cut: to start it anew would run it twice
            return JobLost(key, "lost", "it was started, and the ledger has lost the record of it")
        why = "it was not started" if job is None else "it was claimed and not started"
        return JobLost(key, "void", why, counts=False)
    if job.errno is not None:
        return Exit(key, None, offset, errno=job.errno)
    if job.boot_id != ledger.boot_id:
        return JobLost(key, "interrupted", "the machine was restarted while it ran", gone=True)
    if job.lost:
        # whether a process of another container lives cannot be seen
        gone = True if same_boot and job.pid is not None else None
        return JobLost(key, "lost", UNSEEN, gone=gone)
    return None


# --- this machine ---

HELLO_TIMEOUT_S: Final = 30.0


class KeeperGone(Exception):
    """The keeper has died: its supervisor can do nothing any more, and leaves."""


class LocalExecutor:
    """The `Executor` for this machine, over this side of the socket to the keeper, which does the work.

    Raises:
        KeeperGone: here and from every method, once the keeper is dead.
    """

    def __init__(self, end: socket.socket) -> None:
        self._connection = Connection(end)
        self.keeper_pid, self.keeper_started, self.ledger_end, self._early = greet(self._connection)

    needs_sync = False  # the ledger is the fence

    def claim(self, key: JobKey, node: str | None, sandbox: Sandbox | None) -> JobClaimed:
        return JobClaimed(key)

    def settle(self) -> None:
        """See `Executor.settle`: the ledger keeps all that it tells."""

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        """See `Executor.start`; what became of them comes with `wait`."""
        notices: list[Notice] = []
        for job in jobs:
            try:
                self._connection.send("J", *fill_in(as_order(job)))
            except NotSet as fault:
                notices.append(Exit(job.key, None, detail=str(fault)))
        self._connection.flush()
        return notices

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        self._connection.send("T", key.text(), now)
        self._connection.flush()

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Notice]:
        poller = select.poll()
        poller.register(
            self._connection.fileno(), select.POLLIN | (select.POLLOUT if self._connection.has_more else 0)
        )
        for fd in wake_fds:
            poller.register(fd, select.POLLIN)
        poller.poll(count_ms(0.0 if self._early else timeout_s))
        self._connection.flush()
        try:
            frames, self._early = [*self._early, *self._connection.receive()], []
        except EOFError:
            raise KeeperGone from None
        notices: list[Notice] = []
        for fields in frames:
            notices += read_frame(fields, parse_job_key(fields[1]))
        return notices

    def close(self) -> None:
        """See `Executor.close`: the session has ended, so the keeper may leave."""
        self._connection.send("Q")
        self._connection.flush()  # a keeper that takes no more now starts another supervisor, which says so again
        self._connection.close()


def greet(connection: Connection) -> tuple[int, int, int, list[list[Any]]]:
    """The keeper's pid and start time, an offset of the ledger, and frames that came with the hello.

    All that the ledger says up to the offset is to be read there; what comes after it comes from the keeper.
    The holder of the session's lock asks.  So the answer is the newest there is, of a keeper that lives.

    Raises:
        KeeperGone: it is dead.
    """
    connection.send("H")
    connection.flush()
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    poller.poll(HELLO_TIMEOUT_S * 1000)
    try:
        frames = connection.receive()
    except EOFError:
        raise KeeperGone from None
    if not frames or frames[0][0] != "H":
        raise KeeperGone
    _, pid, started, offset = frames[0]
    return pid, started, offset, frames[1:]
