"""Follow-ups that agents wrote: the shelf where their files wait, and how they come into the queue.

None is lost, and none comes in twice.

The shelf is a folder beside the lock of the queue.  A file is renamed onto it: that of a task when no process of
the task lives any more, that of the main checkout when follow-ups are taken.  A process that opens it by its old
name from then on makes a new one.

They come from the shelf and from the main checkout.  RELEASE puts the file of a task of the queue onto the shelf.
In any other session it is work as any other file.  These files are on the shelf:

    lock       the process that takes follow-ups holds it
    *.txt      a file that waits
    *.taken    a file whose lines are on their way into the queue; without a holder of the lock: it was killed

A line adds no task if an open task has its title.  Closed tasks count, too, where the line may have been taken
before: in a `.taken` file.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from sessionrun.git.git import Git
from sessionrun.model.asked import SUGGESTIONS, FeedSpec, uses_replicas
from sessionrun.queue.feed import Feed
from sessionrun.queue.task import Draft, QueuePlace, QueueTask, find_place, fold_spaces, show_line
from sessionrun.store import locks
from sessionrun.store.files import make_directories, read_regular, replace_file

if TYPE_CHECKING:
    from sessionrun.engine.task import TaskState
    from sessionrun.session.executor import Exit
    from sessionrun.session.shared import Judged, Site

LIMIT: Final = 1024 * 1024
"""Bytes; a larger file is not taken."""

MAX_TASKS: Final = 100
"""How many tasks are made at once, if nothing else is said."""

MAX_TITLE: Final = 200
MAX_BODY: Final = 10_000
"""Characters.  What a program of Beads is given on its command line has a limit."""

_MARK: Final = re.compile(r"(?:[-*+\u2022]|\d{1,3}[.)])\s+(?:\[[ xX]?\]\s+)?")


class Ingested(NamedTuple):
    """What became of the lines: of each its `source`, and its title or how many are above the limit."""

    added: list[dict[str, Any]]
    known: list[dict[str, Any]]
    kept: list[dict[str, Any]]


def find_shelf(place: QueuePlace) -> Path:
    """Return the folder with the files of which the lines are not in the queue yet."""
    return place.lock.with_name(place.lock.name.replace("queue.lock", "ingest"))


def put_aside(place: QueuePlace, source: Path) -> Path:
    """Move a file onto the shelf, without the lock.  OSError: it is too large, not there, or no regular file."""
    content, path = read_regular(source, LIMIT), find_shelf(place) / f"{uuid4()}.txt"
    make_directories(path.parent, 0o700)
    try:
        os.rename(source, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        replace_file(path, content, durable=True)
        source.unlink()
    return path


def choose_lines(
    tasks: Sequence[QueueTask], sources: Mapping[Path, str], maximum: int, group: str | None
) -> tuple[list[Draft], Ingested, dict[Path, list[str]]]:
    """What is new in files, what becomes of each line, and of each file the lines above the limit.

    `sources` are the files with the names that people know them by.
    """
    titles = {fold(task.title) for task in tasks}
    still_open = {fold(task.title) for task in tasks if task.status != "closed"}
    seen: set[str] = set()
    drafts: list[Draft] = []
    found = Ingested([], [], [])
    rests: dict[Path, list[str]] = {path: [] for path in sources}
    kept = Counter[str]()  # many files may be of one
    for path, source in sources.items():
        before = titles if path.suffix == ".taken" else still_open
        for line in read_regular(path).decode("utf-8", "replace").split("\n"):
            text = strip_mark(line)
            if not any(map(str.isalnum, text)):
                continue  # a ruler, or nothing at all
            draft = make_draft(text, group)
            title, about = fold(draft.title), {"title": draft.title, "source": source}
            if title in seen or title in before:
                found.known.append(about)
            elif len(drafts) >= maximum:
                rests[path].append(line)
                kept[source] += 1
            else:
                drafts.append(draft)
                found.added.append({"id": None, **about})
            seen.add(title)
    found.kept.extend({"source": source, "lines": lines} for source, lines in kept.items())
    return drafts, found, rests


def strip_mark(line: str) -> str:
    """Return a line without the mark of a list, on one line and without characters that are not printed.

    >>> strip_mark("  - [ ]  Fix   the login")
    'Fix the login'
    """
    text = show_line(line)
    return text[found.end() :] if (found := _MARK.match(text)) else text


def fold(title: str) -> str:
    """Return what is the same for two titles that differ in case or space only."""
    return fold_spaces(title).casefold()


def make_draft(text: str, group: str | None = None) -> Draft:
    """Return the draft of a line: a line that is too long for a title is also the body."""
    if len(text) <= MAX_TITLE:
        return Draft(text, group=group)
    return Draft(f"{text[: MAX_TITLE - 3].rstrip()}...", text[:MAX_BODY], group=group)


COUNT: Final = "ingested"
"""In the session's directory: how many follow-ups came into the queue."""

LOCK_TIMEOUT_S: Final = 60.0


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
        files: take these, beside what lies on the shelf; none: that of the main checkout.
        warn: gets a line for each file that is not taken: it is a link, too large, or one that git tracks.

    Raises:
        InputError: the queue refuses the tasks; no line is lost.
        StoreError, OSError: the disk fails, or another process is at it for too long; no line is lost.
    """
    shelf, sources = find_shelf(place), dict[Path, str]()
    for file in files or _find_own(place.top, warn):
        try:
            if dry_run:
                read_regular(file, LIMIT)
            sources[file if dry_run else put_aside(place, file)] = str(file)
        except FileNotFoundError:
            pass
        except OSError as error:
            warn(f"{file}: {error.strerror or error}; nothing was taken from it")
    if not dry_run:
        make_directories(shelf, 0o700)
    with nullcontext() if dry_run else locks.hold_lock(shelf / "lock", 0o600, LOCK_TIMEOUT_S):
        # those first that were on their way, then the oldest
        shelved = [*shelf.glob("*.taken"), *shelf.glob("*.txt")]
        shelved.sort(key=lambda path: (path.suffix, path.stat().st_mtime_ns))
        waiting = {path: sources.get(path, str(place.top / SUGGESTIONS)) for path in shelved}
        waiting |= sources if dry_run else {}  # else another process may have taken them meanwhile
        drafts, found, rests = choose_lines(feed.load(), waiting, maximum, group)
        if dry_run:
            return found
        # first: were we killed behind the next step, a task that is closed meanwhile has to count for its line
        taken = {path.rename(path.with_suffix(".taken")): rest for path, rest in rests.items()}
        made = feed.create(drafts) if drafts else []
        for about, task in zip(found.added, made, strict=True):
            about["id"] = None if task is None else task.id
        for path, rest in taken.items():
            if rest:
                content = "".join(f"{line}\n" for line in rest).encode()
                replace_file(shelf / f"{uuid4()}.txt", content, durable=True)
            path.unlink()
    return found


def _find_own(top: Path, warn: Callable[[str], None]) -> list[Path]:
    """The file of the main checkout.  What git tracks stays: to empty it would show as a change."""
    own = top / SUGGESTIONS
    if not ((top / ".git").exists() and Git(top).names("ls-files", "-z", "--", SUGGESTIONS)):
        return [own]
    if own.exists():
        warn(f"{own}: git tracks it; it is taken only if it is named")
    return []


def take_for_session(folder: Path, asked: FeedSpec, feed: Feed) -> int:
    """Take in what agents of the session in `folder` wrote, up to a number for all of it; how many tasks came."""
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


def shelve_follow_ups(site: Site, state: TaskState, ended: Exit, judged: Judged) -> Judged:
    """After a RELEASE, keep what the agent wrote: no process of the task lives, and the next one may have its
    worktree at once.  From a node it came home beside the answer; what is in a commit is work.
    """
    place, feed, released = state.place, site.spec.feed, judged.place
    if ended.key.phase != "release" or feed is None or released is None or place is None or place.worktree is None:
        return judged
    # The library that reads files of jobs is slow to load.  Verbs of the queue import this module, and read none.
    from sessionrun.store.jobfiles import LEFT

    folder = site.session.job_path(ended.key)
    source = folder / LEFT if uses_replicas(site.spec.cluster) else Path(place.worktree, SUGGESTIONS)
    if (
        source.exists()
        and Git(Path(feed.top)).attempt("cat-file", "-e", f"{released.commit}:{SUGGESTIONS}").returncode != 0
    ):
        with suppress(OSError):  # then it stays where it lies: a link, or too large
            put_aside(find_place(Path(feed.top)), source)
    return judged
