"""Kills a process, or refuses what it asks of the system, at the n-th of its calls: from outside, by `calls.c`.

A rule is ``ROLE:KIND:N:DO``, and may go on with ``:PATTERN`` and ``:TEXT``.

    ROLE     launcher, daemon, root, keeper, supervisor, link (of a node), a phase (prepare, release, land, ...) or
             a verb (clean, merge, ...); with `+` also what it starts, as git.  `Calls.environ` gives a role to a
             program that shows none
    KIND     write (to a file), send (to a pipe or a socket), sync, rename, link, unlink, mkdir, rmdir, create (an
             open that may), spawn (fork, exec, posix_spawn), lock, truncate, chmod, wait; `change`: all that
             change a file; `step`: write, send, sync, rename, link, unlink, spawn, wait; `any`
    N        1 is the first one; `3+` is the third and all that follow
    DO       kill (before the call), after (kill behind it), half (kill in the middle of a write), all (kill the
             process group), torn (kill the group in the middle of a write), stop, short (a write writes a part),
             or the name of an errno
    PATTERN  a glob for the whole path; nothing is any
    TEXT     a part of what is written

All processes count together, and a rule does what it says once.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import pytest

SOURCE: Final = Path(__file__).with_suffix(".c")
VARIABLES: Final = ("CALLS_AT", "CALLS_COUNTS", "CALLS_ROLE", "CALLS_LOG")
Result = TypeVar("Result")

MOST_CALLS: Final = 3000
LONGEST_S: Final = 3600.0
_MOST: Final = 16  # behind their counts is the pid whose group a rule kills
_COUNT: Final = struct.Struct("q")

CAN_WATCH: Final = sys.platform.startswith("linux") and shutil.which("cc") is not None
needs_calls: Final = pytest.mark.skipif(not CAN_WATCH, reason="no LD_PRELOAD here, or no C compiler")


@functools.cache
def build_library() -> str:
    """The library, made once for each of its sources; raises where it cannot be made."""
    library = SOURCE.parent / "__pycache__" / f"calls-{zlib.crc32(SOURCE.read_bytes()):08x}.so"
    if not library.exists():
        library.parent.mkdir(exist_ok=True)
        # whole, or not at all: other threads and processes may do so at once
        with tempfile.TemporaryDirectory(dir=library.parent) as place:
            made = Path(place, library.name)
            subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"], check=True)
            made.replace(library)
    return str(library)


class Calls:
    """Rules that are watched, and how often each has met its calls."""

    def __init__(self, folder: Path, *rules: str) -> None:
        """`folder` is made, and gets the counts."""
        folder.mkdir(parents=True, exist_ok=True)
        self.rules, self._counts = rules, folder / "counts"
        self._counts.write_bytes(bytes((_MOST + 1) * _COUNT.size))
        assert len(rules) <= _MOST

    def environ(self, role: str = "") -> dict[str, str]:
        """What a process needs to be watched, and those below it; `role` for one that shows none."""
        return {
            "LD_PRELOAD": build_library(),
            "CALLS_AT": ";".join(self.rules),
            "CALLS_COUNTS": str(self._counts),
            **({"CALLS_ROLE": role} if role else {}),
        }

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Watch the processes that the test starts from now on."""
        for name, value in self.environ().items():
            patch.setenv(name, value)

    def counts(self) -> Sequence[int]:
        """How many calls each rule has met."""
        return [count for (count,) in _COUNT.iter_unpack(self._counts.read_bytes())][: len(self.rules)]

    def has_hit(self) -> list[bool]:
        """Of each rule, whether it did what it says."""
        limits = [int(rule.split(":")[2].rstrip("+")) for rule in self.rules]
        return [count >= limit for count, limit in zip(self.counts(), limits, strict=True)]


def run_program(
    code: str, *words: str, environ: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run Python code as a program of its own, which leads a session; our package is imported already."""
    from conftest import Command

    argv, variables = ["-c", code, *words], {**os.environ, **environ}
    if Command.warm.serves(variables):
        called = Command.warm.popen(argv, cwd=Path.cwd(), environ=variables)
        out, error = called.communicate(timeout=LONGEST_S)
        return subprocess.CompletedProcess(argv, called.wait(), out, error)
    argv = [sys.executable, *argv]
    return subprocess.run(argv, env=variables, capture_output=True, text=True, start_new_session=True)


def run_watched(work: Callable[..., object], *words: object) -> str:
    """Call a function of a test's module in a process that `forked` can fork; what it printed.

    Raises:
        AssertionError: it raised.
    """
    places, name = [path for path in sys.path if path.startswith(str(SOURCE.parent))], work.__module__
    code = f"import sys; sys.path[:0] = {places!r}; from {name} import {work.__name__} as work"
    done = run_program(f"{code}; work(*sys.argv[1:])", *map(str, words), environ={"LD_PRELOAD": build_library()})
    assert done.returncode == 0, done.stderr
    return done.stdout


def forked(work: Callable[[], object]) -> Callable[[Mapping[str, str]], None]:
    """What does the work in a fork of this process, which is watched."""

    def run(environ: Mapping[str, str]) -> None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.environ.update(environ)
                ctypes.CDLL(None).calls_begin()
                work()
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        assert status in (0, signal.SIGKILL), f"it ended with {status}"

    return run


def between(run: Callable[[Mapping[str, str]], Result], folder: Path, role: str) -> Iterator[tuple[str, Result]]:
    """Hit it before each change of its own, then behind each program that it ran; none of these runs on."""
    for kind, do in (("change", "kill"), ("wait", "after")):
        for at, result in each_call(run, folder, role, kind=kind, do=do):
            yield f"{kind} {at}", result


def each_call(
    run: Callable[[Mapping[str, str]], Result],
    folder: Path,
    role: str,
    *,
    kind: str = "change",
    do: str = "kill",
    first: int = 1,
    every: int = 1,
) -> Iterator[tuple[int, Result]]:
    """Run it with a rule for its first call of the kind, then for the next one, as long as there is one.

    `run` gets the variables for its program; this yields the number of the call that was hit, and its result.
    """
    for at in range(first, MOST_CALLS, every):
        calls = Calls(folder, f"{role}:{kind}:{at}:{do}")
        result = run(calls.environ(role.rstrip("+")))
        if not all(calls.has_hit()):
            return
        yield at, result
    raise AssertionError("its calls never end")
