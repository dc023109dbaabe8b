"""What stands beside the supervisor, and the watches that each session has.  All calls come from its thread.

The session's own partners are opened first; then each business of the table adds those that the spec asks of it.
A test hands them over in another form.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import orjson

from sessionrun.agents.programs import find_file, find_program
from sessionrun.engine.moves import MACHINE, has_work_to_start
from sessionrun.engine.providers import LONGEST_S, SAME_S
from sessionrun.engine.state import State
from sessionrun.model.events import Event, HoldLifted, HoldPlaced, LimitHeard, TimerFired
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import PROVIDER_PREFIX, AgentSpec, Limits, SessionSpec
from sessionrun.model.units import format_size
from sessionrun.session.executor import Executor
from sessionrun.session.maker import is_final, measure_output, note_limit
from sessionrun.session.shared import Site
from sessionrun.store.codec import build
from sessionrun.store.files import open_regular, replace_file
from sessionrun.store.index import limits_path

if TYPE_CHECKING:
    from sessionrun.session.exports import ExportWriter
    from sessionrun.session.notifying import Notifying


class Watch(Protocol):
    """Looks at what lies outside of the session; see `LimitSharing`."""

    look_at: float | None = None
    """When it wants to be asked next (monotonic), whatever happens until then; None: at no time of its own."""

    fds: tuple[int, ...] = ()
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


class MachineWatch(Watch):
    """Sees that the machine has too much to do or too little memory, and holds a session's starts.

    The load is the average of the last minute, as the system has it; free memory is what programs can still get
    before anything is swapped out.  Both are read when a task could start.  While the machine holds that task,
    they are read again every `LOOK_S` seconds, and nothing is recorded unless something has changed.
    """

    def __init__(
        self,
        limits: Limits,
        load: Callable[[], float | None] = measure_load,
        free_memory: Callable[[], int | None] = measure_free_memory,
    ) -> None:
        self._limits = limits
        self._load, self._free_memory = load, free_memory
        self._renew_at = 0.0

    def hear(self, state: State, at: float, mono: float) -> Iterator[Event]:
        held, wants = MACHINE in state.holds, has_work_to_start(state)
        if held and wants and self.look_at is not None and mono < self.look_at:
            return
        reason = self._find_reason() if wants else None
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


class SilenceWatch(Watch):
    """Sees an agent that is silent and does not work: it waits for a limit of its provider, or lingers at its end.

    Some agents ask again for hours, and print nothing meanwhile.  Others print their last word and do not exit.
    So when an agent has printed nothing for a while, what it printed or logged last is looked at: after 30 s, when
    it has lingered for as long as it may, and then each time when the silence is twice as long.  Whether that is
    a limit, or a last word, is the agents' business.  A node without contact sends nothing that its jobs print:
    no silence counts.
    """

    def __init__(self, site: Site, contact_path: Path) -> None:
        """`contact_path` is there while a node or the head of the cluster has no contact."""
        self._site, self._contact_path = site, contact_path
        self._seen: dict[JobKey, tuple[int, float, float]] = {}  # size, since when, when to look at what it says

    def hear(self, state: State, at: float, mono: float) -> Iterator[Event]:
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


# --- limits of accounts ---

MAX_BYTES: Final = 64 * 1024
_MAX_TEXT: Final = 500
_LATER_S: Final = 60.0
"""A time that lies so far ahead was not written by a session that shares our clock."""

_SHOWN: Final = 8
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class LimitSharing(Watch):
    """The part of one session in what all sessions of its user know of their accounts: a file for each in a limit.

    A session writes what it met, and reads what others met before it decides what to start.  What it reads becomes
    events, which the supervisor records: the journal alone says what a session knew.  At the end of a limit each
    session sends a trial of its own.

    The files lie in ``limits`` beside the user's index.  One is replaced whole; of two sessions that meet a limit
    in the same moment the later writer holds, and both know it.  Nothing in them is trusted: a file that is not
    ours alone, not regular, too large or not of the form counts as absent.  A failure here is logged once and
    never harms the session: it then knows its own limits only.
    """

    def __init__(self, spec: SessionSpec, environ: Mapping[str, str], log: Callable[[str], None]) -> None:
        self._session_id = spec.session_id
        self._environ, self._log = environ, log
        self._agents = spec.agents
        self._files = find_files(spec, environ)
        self._written: dict[str, float] = {}
        self._complaint = ""

    def hear(self, state: State, at: float, mono: float) -> list[Event]:
        """Write what is new here, and return what is new elsewhere, to be recorded; `at` is wall time."""
        if len(state.spec.agents) != len(self._agents):  # agents are added, and never changed or removed
            self._agents, self._files = state.spec.agents, find_files(state.spec, self._environ)
        if state.ended is not None:
            return []
        try:
            for provider in state.holds.keys() & self._files.keys():
                self._write_own(state, provider, at)
            found = [
                find_news(state, provider, limit, at)
                for provider, path in self._files.items()
                if (limit := load_limit(path, at)) is not None
            ]
            return [news for news in found if news is not None]
        except Exception as error:  # whatever it is, the session goes on
            why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else repr(error)
            if self._complaint != why:
                self._log(f"limits are not shared with other sessions: {why}")
            self._complaint = why
            return []

    def _write_own(self, state: State, provider: str, at: float) -> None:
        """Write down a limit that this session itself met, once."""
        known = state.providers.get(provider)
        if known is None or known.heard is not None or (known.until_at or 0.0) <= at:
            return
        if self._written.get(provider) != known.met_at:
            self._written[provider] = known.met_at
            limit = LimitHeard(
                provider=provider.removeprefix(PROVIDER_PREFIX),
                effect=known.effect,
                reason=state.holds[provider].reason[:_MAX_TEXT],
                until_at=known.until_at or 0.0,
                met_at=known.met_at,
                session=self._session_id,
                strikes=max(1, known.strikes),
            )
            write_limit(self._files[provider], limit, at)


def find_news(state: State, provider: str, limit: LimitHeard, at: float) -> LimitHeard | None:
    """What a session learns from an account's file at a wall time; None: nothing new."""
    known, hold = state.providers.get(provider), state.holds.get(provider)
    if limit.until_at <= at or (hold is not None and hold.until is None):  # the second only a request ends
        return None
    if known is not None and limit.met_at <= known.met_at:
        return None  # after a release a limit may be met that ends earlier: the last that was met counts
    if hold is not None and known is not None and abs(limit.until_at - (known.until_at or 0.0)) <= SAME_S:
        return None
    reason = f"{limit.reason} (met by session {limit.session[:_SHOWN]})"
    return replace(limit, provider=provider, reason=reason)


def find_files(spec: SessionSpec, environ: Mapping[str, str]) -> dict[str, Path]:
    """The files of the accounts that a session uses, by provider; scripts have none."""
    named = {agent.provider or name for name, agent in spec.agents.items() if agent.prompt_kind != "script"}
    folder = limits_path() if named else Path()
    return {
        PROVIDER_PREFIX + name: folder / name_file(name, spec.agents.get(name), environ) for name in sorted(named)
    }


def name_file(provider: str, agent: AgentSpec | None, environ: Mapping[str, str]) -> str:
    """The name of an account's file; `agent` is the one of that name, `environ` what the session's agents get.

    An account is a provider together with what signs its agent in: the name holds a digest of those variables and
    of where the credentials are, so that two keys are two accounts.  No variable's value is written.
    """
    from hashlib import sha256  # a session of scripts starts without

    account = [provider]
    known = find_program(provider) or (find_program(agent.argv[0]) if agent else None)
    if known is not None:  # else nothing sets it apart from other accounts of the provider
        seen = {**environ, **(agent.env if agent else {})}
        values = (f"{variable}={seen.get(variable, '')}" for variable in (*known.keys, *known.servers))
        texts = (find_file(known, known.login, seen), *values)
        account += [text.encode("utf-8", "surrogateescape").hex() for text in texts]
    return f"{_UNSAFE.sub('_', provider)[:40]}-{sha256(orjson.dumps(account)).hexdigest()[:16]}.json"


def load_limit(path: Path, now: float) -> LimitHeard | None:
    """Read the file of an account; None if it does not exist, or cannot be believed."""
    try:
        fd = open_regular(path)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as stream:
        content = stream.read(MAX_BYTES + 1) if _is_private(os.fstat(fd)) else b""
    try:
        limit = build(LimitHeard, orjson.loads(content))
    except (ValueError, RecursionError):
        return None
    is_ahead = limit.until_at > now + LONGEST_S + _LATER_S or limit.met_at > now + _LATER_S
    if is_ahead or limit.effect == "none" or len(content) > MAX_BYTES:
        return None
    return replace(limit, reason=" ".join(limit.reason.split())[:_MAX_TEXT])


def write_limit(path: Path, limit: LimitHeard, now: float) -> None:
    """Write an account's file, unless a limit that was met later is there already.

    Raises:
        OSError: the state directory cannot be written, or is not the user's alone.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    inode = os.lstat(folder)
    if not stat.S_ISDIR(inode.st_mode) or not _is_private(inode):
        raise PermissionError(errno.EPERM, "it is not a directory that is yours alone", str(folder))
    known = load_limit(path, now)
    if known is None or known.met_at < limit.met_at:
        replace_file(path, orjson.dumps(limit), durable=False, sweeps=True)


def _is_private(inode: os.stat_result) -> bool:
    return inode.st_uid == os.geteuid() and not inode.st_mode & 0o077
