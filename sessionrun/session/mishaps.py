"""If the files of one job, or our code for it, fail, that fails the job, and the session goes on.

A full disk, a lack of descriptors and a session directory that is not there concern all jobs, and pass: the
supervisor holds its jobs until then.
"""

from __future__ import annotations

import errno
import os
import traceback
from pathlib import Path
from typing import Final

from sessionrun.agents.verdict import format_reason, split_status
from sessionrun.keeper.wire import say
from sessionrun.model.errors import SessionrunError
from sessionrun.model.events import JobFinished
from sessionrun.model.keys import JobKey
from sessionrun.store.files import NotRegular

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
    """The verdict on a job for which something of ours failed.

    Args:
        error: what was raised; what no part of ours foresees is logged with its traceback.
        wait_status: raw status of wait(2), if it ran.
        ledger: where the ledger tells its end (offset).
    """
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
