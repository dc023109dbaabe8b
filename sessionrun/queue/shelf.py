"""Empties files to which agents append: a file is renamed onto a shelf, and deleted when its lines are taken.

A process that opens the file by its name from then on makes a new one.  What a process that has it open already
writes after it was read is lost.

    shelf/N.from   the note: a link that leads to where the file lay
    shelf/N.txt    the file
    shelf/taken    a line for each task that was taken: `?` before it goes into the queue, `+` after that

The note is written before the rename: a note without a file is of a process that died in between.  The caller
holds a lock.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from sessionrun.model.frozen import frozen
from sessionrun.store.files import NotRegular, make_directories, open_regular, read_regular, replace_file

LIMIT: Final = 1024 * 1024
"""Bytes; a larger file is not taken."""

State = Literal["?", "+"]
"""Of a task that was taken: on its way into the queue, or in it."""

_MODE: Final = 0o600


@frozen
class Held:
    """A file on the shelf; `source` is where it lay."""

    path: Path
    source: Path

    @property
    def note(self) -> Path:
        """The link that leads to where it lay."""
        return self.path.with_suffix(".from")


class Shelf:
    """The shelf of a queue.  All methods raise OSError if the disk fails."""

    def __init__(self, folder: Path) -> None:
        self.folder: Path = folder

    def load(self) -> list[Held]:
        """Return what a process that died, or could not give back, left on the shelf, the oldest first."""
        paths = sorted((int(path.stem), path) for path in self.folder.glob("*.txt") if path.stem.isdecimal())
        return [Held(path, Path(os.readlink(path.with_suffix(".from")))) for _, path in paths]

    def take(self, source: Path) -> Held | None:
        """Put a file onto the shelf; None: there is none.

        Raises:
            NotRegular: a link or a directory lies there.
            OSError: it is too large, too.
        """
        source = Path(os.path.abspath(source))
        if not is_there(source):
            return None
        read_regular(source, LIMIT)
        make_directories(self.folder, 0o700)
        numbers = [int(path.stem) for path in self.folder.glob("*.*") if path.stem.isdecimal()]
        held = Held(self.folder / f"{max(numbers, default=0) + 1}.txt", source)
        held.note.symlink_to(source)
        try:
            os.rename(source, held.path)
        except FileNotFoundError:
            held.note.unlink()
            return None
        except OSError as error:
            if error.errno != errno.EXDEV:
                held.note.unlink()
                raise
            replace_file(held.path, read_regular(source, LIMIT), durable=False, mode=0o644)
            source.unlink()
        return held

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
        for note in self.folder.glob("*.from"):
            if not note.with_suffix(".txt").exists():
                note.unlink()

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
