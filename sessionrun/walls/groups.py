"""Control groups (cgroups(7)): the most memory and processor time that all processes of a walled job have.

A job gets groups below those of its session, in version 1 or 2 of the interface, where the user may make some.
Elsewhere a limit is refused at the launch: a limit that does not hold would be worse than none.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from sessionrun.model.asked import Sandbox
from sessionrun.model.errors import SessionrunError
from sessionrun.walls.shell import SHELL

Controller = Literal["memory", "cpu"]

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
ENTER: Final = 'while [ "$1" != -- ]; do echo "$$" > "$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'
"""A shell's words to enter the groups that stand before ``--``, and become the program behind it."""

GROUPS: Final = "walls-groups"
"""In the folder of a job on a node, while it runs: the name of its control groups."""

FULL: Final = "walls-full"
"""In the folder of such a job: the limit of its memory ended it."""

_PERIOD_US: Final = 100_000
_MEANS: Final[dict[Controller, str]] = {"memory": "memory", "cpu": "processor time"}


def make_groups(name: str, sandbox: Sandbox) -> tuple[Path, ...]:
    """Make the groups of a job, or find them made; none, if nothing is limited."""
    made = []
    if sandbox.memory is not None:
        limit = str(sandbox.memory)
        made.append(_make_group(name, "memory", {"memory.max": limit, "memory.limit_in_bytes": limit}))
        for file, content in (("memory.swap.max", "0"), ("memory.memsw.limit_in_bytes", limit)):
            if (made[0] / file).exists():  # swap alone, or memory with swap
                with suppress(OSError):
                    (made[0] / file).write_text(content)
    if sandbox.cpus is not None:
        quota = f"{max(1000, round(sandbox.cpus * _PERIOD_US))}"
        made.append(_make_group(name, "cpu", {"cpu.max": f"{quota} {_PERIOD_US}", "cpu.cfs_quota_us": quota}))
    return tuple(dict.fromkeys(made))


def enter_groups(name: str, sandbox: Sandbox) -> tuple[str, ...]:
    """The words before those of a program that put it into groups with its limits; none, if nothing is limited."""
    groups = make_groups(name, sandbox)
    return (SHELL, "-c", ENTER, SHELL, *map(str, groups), "--") if groups else ()


def drop_groups(name: str) -> None:
    """Remove the groups of a job; one that has processes stays."""
    for controller in _MEANS:
        with suppress(OSError, ValueError, SessionrunError):  # ValueError: another task may have changed the name
            locate_group(name, controller).rmdir()


def locate_group(name: str, controller: Controller) -> Path:
    """Where a group of this name is, or would be: below this process's own, in the interface with the controller.

    Raises:
        SessionrunError: the system has no such control groups.
    """
    try:
        lines = [line.split(":", 2) for line in OWN.read_text().splitlines()]
    except OSError:
        lines = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controller in controllers.split(","):
            return ROOT / controller / path.lstrip("/") / name
    unified = next((line[2] for line in lines if len(line) == 3 and not line[1]), None)
    if unified is None or not (ROOT / "cgroup.controllers").exists():
        raise SessionrunError(f"{_refuse(controller)}: the system has none")
    return ROOT / unified.lstrip("/") / name


def was_full(name: str) -> bool:
    """Whether the kernel has ended a process of a job, because its memory was used up."""
    for file in ("memory.events", "memory.oom_control"):
        with suppress(OSError, ValueError, SessionrunError):
            content = (locate_group(name, "memory") / file).read_text()
            lines = [line.split() for line in content.splitlines()]
            return any(words[0] == "oom_kill" and int(words[1]) > 0 for words in lines if len(words) == 2)
    return False


def find_problem(wish: Sandbox) -> str | None:
    """Why the limits of a sandbox cannot be had here, in one line; None: they can."""
    name = f"sessionrun-trial-{os.getpid()}"
    try:
        make_groups(name, wish)
    except SessionrunError as error:
        return str(error)
    finally:
        drop_groups(name)
    return None


def _make_group(name: str, controller: Controller, most: dict[str, str]) -> Path:
    """Make a group with a limit: by the file of version 2 or 1 that it has."""
    group = locate_group(name, controller)
    try:
        group.mkdir(exist_ok=True)
        if not any((group / file).exists() for file in most):
            with suppress(OSError):
                (group.parent / "cgroup.subtree_control").write_text(f"+{controller}")
        file = next((file for file in most if (group / file).exists()), None)
        if file is not None:
            (group / file).write_text(most[file])
            return group
    except OSError as error:
        raise SessionrunError(f"{_refuse(controller)}: {error.strerror}") from None
    drop_groups(name)
    raise SessionrunError(f"{_refuse(controller)}: the controller {controller} is not delegated to it")


def _refuse(controller: Controller) -> str:
    return f"no control group for a limit of {_MEANS[controller]} can be made here"
