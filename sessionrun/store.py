"""The session directory: every file name, and how each file is created, replaced, found and locked.

The directory is the database.  Writers hold a lock for life; readers write nothing and take no lock but for
the instant of a probe.  What the contents mean is not known here: records go in and come out as plain data.

    results/session-<id>/
        spec.json  journal  ledger  lock  status.json  summary  requests/  wake
        task-<id>.txt .err .raw  jobs/<id>/a<attempt>-r<round>-<phase>/  prompts/<id>  supervisor.log
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from sessionrun import crashpoint, locks
from sessionrun.errors import SessionNotFound, StoreError
from sessionrun.regular import NotRegular, make_directory, open_regular, read_regular

if TYPE_CHECKING:  # a poll reads status.json alone; the records would cost it more than all its other work
    from sessionrun.events import Entry
    from sessionrun.journal import LogContents
    from sessionrun.model import JobKey, SessionSpec

PREFIX: Final = "session-"
REFUSED: Final = ".refused"
"""The suffix of a request that was put aside."""

AGENT_DIR: Final = "agent"
"""In a task's folder below ``jobs``: what its agent keeps there; the files in it are not ours."""

LOCK_NAMES: Final = locks.NAMES
STATUS_VERSION: Final = 1
"""The `schema_version` of status.json and the summary that is read here: `model.SCHEMA_VERSION`."""


class SessionDir:
    """One session's directory, by its path."""

    __slots__ = ("made", "path", "session_id")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made: list[Path] = []
        """The directories that `create` made, from the outermost on."""
        self.session_id = path.name.removeprefix(PREFIX)

    @property
    def spec_path(self) -> Path:
        """The immutable spec."""
        return self.path / "spec.json"

    @property
    def journal_path(self) -> Path:
        """The log of decisions and outcomes."""
        return self.path / "journal"

    @property
    def ledger_path(self) -> Path:
        """The log of processes."""
        return self.path / "ledger"

    @property
    def status_path(self) -> Path:
        """The fold of the logs that readers show."""
        return self.path / "status.json"

    @property
    def summary_path(self) -> Path:
        """The small part of it that `list` and `overview` read."""
        return self.path / "summary"

    @property
    def wake_path(self) -> Path:
        """The FIFO that tells a supervisor of a request."""
        return self.path / "wake"

    @property
    def log_path(self) -> Path:
        """What the detached processes say of themselves."""
        return self.path / "supervisor.log"

    def output_path(self, task: str) -> Path:
        """Final answer or standard output of the task's last WORK job."""
        return self.path / f"task-{task}.txt"

    def error_path(self, task: str) -> Path:
        """Standard error of the same."""
        return self.path / f"task-{task}.err"

    def raw_path(self, task: str) -> Path:
        """The agent's own structured stream of the same, where it has one."""
        return self.path / f"task-{task}.raw"

    def prompt_path(self, task: str) -> Path:
        """The prompt as the task's first WORK job gets it."""
        return self.path / "prompts" / task

    def job_path(self, key: JobKey) -> Path:
        """The folder for extra files of one job."""
        start = "" if key.start == 1 else f"-s{key.start}"
        return self.path / "jobs" / key.task / f"a{key.attempt}-r{key.round}-{key.phase}{start}"

    def patch_path(self, key: JobKey) -> Path:
        """What an attempt changed, against the base commit."""
        return self.path / "jobs" / key.task / f"a{key.attempt}-diff.patch"

    def make_job_path(self, key: JobKey) -> Path:
        """That folder, made if need be; private by its mode, whatever the umask is."""
        folder = self.job_path(key)
        for path in (folder.parent.parent, folder.parent, folder):
            with suppress(FileExistsError):
                make_directory(path, 0o700)
        return folder

    def create(self, spec: SessionSpec) -> int:
        """Make the directory with its spec, durably; nothing runs yet.

        Returns the descriptor of `root.lock`, held: whoever finds the spec finds somebody who lives for it.

        Raises:
            InputError: the spec holds text that is no UTF-8, or others may write in the results directory.
            StoreError: it cannot be written; what was made is removed again.
        """
        from sessionrun import creation

        return creation.create_session(self, spec)

    def discard(self) -> None:
        """Remove a directory in which nothing has run, and those that were made for it."""
        from sessionrun import creation

        creation.discard_session(self)

    def load_spec(self) -> SessionSpec:
        """Read the spec.

        Raises:
            StoreError: missing or damaged.
        """
        from sessionrun.model import spec_from_record

        try:
            return spec_from_record(self._load(self.spec_path))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{self.spec_path} is damaged: {error!r}") from error

    def load_status(self) -> dict[str, Any] | None:
        """Read status.json; None when it is not there or damaged (it may be rebuilt from the logs)."""
        return self._load_cache(self.status_path)

    def read_status(self) -> bytes | None:
        """The bytes of status.json, complete and of this version; None when there is no such."""
        try:
            content = _read(self.status_path)
        except FileNotFoundError:
            return None
        whole = content.startswith(b'{"schema_version":%d,' % STATUS_VERSION) and content.endswith(b"}\n")
        return content if whole else None

    def load_summary(self) -> dict[str, Any] | None:
        """Read the summary; None when it is not there or damaged."""
        return self._load_cache(self.summary_path)

    def load_journal(self) -> tuple[list[Entry], LogContents]:
        """Read the journal's entries.

        Raises:
            StoreError: it is a newer version's: an entry that this one does not know, or does by another meaning.
        """
        from sessionrun.events import JOURNAL_VERSION, SessionStarted, SupervisorStarted, from_record
        from sessionrun.journal import read_log

        contents = read_log(self.journal_path)
        try:
            entries = [from_record(orjson.loads(payload)) for payload in contents.payloads]
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{self.journal_path}: {error}; was it written by a newer version?") from error
        begun = [entry.event for entry in entries if isinstance(entry.event, (SessionStarted, SupervisorStarted))]
        newer = next((event for event in begun if event.journal_version > JOURNAL_VERSION), None)
        if newer is not None:
            raise StoreError(f"{self.journal_path} was written by sessionrun {newer.version}: use that one")
        return entries, contents

    def replace_status(self, status: dict[str, Any], summary: dict[str, Any], *, durable: bool) -> None:
        """Replace status.json and the summary, each atomically.

        A summary that lags behind after a power cut is only older; but an end that was taken back must be so there
        too, for whoever finds an end looks no further.
        """
        replace_file(self.status_path, orjson.dumps(status, option=orjson.OPT_APPEND_NEWLINE), durable=durable)
        durable = durable and summary["ended_at"] is None
        replace_file(self.summary_path, orjson.dumps(summary, option=orjson.OPT_APPEND_NEWLINE), durable=durable)

    def hold_lock(self, name: str, *, timeout_s: float = 2.0) -> int:
        """Take one of the locks for life; the descriptor keeps it.

        Raises:
            StoreError: another process holds it.
        """
        fd = locks.hold(self.path / name, timeout_s=timeout_s)
        if fd is None:
            raise StoreError(f"another process runs session {self.session_id}")
        return fd

    def held_locks(self) -> tuple[str, ...]:
        """Which of its locks are held now."""
        return tuple(name for name in LOCK_NAMES if locks.is_held(self.path / name))

    def is_alive(self) -> bool:
        """Whether a process of this session's chain lives: one of its locks is held."""
        return any(locks.is_held(self.path / name) for name in LOCK_NAMES)

    def send_request(self, record: dict[str, Any]) -> tuple[str, bool]:
        """Leave a request and ring; see `inbox.send_request`."""
        from sessionrun import inbox

        return inbox.send_request(self, record)

    def has_request(self, request_id: str) -> bool:
        """Whether the request still waits to be taken."""
        from sessionrun import inbox

        return inbox.has_request(self, request_id)

    def drop_request(self, request_id: str) -> None:
        """Acknowledge a request: its journal record is durable."""
        from sessionrun import inbox

        inbox.drop_request(self, request_id)

    def _load_cache(self, path: Path) -> dict[str, Any] | None:
        try:
            content = orjson.loads(_read(path))
        except (FileNotFoundError, orjson.JSONDecodeError):
            return None
        known = isinstance(content, dict) and content.get("schema_version") == STATUS_VERSION
        return content if known else None

    def _load(self, path: Path) -> Any:
        try:
            return orjson.loads(_read(path))
        except orjson.JSONDecodeError as error:
            raise StoreError(f"{path} is damaged: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except NotRegular as error:
        raise StoreError(f"{path} is not a regular file: put it aside") from error


def replace_file(path: Path, content: bytes, *, durable: bool, mode: int = 0o600) -> None:
    """Write a file beside its place and rename it there: a reader sees the old or the new, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = open_regular(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        crashpoint.call()
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        if durable:
            os.fsync(fd)
    except OSError:
        os.unlink(beside)
        raise
    finally:
        os.close(fd)
    crashpoint.step()
    os.replace(beside, path)
    crashpoint.step()
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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


def find_session(results_dir: Path, wanted: str, *, last_of_index: bool = True) -> SessionDir:
    """Find a session by id, unambiguous prefix or ``last``: first here, then in the user's index.

    Without `last_of_index` ``last`` is the newest one here.

    Raises:
        SessionNotFound: none, or several.
    """
    from sessionrun import index

    if wanted == "last":
        here = [session for session in iterate_sessions(results_dir) if session.spec_path.exists()]
        newest = max(here, key=lambda session: _age(session.spec_path), default=None)
        if newest is None and not last_of_index:
            raise SessionNotFound(f"there is no session in {results_dir}; name one of elsewhere by its id")
        newest = newest or index.newest()
        if newest is None:
            raise SessionNotFound(f"there is no session in {results_dir} or in your index yet")
        return newest
    name = wanted.removeprefix(PREFIX)
    here = [session for session in iterate_sessions(results_dir) if session.session_id.startswith(name)]
    matches = here or index.find(name)
    exact = [session for session in matches if session.session_id == name]
    matches = [session for session in exact or matches if session.spec_path.exists()]
    if not name or not matches:
        raise SessionNotFound(f"no session {wanted!r} in {results_dir}; `sessionrun list --all` shows them")
    if len(matches) > 1:
        ids = ", ".join(sorted(session.session_id for session in matches)[:3])
        raise SessionNotFound(f"{wanted!r} matches {len(matches)} sessions ({ids} ...): give more of the id")
    return matches[0]


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
