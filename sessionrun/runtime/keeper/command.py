"""The command line of a root, the exit codes of the chain, and a line for the session's log."""

from __future__ import annotations

import os
import sys
from typing import Final

EXIT_TAKEN: Final = 75
"""Of a supervisor: another one holds the session's lock."""

EXIT_NO_ROOM: Final = 74
"""Of a supervisor: the disk refuses its first records; another one may try in a while, as often as need be."""

EXIT_REFUSED: Final = 78
"""Of supervisor and keeper: a new start does not help (damaged logs, a newer version's session)."""

SUPERVISOR: Final = "sessionrun.runtime.main"

PACKAGE_ROOT: Final = os.path.abspath(os.path.join(os.path.realpath(__file__), *[os.pardir] * 4))
"""The directory that holds this package."""

_NO_GC: Final = "import gc; gc.disable(); "
"""Until all is imported; the program's `main` enables it."""


def say(line: object) -> None:
    """A line for the session's log; a disk that is full may be the log's, and must change no exit code."""
    try:
        os.write(2, f"{line}\n".encode("utf-8", "replace"))
    except OSError:
        pass


def root_command(session: str, lock_fd: int, ready_fd: int = -1, program: str = SUPERVISOR) -> list[str]:
    """The argument list of a root; it gets the held `root.lock` and a descriptor to say that it is up.

    `program` is the module whose `main` its keeper starts: the supervisor, or what a node has in its place.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    # Elsewhere than on Linux looking at processes needs psutil, which is a site-package.
    isolated = ["-I", "-S"] if sys.platform.startswith("linux") else ["-I"]
    root = [sys.executable, *isolated, os.path.join(here, "__main__.py"), session, str(lock_fd), str(ready_fd)]
    return [*root, *module_command(program, session, begin=_NO_GC)]


def module_command(module: str, *words: str, begin: str = "") -> list[str]:
    """The argument list of a program of ours that is the `main` of a module: the same code as the caller's."""
    code = f"{begin}import sys; sys.path[0] = sys.argv.pop(1); from {module} import main; sys.exit(main())"
    return [sys.executable, "-c", code, PACKAGE_ROOT, *words]
