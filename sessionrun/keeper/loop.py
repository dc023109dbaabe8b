"""The keeper: one loop around the jobs, the supervisor and the root.  No policy, no clock but for deadlines."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sessionrun.keeper.adoption import Adopted, RootCodes, end_strays
from sessionrun.keeper.children import Children
from sessionrun.keeper.wire import (
    EXIT_NO_ROOM,
    EXIT_REFUSED,
    EXIT_TAKEN,
    LEASE,
    Connection,
    JobOrder,
    count_ms,
    say,
)
from sessionrun.model.errors import StoreError
from sessionrun.store import locks, processes
from sessionrun.store.files import open_regular
from sessionrun.store.logs import BEGAN, GAVE_UP, REFUSALS, AppendLog, fold_ledger, make_record, read_log

if TYPE_CHECKING:
    from sessionrun.keeper.lease import Leased

LOCK_TIMEOUT_S: Final = 5.0
MOST_FRUITLESS: Final = 9
"""So many starts in a row may come to nothing: to no record of the journal but those that each start makes."""

LONG_LIFE_S: Final = 600.0
"""One that lived so long has not failed at its start."""

OF_EACH_START: Final = (
    *(b'"ev":"%b"' % name for name in (b"SupervisorStarted", b"HoldPlaced", b"HoldLifted", b"JobClaimed")),
    *(b'"ev":"SlotsOffered"', b'"verdict":"void"'),  # of claims whose jobs never ran
)
"""What is in such records.  No text that others wrote holds it: JSON escapes the quotation marks."""

RESTART_FIRST_S: Final = 0.02
RESTART_LAST_S: Final = 60.0
RETRY_S: Final = 1.0
QUIT_TIMEOUT_S: Final = 5.0
READY: Final = b"\x01"


def run_keeper(session: Path, codes_fd: int, ready_fd: int, supervisor: list[str]) -> int:
    """Be the keeper of a session until it ends; returns the exit code.  Called in a process of its own."""
    keeper = None
    try:
        if locks.hold(session / "keeper.lock", timeout_s=LOCK_TIMEOUT_S) is None:
            return EXIT_TAKEN
        keeper = Keeper(session, codes_fd, SupervisorProcess(supervisor, session))
        return keeper.run(ready_fd)
    except StoreError as error:
        say(error)
        return EXIT_REFUSED
    except BaseException as error:
        if keeper is None and isinstance(error, OSError):  # the disk refuses its lock or its ledger
            say(f"the keeper cannot begin: {error.filename or session}: {error.strerror}")
        else:
            sys.excepthook(*sys.exc_info())  # `traceback` costs a fifth of all other imports here
        return 1


class Keeper:
    """One keeper; it owns the ledger, the jobs and the supervisor's process."""

    def __init__(self, session: Path, codes_fd: int, supervisor: SupervisorProcess) -> None:
        processes.become_subreaper()
        self._session = session
        contents = read_log(session / "ledger")
        if contents.damage_at is not None:  # to write behind it would hide what it was
            raise StoreError(f"{session / 'ledger'} is damaged at byte {contents.damage_at}")
        self._ledger = AppendLog(session / "ledger")
        self._ledger.cut(contents.end)
        session_id = session.name.removeprefix("session-").removeprefix("node-")
        self._supervisor = supervisor
        self._children = Children(self._ledger, session_id, supervisor.send)
        self._wake_fd = wake_on_death()
        self._codes = RootCodes(codes_fd)
        self._adopted = Adopted(self._children, self._codes)
        self._quit_by: float | None = None
        self._me = processes.Identity(os.getpid(), processes.start_time(os.getpid()) or 0)
        where = processes.boot_id() or "-", processes.pid_namespace() or "-"
        self._children.note(make_record(BEGAN, self._me.pid, self._me.started, *where))
        ledger = fold_ledger(contents.payloads)
        self._children.claimed.update(ledger.jobs)
        self._leased: Leased | None = None
        if os.path.lexists(session / LEASE):
            from sessionrun.keeper.lease import Leased  # of a node; a session's keeper does not need it

            self._leased = Leased(session, self._children, supervisor.send)
        self._adopted.find(ledger, session_id)

    def run(self, ready_fd: int) -> int:
        """Go on until the session has ended, or no supervisor can run it and no job is left."""
        if ready_fd >= 0:
            with suppress(BrokenPipeError):  # the launcher was killed, or an earlier keeper has told it
                os.write(ready_fd, READY)
            os.close(ready_fd)
        while not self._is_done():
            if self._supervisor.is_due():
                self._supervisor.start()
            self._supervisor.flush()
            self._wait()
            self._turn()
        if self._quit_by is None:
            self._children.note(make_record(GAVE_UP, self._supervisor.fruitless, self._supervisor.status))
        return 0

    def _turn(self) -> None:
        for pid, status in self._children.reap():
            if pid == self._supervisor.pid:
                self._take_orders()  # what it had sent whole was its decision; only then comes the next one
                self._supervisor.ended(status)
        self._take_orders()
        self._adopted.look()
        if self._leased is not None:
            self._leased.watch()
        self._children.go_on_stopping()

    def _take_orders(self) -> None:
        batch, stops = [], []
        for fields in self._supervisor.receive():
            kind = fields[0]
            if kind == "J":
                batch.append(JobOrder(*fields[1:]))
            elif kind == "T":
                stops.append(fields)
            elif kind == "H":
                # It has the session's lock, and is to read the ledger up to here: all after that it is told.
                # What was said before could be out of date, for another supervisor may have acted in between.
                self._supervisor.greeted = True
                self._supervisor.send("H", self._me.pid, self._me.started, self._ledger.end)
            elif kind == "Q":
                self._quit_by = time.monotonic() + QUIT_TIMEOUT_S
                self._supervisor.is_wanted = False
            elif self._leased is not None:
                self._leased.take(fields)
        if batch:
            self._children.start(batch)
        for _, key, now in stops:  # the job may be one of those
            self._children.stop(key, now=now)

    def _is_done(self) -> bool:
        if self._children.by_key:
            return False
        if self._quit_by is None:
            return self._supervisor.given_up and not self._supervisor.pid
        if time.monotonic() > self._quit_by:
            return True
        return self._supervisor.pid == 0 and not end_strays(self._session)

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        if self._codes.is_open:
            poller.register(self._codes.fd, select.POLLIN)
        self._supervisor.register(poller)
        times = [self._children.next_time(), self._adopted.next_time(), self._supervisor.restart_at]
        if self._leased is not None:
            times.append(self._leased.next_time())
        if self._quit_by is not None:
            times.append(time.monotonic() + 0.02 if not self._supervisor.pid else self._quit_by)
        until = min((moment for moment in times if moment is not None), default=None)
        ready = {fd for fd, _ in poller.poll(count_ms(None if until is None else until - time.monotonic()))}
        if self._wake_fd in ready:
            drain(self._wake_fd)


class SupervisorProcess:
    """The supervisor's process, and the socket to it; started again when it dies, but not for ever.

    After so many starts without progress it is given up once no job runs.  What runs is not stopped for it: until
    all has ended it is started again, at growing pauses, and may still go on.

    Args:
        command: the program, which gets the descriptor of its socket as its last word.
        session: its journal tells whether one did anything.
        long_life_s: the start of one that lived so long did not come to nothing.
    """

    def __init__(self, command: list[str], session: Path, long_life_s: float = LONG_LIFE_S) -> None:
        self.pid = 0
        self.restart_at: float | None = 0.0
        self.is_wanted = True
        self.greeted = False
        self.fruitless = 0
        self.status = 0
        """How the last one ended, as wait(2) has it; -1: it could not be started."""
        self._refused = False
        self._command = command
        self._journal = session / "journal"
        self._seen_to = 0
        self._long_life_s, self._born = long_life_s, 0.0
        self._connection: Connection | None = None
        self._heard = False

    @property
    def given_up(self) -> bool:
        """Whether no other one is to be started for the session's sake."""
        return self._refused or self.fruitless >= MOST_FRUITLESS

    def is_due(self) -> bool:
        return not self.pid and self.restart_at is not None and self.restart_at <= time.monotonic()

    def start(self) -> None:
        self.greeted = self._heard = False
        self._born = time.monotonic()
        try:
            self._seen_to = os.path.getsize(self._journal)
        except OSError:  # a node has none
            self._seen_to = 0
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                theirs.set_inheritable(True)
                command = [*self._command, str(theirs.fileno())]
                defaults = (signal.SIGCHLD, signal.SIGPIPE)
                self.pid = os.posix_spawn(command[0], command, os.environb, setsigdef=defaults, setsigmask=())
            self._connection, self.restart_at = Connection(ours), None
        except OSError as error:
            say(f"cannot start a supervisor: {self._command[0]}: {error.strerror}")
            if error.errno in REFUSALS:  # no room for a process now; those that run need us all the same
                self.restart_at = time.monotonic() + RETRY_S
            else:
                self.status = -1
                self._note_failure()

    def ended(self, status: int) -> None:
        """It ended: set when the next one starts."""
        self.pid, self.status = 0, status
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        if code == EXIT_REFUSED:
            self._refused = True
        elif code in (EXIT_TAKEN, EXIT_NO_ROOM):
            # no other chain can take over from this one: if it left, the session would stand still
            self.restart_at = time.monotonic() + RETRY_S
        else:
            self._note_failure()
        if self._refused or not self.is_wanted:
            self.restart_at = None

    def _note_failure(self) -> None:
        """Count a start if it came to nothing, and set when the next one is.

        A life of seconds says nothing: on a busy machine, or with a long journal, it fails late.
        """
        # jobs elsewhere are none of ours, and may run for days in which the journal gets no record
        lived_long = time.monotonic() - self._born >= self._long_life_s
        self.fruitless = 0 if lived_long or self._heard or self._has_recorded() else self.fruitless + 1
        again = min(self.fruitless - 1, 20)
        pause_s = min(RESTART_FIRST_S * 2**again, RESTART_LAST_S) if again >= 0 else 0.0
        self.restart_at = time.monotonic() + pause_s

    def _has_recorded(self) -> bool:
        """Whether the journal has got a record that is not one of each start."""
        try:
            with open(open_regular(self._journal), "rb") as stream:
                stream.seek(self._seen_to)
                new = stream.read().splitlines()
        except OSError:
            return False
        return any(not any(mark in line for mark in OF_EACH_START) for line in new)

    def receive(self) -> list[list[Any]]:
        if self._connection is None:
            return []
        try:
            frames = self._connection.receive()
        except EOFError:  # its exit will be told by the system
            self._connection.close()
            self._connection = None
            return []
        self._heard = self._heard or any(fields[0] not in ("H", "T") for fields in frames)
        return frames

    def send(self, *fields: object) -> None:
        """Queue a frame; until a supervisor is greeted it is dropped, for that one reads the ledger."""
        if self._connection is not None and self.greeted:
            self._connection.send(*fields)

    def flush(self) -> None:
        if self._connection is not None:
            self._connection.flush()

    def register(self, poller: select.poll) -> None:
        if self._connection is not None:
            events = select.POLLIN | (select.POLLOUT if self._connection.has_more else 0)
            poller.register(self._connection.fileno(), events)


def wake_on_death() -> int:
    """A descriptor that becomes readable when a child ends, or a signal comes."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    return wake_read


def drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
