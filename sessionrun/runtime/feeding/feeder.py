"""Feeds a session from a queue: a partner of the supervisor.

A queue may be a slow program, and the supervisor must not wait.  So a thread of the supervisor's process asks the
queue.  It knows nothing of the state: it gets calls, and leaves results.  The supervisor's thread makes calls from
the state, and turns results into events.  The FIFO `wake` wakes it when there is a result.

A claim is in the queue before the task is in the journal, and an outcome is in the journal before the queue learns
of it.  So whatever dies in between, no task is lost, and what has landed is not done again.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from sessionrun.engine.state import State
from sessionrun.model.errors import SessionrunError
from sessionrun.model.events import Event, FeedClosed, HoldLifted, HoldPlaced, TaskAdded
from sessionrun.model.feeds import LABEL, Feed, QueueTold
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.queue.watch import Watch
from sessionrun.runtime.feeding.clerk import Clerk
from sessionrun.runtime.feeding.desk import Desk, Fetch, Settle
from sessionrun.runtime.feeding.fates import Fate
from sessionrun.runtime.feeding.intake import Intake
from sessionrun.runtime.keeper.command import say
from sessionrun.store.inbox import ring
from sessionrun.store.session import SessionDir

QUEUE: Final = "queue"
"""The resource whose hold shows that the queue cannot be asked; no job uses it."""

RETRY_S: Final = 2.0
MOST_FAILURES: Final = 10
"""So often in a row the queue may fail; then a session that does not watch it takes no more tasks."""

CLOSING_S: Final = 60.0
"""How long the end of a session waits for what the queue is just being asked."""

NOT_TAKEN: Final = Fate(False, "its session ended before it began")


_T = TypeVar("_T")


class _Result(NamedTuple):
    """What came of a call (None: the queue has changed): the tasks that were fetched, or why it failed."""

    call: Fetch | Settle | None
    tasks: Sequence[TaskSpec] = ()
    failure: str | None = None


class Feeder:
    """The feed of one session."""

    def __init__(self, session: SessionDir, spec: SessionSpec, clerk: Clerk, watch: Watch | None) -> None:
        assert spec.feed is not None
        self._session = session
        self._feed: Feed = spec.feed
        self._clerk = clerk
        self._watch = watch
        self._intake = Intake(session.path, spec, say)
        self._desk = Desk(watch=self._feed.watch)
        self._calls: deque[Fetch | Settle | None] = deque()
        self._results: deque[_Result] = deque()
        self._failures = 0
        self._looks_at = time.monotonic() + self._feed.poll_s
        self._bell, self._ringer = os.pipe()
        os.set_blocking(self._bell, False)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="feeder", daemon=True)
        self._thread.start()

    # --- the supervisor's thread ---

    def hear(self, state: State) -> list[Event]:
        """What is to be recorded; the queue is asked for what is wanted next."""
        events = [event for result in _drain(self._results) for event in self._take(state, result)]
        if any(isinstance(event, (TaskAdded, QueueTold)) for event in events):
            ring(self._session)  # to be asked again when the state knows them
            return events
        self._ask(self._desk.next_calls(state))
        gives_up = self._failures >= MOST_FAILURES and not self._feed.watch and state.feed_open
        if self._desk.is_done(state) or (gives_up and state.completed == len(state.tasks)):
            events.append(FeedClosed())
        return events

    def close(self, state: State) -> None:
        """The session has ended: tell the queue what is left to tell, as far as it can be asked."""
        self._closing.set()
        self._ask([None])
        self._thread.join(CLOSING_S)
        if self._thread.is_alive():
            return  # the next dispatch takes the claims back
        left: list[Settle] = [call for call in _drain(self._calls) if isinstance(call, Settle)]
        left += [call for result in _drain(self._results) for call in _give_back(result)]
        left += [call for call in self._desk.next_calls(state) if isinstance(call, Settle)]
        for call in left:
            try:
                self._clerk.settle(call)
            except (SessionrunError, OSError) as error:
                say(f"the queue is not told of {call.queue_id}: {error}")

    def _take(self, state: State, result: _Result) -> Iterator[Event]:
        call = result.call
        if result.failure is not None and call is not None:
            self._failures += 1
            self._desk.failed(call)
            if QUEUE not in state.holds:
                yield HoldPlaced(QUEUE, result.failure)
            return
        if call is None:
            self._desk.changed()
            return
        self._failures = 0
        if QUEUE in state.holds:
            yield HoldLifted(QUEUE)
        if isinstance(call, Settle):
            self._desk.settled(call)
            if call.name in state.tasks:
                yield QueueTold(call.name, call.fate.closes, call.fate.reason)
            return
        self._desk.fetched(call, len(result.tasks))
        if state.ended is not None or not state.feed_open:
            self._ask(_give_back(result))
        else:
            yield from (TaskAdded(task) for task in result.tasks)

    def _ask(self, calls: Sequence[Fetch | Settle | None]) -> None:
        if calls:
            self._calls.extend(calls)
            os.write(self._ringer, b".")

    # --- the other thread ---

    def _serve(self) -> None:
        while True:
            self._wait()
            while self._calls:
                call = self._calls.popleft()
                if call is None:
                    return
                self._leave(self._carry_out(call))
            if self._has_changed():
                self._leave(_Result(None))

    def _wait(self) -> None:
        """Wait for a call, for a change of the queue, or until it is to be looked at."""
        fd = self._watch.fd if self._watch is not None else None
        poll = select.poll()
        for one in (self._bell, fd):
            if one is not None:
                poll.register(one, select.POLLIN)
        until = None if fd is not None or not self._feed.watch else max(0.0, self._looks_at - time.monotonic())
        poll.poll(None if until is None else 1000 * until)
        try:
            os.read(self._bell, 4096)
        except BlockingIOError:
            pass

    def _has_changed(self) -> bool:
        if self._watch is not None and self._watch.has_changed():
            return True
        is_due = self._watch is None and time.monotonic() >= self._looks_at
        if is_due:
            self._looks_at = time.monotonic() + self._feed.poll_s
        return is_due

    def _carry_out(self, call: Fetch | Settle) -> _Result:
        try:
            if isinstance(call, Fetch):
                return _Result(call, self._clerk.fetch(call))
            self._clerk.settle(call)
            self._intake.take()
            return _Result(call)
        except (SessionrunError, OSError) as error:
            why = " ".join(str(error).split())
        except Exception as error:  # a fault of a backend must not end the thread
            why = f"{type(error).__name__}: {error}"
        say(f"the queue cannot be asked: {why}")
        self._closing.wait(RETRY_S)
        return _Result(call, failure=why)

    def _leave(self, result: _Result) -> None:
        self._results.append(result)
        ring(self._session)


def open_feeder(session: SessionDir, spec: SessionSpec) -> Feeder | None:
    """The feeder of a session; None: it has no queue.

    Raises:
        InputError: the queue is not there any more.
    """
    if spec.feed is None or spec.template is None:
        return None
    from sessionrun.queue.place import find_place
    from sessionrun.queue.table import open_feed

    queue = open_feed(find_place(Path(spec.feed.top)), spec.feed.backend)
    watch = Watch(queue.place) if spec.feed.watch and not queue.place.is_dir() else None
    return Feeder(session, spec, Clerk(queue, spec.feed, spec.template, spec.session_id), watch)


def _give_back(result: _Result) -> list[Settle]:
    """Open the tasks again that were claimed, and that the session does not take."""
    return [Settle(task.id, task.labels[LABEL], NOT_TAKEN) for task in result.tasks]


def _drain(waiting: deque[_T]) -> list[_T]:
    found = []
    while waiting:
        found.append(waiting.popleft())
    return found
