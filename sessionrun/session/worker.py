"""A thread beside the one that decides: an inbox of what it is asked, an outbox of what it has found out.

All threads of the supervisor and of a node's link are workers.  Whoever has one waits for its descriptor; but for
these boxes the two share nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
News = TypeVar("News")


class Worker(Generic[Asked, News]):
    """`fd` becomes readable when there is news, or the thread has ended with a `fault`, until `take`."""

    def __init__(self, name: str, work: Callable[[Worker[Asked, News]], None]) -> None:
        """`work` goes on with `wait` and `tell` until it has to stop."""
        self.fault: str | None = None
        self.is_stopping = False
        self._name, self._work = name, work
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._inbox: deque[Asked] = deque()
        self._outbox: deque[News] = deque()
        self.fd, self._write_fd = os.pipe()
        for fd in (self.fd, self._write_fd):
            os.set_blocking(fd, False)

    # --- whoever has the worker ---

    def start(self) -> None:
        """Begin, if it does not go on anyway, or has failed; that it was to stop counts no more."""
        with self._changed:
            self.is_stopping = False
            if self._thread is None and self.fault is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def ask(self, asked: Asked) -> None:
        """Have it do this, after all that it was asked before; one that has failed does nothing."""
        with self._changed:
            self.start()
            if self.fault is None:
                self._inbox.append(asked)
            self._changed.notify_all()

    def take(self) -> list[News]:
        """What it has told since the last time."""
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass
        return [self._outbox.popleft() for _ in range(len(self._outbox))]

    def stop(self, limit_s: float) -> None:
        """Let it end once it has done what it was asked, and wait for that, but no longer than the limit."""
        with self._changed:
            self.is_stopping, thread = True, self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(limit_s)

    # --- its thread ---

    def wait(self, limit_s: float | None = None) -> list[Asked]:
        """All that it is asked and has not done; nothing: the time is over, or it is to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self.is_stopping, limit_s)
            asked = [*self._inbox]
            self._inbox.clear()
        return asked

    def tell(self, *news: News) -> None:
        """Keep this, and wake whoever has the worker."""
        if news:
            self._outbox.extend(news)
            self._ring()

    def fail(self, fault: str) -> None:
        self.fault = fault
        self._ring()

    def _run(self) -> None:
        while True:
            try:
                self._work(self)
            except Exception as error:
                sys.excepthook(*sys.exc_info())
                self.fail(f"{type(error).__name__}: {error}")
            with self._changed:
                if self.fault is not None or not self._inbox:  # else it was asked more at its end
                    self._thread = None
                    return

    def _ring(self) -> None:
        try:
            os.write(self._write_fd, b"\0")
        except (BlockingIOError, BrokenPipeError):
            pass  # it is full of such bytes, or the session has ended


def serve(answer: Callable[[Asked], Iterable[News]]) -> Callable[[Worker[Asked, News]], None]:
    """The work of one that does what it is asked, one after the other, and tells what comes of each."""

    def work(worker: Worker[Asked, News]) -> None:
        while (all_asked := worker.wait()) or not worker.is_stopping:
            for asked in all_asked:
                worker.tell(*answer(asked))

    return work
