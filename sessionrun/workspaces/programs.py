"""Knows which programs a thread has under way, so that these can be ended, and no others of the same process.

A library ends only what it started itself: its caller may have children of its own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from sessionrun.store import processes


class Programs:
    """The programs that are under way for one purpose."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    @contextmanager
    def collect(self) -> Iterator[None]:
        """What this thread starts meanwhile counts."""
        token = _COLLECTED.set(self)
        try:
            yield
        finally:
            _COLLECTED.reset(token)

    @contextmanager
    def hold(self, pid: int) -> Iterator[None]:
        """The program is under way meanwhile."""
        self._pids.add(pid)
        try:
            yield
        finally:
            self._pids.discard(pid)

    def kill(self) -> None:
        """End those that are under way, and all that they have started; some are in sessions of their own."""
        processes.kill_as_one(self._find)

    def _find(self, seen: processes.Scan) -> set[processes.Identity]:
        # only children of this process: of a program that has ended, another process may have the pid
        own = [pid for pid in seen.children.get(os.getpid(), ()) if pid in self._pids]
        return {seen.identities[pid] for pid in (*own, *processes.find_descendants(seen, own))}


_COLLECTED: Final[ContextVar[Programs | None]] = ContextVar("programs", default=None)


@contextmanager
def under_way(process: subprocess.Popen[Any]) -> Iterator[None]:
    """This program of the thread is under way meanwhile; at the end it has been waited for."""
    programs = _COLLECTED.get()
    if programs is None:
        yield
        return
    with programs.hold(process.pid):
        yield


def ask(argv: Sequence[str], environ: Mapping[str, str], limit_s: float, cwd: str | None = None) -> bytes:
    """What a program prints that ends soon.

    Args:
        argv: of the program.
        environ: its variables.
        limit_s: how long it may take (seconds).
        cwd: where it begins; None: where this process is.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it fails, or its time is up.
    """
    settings: dict[str, Any] = {"env": dict(environ), "stdin": subprocess.DEVNULL, "cwd": cwd}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings) as process:
        try:
            with under_way(process):
                output, errors = process.communicate(timeout=limit_s)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, argv, output, errors)
    return bytes(output)
