"""The export ``_jobstatus.json``: how job files stand, in the words of the program that began it.

Several sessions may write the same file: each changes only the entries that bear its id, under a lock, and the
session that was launched last with a job file has its entry.  Entries of job files that are gone are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from sessionrun.model.errors import InputError
from sessionrun.model.spec import Export
from sessionrun.model.units import format_time
from sessionrun.session.exports import ExportFile, Shown, dump, lives_beside
from sessionrun.store.outside import hold_file, replace_below
from sessionrun.store.session import SessionDir

_PATIENCE_S: Final = 1.0
_LAST_PATIENCE_S: Final = 5.0
"""How long a supervisor waits for the lock on the file, and at the session's end."""
_FAILED: Final = ("failed", "timed_out", "lost", "interrupted")


class JobStatus(ExportFile):
    """One status file.  It has no owner: each entry says whose it is, and links to nothing."""

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
        with hold_file(self.path, timeout_s=patience_s) as folder:
            old = self._load_entries()
            new = self._list_entries(old, shown)
            if new != sorted(old.values(), key=_order):
                replace_below(folder, self.path.name, dump(new), durable=False)

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
