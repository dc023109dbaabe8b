"""Empties files to which agents append, without losing a line: a file is renamed onto a shelf, then read there.

A process that opens the file by its name from then on makes a new one.  A process that had it open appends to
the file on the shelf.  So that file stays, with a note of how many of its bytes were taken, until no process has
it open for writing; each later call reads what came to it.  Linux says whether a process has it open: a read
lease is granted only if none has (fcntl(2)).  Elsewhere, and on a file system without leases, time has to do.

    shelf/N.json   the note: where the file lay, where it lies now, since when, how many bytes were taken
    shelf/N.txt    the file; beside its old place if the shelf is on another file system
    shelf/taken    a line for each task that was taken: `?` before it goes into the queue, `+` after that

The note is written before the rename: a note without a file is of a process that died in between.  The caller
holds a lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from sessionrun.model.frozen import frozen
from sessionrun.queue.suggestions import NAME
from sessionrun.store.files import NotRegular, make_directories, open_regular, read_regular, replace_file

LIMIT: Final = 1024 * 1024
"""Bytes of a file that are read at once; the next call reads on."""

SETTLED_S: Final = 60.0
"""A file that no process has open is deleted after so long: one may have been about to open it."""

FORGOTTEN_S: Final = 86_400.0
"""A file on which it cannot be seen, or which is open, is deleted if nothing came to it for so long."""

PAUSED_S: Final = 5.0
"""A last line without an end counts as whole if nothing came for so long, where leases are not known."""

State = Literal["?", "+"]
"""Of a task that was taken: on its way into the queue, or in it."""

_MODE: Final = 0o600


@frozen
class Held:
    """A file on the shelf, and the first `taken` bytes of it that were taken; `source` is where it lay."""

    note: Path
    path: Path
    source: Path
    at: float
    taken: int = 0


class Line(NamedTuple):
    """A line as text, and the offset at which the next one begins."""

    text: str
    end: int


class Shelf:
    """The shelf of a queue.  All methods raise OSError if the disk fails."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self.folder: Path = folder
        self._now = now

    def load(self) -> list[Held]:
        """Return what lies on the shelf, the oldest first."""
        found = []
        for number, note in self._iterate_notes():
            held = _parse_note(note, read_regular(note))
            if os.path.lexists(held.path):
                found.append((number, held))
        return [held for _, held in sorted(found, key=lambda pair: pair[0])]

    def take(self, source: Path) -> Held | None:
        """Rename a file onto the shelf; None: there is none.

        Raises:
            NotRegular: a link or a directory lies there.
        """
        source = Path(os.path.abspath(source))
        if not is_there(source):
            return None
        make_directories(self.folder, 0o700)
        number = max((number for number, _ in self._iterate_notes()), default=0) + 1
        while (self.folder / f"{number}.txt").exists():
            number += 1
        note, path = self.folder / f"{number}.json", self.folder / f"{number}.txt"
        for place in (path, source.with_name(f".{NAME}.{os.getpid()}-{number}")):
            held = Held(note, place, source, self._now())
            self.note(held)
            try:
                os.rename(source, place)
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno == errno.EXDEV:
                    continue
                note.unlink()
                raise
            return held
        note.unlink()
        return None

    def read(self, path: Path, start: int = 0) -> list[Line]:
        """Return the lines of a file from an offset on; a last line without an end only if it seems whole."""
        fd = open_regular(path)
        try:
            content = os.pread(fd, LIMIT, start)
            whole = content.rfind(b"\n") + 1
            is_all = len(content) < LIMIT
            if self._is_whole(fd) if is_all else not whole:
                whole = len(content)
            return [*split_lines(content[:whole], start)]
        finally:
            os.close(fd)

    def note(self, held: Held) -> None:
        """Keep how far a file was taken."""
        record = {"source": str(held.source), "held": str(held.path), "at": held.at, "taken": held.taken}
        replace_file(held.note, json.dumps(record).encode(), durable=False)

    def give_back(self, held: Held, end: int) -> None:
        """Put what was not taken, up to an offset, into a new file where the old one lay.

        If there is a new file already, or its directory is gone, all stays on the shelf.
        """
        content = read_part(held.path, held.taken, end)
        beside = held.note.with_suffix(".back")
        fd = open_regular(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _append(fd, content if content.endswith(b"\n") else content + b"\n")
        finally:
            os.close(fd)
        with suppress(OSError):
            os.link(beside, held.source)  # whole or not at all, and never in the place of another file
            self.note(replace(held, taken=end))
        beside.unlink()

    def clear(self) -> None:
        """Delete the files of which all was taken and to which no process can append, and notes without a file."""
        for stale in self.folder.glob("*.back"):
            stale.unlink()
        for _, note in self._iterate_notes():
            held = _parse_note(note, read_regular(note))
            if not os.path.lexists(held.path):
                note.unlink(missing_ok=True)
            elif self._is_done(held):
                held.path.unlink(missing_ok=True)
                note.unlink(missing_ok=True)

    def load_taken(self) -> dict[str, State]:
        """Return the folded titles of tasks that were taken."""
        try:
            lines = read_regular(self.folder / "taken").decode("utf-8", "replace").split("\n")
        except FileNotFoundError:
            return {}
        return {line[1:]: ("+" if line[0] == "+" else "?") for line in lines if line}

    def remember(self, folded: Iterable[str], state: State) -> None:
        """Note tasks as taken."""
        text = "".join(f"{state}{title}\n" for title in folded)
        if not text:
            return
        make_directories(self.folder, 0o700)
        fd = open_regular(self.folder / "taken", os.O_RDWR | os.O_APPEND | os.O_CREAT, _MODE)
        try:
            size = os.fstat(fd).st_size
            torn = size and os.pread(fd, 1, size - 1) != b"\n"
            _append(fd, b"\n" * bool(torn) + text.encode("utf-8", "replace"))
        finally:
            os.close(fd)

    def _iterate_notes(self) -> Iterator[tuple[int, Path]]:
        for note in self.folder.glob("*.json"):
            if note.stem.isascii() and note.stem.isdigit():
                yield int(note.stem), note

    def _is_whole(self, fd: int) -> bool:
        """Whether no process is about to write the rest of a last line."""
        age = self._now() - os.fstat(fd).st_mtime
        is_open = has_writer(fd)
        return is_open is False or age > (PAUSED_S if is_open is None else FORGOTTEN_S)

    def _is_done(self, held: Held) -> bool:
        try:
            fd = open_regular(held.path)
        except NotRegular:
            return False
        try:
            status = os.fstat(fd)
            age = self._now() - max(held.at, status.st_mtime)
            is_free = has_writer(fd) is False and age > SETTLED_S
            return (is_free or age > FORGOTTEN_S) and os.fstat(fd).st_size == held.taken
        finally:
            os.close(fd)


def is_there(path: Path) -> bool:
    """Whether a file lies there.

    Raises:
        NotRegular: it is something else.
    """
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(mode):
        raise NotRegular(errno.EINVAL, "not a regular file", os.fspath(path))
    return True


def has_writer(fd: int) -> bool | None:
    """Whether a process has the file open for writing; None: this system cannot say it."""
    lease = getattr(fcntl, "F_SETLEASE", None)
    if lease is None:
        return None
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # of an opener meanwhile: the usual signal would end us
    try:
        fcntl.fcntl(fd, lease, fcntl.F_RDLCK)
    except OSError as error:
        return True if error.errno in (errno.EAGAIN, errno.EBUSY) else None
    fcntl.fcntl(fd, lease, fcntl.F_UNLCK)
    return False


def read_part(path: Path, start: int, end: int) -> bytes:
    """Return the bytes of a file from one offset to another."""
    fd = open_regular(path)
    try:
        return os.pread(fd, end - start, start)
    finally:
        os.close(fd)


def split_lines(content: bytes, offset: int = 0) -> Iterator[Line]:
    """Yield the lines of a file's content, which begins at an offset."""
    while content:
        line, end, content = content.partition(b"\n")
        offset += len(line) + len(end)
        yield Line(line.decode("utf-8", "replace"), offset)


def _append(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]


def _parse_note(note: Path, content: bytes) -> Held:
    """Read a note; if it is damaged, which file it is about is seen by its name, and nothing of that was taken."""
    try:
        record: Mapping[str, Any] = json.loads(content)
        return Held(note, Path(record["held"]), Path(record["source"]), float(record["at"]), int(record["taken"]))
    except (ValueError, KeyError, TypeError):
        path = note.with_suffix(".txt")
        return Held(note, path, path, 0.0)
