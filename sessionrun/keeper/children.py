"""The jobs of a keeper: claimed, spawned, reaped, and stopped with all of their processes.

Each job is its own session and process group; its files are opened by the kernel in the child; nothing of its
output passes through here.  The order of the writes is what makes an attempt start once and keep its code:

    C of a whole batch, one sync     from here on the key is used up: the fence
    T, spawn, S                      for each; only between T and S is it not known whether a process exists
    X, then reap                     else a kill in between would swallow the code
    Z                                nothing of its tree is left; now the supervisor is told of the end

What has happened but cannot be recorded, because the disk is full, waits; an exit is then not even reaped.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from sessionrun.keeper.leftovers import MAX_LEFT, Deaths, Left, name_stopped
from sessionrun.keeper.wire import JobOrder
from sessionrun.model.errors import StoreError
from sessionrun.store import logs, processes
from sessionrun.store.files import no_umask, open_regular
from sessionrun.store.processes import JOB_MARKER, Identity

RESCAN_FIRST_S: Final = 0.05
RESCAN_LAST_S: Final = 0.5
LEFTOVER_GRACE_S: Final = 3.0
LEFTOVER_WAIT_S: Final = 0.5
"""What ends by itself so soon after its job was not left behind."""

RETRY_DISK_S: Final = 1.0

_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
"""Not blocking, so that a FIFO planted in a file's place is refused; to a file it means nothing."""

_DEFAULT_SIGNALS: Final = tuple(
    number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)
)


class Stop:
    """How far the stopping of a tree has come; times are monotonic.  `after_end`: its job had ended before."""

    def __init__(self, now: float, grace_s: float, *, after_end: bool) -> None:
        # a moment later, what its agent has killed has died, and was reaped
        self.scan_at = now + RESCAN_FIRST_S if after_end else now
        self.ask_at = now + LEFTOVER_WAIT_S if after_end else now
        self.kill_at = self.ask_at + grace_s
        self.after_end = after_end
        self.interval_s = RESCAN_FIRST_S
        self.asked = False
        self.members: set[Identity] = set()

    def choose_signals(self, now: float) -> tuple[int, ...]:
        """What the tree is told now: TERM at first, KILL when its grace is over."""
        if now >= self.kill_at:
            return (signal.SIGKILL,)
        return () if self.asked or now < self.ask_at else (signal.SIGTERM, signal.SIGCONT)


class Child:
    """A job whose process, or something of its tree, lives.

    `ours` is whether it is our child: then its exit code comes to us.  `watched` is whether its end, if it has
    ended, was seen as it came: else its pid, and its session's number, may be another's since.  `status` is the
    raw wait status once it is known and recorded, `unseen` is set when it ended and it cannot be known how.
    """

    def __init__(
        self,
        key: str,
        leader: Identity,
        marker: str,
        grace_s: float,
        *,
        ours: bool = True,
        status: int | None = None,
        keeps: bool = False,
    ) -> None:
        self.key = key
        self.leader = leader
        self.marker = marker
        self.grace_s = grace_s
        self.ours = ours
        self.keeps = keeps
        self.watched = True
        self.status = status
        self.cpu_s: float | None = None
        self.ended_at: float | None = None
        self.left: list[Left] | None = None
        self.unseen = False
        self.stop: Stop | None = None

    @property
    def has_ended(self) -> bool:
        """Whether its leader is gone."""
        return self.unseen or self.status is not None


class Children:
    """The jobs that live.  `tell` takes the fields of a frame for the supervisor."""

    def __init__(self, ledger: logs.AppendLog, session_id: str, tell: Callable[..., None]) -> None:
        self._ledger = ledger
        self._session_id = session_id
        self._tell = tell
        self._environ = dict(os.environ)
        with no_umask() as umask:
            self._makes_outputs = bool(umask & 0o600)
        self._backlog: list[bytes] = []
        self._disk_retry_at: float | None = None
        self._reap_again_at: float | None = None
        self._deaths = Deaths()
        self.may_start: Callable[[], bool] = lambda: True
        self.on_end: Callable[[str, int], None] = lambda key, status: None
        self.claimed: set[str] = set()
        self.by_key: dict[str, Child] = {}
        self.by_pid: dict[int, Child] = {}

    # --- starting ---

    def start(self, orders: Sequence[JobOrder]) -> None:
        """Claim all of them durably, then start them; say of each what became of it."""
        for order in orders:
            if order.key in self.claimed:  # never twice, whichever supervisor asks
                self._tell("D", order.key)
        orders = [order for order in orders if order.key not in self.claimed]
        try:
            self._ledger.append([logs.make_record(logs.CLAIMED, order.key) for order in orders])
            self._ledger.sync()
        except StoreError as error:
            self._refuse(orders, str(error))
            return
        finally:
            # a claim that could not be synced may have reached the disk: it is used up all the same
            self.claimed.update(order.key for order in orders)
        for number, order in enumerate(orders):
            refused = self._spawn(order)
            if refused is not None:
                self._refuse(orders[number:], refused)
                break
        os.chdir("/")  # so that no job's directory is kept busy

    def _refuse(self, orders: Sequence[JobOrder], reason: str) -> None:
        for order in orders:
            self._tell("R", order.key, reason)

    def _spawn(self, order: JobOrder) -> str | None:
        """Start one; returns why it was refused, for no fault of its own."""
        if not self.may_start():
            return "the lease of the node is over"
        marker = f"{self._session_id}/{order.key}"
        # some agents believe PWD more than the system, and would edit there
        environ = {**self._environ, "PWD": order.cwd, **order.env, JOB_MARKER: marker}
        try:
            self._ledger.append([logs.make_record(logs.TRIED, order.key, order.grace_s)])
        except StoreError as error:
            return str(error)
        try:
            if self._makes_outputs:  # with the agents' umask, as which the child opens them, none could be read
                for path in (order.stdout, order.stderr):
                    os.close(open_regular(path, os.O_WRONLY | os.O_CREAT))
            os.chdir(order.cwd)
            pid = os.posix_spawn(
                order.argv[0],
                order.argv,
                environ,
                file_actions=(
                    (os.POSIX_SPAWN_OPEN, 0, order.stdin or os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, order.stdout, _APPEND, 0o600),
                    (os.POSIX_SPAWN_OPEN, 2, order.stderr, _APPEND, 0o600),
                ),
                setsid=True,
                setsigdef=_DEFAULT_SIGNALS,
                setsigmask=(),
            )
        except (OSError, ValueError) as error:
            return self._not_started(order, error)
        started = processes.start_time(pid, zombie=True) or 0
        self.add(Child(order.key, Identity(pid, started), marker, order.grace_s, keeps=order.keeps))
        self.note(logs.make_record(logs.SPAWNED, order.key, pid, started))
        self._tell("P", order.key, pid, started, self._ledger.end)
        return None

    def _not_started(self, order: JobOrder, error: OSError | ValueError) -> str | None:
        number = (error.errno if isinstance(error, OSError) else None) or errno.EINVAL
        self.note(logs.make_record(logs.FAILED, order.key, number))
        if number in logs.REFUSALS:
            return os.strerror(number)
        detail = os.strerror(number)  # posix_spawn does not say which of its paths was at fault
        if not os.path.isdir(order.cwd):
            detail = f"no directory {order.cwd}"
        elif not os.access(order.argv[0], os.X_OK):
            detail = f"cannot execute {order.argv[0]}"
        self._tell("F", order.key, number, detail, self._ledger.end)
        return None

    def add(self, child: Child) -> None:
        self.by_key[child.key] = child
        if child.ours:
            self.by_pid[child.leader.pid] = child

    # --- ending ---

    def reap(self) -> list[tuple[int, int]]:
        """Take note of children that ended; returns pid and raw status of those that are not jobs.

        What waits for room on the disk is written first.
        """
        self._write_backlog()
        others: list[tuple[int, int]] = []
        ended: list[Child] = []
        self._reap_again_at = None
        while (exited := _next_ended()) is not None:
            pid, status = exited
            child = self.by_pid.get(pid)
            if child is not None and status is not None and not self._record_exit(child, status):
                # the disk is full: it stays unreaped, and known to the kernel, until there is room
                self._reap_again_at = time.monotonic() + RETRY_DISK_S
                break
            if child is None and status is not None:
                self._deaths.note(pid, status)
            _, raw, usage = os.wait4(pid, 0)
            if child is None:
                others.append((pid, raw))
                continue
            child.cpu_s, child.ended_at = round(usage.ru_utime + usage.ru_stime, 6), time.monotonic()
            if status is None:
                self._record_exit(child, raw)
            child.status = raw
            ended.append(child)
        self.settle(ended)
        return others

    def _record_exit(self, child: Child, status: int) -> bool:
        """Record how a child ended; False while the disk refuses, and nothing was recorded."""
        self.on_end(child.key, status)
        self.note(logs.make_record(logs.EXITED, child.key, status))
        if self._backlog:
            self._backlog.pop()
            return False
        return True

    def take_exit(self, child: Child, status: int) -> None:
        """Record how a child ended, as the root saw it."""
        self.on_end(child.key, status)
        self.note(logs.make_record(logs.EXITED, child.key, status))
        child.status, child.watched = status, True

    def settle(self, ended: Sequence[Child]) -> None:
        """The leaders of these have ended: say so, or first stop what they have left behind."""
        if not ended:
            return
        # of our children that are no jobs: what jobs leave behind comes to their subreaper
        strays = [pid for pid in processes.children_of_this() or () if pid not in self.by_pid]
        left = {processes.environment(pid).get(JOB_MARKER, "") for pid in strays}
        for child in ended:
            if child.stop is not None:
                child.stop.scan_at = 0.0
            elif child.keeps or (
                child.ours and child.marker not in left and processes.group_is_empty(child.leader.pid)
            ):
                self._forget(child)
            else:
                self._begin_stop(child, LEFTOVER_GRACE_S)

    def _forget(self, child: Child) -> None:
        """Its end is told once all of its tree is gone."""
        left = self._note_left(child)
        self.note(logs.make_record(logs.LOST if child.status is None else logs.GONE, child.key))
        del self.by_key[child.key]
        self.by_pid.pop(child.leader.pid, None)
        if child.status is None:
            self._tell("L", child.key, self._ledger.end)
        else:
            self._tell("X", child.key, child.status, child.cpu_s, self._ledger.end, left)

    def _note_left(self, child: Child) -> list[Left]:
        """Record once what a job that was not stopped leaves behind, before anything of it is stopped."""
        if child.left is not None:
            return child.left
        child.left = []
        if child.stop is None or child.stop.after_end:
            killed = self._deaths.of_job(child.leader.pid, child.ended_at, self.by_pid)
            stopped = name_stopped(child.stop.members) if child.stop is not None else []
            child.left = [*killed, *stopped][:MAX_LEFT]
        for how, command in child.left:
            self.note(logs.make_record(logs.LEFT, child.key, how, command.encode().hex()))
        return child.left

    # --- stopping ---

    def stop(self, key: str, *, now: bool) -> None:
        """Begin to stop a job's tree; with `now` without grace, also where its stopping is under way."""
        child = self.by_key.get(key)
        if child is None:
            return
        if child.stop is None:
            self._begin_stop(child, child.grace_s)
        if now and child.stop is not None:
            child.stop.kill_at = child.stop.scan_at = min(child.stop.kill_at, time.monotonic())

    def _begin_stop(self, child: Child, grace_s: float) -> None:
        """The next turn sees to it, for all that are to be stopped with one look at the system."""
        child.stop = Stop(time.monotonic(), grace_s, after_end=child.has_ended)

    def go_on_stopping(self) -> None:
        """Take the next step with each tree whose time has come."""
        now = time.monotonic()
        due = [child for child in self.by_key.values() if child.stop and child.stop.scan_at <= now]
        if not due:
            return
        frozen = processes.freeze(lambda seen: _find_those_to_end(due, seen, now))
        self._deaths.expect(frozen)
        for child in due:
            if child.stop and child.stop.choose_signals(now) and child.stop.members:
                self._note_left(child)
            if child.stop and _has_stopped(child, child.stop, frozen, now):
                self._forget(child)

    def next_time(self) -> float | None:
        """When something is to be done next, as monotonic time."""
        times = [child.stop.scan_at for child in self.by_key.values() if child.stop]
        times += [at for at in (self._disk_retry_at, self._reap_again_at) if at is not None]
        return min(times, default=None)

    # --- recording ---

    def note(self, record: bytes) -> None:
        """Record what has happened already; on a full disk it waits here for the next chance."""
        self._backlog.append(record)
        self._write_backlog()

    def _write_backlog(self) -> None:
        self._disk_retry_at = None
        try:
            self._ledger.append(self._backlog)
            self._backlog.clear()
        except StoreError:
            self._disk_retry_at = time.monotonic() + RETRY_DISK_S


def _find_those_to_end(children: Sequence[Child], seen: processes.Scan, now: float) -> Iterator[Identity]:
    for child in children:
        if stop := child.stop:
            stop.members = processes.find_tree(
                seen, child.leader, child.marker, stop.members, by_session=child.watched
            )
            if stop.choose_signals(now):
                yield from stop.members


def _has_stopped(child: Child, stop: Stop, frozen: Sequence[Identity], now: float) -> bool:
    """Whether a tree is gone, or given up; else its processes, which are frozen, are told to end."""
    given_up = now > stop.kill_at + processes.KILL_PATIENCE_S
    if child.has_ended and (not stop.members or given_up):
        return True
    signals = stop.choose_signals(now)
    for number in signals:
        for member in frozen:
            if member in stop.members:
                processes.send_signal(member, number)
    kill = now >= stop.kill_at
    stop.asked = stop.asked or bool(signals)
    now = time.monotonic()
    told_next_at = stop.kill_at if stop.asked else stop.ask_at
    stop.scan_at = now + stop.interval_s if kill else min(now + stop.interval_s, told_next_at)
    stop.interval_s = RESCAN_FIRST_S if kill else min(stop.interval_s * 2, RESCAN_LAST_S)
    return False


def _next_ended() -> tuple[int, int | None] | None:
    """A child that ended, still unreaped, and its raw wait status (None where the system must reap to know)."""
    if not hasattr(os, "waitid"):
        import psutil

        all_children = psutil.Process().children()
        return next(((each.pid, None) for each in all_children if each.status() == psutil.STATUS_ZOMBIE), None)
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if ended is None else (ended.si_pid, processes.raw_status(ended))
