"""What a thread has heard, kept for the supervisor's thread, which waits for a descriptor to become readable."""

from __future__ import annotations

import os
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Heard(Generic[T]):
    """`fd` becomes readable when something was added, or when `ring` was called, until `take`."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        for fd in (self.fd, self._write_fd):
            os.set_blocking(fd, False)
        self._all: deque[T] = deque()

    def add(self, *heard: T) -> None:
        """Keep these, and wake the other thread."""
        if heard:
            self._all.extend(heard)
            self.ring()

    def ring(self) -> None:
        """Wake the other thread."""
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
