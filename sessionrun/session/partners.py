"""What stands beside the supervisor, and the watches that each session has.  All calls come from its thread.

The session's own partners are opened first; then each business of the table adds those that the spec asks of it.
A test hands them over in another form.

One watch sees that the machine has too much to do or too little memory.  The load is the average of the last
minute, as the system has it; free memory is what programs can still get before anything is swapped out.  Both are
read when a task could start.  While the machine holds that task, they are read again every `LOOK_S` seconds, and
nothing is recorded unless something has changed.

The other sees an agent that is silent and does not work: it waits for a limit of its provider, or lingers after
its end.  Some agents ask again for hours, and print nothing meanwhile.  Others print their last word and do not
exit.  So when an agent has printed nothing for a while, what it printed or logged last is looked at: after 30 s,
when it has lingered for as long as it may, and then each time when the silence is twice as long.  Whether that is
a limit, or a last word, is the agents' business.  A node without contact sends nothing that its jobs print: no
silence counts.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from sessionrun.engine.state import State
from sessionrun.engine.tokens import MACHINE, has_work_to_start
from sessionrun.model.events import Event, HoldLifted, HoldPlaced, TimerFired
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Limits
from sessionrun.model.units import format_size
from sessionrun.session.executor import Executor
from sessionrun.session.maker import is_final, measure_output, note_limit
from sessionrun.session.shared import Site

if TYPE_CHECKING:
    from sessionrun.session.exports import ExportWriter
    from sessionrun.session.notifying import Notifying


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


# --- the machine ---

LOOK_S: Final = 5.0
RENEW_S: Final = 60.0
"""How old the figure of a hold may become: then the hold is recorded again, with that of now."""


def measure_load() -> float | None:
    """The average of the last minute; None: the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def measure_free_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What programs can still get (bytes), of the machine and of the control groups that this process is in.

    None: the system does not say, which is so of all but Linux.
    """
    try:
        known = _read_table(proc / "meminfo")
        machine = known["MemAvailable:"] * 1024
    except (OSError, ValueError, KeyError):
        return None
    return min((machine, *_measure_groups(proc, groups)))


def _measure_groups(proc: Path, groups: Path) -> Iterator[int]:
    """What is left below the limit of each group (version 2), from the one of this process to the top."""
    with suppress(OSError):
        lines = (proc / "self" / "cgroup").read_text().splitlines()
        own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
        for folder in (groups / own, *(groups / own).parents):
            if not folder.is_relative_to(groups):
                return
            with suppress(OSError, ValueError, KeyError):  # a group without a limit says "max"
                limit = int((folder / "memory.max").read_text())
                used = int((folder / "memory.current").read_text())
                yield max(0, limit - used + _read_table(folder / "memory.stat")["inactive_file"])


def _read_table(path: Path) -> dict[str, int]:
    """The first number of each line, by the line's first word."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in rows if len(words) > 1}


class MachineWatch:
    """Says when the machine holds a session's starts; `look_at` is when it is to be asked next (monotonic)."""

    fds: tuple[int, ...] = ()

    def __init__(
        self,
        limits: Limits,
        load: Callable[[], float | None] = measure_load,
        free_memory: Callable[[], int | None] = measure_free_memory,
    ) -> None:
        self._limits = limits
        self._load, self._free_memory = load, free_memory
        self._renew_at = 0.0
        self.look_at: float | None = None

    def hear(self, state: State, at: float, mono: float) -> Iterator[Event]:
        """What is to be recorded now."""
        held = MACHINE in state.holds
        if not has_work_to_start(state):
            self.look_at = None
            if held:
                yield HoldLifted(MACHINE)
            return
        if held and self.look_at is not None and mono < self.look_at:
            return
        reason = self._find_reason()
        self.look_at = None if reason is None else mono + LOOK_S
        if reason is None and held:
            yield HoldLifted(MACHINE)
        elif reason is not None and (not held or mono >= self._renew_at):
            self._renew_at = mono + RENEW_S
            yield HoldPlaced(MACHINE, reason)

    def _find_reason(self) -> str | None:
        most, least = self._limits.max_load, self._limits.min_free_memory
        load = self._load() if most else None
        if most and load is not None and load > most:
            return f"load {load:.3g} is above {most:g}"
        free = self._free_memory() if least else None
        if least and free is not None and free < least:
            return f"free memory {format_size(free)} is below {format_size(least)}"
        return None


# --- silent agents ---

SILENT_S: Final = 30.0
LISTEN_S: Final = 5.0
SOON_S: Final = 0.2


class SilenceWatch:
    """Says which jobs wait for a limit or linger; `look_at` is when it is to be asked next (monotonic)."""

    fds: tuple[int, ...] = ()

    def __init__(self, site: Site, contact_path: Path) -> None:
        """`contact_path` is there while a node or the head of the cluster has no contact."""
        self._site, self._contact_path = site, contact_path
        self._seen: dict[JobKey, tuple[int, float, float]] = {}  # size, since when, when to look at what it says
        self.look_at: float | None = None

    def hear(self, state: State, at: float, mono: float) -> Iterator[Event]:
        """What is to be recorded now."""
        if not state.running_jobs:
            self.look_at = None
        if not state.running_jobs or (self.look_at is not None and mono < self.look_at):
            return
        self.look_at = mono + LISTEN_S
        before, self._seen = self._seen, {}
        if self._contact_path.exists():
            return
        for task in state.tasks.values():
            lingers = task.spec.linger_s or math.inf
            job = task.job
            if job is None or job.stopping is not None or job.key.phase != "work" or job.pid is None:
                continue
            size = measure_output(self._site, job.key)
            was, since, due = before.get(job.key, (-1, mono, 0.0))
            if size != was:
                since, due = mono, mono + min(SILENT_S, lingers)
            elif mono >= due:
                silent = mono - since
                due = since + (lingers if silent < lingers < 2 * silent else 2 * silent)
                if silent >= lingers and is_final(self._site, task, job.key):
                    yield TimerFired(job.key, "linger")
                elif silent >= SILENT_S and note_limit(self._site, task, job.key):
                    yield TimerFired(job.key, "silent_limit")
            self.look_at = min(self.look_at, max(due, mono + SOON_S))
            self._seen[job.key] = (size, since, due)
