"""The session directory: every file name, and how each file is created, replaced, found and locked.

The directory is the database.  Writers hold a lock for life; readers write nothing and take no lock but for
the instant of a probe.  What the contents mean is not known here: records go in and come out as plain data.

    results/session-<id>/
        spec.json  journal  ledger  lock  status.json  summary  requests/  wake
        task-<id>.txt .err .raw  jobs/<id>/a<attempt>-r<round>-<phase>/  prompts/<id>  supervisor.log
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from sessionrun.model.errors import SessionNotFound, StoreError
from sessionrun.store import locks, seal
from sessionrun.store.files import NotRegular, list_folders, make_directory, read_regular, replace_file
from sessionrun.store.logs import read_log, told_as_damage

if TYPE_CHECKING:  # a poll reads status.json alone; the records would cost it more than all its other work
    from sessionrun.model.events import Entry
    from sessionrun.model.keys import JobKey
    from sessionrun.model.spec import SessionSpec
    from sessionrun.store.logs import LogContents

PREFIX: Final = "session-"
DEFAULT_RESULTS_DIR: Final = "results"
REFUSED: Final = ".refused"
"""The suffix of a request that was put aside."""

AGENT_DIR: Final = "agent"
"""In a task's folder below ``jobs``: what its agent keeps there; the files in it are not ours."""

WALLS_SUFFIX: Final = "-walls"
"""The end of the name of an attempt's folder of walls, in its task's folder below ``jobs``."""

WALLS_STATE: Final = "walls-state"
"""In the same folder: what the task's agents keep, instead of their folders in the home directory.  All attempts
have the same, since a conversation may go on in a later one."""


class _File:
    """A file of a session, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, session: SessionDir, _: type[SessionDir]) -> Path:
        return session.path / self._name


class SessionDir:
    """One session's directory, by its path."""

    __slots__ = ("made", "path", "session_id")

    spec_path = _File("spec.json")  # immutable
    journal_path = _File("journal")  # decisions and outcomes
    ledger_path = _File("ledger")  # processes
    status_path = _File("status.json")  # the fold of the logs that readers show
    summary_path = _File("summary")  # the small part of it that `list` reads
    wake_path = _File("wake")  # the FIFO that tells a supervisor of a request
    log_path = _File("supervisor.log")  # what the detached processes say of themselves
    contact_path = _File("contact.json")  # with what of its cluster there is no contact; only while that is so

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made: list[Path] = []
        """The directories that were made for it, from the outermost on (see `creation`)."""
        self.session_id = path.name.removeprefix(PREFIX)

    def output_path(self, task: str) -> Path:
        """Final answer or standard output of the task's last WORK job."""
        return self.path / f"task-{task}.txt"

    def error_path(self, task: str) -> Path:
        """Standard error of the same."""
        return self.path / f"task-{task}.err"

    def raw_path(self, task: str) -> Path:
        """The agent's own structured stream of the same, where it has one."""
        return self.path / f"task-{task}.raw"

    def job_path(self, key: JobKey) -> Path:
        """The folder for extra files of one job."""
        start = "" if key.start == 1 else f"-s{key.start}"
        return self.path / f"jobs/{key.task}/a{key.attempt}-r{key.round}-{key.phase}{start}"

    def prompt_path(self, key: JobKey) -> Path:
        """The prompt of a WORK job: a task's first has a place of its own, others their folder, which is made."""
        is_first = (key.attempt, key.round, key.start) == (1, 1, 1)
        return self.path / "prompts" / key.task if is_first else self.make_job_path(key) / "prompt"

    def find_starts(self, key: JobKey) -> Iterator[Path]:
        """The folders of a job and of those that did it again in the same round, the last one first."""
        return self.find_jobs(key.task, key.attempt, key.phase, key.round)

    def find_jobs(self, task: str, attempt: int, phase: str, round_number: int | None = None) -> Iterator[Path]:
        """The folders of the jobs of a phase in an attempt, of one round if that is given, the last one first."""
        jobs = self.path / "jobs" / task
        wanted = re.compile(rf"a{attempt}-r(\d+)-{phase}(?:-s(\d+))?")
        with suppress(OSError):  # any task may have changed what lies there
            found = [match for name in list_folders(jobs) if (match := wanted.fullmatch(name))]
            for match in sorted(found, key=lambda match: (int(match[1]), int(match[2] or 1)), reverse=True):
                if round_number in (None, int(match[1])):
                    yield jobs / match[0]

    def patch_path(self, key: JobKey) -> Path:
        """What an attempt changed, against the base commit."""
        return self.path / "jobs" / key.task / f"a{key.attempt}-diff.patch"

    def walls_path(self, key: JobKey) -> Path:
        """The folder of what an attempt has inside of walls: git directory, /tmp, state of agents."""
        return self.path.absolute() / "jobs" / key.task / f"a{key.attempt}{WALLS_SUFFIX}"

    def make_job_path(self, key: JobKey) -> Path:
        """That folder, made if need be; private by its mode, whatever the umask is."""
        folder = self.job_path(key)
        for path in (folder.parent.parent, folder.parent, folder):
            with suppress(FileExistsError):
                make_directory(path, 0o700)
        return folder

    def load_spec(self) -> SessionSpec:
        """Read the spec.

        Raises:
            SessionNotFound: there is none: the session was removed, or is not made yet.
            StoreError: it is damaged.
        """
        from sessionrun.store.records import parse_spec

        content = _read_if_there(self.spec_path)
        if content is None:
            where = f"session {self.session_id} in {self.path.parent}"
            raise SessionNotFound(f"no {where} any more: it, or its spec.json, was removed")
        with told_as_damage(self.spec_path):
            return parse_spec(content)

    def load_status(self) -> dict[str, Any] | None:
        """Read status.json; None when it is not there or cannot be believed (the logs hold all that it says)."""
        return seal.parse_sealed(self.read_status() or b"")

    def read_status(self) -> bytes | None:
        """The bytes of status.json; None when it is not there."""
        return _read_if_there(self.status_path)

    def load_summary(self) -> dict[str, Any] | None:
        """Read the summary; None when it is not there or cannot be believed."""
        return seal.parse_sealed(_read_if_there(self.summary_path) or b"")

    def load_journal(self) -> tuple[list[Entry], LogContents]:
        """Read the journal's entries.

        Raises:
            StoreError: it is damaged, or a newer version's, with an entry that this one does not know.
        """
        from sessionrun.model.events import JOURNAL_VERSION, SessionStarted, SupervisorStarted
        from sessionrun.store.records import read_entry

        contents = read_log(self.journal_path)
        entries: list[Entry] = []
        with told_as_damage(self.journal_path, lambda: f" at record {len(entries) + 1}"):
            entries.extend(read_entry(orjson.loads(payload)) for payload in contents.payloads)
        begun = [entry.event for entry in entries if isinstance(entry.event, (SessionStarted, SupervisorStarted))]
        newer = next((event for event in begun if event.journal_version > JOURNAL_VERSION), None)
        if newer is not None:
            raise StoreError(f"{self.journal_path} was written by sessionrun {newer.version}: use that one")
        return entries, contents

    def load_seq(self) -> int:
        """The number of the journal's last record; 0 without one.

        Raises:
            StoreError: the last record has none.
        """
        payloads = read_log(self.journal_path).payloads
        try:
            return int(orjson.loads(payloads[-1])["seq"]) if payloads else 0
        except (ValueError, KeyError, TypeError):
            raise StoreError(f"{self.journal_path}: its last record has no number") from None

    def replace_status(self, status: dict[str, Any], summary: dict[str, Any], *, durable: bool) -> None:
        """Replace status.json and the summary, each atomically.

        A summary that lags behind after a power cut is only older; but an end that was taken back must be so there
        too, for a reader that finds an end looks no further.
        """
        replace_file(self.status_path, seal.seal_by_pieces(status), durable=durable)
        durable = durable and summary["ended_at"] is None
        replace_file(self.summary_path, seal.seal(summary), durable=durable)

    def hold_lock(self, name: str, *, timeout_s: float = 2.0) -> int:
        """Take one of the locks for life; the descriptor keeps it."""
        fd = locks.hold(self.path / name, timeout_s=timeout_s)
        if fd is None:
            raise StoreError(f"another process runs session {self.session_id}")
        return fd

    @contextmanager
    def hold_all_locks(self) -> Iterator[None]:
        """Hold all of its locks: so no process runs it, nor begins to.

        A reader holds one for an instant, a process of the session for life.

        Raises:
            StoreError: another process holds one.
            OSError: one cannot be opened; FileNotFoundError if the session is gone.
        """
        with ExitStack() as held:
            for name in locks.NAMES:
                held.callback(os.close, self.hold_lock(name, timeout_s=0.2))
            yield

    def held_locks(self) -> tuple[str, ...]:
        return tuple(name for name in locks.NAMES if locks.is_held(self.path / name))

    def is_alive(self) -> bool:
        """Whether a process of this session's chain lives: one of its locks is held."""
        return any(locks.is_held(self.path / name) for name in locks.NAMES)


def _read_if_there(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except FileNotFoundError:
        return None
    except NotRegular as error:
        raise StoreError(f"{path} is not a regular file: put it aside") from error


def iterate_sessions(results_dir: Path) -> Iterator[SessionDir]:
    """Every session directory in a results directory, in no order."""
    try:
        with os.scandir(results_dir) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                    yield SessionDir(Path(entry.path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot read {results_dir}: {error.strerror}") from error
