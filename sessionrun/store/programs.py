"""Runs programs, and knows which a thread has under way: these can be ended, and no others of the same process.

A library ends only what it started itself: its caller may have children of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Final, TypeVar

from sessionrun.store import processes

TASK: Final = "SESSIONRUN_TASK"
"""In the environment of each job of a task."""


def leave_task(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a program of ours: in a task's job the programs of its environment do not count.

    An agent can write them, and what lies in a folder that counts from where a program begins: in its worktree.
    """
    kept = dict(environ)
    own = kept.pop("VIRTUAL_ENV", None) if TASK in kept else None
    left_out = os.path.join(own, "bin") if own else None
    folders = kept.get("PATH", os.defpath).split(os.pathsep)
    absolute = (folder for folder in folders if os.path.isabs(folder) and folder != left_out)
    kept["PATH"] = os.pathsep.join(absolute) or os.defpath  # an empty one is where a program begins
    return kept


class _Programs:
    """The programs that are under way for one purpose."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    @contextmanager
    def hold(self, pid: int) -> Iterator[None]:
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


_COLLECTED: Final[ContextVar[_Programs | None]] = ContextVar("programs", default=None)
"""Those of this thread."""

_PAUSE_S: Final = 0.05

_Result = TypeVar("_Result")


def run_abreast(jobs: Sequence[Callable[[], _Result]], most: int) -> list[_Result]:
    """Run all, each in a thread, at most so many at once; what they return, in their order.

    Whatever is raised, Ctrl+C too, ends the others first, and of all children of this process only their programs.
    """
    from concurrent.futures import Future, ThreadPoolExecutor, as_completed  # few of our processes have threads

    under_way = _Programs()
    pool = ThreadPoolExecutor(most, initializer=_COLLECTED.set, initargs=(under_way,))
    futures: list[Future[_Result]] = []
    try:
        futures.extend(map(pool.submit, jobs))
        for future in as_completed(futures):
            future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in futures):
            under_way.kill()  # again and again: a job may go on with another program
            time.sleep(_PAUSE_S)
        raise
    finally:
        pool.shutdown()
    return [future.result() for future in futures]


def run(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    limit_s: float | None,
    cwd: Path | str | None = None,
    stdin: bytes | int | None = None,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
    umask: AbstractContextManager[object] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end; if its time is up, or we are broken off, all that it started ends with it.

    Args:
        limit_s: how long it may take (seconds); None: any time.
        cwd: where it begins; None: where this process is.
        stdin: what it reads, or the descriptor of that; None: nothing.
        stdout: the file to which it prints, or its descriptor; else what it prints is returned.
        stderr: the same of its standard error.
        umask: held while it is started.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: its time was up.
    """
    fed = stdin if isinstance(stdin, bytes) else None
    source = subprocess.PIPE if isinstance(stdin, bytes) else subprocess.DEVNULL if stdin is None else stdin
    with umask or nullcontext():
        process: subprocess.Popen[bytes] = subprocess.Popen(
            argv,
            cwd=cwd,
            env=environ,
            stdin=source,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # its end takes all with it that it has started; Ctrl+C reaches only us
        )
    try:
        with hold(process.pid):
            output, errors = process.communicate(fed, timeout=limit_s)
    except BaseException:
        kill(process)
        raise
    return subprocess.CompletedProcess(argv, process.returncode, output or b"", errors or b"")


def hold(pid: int) -> AbstractContextManager[None]:
    """A program of this thread is under way meanwhile."""
    return (_COLLECTED.get() or _Programs()).hold(pid)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it has started; one that hangs in the kernel is not waited for."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(1.0)


ASK_S: Final = 60.0
"""How long such a program may take to answer (seconds)."""


def locate_python(wanted: str | None, environ: Mapping[str, str], cwd: str | None) -> str | None:
    """The path of the Python that is wanted; None: there is none.

    Args:
        wanted: a version, a path, or None for the first of PATH.
        environ: variables of programs that are asked.
        cwd: where these begin; None: where this process is.
    """
    if wanted is not None and os.sep in wanted:
        names = [os.path.expanduser(wanted)]
    else:
        names = ["python3", "python"] if wanted is None else [f"python{wanted}", wanted]
    found = (shutil.which(name, path=environ.get("PATH")) for name in names)
    program = next(filter(None, found), None)
    uv = locate_uv(environ)
    if program is None and wanted is not None and uv is not None:
        try:  # one that uv has installed
            program = ask([uv, "python", "find", "--no-python-downloads", wanted], environ, cwd) or None
        except (OSError, subprocess.SubprocessError):
            pass
    return program


def locate_uv(environ: Mapping[str, str]) -> str | None:
    """The path of uv, if there is one on PATH."""
    return shutil.which("uv", path=environ.get("PATH"))


def ask(argv: list[str], environ: Mapping[str, str], cwd: str | None) -> str:
    """What a program answers.

    Raises:
        OSError, subprocess.SubprocessError: it does not run.
    """
    done = run(argv, environ=environ, cwd=cwd, limit_s=ASK_S)
    done.check_returncode()
    return done.stdout.decode("utf-8", "surrogateescape").strip()
