"""`queue take`: the follow-ups that agents wrote go into the queue.

Agents append a task on each line to `suggested_tasks.txt` in the directory where they work: the main checkout,
or a worktree.  These files are emptied.  A file that git tracks is not: git would show the change, and a branch
cannot be emptied at all.  What it says counts once, by a list of what was taken.  That is how the follow-ups of a
worktree that was released come in: RELEASE commits the file to the branch of the task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sessionrun.client.lookup import resolve_results_dir
from sessionrun.client.notices import notify
from sessionrun.client.queue.feeds import open_queue
from sessionrun.client.reading.view import load_view
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.queue.place import QueuePlace, find_place
from sessionrun.queue.shelf import LIMIT, Shelf, State
from sessionrun.queue.suggestions import NAME, find_open, fold, make_draft, read_line
from sessionrun.queue.task import Draft
from sessionrun.store.files import read_regular
from sessionrun.store.lookup import find_session

if TYPE_CHECKING:
    from sessionrun.workspaces.git import Git

MAX_TASKS: Final = 100
"""How many tasks one call makes, if nothing else is said."""


class Ingested(NamedTuple):
    """What became of the lines.

    Attributes:
        added: `id` (None: a dry run), `title` and `source` of each new task.
        known: `title` and `source` of each line that an open task, or another line, says already.
        kept: `source` and `lines` of what is above the limit.
    """

    added: list[dict[str, Any]]
    known: list[dict[str, Any]]
    kept: list[dict[str, Any]]


@dataclass
class _Intake:
    """What is being taken in: titles that open tasks and all tasks have, and what becomes of the lines."""

    limit: int
    group: str | None
    opened: frozenset[str]
    every: frozenset[str]
    taken: dict[str, State]
    seen: set[str] = field(default_factory=set)
    chosen: list[tuple[Draft, str]] = field(default_factory=list)
    known: list[tuple[Draft, str]] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return len(self.chosen) >= self.limit

    def choose(self, content: bytes, source: str, *, once: bool = False) -> list[str]:
        """Choose new tasks; return the lines that are above the limit.

        With `once`, what was taken before does not count again.
        """
        rest = []
        for line in content.decode("utf-8", "replace").removesuffix("\n").split("\n"):
            text = read_line(line)
            if text is None:
                continue
            draft = make_draft(text, self.group)
            title = fold(draft.title)
            state, is_seen = self.taken.get(title), title in self.seen
            if once and (state == "+" or is_seen):
                continue
            self.seen.add(title)
            if is_seen or title in self.opened or (state == "?" and title in self.every):
                self.known.append((draft, source))
            elif self.is_full:
                rest.append(line)
            else:
                self.chosen.append((draft, source))
        if rest:
            self.kept[source] = self.kept.get(source, 0) + len(rest)
        return rest


def ingest(
    *,
    files: Sequence[Path] = (),
    maximum: int = MAX_TASKS,
    group: str | None = None,
    backend: str | None = None,
    dry_run: bool = False,
) -> Ingested:
    """Take follow-ups into the queue of the repository around us, and empty the files that have them.

    Args:
        files: take these alone; else `suggested_tasks.txt` of the main checkout, of all worktrees in which no task
            is at work, and of all branches.
        maximum: make no more tasks than this; what is above stays in its file.
        group: put the tasks into this group, which is made if there is none.
        backend: as of `open_queue`.
        dry_run: only say what would be added; change nothing.

    Raises:
        InputError: a file is not there, or the queue refuses the tasks; no line is lost.
        StoreError, OSError: the disk fails, or another process is at it for too long; no line is lost.
    """
    cwd = Path.cwd()
    feed, place = open_queue(cwd, backend=backend), find_place(cwd)
    shelf, wanted = Shelf(place), [Path(os.path.abspath(file)) for file in files]
    for file in wanted:
        if not os.path.lexists(file):
            raise InputError(f"{file}: No such file or directory")
    emptied, fixed = _find_sources(place, wanted)
    with nullcontext() if dry_run else shelf.hold():
        tasks = feed.load()
        every = frozenset(fold(task.title) for task in tasks)
        intake = _Intake(maximum, group, find_open(tasks), every, shelf.load_taken())
        rests = []
        for path, source, content in _read_files(shelf, intake, place.top / NAME, emptied, dry_run=dry_run):
            rests.append((path, source, intake.choose(content, str(source))))
        for name, content in fixed:
            intake.choose(content, name, once=True)
        drafts = [draft for draft, _ in intake.chosen]
        if dry_run:
            return _report(intake, [None] * len(drafts))
        taken = shelf.remember(intake.taken, [fold(draft.title) for draft in drafts], "?")
        made = feed.create(drafts) if drafts else []
        for path, source, rest in rests:
            if path != source:
                shelf.settle(path, source, rest)
        # after the files: until they are gone, a title that is closed meanwhile has to be known for its line
        shelf.remember(taken, [fold(draft.title) for draft, _ in (*intake.chosen, *intake.known)], "+")
    return _report(intake, [None if task is None else task.id for task in made])


def _read_files(
    shelf: Shelf, intake: _Intake, home: Path, files: Sequence[Path], *, dry_run: bool
) -> Iterator[tuple[Path, Path, bytes]]:
    """Each file that is to be emptied: where it lies now, where it lay, what it says.

    Where a file on the shelf lay is not known: it is of a task, or a process was killed.  Its rest goes `home`.
    """
    for path in shelf.load():
        yield path, home, read_regular(path)
    for file in files:
        with _warning_of(file):
            path = file if dry_run or intake.is_full else shelf.take(file)
            yield path, file, read_regular(path, LIMIT)


def _report(intake: _Intake, ids: Sequence[str | None]) -> Ingested:
    return Ingested(
        [
            {"id": task_id, "title": draft.title, "source": source}
            for task_id, (draft, source) in zip(ids, intake.chosen, strict=True)
        ],
        [{"title": draft.title, "source": source} for draft, source in intake.known],
        [{"source": source, "lines": lines} for source, lines in intake.kept.items()],
    )


@contextmanager
def _warning_of(file: Path) -> Iterator[None]:
    """A warning, if a file cannot be read that an agent may have replaced or deleted."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        notify(f"{file}: {error.strerror or error}; nothing was taken from it")


def _find_sources(place: QueuePlace, wanted: Sequence[Path]) -> tuple[list[Path], list[tuple[str, bytes]]]:
    """The files that are emptied, and what is said where nothing changes: in files that git tracks, on branches.

    Args:
        place: of the queue.
        wanted: files that were named, and then no others count.
    """
    if not (place.top / ".git").exists():
        return [*wanted] or [place.top / NAME], []
    from sessionrun.workspaces.git import Git

    git, heads = Git(place.top), {place.top: "HEAD", **_find_worktrees(place.lock.parent)}
    branches = [] if wanted else git.line("for-each-ref", "--format=%(refname)", "refs/heads/").split()
    blobs = _find_blobs(git, [*heads.values(), *branches])
    tracked = {os.path.realpath(top / NAME) for top, head in heads.items() if head in blobs}
    fixed, emptied = [], []
    for file in wanted or [top / NAME for top in heads]:
        if os.path.realpath(file) not in tracked:
            emptied.append(file)
            continue
        with _warning_of(file):
            fixed.append((str(file), read_regular(file, LIMIT)))
    names = {blobs[branch]: branch for branch in reversed(branches) if branch in blobs}
    for blob, branch in reversed(names.items()):
        fixed.append((f"{branch.removeprefix('refs/heads/')}:{NAME}", git("cat-file", "blob", blob)))
    return emptied, fixed


def _find_worktrees(common_dir: Path) -> dict[Path, str]:
    """The worktrees in which no task is at work, and the name of the HEAD of each.

    An agent may still write in the others, so their files are left until their tasks have ended.
    """
    from sessionrun.workspaces.registration import list_worktrees, load_owner

    found, results_dir = {}, resolve_results_dir(None)
    for top, admin in list_worktrees(str(common_dir)):
        session_id, _, task = (load_owner(admin) or "").partition("/")
        if top.is_dir() and not (task and _is_at_work(results_dir, session_id, task)):
            found[top] = f"worktrees/{admin.name}/HEAD"
    return found


def _is_at_work(results_dir: Path, session_id: str, task: str) -> bool:
    try:
        session = find_session(results_dir, session_id)
        tasks = load_view(session)["tasks"] if session.is_alive() else []
    except (SessionrunError, OSError):
        return False  # it was removed, or nothing can be known of it
    return any(one["id"] == task and one["status"] != "completed" for one in tasks)


def _find_blobs(git: Git, revisions: Sequence[str]) -> dict[str, str]:
    """The object of the file in each revision that has it, unless it is too large."""
    names = "".join(f"{one}:{NAME}\n" for one in revisions).encode("utf-8", "surrogateescape")
    shown = git("cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)", stdin=names).decode()
    rows = ((revision, line.split(" ")) for revision, line in zip(revisions, shown.splitlines(), strict=True))
    return {one: row[0] for one, row in rows if len(row) == 3 and row[1] == "blob" and int(row[2]) <= LIMIT}
