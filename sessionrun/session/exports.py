"""Exports: files in other programs' formats that show a session while it runs, outside of its directory.

An export is a projection of status.json, and no session reads its own.  So it can be written anew at any time, and
what goes wrong with it never harms the session: the log and status.json tell it.  The supervisor writes exports
before status.json.  So a reader that finds the end in status.json finds it in the exports, too.

Each kind is an `ExportFile`, in a module beside what reads the format, or here; see `open_exports`.  All files of
an export belong to one session at a time.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import orjson

from sessionrun.house import HOUSE, load
from sessionrun.model.errors import InputError, SessionrunError, StoreError
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import JOB_STATUS, MATRIX_RESULTS, Export, SessionSpec, TaskSpec
from sessionrun.model.words import format_time
from sessionrun.store import outside
from sessionrun.store.creation import has_records
from sessionrun.store.files import NotRegular, find_beside, read_regular
from sessionrun.store.outside import CLAIM_PATIENCE_S
from sessionrun.store.session import SessionDir


@frozen
class Shown:
    """What an export shows: a session, and the object of its status.json."""

    session: SessionDir
    spec: SessionSpec
    status: Mapping[str, Any]


class ExportFile(ABC):
    """One export; a kind overrides what is not so for its file."""

    what: ClassVar[str]
    """What its file is called in messages, with its article."""

    named_by: ClassVar[tuple[str, ...]]
    """The settings that say where its files are."""

    file: ClassVar[str] = ""
    """The file that says whose they are, in the first of these places; "": the place is that file."""

    leaves_out: ClassVar[str] = "succeeded"
    """What tasks did before that need not run again."""

    def __init__(self, export: Export) -> None:
        self.export = export
        places = export.places or {key: os.path.realpath(export.settings[key]) for key in self.named_by}
        self.places: Mapping[str, Path] = {key: Path(place) for key, place in places.items()}
        self.path = self.places[self.named_by[0]] / self.file
        self._shown: str = export.settings[self.named_by[0]]

    @abstractmethod
    def parts(self, shown: Shown, *, durable: bool, failed: bool) -> Iterator[tuple[str, Callable[[], None]]]:
        """What is written, again and again, each with the beginning of what is said when it cannot be.

        `failed` says that it could not be before.
        """

    @abstractmethod
    def make_first(self, folder: int, shown: Shown) -> object:
        """The document when a session is about to start; `folder` is the file's directory."""

    @abstractmethod
    def refuse_living(self, session: SessionDir) -> None:
        """Raises InputError if a session beside this one has it, or something else lies in its place."""

    def make_places(self) -> None:  # noqa: B027  a kind with one file needs none
        """Make the directories beside the file's own."""

    def claim(self, shown: Shown) -> None:
        """Make the export that of a session that is about to start, whose locks are held."""
        self.refuse_living(shown.session)  # before anything is made for a launch that comes to nothing
        try:
            self.make_places()
            with outside.hold_file(self.path, timeout_s=CLAIM_PATIENCE_S, make=True) as folder:
                self.refuse_living(shown.session)
                document = self.make_first(folder, shown)
                outside.replace_below(folder, self.path.name, dump(document), durable=True)
        except OSError as error:
            raise StoreError(f"cannot write {self._shown}: {outside.describe(error)}") from error

    @abstractmethod
    def find_fault(self, document: Any) -> str | None:
        """Why a document of JSON is none of this kind; None: it is one."""

    def load(self) -> Any:
        """The document in the file; None if the file does not exist.

        Raises:
            InputError: there is something else in its place, or it cannot be read.
        """
        try:
            with outside.open_folder(self.path.parent) as folder:
                document = orjson.loads(read_regular(self.path.name, dir_fd=folder))
            fault = self.find_fault(document)
        except FileNotFoundError:
            return None
        except NotRegular:
            fault = "is not a plain file"
        except orjson.JSONDecodeError:
            fault = "is not JSON"
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from None
        if fault is not None:
            raise InputError(f"{self.path} {fault}, so it is not {self.what}: move it away or name another one")
        return document

    def carry_over(self, tasks: Sequence[TaskSpec]) -> tuple[Export, set[str]]:
        """The export with the runs that succeeded before, and the ids of the tasks that need not run for it."""
        return self.export, set()

    def find_behind(self, session: SessionDir) -> str | None:
        """The export's file, if its session has ended and it does not say so: it could not be written."""
        return None

    def remark_on_owner(self) -> str | None:
        """What to say of a session that was interrupted over the export's file; None: there is none."""
        return None

    def find_outputs(self, session: SessionDir) -> str | None:
        """A directory whose links lead into the session: with it they lose what they show."""
        return None


class OwnedFile(ExportFile):
    """A file that says whose it is (`session`): the session that was launched last with it.

    An older one that is resumed leaves it alone.
    """

    elsewhere: ClassVar[str]
    """How the user writes somewhere else while a session that lives has the file."""

    @abstractmethod
    def has_ended(self, document: Any) -> bool:
        """Whether the document says that its session has ended."""

    def load_if_whole(self) -> Any:
        """What the file holds; None where it cannot be read, or something else lies there."""
        try:
            return self.load()
        except (OSError, SessionrunError):
            return None

    def find_owner(self) -> SessionDir | None:
        """The session that was launched last with the file."""
        return _find_owner(self.load_if_whole())

    def refuse_living(self, session: SessionDir) -> None:
        owner = self.find_owner()
        if owner is not None and lives_beside(owner, session.path):
            raise InputError(
                f"{self._shown} is being written by session {owner.session_id}: wait for it, or {self.elsewhere}"
            )
        self.load()

    def check_ours(self, session: SessionDir) -> None:
        """Raises InputError when the file is not this session's to replace."""
        if not is_ours(self.load(), session):
            raise InputError("it belongs to a later session, and is left alone")

    def find_behind(self, session: SessionDir) -> str | None:
        """See `ExportFile`; a later session's file is not behind."""
        document = self.load_if_whole()
        shows_end = document is not None and self.has_ended(document)
        return None if shows_end or not is_ours(document, session) else str(self.path)

    def remark_on_owner(self) -> str | None:
        owner = self.find_owner()
        if owner is None or owner.is_alive() or not has_records(owner):
            return None
        summary = owner.load_summary()
        if summary is not None and summary["ended_at"]:
            return None
        return (
            f"session {owner.session_id}, which wrote {self._shown}, was interrupted: what it began is begun anew "
            f"(to go on with it instead: sessionrun resume {owner.session_id})"
        )


def is_ours(document: Any, session: SessionDir) -> bool:
    """Whether no later session has the file of this document."""
    owner = _find_owner(document)
    return owner is None or owner.path == session.path.absolute()


def _find_owner(document: Any) -> SessionDir | None:
    named = None if document is None else document.get("session")
    return SessionDir(Path(named)) if isinstance(named, str) else None


def lives_beside(owner: SessionDir, session: Path) -> bool:
    """Whether an owner of a file lives and is another session than the one in this directory."""
    return owner.path != session.absolute() and owner.is_alive()


def dump(document: object) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


# --- the status of job files ---

_PATIENCE_S: Final = 1.0
_LAST_PATIENCE_S: Final = 5.0
"""How long a supervisor waits for the lock on the file, and at the session's end."""
_FAILED: Final = ("failed", "timed_out", "lost", "interrupted")


class JobStatus(ExportFile):
    """The file ``_jobstatus.json``: how job files stand, in the words of the program that began it.

    It has no owner: each entry says whose it is, and links to nothing.  Several sessions may write the same file:
    each changes only the entries that bear its id, under a lock, and the session that was launched last with a job
    file has its entry.  Entries of job files that are gone are dropped.
    """

    what = "a status file of job files"
    named_by = ("path",)

    def __init__(self, export: Export) -> None:
        super().__init__(export)
        self._jobs: Mapping[str, Sequence[str]] = export.settings["jobs"]

    def parts(self, shown: Shown, *, durable: bool, failed: bool) -> Iterator[tuple[str, Callable[[], None]]]:
        """See `ExportFile`.  A session goes on although another process never gives back the file's lock."""
        patience_s = _LAST_PATIENCE_S if shown.status["ended_at"] is not None else 0 if failed else _PATIENCE_S
        yield f"{self.path} is not written", partial(self.write, shown, patience_s)

    def find_fault(self, document: Any) -> str | None:
        is_list = isinstance(document, list) and all(
            isinstance(entry, dict) and "id" in entry for entry in document
        )
        return None if is_list else "is no list of entries with an id"

    def make_first(self, folder: int, shown: Shown) -> object:
        """See `ExportFile`: the entries of the session's job files become its own."""
        return self._list_entries(self._load_entries(), shown, claim=True)

    def write(self, shown: Shown, patience_s: float) -> None:
        """Bring the entries of the session's job files up to date.

        Raises:
            InputError: there is something else than a status file in its place.
            SessionrunError: another process holds the file for longer than `patience_s`.
        """
        with outside.hold_file(self.path, timeout_s=patience_s) as folder:
            old = self._load_entries()
            new = self._list_entries(old, shown)
            if new != sorted(old.values(), key=_order):
                outside.replace_below(folder, self.path.name, dump(new), durable=False)

    def _load_entries(self) -> dict[str, Mapping[str, Any]]:
        return {entry["id"]: entry for entry in self.load() or ()}

    def _list_entries(
        self, old: Mapping[str, Mapping[str, Any]], shown: Shown, *, claim: bool = False
    ) -> list[Mapping[str, Any]]:
        """All entries, with those that are this session's as they are now."""
        session_id, tasks = shown.session.session_id, {task["id"]: task for task in shown.status["tasks"]}
        files = Path(self.export.settings["path"]).parent
        new = {job_id: entry for job_id, entry in old.items() if (files / f"{job_id}.md").exists()}
        for job_id, parts in self._jobs.items():
            entry = old.get(job_id, {})
            if claim or entry.get("session", session_id) == session_id:
                word, error = word_job([tasks[part] for part in parts if part in tasks])
                new[job_id] = _update(entry, job_id, word, error, shown.session)
        return sorted(new.values(), key=_order)

    def refuse_living(self, session: SessionDir) -> None:
        """See `ExportFile`: two sessions that run the same job file at once would write the same files."""
        entries = self._load_entries()
        for entry in (entries[job_id] for job_id in self._jobs if job_id in entries):
            owner = SessionDir(Path(str(entry.get("results_dir", session.path))))
            if str(entry.get("status")).startswith("pending") and lives_beside(owner, session.path):
                why = f"is being run by session {entry.get('session')}: wait for it, or cancel it"
                raise InputError(f"job file {entry['id']} {why}")


def _order(entry: Mapping[str, Any]) -> str:
    return str(entry["id"])


def word_job(parts: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """The status word of a job file and what went wrong, from its tasks; the last has its id."""
    failed = next((task for task in parts if task["outcome"] in _FAILED), None)
    if failed is not None:
        begun = any(task["outcome"] == "succeeded" and not task["id"].endswith(".test") for task in parts)
        return "partial" if begun else "fail", failed["reason"]
    if parts[-1]["outcome"] == "succeeded":
        return "pass", None
    if any(task["outcome"] in ("skipped", "cancelled") for task in parts):
        return "created", None
    active = next((task for task in parts if task["status"] != "completed"), parts[-1])
    if active["phase"] in ("checking", "landing", "releasing"):
        return "pending_verification", None
    return "pending_test" if active["id"].endswith(".test") else "pending_work", None


def _update(
    entry: Mapping[str, Any], job_id: str, word: str, error: str | None, session: SessionDir
) -> dict[str, Any]:
    now, owner = format_time(time.time()) or "", session.session_id
    same = entry.get("status") == word and entry.get("error") == error and entry.get("session") == owner
    return {
        "id": job_id,
        "status": word,
        "created_at": entry.get("created_at", now),
        "updated_at": entry.get("updated_at", now) if same else now,
        **({"error": error} if error else {}),
        "ran": word in ("pass", "fail", "partial"),
        "session": owner,
        "results_dir": str(session.path),
    }


# --- the exports of a session ---

_KINDS: Final[Mapping[str, str]] = {
    MATRIX_RESULTS: "session.matrix_results:MatrixResults",
    JOB_STATUS: "session.exports:JobStatus",
}
"""The class of each kind that is of no business; the house has the others."""


def open_exports(exports: Iterable[Export]) -> list[ExportFile]:
    """Each export with what its kind does; the module of a kind is imported when a session has one.

    Raises:
        StoreError: the spec of the session is damaged: it has a kind or a place that there is not.
    """
    kinds = dict(_KINDS)
    for business in HOUSE:
        for row in business.formats.values():
            kinds |= row.exports
    try:
        return [load(kinds[export.kind])(export) for export in exports]
    except KeyError as error:
        raise StoreError(f"spec.json is damaged: no export has {error}") from None


def settle_exports(exports: Iterable[Export]) -> tuple[Export, ...]:
    """The exports with the places of their files: a launch does this once, and it stays so."""
    opened = open_exports(exports)
    return tuple(
        replace(one.export, places={key: str(place) for key, place in one.places.items()}) for one in opened
    )


class ExportWriter:
    """Writes the exports of one session."""

    def __init__(self, session: SessionDir, spec: SessionSpec) -> None:
        self._session = session
        self._spec = spec
        self._exports = open_exports(spec.exports)
        self._told: set[str] = set()
        self.problems: list[str] = []
        """What could not be brought up to date by the last `write`, and why."""

    def write(self, status: Mapping[str, Any], *, durable: bool) -> str | None:
        """Bring the exports up to date; never raises.  What went wrong, if that is something new."""
        problems: list[str] = []
        if self._exports:
            status = {**status, "tasks": list(status["tasks"])}  # made once, for all of them
        shown = Shown(self._session, self._spec, status)
        for export in self._exports:
            for name, write in export.parts(shown, durable=durable, failed=bool(self._told)):
                try:
                    write()
                except Exception as error:  # whatever it is, the session goes on
                    problems.append(f"{name}: {outside.describe(error)}")
        problems = list(dict.fromkeys(problems))  # parts of one export may say the same
        fresh = [problem for problem in problems if problem not in self._told]
        self._told.update(fresh)
        self.problems = problems
        return "\n".join(fresh) or None


def find_behind(session: SessionDir, spec: SessionSpec) -> list[str]:
    """The files of a session that ended which do not say so: it could not write them."""
    paths = [export.find_behind(session) for export in open_exports(spec.exports)]
    return [path for path in paths if path is not None]


def find_left(exports: Iterable[Export]) -> list[Path]:
    """What writers that died have left beside the files of exports, and beside the files in their directories."""
    left: dict[Path, None] = {}
    for place in (Path(place) for export in exports for place in export.places.values()):
        left |= {place.parent / name: None for name in find_beside(place.parent, (place.name,))}
        if place.is_dir():
            left |= {place / name: None for name in find_beside(place, os.listdir(place))}
    return list(left)
