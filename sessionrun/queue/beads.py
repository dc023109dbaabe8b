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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sessionrun.input.limits import plain
from sessionrun.model.errors import InputError, StoreError
from sessionrun.queue.task import (
    ALL_CLOSED,
    Changes,
    Draft,
    QueuePlace,
    QueueTask,
    Status,
    TaskClaim,
    Worker,
    by_id,
    check_closing,
    check_removal,
    check_title,
    find_settled,
)
from sessionrun.store import locks, programs
from sessionrun.store.files import usual_umask

PROGRAMS: Final = ("bd", "br")
"""The names it is looked for by, in this order."""

TIMEOUT_S: Final = 10.0
"""An answer takes far less than a second; a program that hangs must not hold up the queue."""

MAX_ARGUMENT: Final = 100_000
"""Bytes: Linux lets no argument be longer than 128 KiB."""


class Refusal(Exception):
    """The program ended with an error; the text is what it said, on one line."""


def lacks_option(refusal: Refusal) -> bool:
    """Whether this version does not know an option or a command that it was given."""
    return _says(refusal, "unknown flag", "unknown command", "unexpected argument", "unrecognized")


def finds_nothing(refusal: Refusal) -> bool:
    """Whether the program knows no bead of the id that it was given."""
    return _says(refusal, "not found", "no issue found", "no issues found")


def _says(refusal: Refusal, *words: str) -> bool:
    return any(word in str(refusal).lower() for word in words)


class Program:
    """The program, and the directory whose beads it is asked for."""

    def __init__(self, path: str, top: Path) -> None:
        self.path = path
        self.top = top
        self.kind = os.path.basename(path)

    def ask(self, *words: str) -> Any:
        """Run a command with `--json`; return what it printed, None for nothing.

        Raises:
            Refusal: it ended with an error.
            StoreError: it does not run, does not end, or prints no JSON.
        """
        printed = self.run(words[0], "--json", *words[1:]).strip()
        try:
            return json.loads(printed) if printed else None
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
            raise Refusal(_read_message(out, err) or f"exit code {code}")
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


def find_program(top: Path, path: str | None) -> Program | None:
    """Return the program for a directory; None if it is not on `path`."""
    found = (shutil.which(name, path=path) for name in PROGRAMS)
    program = next((one for one in found if one is not None), None)
    return None if program is None else Program(os.path.abspath(program), top)


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
_CLOSED: Final = ("closed", "tombstone")
_ACTOR: Final = "sessionrun/"
_BLOCKING: Final = ("blocks", "conditional-blocks", "waits-for")
_PARENT: Final = "parent-child"


def find(place: QueuePlace) -> BeadsFeed | None:
    """Return the beads of a place; None if there are none, or no program for them is on `PATH`."""
    program = find_program(place.top, os.environ.get("PATH")) if (place.top / PLACE).is_dir() else None
    return None if program is None else BeadsFeed(place, program)


class BeadsFeed:
    """The queue in Beads; see `feed.Feed` for the methods."""

    name = NAME

    def __init__(self, place: QueuePlace, program: Program) -> None:
        self.place: Path = place.top / PLACE
        self._lock = place.lock
        self._program = program

    def load(self) -> list[QueueTask]:
        return [*self._tasks().values()]

    def show(self, task_id: str) -> QueueTask:
        return project(self._find(task_id), self._ready_ids())

    def claim(self, task_id: str, worker: Worker) -> QueueTask | None:
        with self._hold():
            found = self._show([task_id])
            if not found:
                return None
            task = project(found[0], self._ready_ids())
            if task.claim is not None and task.claim.worker == worker:
                return task
            return self._take(task_id, worker) if task.is_ready else None

    def close(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        with self._hold():
            task = self._look(task_id)
            if worker is not None and (task.claim is None or task.claim.worker != worker):
                return None
            if task.is_group:
                check_closing(self._tasks(), task)
            if task.status != "closed":
                self._call("close", task_id, f"--reason={reason or 'done'}")
            self._settle_groups(task.group)
            return self.show(task_id)

    def reopen(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        with self._hold():
            task = self._look(task_id)
            if worker is not None and (task.claim is None or task.claim.worker != worker):
                return None
            self._open(task, reason)
            opened = self.show(task_id)
            if reason is None and opened.reason is not None:  # of an earlier time: a comment stays
                self._note(task_id, ASKED_AGAIN)
                opened = self.show(task_id)
            return opened

    def create(self, drafts: Sequence[Draft], *, unless_known: bool = False) -> list[QueueTask | None]:
        titles = [check_title(draft.title) for draft in drafts]
        with self._hold():
            known = {task.title for task in self.load()} if unless_known else set()
            made: list[QueueTask | None] = []
            for draft, title in zip(drafts, titles, strict=True):
                is_new = not unless_known or title not in known
                made.append(self.show(self._create(replace(draft, title=title))) if is_new else None)
                known.add(title)
            return made

    def edit(self, task_id: str, changes: Changes) -> QueueTask:
        with self._hold():
            task = self._look(task_id)
            words = []
            if changes.title is not None:
                words.append(f"--title={check_title(changes.title)}")
            if changes.body is not None:
                words.append(f"--description={changes.body}")
            if changes.priority is not None:
                words.append(f"--priority={format_priority(changes.priority)}")
            if changes.group is not None:
                words.append(f"--parent={self._find_group(changes.group) if changes.group else ''}")
            for need in changes.depends or ():
                self._find(need)
            if words:
                self._call("update", task_id, *words)
            if changes.depends is not None:
                self._change_depends(task, changes.depends)
            if changes.group is not None:
                self._settle_groups(task.group)
            return self.show(task_id)

    def remove(self, task_id: str) -> QueueTask:
        with self._hold():
            task = self._look(task_id)
            check_removal(self._tasks(), task)
            self._call("delete", task_id, "--force")
            self._settle_groups(task.group)
            return task

    def sync(self) -> bool:
        try:
            self._program.run("sync", *(("--flush-only",) if self._program.kind == "br" else ()))
        except Refusal as refusal:
            if lacks_option(refusal):
                return False
            raise self._fail("sync", refusal) from None
        return True

    def _tasks(self) -> dict[str, QueueTask]:
        """All tasks by id, in the order in which they were made."""
        ready = self._ready_ids()
        beads = self._show([bead["id"] for bead in self._list() if is_visible(bead)])
        beads.sort(key=lambda bead: str(bead.get("created_at")))
        return by_id(project(bead, ready) for bead in beads)

    def _list(self) -> list[Bead]:
        listed = self._call("list", "--all", "--limit=0", excuse=lacks_option)
        if listed is None:
            listed = self._call("list")  # a version whose list is whole
        return (listed.get("issues") if isinstance(listed, dict) else listed) or []

    def _ready_ids(self) -> set[str]:
        return {bead["id"] for bead in self._call("ready", "--limit=0") or ()}

    def _show(self, ids: Sequence[str] | set[str]) -> list[Bead]:
        wanted = sorted(ids)
        shown: list[Bead] = []
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            found = self._call("show", *part, excuse=finds_nothing if len(wanted) == 1 else None) or []
            shown += found if isinstance(found, list) else [found]
        return shown

    def _find(self, task_id: str) -> Bead:
        beads = self._show([task_id])
        if not beads or not is_visible(beads[0]):
            raise InputError(f"the queue has no task {plain(task_id)!r}")
        return beads[0]

    def _look(self, task_id: str) -> QueueTask:
        """A task whose readiness does not matter."""
        return project(self._find(task_id), {task_id})

    def _take(self, task_id: str, worker: Worker) -> QueueTask | None:
        """Claim a bead that is ready; give it back if it turns out to be blocked."""
        refused = self._try_claim(task_id, format_actor(worker))
        task = project(self._show([task_id])[0], set())
        if task.claim is None or task.claim.worker != worker:
            if refused is not None and task_id in self._ready_ids():  # not because it is taken or blocked
                raise self._fail("update", refused)
            return None
        if task.blocked_by:
            self._open(task, None)
            return None
        return task

    def _try_claim(self, task_id: str, actor: str) -> Refusal | None:
        try:
            self._program.ask("update", task_id, "--claim", f"--actor={actor}")
        except Refusal as refusal:
            if not lacks_option(refusal):
                return refusal
            self._call("update", task_id, "--status=in_progress", f"--assignee={actor}", f"--actor={actor}")
        return None

    def _open(self, task: QueueTask, reason: str | None) -> None:
        if task.status == "closed":
            self._call("update", task.id, "--assignee=")  # first: a bead that is open with an assignee is stuck
            self._call("reopen", task.id)
        else:
            self._call("update", task.id, "--status=open", "--assignee=")
        if reason:
            self._note(task.id, reason)
        self._settle_groups(task.group)

    def _note(self, task_id: str, reason: str) -> None:
        words = ("comments", "add", task_id, "--", f"{NOTE}{reason}")
        self._call(*words, excuse=lacks_option)  # a version without comments keeps no reason

    def _settle_groups(self, name: str | None) -> None:
        """Close a group, and those around it, if all in it is closed; open it if something is not."""
        for group, is_done in find_settled(self._tasks() if name is not None else {}, name):
            self._call(*(("close", group, f"--reason={ALL_CLOSED}") if is_done else ("reopen", group)))

    def _create(self, draft: Draft) -> str:
        for need in draft.depends:
            self._find(need)
        words = [f"--priority={format_priority(draft.priority)}"]
        words += [f"--description={draft.body}"] if draft.body else []
        words += [f"--deps={','.join(draft.depends)}"] if draft.depends else []
        words += [f"--parent={self._find_group(draft.group)}"] if draft.group else []
        return self._make(*words, "--", draft.title)

    def _make(self, *words: str) -> str:
        made = self._call("create", *words)
        return str((made[0] if isinstance(made, list) else made)["id"])

    def _find_group(self, name: str) -> str:
        """The id of a group: a bead of this id, or the epic of this title, which is made if there is none."""
        found = self._show([name])
        if found:
            task = project(found[0], set())
            if task.status == "claimed":
                raise InputError(f"{name}: it is claimed, so it cannot become a group; close or reopen it first")
            if task.status == "closed":
                self._call("reopen", task.id)
            return task.id
        for bead in self._list():
            if bead.get("issue_type") == EPIC and bead["title"] == name and is_visible(bead):
                return self._find_group(bead["id"])
        return self._make(f"--type={EPIC}", "--", name)

    def _change_depends(self, task: QueueTask, depends: Sequence[str]) -> None:
        for need in set(task.depends) - set(depends):
            self._call("dep", "remove", task.id, need)
        for need in depends:
            if need not in task.depends:
                self._call("dep", "add", task.id, need)

    def _call(self, *words: str, excuse: Callable[[Refusal], bool] | None = None) -> Any:
        """What the program prints; None also for a refusal that `excuse` knows."""
        try:
            return self._program.ask(*words)
        except Refusal as refusal:
            if excuse is not None and excuse(refusal):
                return None
            raise self._fail(words[0], refusal) from None

    def _fail(self, verb: str, refusal: Refusal) -> InputError:
        return InputError(f"{self._program.kind} {verb}: {refusal}")

    def _hold(self) -> AbstractContextManager[None]:
        return locks.hold_lock(self._lock, 0o600, LOCK_TIMEOUT_S)


# --- a bead as a task; pure ---


def format_actor(worker: Worker) -> str:
    """Return the assignee of what a worker claims."""
    return f"{_ACTOR}{worker.session}/{worker.name}"


def parse_actor(assignee: str) -> Worker | None:
    """Return the worker that is meant; None: somebody else."""
    session, slash, name = assignee.removeprefix(_ACTOR).partition("/")
    return Worker(name, session) if assignee.startswith(_ACTOR) and slash else None


def format_priority(priority: int) -> int:
    """Return a priority as Beads counts it.  InputError: Beads has no such priority."""
    if not 0 <= _USUAL - priority <= _LAST:
        raise InputError(
            f"Beads has priorities from {_USUAL - _LAST} to {_USUAL} (P{_LAST} to P0), not {priority}"
        )
    return _USUAL - priority


def is_visible(bead: Bead) -> bool:
    """Whether a bead is a task: deleted ones leave a tombstone."""
    return bead.get("status") != "tombstone"


def project(bead: Bead, ready: Collection[str]) -> QueueTask:
    """The task that a bead is, as `show` prints it; `ready` are the ids that the program calls so."""
    assignee = str(bead.get("assignee") or "")
    blockers = [one for one in _iterate(bead, "dependencies", _BLOCKING) if one.get("status") not in _CLOSED]
    is_group = bead.get("issue_type") == EPIC or any(_iterate(bead, "dependents", (_PARENT,)))
    status = _status(bead, is_free=not assignee and (bool(blockers) or is_group or bead["id"] in ready))
    worker = parse_actor(assignee) if status == "claimed" else None
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
        claim=None if worker is None else TaskClaim(worker),
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
