"""What runs after detaching: puts the parts of one session together and runs it.

`detach` has forked, taken the lock and recorded who we are, then executed this in a fresh interpreter: small,
with the environment of the launch but without the marker of the job that it may have been launched from.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sessionrun.errors import StoreError
from sessionrun.executors.local import LocalExecutor
from sessionrun.fold import apply, begin
from sessionrun.jobs import JobMaker
from sessionrun.journal import AppendLog
from sessionrun.store import SessionDir
from sessionrun.supervisor import Supervisor, SystemClock


def main() -> None:
    """Run the session in ``argv[1]``, whose lock is held by the descriptor ``argv[2]``."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a caller may have blocked SIGCHLD
    session = SessionDir(Path(sys.argv[1]))
    os.set_inheritable(int(sys.argv[2]), False)
    spec = session.load_spec()
    entries, contents = session.load_journal()
    state = begin(spec)
    for entry in entries:
        apply(state, entry)
    if contents.damage_at is not None:  # to write behind it would hide what it was
        raise StoreError(f"{session.journal_path} is damaged at byte {contents.damage_at}")
    journal = AppendLog(session.journal_path)
    journal.cut(contents.end)
    executor = LocalExecutor(AppendLog(session.ledger_path), spec.session_id, os.environb)
    Supervisor(session, state, journal, executor, JobMaker(session, spec), SystemClock()).run()
