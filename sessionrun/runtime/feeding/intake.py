"""Takes follow-ups of agents into the queue: none is lost, and none comes in twice.

They come from the shelf, from the main checkout, and from branches.  RELEASE puts the file of a task of the queue
onto the shelf.  In any other session it commits it to the branch of the task, as far as git does not ignore it.
These files are on the shelf:

    lock       the process that takes follow-ups holds it
    *.txt      a file that waits
    *.taken    a file whose lines are on their way into the queue; without a holder of the lock: it was killed
    read       the objects of git that were read, one on a line, for a branch cannot be emptied

A line adds no task if an open task has its title.  Closed tasks count, too, where the line may have been taken
before: in a `.taken` file, and on a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

from sessionrun.model.feeding import FeedSpec
from sessionrun.queue.feed import Feed
from sessionrun.queue.follow_ups import LIMIT, MAX_TASKS, NAME, Ingested, Lines, find_shelf, put_aside
from sessionrun.queue.place import QueuePlace, find_place
from sessionrun.store import locks
from sessionrun.store.files import make_directories, read_regular, replace_file
from sessionrun.workspaces.git import Git

COUNT: Final = "ingested"
"""In the session's directory: how many follow-ups came into the queue."""

LOCK_TIMEOUT_S: Final = 60.0


class _Committed(NamedTuple):
    """What is said in a commit: the object of git, which branch has it, and the text."""

    name: str
    source: str
    content: bytes


def take_follow_ups(
    feed: Feed,
    place: QueuePlace,
    files: Sequence[Path] = (),
    *,
    maximum: int = MAX_TASKS,
    group: str | None = None,
    dry_run: bool = False,
    warn: Callable[[str], None] = lambda _: None,
) -> Ingested:
    """Take follow-ups into the queue, and empty the files that have them.

    Args:
        feed: the queue.
        place: its place.
        files: take these, beside what lies on the shelf; none: that of the main checkout, and those on branches.
        maximum: make no more tasks than this.
        group: put the tasks into this group.
        dry_run: only say what would be added; change nothing.
        warn: gets a line for each file that cannot be taken: it is a link, or too large.

    Raises:
        InputError: the queue refuses the tasks; no line is lost.
        StoreError, OSError: the disk fails, or another process is at it for too long; no line is lost.
    """
    git = Git(place.top) if (place.top / ".git").exists() else None
    sources = {}
    for file in files or _find_own(place.top, git):
        try:
            if dry_run:
                read_regular(file, LIMIT)
            sources[file if dry_run else put_aside(place, file)] = str(file)
        except FileNotFoundError:
            pass
        except OSError as error:
            warn(f"{file}: {error.strerror or error}; nothing was taken from it")
    committed = [] if files or git is None else [*_find_committed(git, _load_read(place))]
    return _take(feed, place, sources, committed, maximum=maximum, group=group, dry_run=dry_run)


def _find_own(top: Path, git: Git | None) -> list[Path]:
    """The file of the main checkout.  What git tracks stays: to empty it would show as a change."""
    return [] if git is not None and git.names("ls-files", "-z", "--", NAME) else [top / NAME]


def _find_committed(git: Git, read: set[str]) -> Iterator[_Committed]:
    """What stands on branches in a file that was not read, unless it is too large."""
    branches = git.line("for-each-ref", "--format=%(refname)", "refs/heads/").split()
    names = "".join(f"{branch}:{NAME}\n" for branch in branches).encode("utf-8", "surrogateescape")
    shown = git("cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)", stdin=names).decode()
    for branch, line in zip(branches, shown.splitlines(), strict=True):
        name, kind, size = [*line.split(" "), "", ""][:3]
        if kind == "blob" and int(size) <= LIMIT and name not in read:
            read.add(name)
            source = f"{branch.removeprefix('refs/heads/')}:{NAME}"
            yield _Committed(name, source, git("cat-file", "blob", name))


def _load_read(place: QueuePlace) -> set[str]:
    """Return the objects of git of which all lines have come into the queue."""
    try:
        return {*read_regular(find_shelf(place) / "read").decode("ascii", "replace").split()}
    except FileNotFoundError:
        return set()


def _take(
    feed: Feed,
    place: QueuePlace,
    sources: Mapping[Path, str],
    committed: Sequence[_Committed],
    *,
    maximum: int,
    group: str | None,
    dry_run: bool,
) -> Ingested:
    """Take what lies on the shelf, and what is committed, into the queue.

    Args:
        feed: the queue.
        place: its place.
        sources: where files on the shelf lay before, as far as that is known; in a dry run also files elsewhere.
        committed: what stands on branches and was not read yet.
        maximum, group, dry_run: as of `take_follow_ups`.
    """
    shelf = find_shelf(place)
    if not dry_run:
        make_directories(shelf, 0o700)
    with nullcontext() if dry_run else locks.holding(shelf / "lock", LOCK_TIMEOUT_S):
        waiting = _list_waiting(shelf)
        lines = Lines(feed.load(), maximum, group)
        rests = {}
        for path in dict.fromkeys([*waiting, *sources] if dry_run else waiting):
            source = sources.get(path, str(place.top / NAME))
            rests[path] = lines.choose(read_regular(path), source, was_taken=path.suffix == ".taken")
        read = {one.name for one in committed if not lines.choose(one.content, one.source, was_taken=True)}
        if dry_run:
            return lines.report([None] * len(lines.chosen))
        # first: were we killed behind the next step, a task that is closed meanwhile has to count for its line
        taken = {path.rename(path.with_suffix(".taken")): rest for path, rest in rests.items()}
        drafts = [draft for draft, _ in lines.chosen]
        made = feed.create(drafts) if drafts else []
        for path, rest in taken.items():
            if rest:
                replace_file(shelf / f"{uuid4()}.txt", _join(rest), durable=True)
            path.unlink()
        if read:
            replace_file(shelf / "read", _join(sorted(read | _load_read(place))), durable=False, sweeps=True)
    return lines.report([None if task is None else task.id for task in made])


def _list_waiting(shelf: Path) -> list[Path]:
    """The files on the shelf, those first that were on their way, then the oldest."""
    found = [*shelf.glob("*.taken"), *shelf.glob("*.txt")]
    return sorted(found, key=lambda path: (path.suffix, path.stat().st_mtime_ns))


def _join(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def take_for_session(folder: Path, asked: FeedSpec, feed: Feed) -> int:
    """Take in what agents wrote, up to a number for the whole session; how many tasks came into the queue.

    Args:
        folder: of the session.
        asked: how many, and into which group.
        feed: the queue.

    Raises:
        InputError, StoreError, OSError: as of `take_follow_ups`.
    """
    try:
        taken = int(read_regular(folder / COUNT, 100))
    except (FileNotFoundError, ValueError):
        taken = 0
    left = asked.ingest - taken
    if left <= 0:
        return 0
    added = len(take_follow_ups(feed, find_place(Path(asked.top)), maximum=left, group=asked.group).added)
    if added:
        replace_file(folder / COUNT, f"{taken + added}\n".encode(), durable=False)
    return added
