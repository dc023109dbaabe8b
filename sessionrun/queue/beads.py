"""The backend `beads`: the issues in `.beads`, by the program `bd` or its port `br`.

The program's `ready` says which beads are ready: it knows kinds of dependencies that this module does not.  Three
rules come on top.  A bead with an assignee is taken.  A bead with children is a group.  After a claim the blockers
are looked at again, since a version may claim a blocked bead.  Changes of several steps are made under the lock of
the place.

What is asked of the program are words, and it answers with JSON, or refuses in its own words.

A bead's priority is 0 (most urgent) to 4, usually 2; ours is bigger for what goes first, usually 0.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from sessionrun.model.errors import InputError, StoreError
from sessionrun.queue.feed import Contents, Feed
from sessionrun.queue.task import Changes, Draft, QueuePlace, QueueTask, Status, Worker, by_id
from sessionrun.store import locks, programs
from sessionrun.store.files import usual_umask

NAME: Final = "beads"
PLACE: Final = ".beads"

ASKED_AGAIN: Final = "open again"
"""The reason of a bead that is opened again without another one."""

LOCK_TIMEOUT_S: Final = 300.0
_AT_ONCE: Final = 100
"""How many beads one command shows: the words of a command are limited."""


Bead = dict[str, Any]
"""An issue in the JSON of `bd show` or `bd list`."""

EPIC: Final = "epic"
NOTE: Final = "sessionrun: "
"""What a comment begins with that says why a bead is open again."""

_USUAL: Final = 2
_LAST: Final = 4
_DELETED: Final = "tombstone"
_CLOSED: Final = ("closed", _DELETED)
_ACTOR: Final = "sessionrun/"
"""What the assignee of a claimed bead begins with: then the session, a slash and the worker's name."""

_BLOCKING: Final = ("blocks", "conditional-blocks", "waits-for")
_PARENT: Final = "parent-child"

PROGRAMS: Final = ("bd", "br")
"""The names it is looked for by, in this order."""

TIMEOUT_S: Final = 10.0
"""An answer takes far less than a second; a program that hangs must not hold up the queue."""

MAX_ARGUMENT: Final = 100_000
"""Bytes: Linux lets no argument be longer than 128 KiB."""

LACKS_OPTION: Final = ("unknown flag", "unknown command", "unexpected argument", "unrecognized")
"""Parts of what a version says that does not know an option or a command that it was given."""

FINDS_NOTHING: Final = ("not found", "no issue found", "no issues found")
"""Likewise where there is no bead of the id that it was given."""


class Refusal(InputError):
    """The program ended with an error; the text is what it said, on one line."""

    def says(self, words: Sequence[str]) -> bool:
        """Whether one of these is a part of it, in whatever letters."""
        return any(word in str(self).lower() for word in words)


class Program(Contents):
    """The program, and the beads of a directory that it is asked for: one command for each step."""

    def __init__(self, path: str, top: Path) -> None:
        self.path = path
        self.top = top
        self.kind = os.path.basename(path)

    def ask(self, *words: str, excuse: Sequence[str] = ()) -> Any:
        """Run a command with `--json`; return what it printed, None for nothing or a refusal that says `excuse`.

        Raises:
            Refusal: it ended with an error.
            StoreError: it does not run, does not end, or prints no JSON.
        """
        try:
            printed = self.run(words[0], "--json", *words[1:]).strip()
            return json.loads(printed) if printed else None
        except Refusal as refusal:
            if refusal.says(excuse):
                return None
            raise
        except ValueError:
            raise StoreError(f"{self.kind} {words[0]}: what it printed is not JSON: {printed[:80]!r}") from None

    def run(self, *words: str) -> str:
        """Run a command; return its standard output.

        Raises:
            Refusal: it ended with an error.
            StoreError: it does not run, or does not end.
        """
        try:
            longest = max(len(word.encode()) for word in words)
        except UnicodeEncodeError:
            raise InputError("a title, text or reason is not UTF-8") from None
        if longest > MAX_ARGUMENT:
            raise InputError(f"{self.kind} takes no text of more than {MAX_ARGUMENT} bytes")
        code, out, err = self.execute(words)
        if code != 0:
            raise Refusal(f"{self.kind} {words[0]}: {_read_message(out, err) or f'exit code {code}'}")
        return out

    def execute(self, words: Sequence[str]) -> tuple[int, str, str]:
        """Run a command; return its exit code and what it printed on standard output and standard error.

        Raises:
            StoreError: it does not run, or does not end.
        """
        environ = {**os.environ, "BEADS_NO_DAEMON": "1", "NO_COLOR": "1"}
        try:
            argv = [self.path, *words]
            done = programs.run(argv, cwd=self.top, environ=environ, limit_s=TIMEOUT_S, umask=usual_umask())
            return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            why = f"did not end within {TIMEOUT_S:g} s, and was stopped: run it in {self.top} to see why"
            raise StoreError(f"{self.kind} {words[0]} {why}") from None
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}") from error

    # --- the beads ---

    def load(self, ids: Collection[str] | None = None, *, for_claims: bool = True) -> dict[str, QueueTask]:
        if ids is not None and not ids:
            return {}
        ready = self._ready_ids() if for_claims else None
        wanted = [bead["id"] for bead in self._list()] if ids is None else ids
        beads = [bead for bead in self._show(wanted) if bead.get("status") != _DELETED]
        beads.sort(key=lambda bead: str(bead.get("created_at")))
        return by_id(project(bead, ready) for bead in beads)

    def take(self, task: QueueTask, worker: Worker) -> QueueTask | None:
        """Claim a bead that was ready; give it back if it turns out to be blocked."""
        actor, refused = f"{_ACTOR}{worker.session}/{worker.name}", None
        try:
            self.ask("update", task.id, "--claim", f"--actor={actor}")
        except Refusal as refusal:
            if refusal.says(LACKS_OPTION):
                self.ask("update", task.id, "--status=in_progress", f"--assignee={actor}", f"--actor={actor}")
            else:
                refused = refusal
        task = self._look(task)
        if task.worker != worker:
            if refused is not None and task.id in self._ready_ids():  # not because it is taken or blocked
                raise refused
            return None
        if task.blocked_by:
            self._free(task)
            return None
        return task

    def mark(self, task: QueueTask, status: Literal["open", "closed"], reason: str | None) -> None:
        if status == "closed":
            self.ask("close", task.id, f"--reason={reason or 'done'}")
            return
        self._free(task)
        if reason is None and self._look(task).reason is not None:  # of an earlier time: a comment stays
            reason = ASKED_AGAIN
        if reason:
            words = ("comments", "add", task.id, "--", f"{NOTE}{reason}")
            self.ask(*words, excuse=LACKS_OPTION)  # a version without comments keeps no reason

    def make(self, draft: Draft) -> str:
        words = [f"--priority={_USUAL - draft.priority}"]
        words += [f"--description={draft.body}"] if draft.body else []
        words += [f"--deps={','.join(draft.depends)}"] if draft.depends else []
        words += [f"--parent={draft.group}"] if draft.group else []
        return self._make(*words, "--", draft.title)

    def change(self, task: QueueTask, changes: Changes) -> None:
        priority = None if changes.priority is None else _USUAL - changes.priority
        values = {
            "title": changes.title,
            "description": changes.body,
            "priority": priority,
            "parent": changes.group,
        }
        words = [f"--{name}={value}" for name, value in values.items() if value is not None]
        if words:
            self.ask("update", task.id, *words)
        depends = task.depends if changes.depends is None else changes.depends
        for need in set(task.depends) - set(depends):
            self.ask("dep", "remove", task.id, need)
        for need in depends:
            if need not in task.depends:
                self.ask("dep", "add", task.id, need)

    def delete(self, task: QueueTask) -> None:
        self.ask("delete", task.id, "--force")

    def find_group(self, name: str) -> QueueTask | None:
        """The bead of this id, or the epic of this title."""
        if (group := self.load([name], for_claims=False).get(name)) is not None:
            return group
        epics = [bead["id"] for bead in self._list() if bead.get("issue_type") == EPIC and bead["title"] == name]
        return next(iter(self.load(epics[:1], for_claims=False).values()), None)

    def make_group(self, name: str) -> str:
        return self._make(f"--type={EPIC}", "--", name)

    def _list(self) -> list[Bead]:
        listed = self.ask("list", "--all", "--limit=0", excuse=LACKS_OPTION)
        if listed is None:
            listed = self.ask("list")  # a version whose list is whole
        beads = (listed.get("issues") if isinstance(listed, dict) else listed) or []
        return [bead for bead in beads if bead.get("status") != _DELETED]

    def _ready_ids(self) -> set[str]:
        return {bead["id"] for bead in self.ask("ready", "--limit=0") or ()}

    def _show(self, ids: Collection[str]) -> list[Bead]:
        wanted = sorted(ids)
        shown: list[Bead] = []
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            found = self.ask("show", *part, excuse=FINDS_NOTHING if len(wanted) == 1 else ()) or []
            shown += found if isinstance(found, list) else [found]
        return shown

    def _look(self, task: QueueTask) -> QueueTask:
        """A task as it is now."""
        return project(self._show([task.id])[0], None)

    def _free(self, task: QueueTask) -> None:
        if task.status == "closed":
            # first: a bead that is open with an assignee is stuck
            self.ask("update", task.id, "--assignee=")
            self.ask("reopen", task.id)
        else:
            self.ask("update", task.id, "--status=open", "--assignee=")

    def _make(self, *words: str) -> str:
        made = self.ask("create", *words)
        return str((made[0] if isinstance(made, list) else made)["id"])


def _read_message(out: str, err: str) -> str:
    for text in (err, out):
        start = text.find("{")
        try:
            record = json.loads(text[start:]) if start >= 0 else None
        except ValueError:
            continue
        problem = record.get("error") if isinstance(record, dict) else None
        message = problem.get("message") if isinstance(problem, dict) else problem
        if isinstance(message, str) and message:
            return " ".join(message.split())
    line = (err.strip() or out.strip()).partition("\n")[0]
    return " ".join(line.split()).removeprefix("Error: ")


def find(place: QueuePlace) -> BeadsFeed | None:
    """Return the beads of a place; None if there are none, or no program for them is on `PATH`."""
    path = next(filter(None, map(shutil.which, PROGRAMS)), None) if (place.top / PLACE).is_dir() else None
    return None if path is None else BeadsFeed(place, Program(os.path.abspath(path), place.top))


class BeadsFeed(Feed):
    """The queue in Beads."""

    name = NAME
    priorities = (_USUAL - _LAST, _USUAL)

    def __init__(self, place: QueuePlace, program: Program) -> None:
        self.place = place.top / PLACE
        self._lock = place.lock
        self._program = program

    def _read(self) -> Program:
        return self._program

    @contextmanager
    def _hold(self) -> Iterator[Program]:
        with locks.hold_lock(self._lock, 0o600, LOCK_TIMEOUT_S):
            yield self._program

    def sync(self) -> bool:
        try:
            self._program.run("sync", *(("--flush-only",) if self._program.kind == "br" else ()))
        except Refusal as refusal:
            if refusal.says(LACKS_OPTION):
                return False
            raise
        return True


# --- a bead as a task; pure ---


def project(bead: Bead, ready: Collection[str] | None) -> QueueTask:
    """The task that a bead is, as `show` prints it; `ready` are the ids that the program calls so, None: all."""
    assignee = str(bead.get("assignee") or "")
    blockers = [one for one in _iterate(bead, "dependencies", _BLOCKING) if one.get("status") not in _CLOSED]
    is_group = bead.get("issue_type") == EPIC or any(_iterate(bead, "dependents", (_PARENT,)))
    is_told = ready is None or bead["id"] in ready
    status = _status(bead, is_free=not assignee and (bool(blockers) or is_group or is_told))
    session, slash, name = assignee.removeprefix(_ACTOR).partition("/")
    is_ours = status == "claimed" and assignee.startswith(_ACTOR) and slash
    parents = [str(one["id"]) for one in _iterate(bead, "dependencies", (_PARENT,))]
    return QueueTask(
        id=str(bead["id"]),
        title=str(bead.get("title") or ""),
        body=str(bead.get("description") or ""),
        status=status,
        backend_status=str(bead.get("status")),
        priority=_USUAL - int(bead.get("priority", _USUAL)),
        depends=tuple(str(one["id"]) for one in _iterate(bead, "dependencies", _BLOCKING)),
        group=parents[0] if parents else None,
        is_group=is_group,
        worker=Worker(name, session) if is_ours else None,
        reason=_read_reason(bead, status),
        blocked_by=tuple(str(one["id"]) for one in blockers),
    )


def _status(bead: Bead, *, is_free: bool) -> Status:
    word = bead.get("status")
    if word in _CLOSED:
        return "closed"
    if word == "in_progress":
        return "claimed"
    return "open" if word == "open" and is_free else "deferred"


def _read_reason(bead: Bead, status: Status) -> str | None:
    if status == "closed":
        return str(bead.get("close_reason") or "") or None
    notes = [str(one.get("text") or "") for one in bead.get("comments") or ()]
    ours = [note.removeprefix(NOTE) for note in notes if note.startswith(NOTE)]
    return ours[-1] if ours else None


def _iterate(bead: Bead, key: str, kinds: Collection[str]) -> Iterator[Bead]:
    for one in bead.get(key) or ():
        if one.get("dependency_type", "blocks") in kinds:
            yield one
