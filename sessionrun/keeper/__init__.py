"""Root and keeper: they keep the processes of a session while whoever decides comes and goes.

    root            adopts what a dead keeper leaves behind; starts keepers; writes nothing
     └ keeper       parent of all jobs; spawns, reaps, kills trees; the only writer of the ledger; no policy
        ├ supervisor    decides; started again by the keeper
        └ job ... job

Each is restarted by its parent only.  Orphans climb to ancestors, never to siblings: so a dead keeper's jobs come
to the root, which hands their exit codes to the next keeper, and any number of deaths of keeper and supervisor, in
any order, costs no code.  Should the root be gone, work goes on; should then the keeper die too, the supervisor
becomes the new root, and codes of jobs that ran at that moment are lost.

Root and keeper are one small interpreter, forked, without site-packages: standard library and the few modules of
ours that need no more (`journal`, `ledger`, `locks`, `processes`), all of them imported at the start, so that an
upgrade of the package in mid-session cannot hurt them.
"""

from __future__ import annotations

import os
import sys
from typing import Final

EXIT_TAKEN: Final = 75
"""Of a supervisor: another one holds the session's lock."""

EXIT_NO_ROOM: Final = 74
"""Of a supervisor: the disk refuses its first records; another one may try in a while, as often as need be."""

EXIT_REFUSED: Final = 78
"""Of supervisor and keeper: to start again is no use (damaged logs, a newer version's session)."""

_SUPERVISOR: Final = "import sys; sys.path[0] = sys.argv.pop(1); from sessionrun.detached import main; main()"
"""Given to ``python -c`` with the directory that holds this package: the same code as the launcher's."""


def say(line: object) -> None:
    """A line for the session's log; a disk that is full may be the log's, and must change no exit code."""
    try:
        os.write(2, f"{line}\n".encode("utf-8", "replace"))
    except OSError:
        pass


def root_command(session: str, lock_fd: int, ready_fd: int = -1) -> list[str]:
    """The argument list of a root; it gets the held `root.lock` and a descriptor to say that it is up."""
    here = os.path.dirname(os.path.abspath(__file__))
    package_root = os.path.dirname(os.path.dirname(here))
    # Elsewhere than on Linux looking at processes needs psutil, which is a site-package.
    isolated = ["-I", "-S"] if sys.platform.startswith("linux") else ["-I"]
    root = [sys.executable, *isolated, os.path.join(here, "__main__.py"), session, str(lock_fd), str(ready_fd)]
    return [*root, sys.executable, "-c", _SUPERVISOR, package_root, session]
