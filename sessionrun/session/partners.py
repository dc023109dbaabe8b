"""What stands beside the supervisor.  All calls come from its thread.

The session's own partners are opened first; then each business of the table adds those that the spec asks of it.
A test hands them over in another form.

If the files of one job, or our code for it, fail, that fails the job, and the session goes on.  A full disk, a
lack of descriptors and a session directory that is not there concern all jobs, and pass: the supervisor holds its
jobs until then.
"""

from __future__ import annotations

import errno
import os
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from sessionrun.agents.verdict import format_reason, split_status
from sessionrun.engine.state import State
from sessionrun.keeper.wire import say
from sessionrun.model.asked import Sandbox
from sessionrun.model.errors import SessionrunError
from sessionrun.model.events import Event, JobClaimed, JobFinished
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Job
from sessionrun.session.executor import Notice
from sessionrun.store.files import NotRegular

if TYPE_CHECKING:
    from sessionrun.session.exports import ExportWriter
    from sessionrun.session.notifying import Notifying


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


class Watch(Protocol):
    """Looks at what lies outside of the session; see `limits.LimitSharing`."""

    look_at: float | None
    """When it wants to be asked next (monotonic), whatever happens until then; None: at no time of its own."""

    fds: tuple[int, ...]
    """Each is readable when it wants to be asked: those of its workers."""

    def hear(self, state: State, at: float, mono: float) -> Iterable[Event]:
        """What is to be recorded."""


class Feeder(Watch, Protocol):
    """Brings tasks into the session."""

    def finish(self, state: State) -> None:
        """The session is about to end: wait, for a limited time, until its source is told."""


class Partners(NamedTuple):
    """All that stands beside one supervisor."""

    executor: Executor
    exports: ExportWriter | None = None
    feeder: Feeder | None = None
    watches: tuple[Watch, ...] = ()
    notifier: Notifying | None = None


class Clock(NamedTuple):
    """Where the time comes from: seconds since the epoch, and monotonic ones of this boot."""

    wall: Callable[[], float] = time.time
    mono: Callable[[], float] = time.monotonic


_IN_THE_WAY: Final = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG)
"""Something else lies where a job's file or folder is to be."""

_NOT_THERE: Final = (errno.ENOENT, errno.EACCES, errno.EPERM)
"""Of one job where the session's directory itself is as it should be."""


def is_of_one_job(error: Exception, session: Path) -> bool:
    """Whether a failure to write the files of a job concerns that job alone, and waiting would not help."""
    if not isinstance(error, OSError) or isinstance(error, NotRegular) or error.errno in _IN_THE_WAY:
        return True
    shared = [session, session / "prompts", *filter(os.path.lexists, [session / "jobs"])]  # it is made when needed
    return error.errno in _NOT_THERE and all(os.access(path, os.W_OK | os.X_OK) for path in shared)


def fail_job(
    key: JobKey, error: Exception, wait_status: int | None = None, ledger: int | None = None
) -> JobFinished:
    """The verdict on a job for which something of ours failed: what no part of ours foresees is logged."""
    if isinstance(error, OSError):
        name = f" ({Path(os.fsdecode(error.filename)).name})" if isinstance(error.filename, (str, bytes)) else ""
        reason = format_reason("infra", f"its files cannot be read or written: {error.strerror or error}{name}")
    elif isinstance(error, SessionrunError):
        reason = format_reason("infra", str(error))
    else:
        text = "".join(traceback.format_exception(error))
        say(f"job {key.text()} is given up for a bug:\n{text.rstrip()}")
        reason = format_reason("internal", f"{type(error).__name__}: {error} (see supervisor.log)")
    kind, (code, signal) = reason.partition(":")[0], split_status(wait_status)
    return JobFinished(key, "failed", kind, reason, wait_status, exit_code=code, signal=signal, ledger=ledger)
