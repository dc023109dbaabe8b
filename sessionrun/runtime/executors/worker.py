"""A thread of an executor, and what it says to the supervisor's thread, which waits for a descriptor."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Worker(Generic[T]):
    """`fd` becomes readable when something was added, or the thread has ended with a `fault`, until `take`."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        """`work` is what the thread does from `start` on."""
        self.fault: str | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.fd, self._write_fd = os.pipe()
        for fd in (self.fd, self._write_fd):
            os.set_blocking(fd, False)
        self._all: deque[T] = deque()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, limit_s: float) -> None:
        """Wait until the thread has ended, but no longer than that."""
        self._thread.join(limit_s)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")

    def fail(self, fault: str) -> None:
        """The thread can do nothing any more."""
        self.fault = fault
        self._ring()

    def add(self, *heard: T) -> None:
        """Keep these, and wake the other thread."""
        if heard:
            self._all.extend(heard)
            self._ring()

    def _ring(self) -> None:
        try:
            os.write(self._write_fd, b"\0")
        except (BlockingIOError, BrokenPipeError):
            pass  # it is full of such bytes, or the session has ended

    def __bool__(self) -> bool:
        return bool(self._all)

    def take(self) -> list[T]:
        """What was added since the last time."""
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass
        taken = []
        while self._all:
            taken.append(self._all.popleft())
        return taken
