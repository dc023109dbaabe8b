"""Control groups: the most memory that all processes of a walled job may have together (cgroups(7)).

A job gets a group below that of its session, in version 1 or 2 of the interface, where the user may make one.
Elsewhere the limit is refused at the launch: a limit that does not hold would be worse than none.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
ENTER: Final = 'echo "$$" > "$0/cgroup.procs" || exit 125; exec "$@"'
"""A shell's words to enter the group `$0` and become the program of the others."""

_NONE: Final = "no control group for a limit of memory can be made here"
_LIMITS: Final = (("memory.max", "memory.swap.max"), ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"))
"""The files of a limit in version 2 and 1: memory, and memory with swap in 1, swap alone in 2."""


def locate_group(name: str) -> Path:
    """Where a group of this name is, or would be.

    Raises:
        SessionrunError: the system has no control groups for memory.
    """
    return _find_parent() / name


def make_group(name: str, memory: int) -> Path:
    """Make the group of a job, or find it made; `memory` in bytes.

    Raises:
        SessionrunError: groups cannot be made here.
    """
    group = locate_group(name)
    parent = group.parent
    try:
        group.mkdir(exist_ok=True)
        if not (group / "memory.max").exists() and not (group / "memory.limit_in_bytes").exists():
            with suppress(OSError):
                (parent / "cgroup.subtree_control").write_text("+memory")
        for limit, swap in _LIMITS:
            if (group / limit).exists():
                (group / limit).write_text(f"{memory}")
                with suppress(OSError):
                    (group / swap).write_text("0" if limit == "memory.max" else f"{memory}")
                return group
    except OSError as error:
        raise SessionrunError(f"{_NONE}: {error.strerror}") from None
    drop_group(group)
    raise SessionrunError(f"{_NONE}: memory is not delegated to it")


def drop_group(group: Path) -> None:
    """Remove a group without processes; one that has some stays."""
    with suppress(OSError):
        group.rmdir()


def was_full(group: Path) -> bool:
    """Whether the kernel has ended a process of the group, because its memory was used up."""
    for name in ("memory.events", "memory.oom_control"):
        with suppress(OSError, ValueError):
            lines = [line.split() for line in (group / name).read_text().splitlines()]
            return any(words[0] == "oom_kill" and int(words[1]) > 0 for words in lines if len(words) == 2)
    return False


def find_problem() -> str | None:
    """Why no limit of memory can be had here, in one line; None: it can."""
    try:
        drop_group(make_group(f"sessionrun-trial-{os.getpid()}", 1 << 30))
    except SessionrunError as error:
        return str(error)
    return None


def _find_parent() -> Path:
    """The directory of this process's own group, in the interface that has the memory.

    Raises:
        SessionrunError: there is none.
    """
    try:
        lines = [line.split(":", 2) for line in OWN.read_text().splitlines()]
    except OSError:
        lines = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if "memory" in controllers.split(","):
            return ROOT / "memory" / path.lstrip("/")
    unified = next((line[2] for line in lines if len(line) == 3 and not line[1]), None)
    if unified is None or not (ROOT / "cgroup.controllers").exists():
        raise SessionrunError(f"{_NONE}: the system has none")
    return ROOT / unified.lstrip("/")
