"""`ingest`: the follow-ups that agents wrote go into the queue.

Agents append a task on each line to `suggested_tasks.txt` in the directory where they work: the main checkout,
or a worktree.  These files are emptied.  A file that git tracks is not: git would show the change, and a branch
cannot be emptied at all.  What it says counts once, by a list of what was taken.  That is how the follow-ups of a
worktree that was released come in: RELEASE commits the file to the branch of the task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from sessionrun.client.notices import notify
from sessionrun.client.queue.feeds import open_queue
from sessionrun.model.errors import InputError
from sessionrun.queue.feed import Feed
from sessionrun.queue.place import find_place
from sessionrun.queue.shelf import LIMIT, Held, Shelf, State, is_there, read_lines, split_lines
from sessionrun.queue.suggestions import NAME, find_open, fold, fold_draft, make_draft, read_line
from sessionrun.store import locks
from sessionrun.store.files import NotRegular, make_directories

if TYPE_CHECKING:
    from sessionrun.workspaces.git import Git

_Read = TypeVar("_Read")

MAX_TASKS: Final = 100
"""How many tasks one call makes, if nothing else is said."""

LOCK_TIMEOUT_S: Final = 60.0


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
    opened: frozenset[str]
    every: frozenset[str]
    taken: dict[str, State]
    group: str | None
    seen: set[str] = field(default_factory=set)
    chosen: list[tuple[str, str]] = field(default_factory=list)
    known: list[tuple[str, str]] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return len(self.chosen) >= self.limit

    def choose(self, lines: Sequence[str], source: str, *, once: bool) -> list[str]:
        """Choose new tasks; return the lines that are above the limit.

        With `once`, what was taken before does not count again.
        """
        kept = []
        for line in lines:
            text = read_line(line)
            title = "" if text is None else fold_draft(text)
            state = self.taken.get(title)
            if text is not None and not (once and (state == "+" or title in self.seen)):
                if title in self.seen | self.opened or (state == "?" and title in self.every):
                    self.known.append((text, source))
                elif self.is_full:
                    kept.append(line)
                else:
                    self.chosen.append((text, source))
                self.seen.add(title)
        if kept:
            self.kept[source] = self.kept.get(source, 0) + len(kept)
        return kept


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
        files: take these alone; else `suggested_tasks.txt` of the main checkout, of all worktrees and branches.
        maximum: make no more tasks than this; what is above stays in its file.
        group: put the tasks into this group, which is made if there is none.
        backend: as of `open_queue`.
        dry_run: only say what would be added; change nothing.

    Raises:
        InputError: a file is not there, or the queue refuses the tasks; no line is lost.
        StoreError, OSError: the disk fails, or another process is at it for too long; no line is lost.
    """
    cwd = Path.cwd()
    feed = open_queue(cwd, backend=backend)
    place = find_place(cwd)
    shelf = Shelf(place.lock.with_name(place.lock.name.replace("queue.lock", "ingest")))
    wanted = [Path(os.path.abspath(cwd / file)) for file in files]
    for file in wanted:
        if not is_there(file):
            raise InputError(f"{file}: No such file or directory")
    sources = _find_sources(place.top, wanted)
    with _hold(shelf, dry_run=dry_run):
        tasks = feed.load()
        every = frozenset(fold(task.title) for task in tasks)
        intake = _Intake(maximum, find_open(tasks), every, shelf.load_taken(), group)
        return _peek(shelf, intake, sources) if dry_run else _take(shelf, intake, sources, feed)


class _Sources(NamedTuple):
    """Files that are emptied, files that git tracks, and what committed files say, by the names of branches."""

    files: list[Path]
    tracked: list[Path]
    committed: list[tuple[str, bytes]]


def _peek(shelf: Shelf, intake: _Intake, sources: _Sources) -> Ingested:
    for held in shelf.load():
        intake.choose(read_lines(held.path), str(held.source), once=False)
    for file in sources.files:
        intake.choose(_attempt(read_lines, file) or [], str(file), once=False)
    _choose_tracked(intake, sources)
    return _report(intake, [None] * len(intake.chosen))


def _take(shelf: Shelf, intake: _Intake, sources: _Sources, feed: Feed) -> Ingested:
    shelf.clear()
    rests: list[tuple[Held, list[str]]] = []

    def choose(held: Held) -> None:
        rests.append((held, intake.choose(read_lines(held.path), str(held.source), once=False)))

    for held in shelf.load():
        choose(held)
    for file in sources.files:
        if intake.is_full:
            intake.choose(_attempt(read_lines, file) or [], str(file), once=False)
        elif (taken := _attempt(shelf.take, file)) is not None:
            choose(taken)
    _choose_tracked(intake, sources)
    drafts = [make_draft(text, intake.group) for text, _ in intake.chosen]
    shelf.remember([fold(draft.title) for draft in drafts], "?")
    made = feed.create(drafts) if drafts else []
    for held, rest in rests:
        shelf.settle(held, rest)
    # after the files: until they are gone, a title that is closed meanwhile has to be known for its line
    shelf.remember([fold_draft(text) for text, _ in (*intake.chosen, *intake.known)], "+")
    for held, rest in rests:
        if rest:
            shelf.give_back(held)
    return _report(intake, [None if task is None else task.id for task in made])


def _choose_tracked(intake: _Intake, sources: _Sources) -> None:
    for file in sources.tracked:
        intake.choose(_attempt(read_lines, file) or [], str(file), once=True)
    for name, content in sources.committed:
        intake.choose(split_lines(content), name, once=True)


def _report(intake: _Intake, ids: Sequence[str | None]) -> Ingested:
    return Ingested(
        [
            {"id": task_id, "title": make_draft(text).title, "source": source}
            for task_id, (text, source) in zip(ids, intake.chosen, strict=True)
        ],
        [{"title": make_draft(text).title, "source": source} for text, source in intake.known],
        [{"source": source, "lines": lines} for source, lines in intake.kept.items()],
    )


def _attempt(act: Callable[[Path], _Read], file: Path) -> _Read | None:
    """Do something with a file that an agent may have replaced; a warning if that fails."""
    try:
        return act(file)
    except FileNotFoundError:
        return None
    except NotRegular:
        notify(f"{file}: not a regular file, so nothing was taken from it")
    except OSError as error:
        notify(f"{file}: {error.strerror or error}; nothing was taken from it")
    return None


def _find_sources(top: Path, wanted: Sequence[Path]) -> _Sources:
    """Look where the lines are; `wanted` are files that were named, and then no others count."""
    if not (top / ".git").exists():
        return _Sources([*wanted] or _keep_files([top / NAME]), [], [])
    from sessionrun.workspaces.git import Git

    git = Git(top)
    checkouts = _list_checkouts(git)
    branches = git.line("for-each-ref", "--format=%(refname)", "refs/heads/").split() if not wanted else []
    blobs = _find_blobs(git, [*checkouts.values(), *branches])
    tracked = [Path(folder, NAME) for folder, commit in checkouts.items() if blobs.get(commit)]
    if wanted:
        real = {os.path.realpath(file) for file in tracked}
        ours = [file for file in wanted if os.path.realpath(file) in real]
        return _Sources([file for file in wanted if file not in ours], ours, [])
    files = [file for folder in checkouts if (file := Path(folder, NAME)) not in tracked]
    names = {oid: branch for branch in reversed(branches) if (oid := blobs.get(branch))}
    committed = [(f"{names[oid].removeprefix('refs/heads/')}:{NAME}", _read_blob(git, oid)) for oid in names]
    return _Sources(_keep_files(files), _keep_files(tracked), [*reversed(committed)])


def _keep_files(files: Sequence[Path]) -> list[Path]:
    return [file for file in files if os.path.lexists(file)]


def _list_checkouts(git: Git) -> dict[str, str]:
    """The directories of the main checkout and the worktrees that are there, and the commit of each."""
    checkouts: dict[str, str] = {}
    for block in git.line("worktree", "list", "--porcelain").split("\n\n"):
        record = dict(line.partition(" ")[::2] for line in block.split("\n"))
        if "bare" not in record and os.path.isdir(record.get("worktree", "")):
            checkouts[record["worktree"]] = record.get("HEAD", "")
    return checkouts


def _find_blobs(git: Git, revisions: Sequence[str]) -> dict[str, str]:
    """The object of the file in each revision that has it, unless it is too large."""
    wanted = [one for one in dict.fromkeys(revisions) if one]
    names = "".join(f"{one}:{NAME}\n" for one in wanted).encode("utf-8", "surrogateescape")
    shown = git("cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)", stdin=names).decode()
    found = {}
    for revision, line in zip(wanted, shown.splitlines(), strict=True):
        words = line.split(" ")
        if len(words) == 3 and words[1] == "blob" and int(words[2]) <= LIMIT:
            found[revision] = words[0]
    return found


def _read_blob(git: Git, oid: str) -> bytes:
    return git("cat-file", "blob", oid)


def _hold(shelf: Shelf, *, dry_run: bool) -> AbstractContextManager[None]:
    """Let one process at a time take lines; a dry run takes none."""
    if dry_run:
        return nullcontext()
    make_directories(shelf.folder, 0o700)
    return locks.holding(shelf.folder / "lock", LOCK_TIMEOUT_S)
