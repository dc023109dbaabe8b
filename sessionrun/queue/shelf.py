"""Empties files to which agents append: a file is renamed onto a shelf, and deleted when its lines are taken.

A process that opens the file by its name from then on makes a new one.  What a process that has it open already
writes after it was read is lost.

    shelf/N.json   the note: where the file lay, where it lies now
    shelf/N.txt    the file; beside its old place if the shelf is on another file system
    shelf/taken    a line for each task that was taken: `?` before it goes into the queue, `+` after that

The note is written before the rename: a note without a file is of a process that died in between.  The caller
holds a lock.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from sessionrun.model.frozen import frozen
from sessionrun.queue.suggestions import NAME
from sessionrun.store.files import NotRegular, make_directories, open_regular, read_regular, replace_file

LIMIT: Final = 1024 * 1024
"""Bytes; a larger file is not taken."""

State = Literal["?", "+"]
"""Of a task that was taken: on its way into the queue, or in it."""

_MODE: Final = 0o600


@frozen
class Held:
    """A file on the shelf; `source` is where it lay."""

    note: Path
    path: Path
    source: Path


class Shelf:
    """The shelf of a queue.  All methods raise OSError if the disk fails."""

    def __init__(self, folder: Path) -> None:
        self.folder: Path = folder

    def load(self) -> list[Held]:
        """Return what a process that died, or could not give back, left on the shelf, the oldest first."""
        found = [(number, _parse_note(note, read_regular(note))) for number, note in self._iterate_notes()]
        return [held for _, held in sorted(found, key=lambda pair: pair[0]) if os.path.lexists(held.path)]

    def take(self, source: Path) -> Held | None:
        """Rename a file onto the shelf; None: there is none.

        Raises:
            NotRegular: a link or a directory lies there.
            OSError: it is too large, too.
        """
        source = Path(os.path.abspath(source))
        if not is_there(source):
            return None
        read_regular(source, LIMIT)
        make_directories(self.folder, 0o700)
        number = max((number for number, _ in self._iterate_notes()), default=0) + 1
        while (self.folder / f"{number}.txt").exists():
            number += 1
        note, path = self.folder / f"{number}.json", self.folder / f"{number}.txt"
        for place in (path, source.with_name(f".{NAME}.{os.getpid()}-{number}")):
            record = {"source": str(source), "held": str(place)}
            replace_file(note, json.dumps(record).encode(), durable=False)
            try:
                os.rename(source, place)
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno == errno.EXDEV:
                    continue
                note.unlink()
                raise
            return Held(note, place, source)
        note.unlink()
        return None

    def settle(self, held: Held, rest: Sequence[str]) -> None:
        """Let only the rest of a file's lines stay on the shelf; without a rest the file goes."""
        if rest:
            content = "".join(f"{line}\n" for line in rest).encode("utf-8", "replace")
            replace_file(held.path, content, durable=False, mode=0o644)
        else:
            held.path.unlink()
            held.note.unlink()

    def give_back(self, held: Held) -> None:
        """Put what stays of a file where it lay; if a new file lies there or its directory is gone, nothing."""
        with suppress(OSError):
            os.link(held.path, held.source)  # whole or not at all, and never in the place of another file
            self.settle(held, ())

    def clear(self) -> None:
        """Delete notes without a file."""
        for _, note in self._iterate_notes():
            if not os.path.lexists(_parse_note(note, read_regular(note)).path):
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
        content = "".join(f"{state}{title}\n" for title in folded).encode("utf-8", "replace")
        if not content:
            return
        make_directories(self.folder, 0o700)
        fd = open_regular(self.folder / "taken", os.O_RDWR | os.O_APPEND | os.O_CREAT, _MODE)
        try:
            size = os.fstat(fd).st_size
            torn = size and os.pread(fd, 1, size - 1) != b"\n"
            content = b"\n" * bool(torn) + content
            while content:
                content = content[os.write(fd, content) :]
        finally:
            os.close(fd)

    def _iterate_notes(self) -> Iterator[tuple[int, Path]]:
        for note in self.folder.glob("*.json"):
            if note.stem.isascii() and note.stem.isdigit():
                yield int(note.stem), note


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


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file.

    Raises:
        OSError: it is too large, or cannot be read.
    """
    return split_lines(read_regular(path, LIMIT))


def split_lines(content: bytes) -> list[str]:
    """Return the lines of a file's content."""
    return content.decode("utf-8", "replace").removesuffix("\n").split("\n")


def _parse_note(note: Path, content: bytes) -> Held:
    """Read a note; if it is damaged, which file it is about is seen by its name."""
    try:
        record: Mapping[str, Any] = json.loads(content)
        return Held(note, Path(record["held"]), Path(record["source"]))
    except (ValueError, KeyError, TypeError):
        path = note.with_suffix(".txt")
        return Held(note, path, path)
