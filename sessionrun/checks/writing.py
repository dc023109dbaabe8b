"""Writes the files of an answer: all of them or none, and only inside of the task's directory.

New files are written beside the old ones, then a record says which they are, then each is renamed to its place.
A CHECK that finds the record finishes the renames, so no answer is written twice or half.
Directories are opened one below the other and no link is followed: a link put there meanwhile leads nowhere.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import signal
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import orjson

from sessionrun.checks.answers import Unclear, apply_edits, read_edits, read_files
from sessionrun.model.checks import Brief
from sessionrun.model.frozen import frozen
from sessionrun.session.context_files import BriefProblem, count_lines, read_inside, resolve_inside
from sessionrun.store.files import read_regular, replace_file

_NEW: Final = ".sessionrun-{}-{}"
"""The name of a new file before it is in its place: the marker of its owner, and a number."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@frozen
class _Change:
    """One file to be written: its place, links resolved, and the new file's name."""

    path: str
    folder: str
    name: str
    new: str
    content: bytes


class _Folders:
    """The directories of a project as descriptors; takes back those that it made."""

    def __init__(self, top: str, stack: ExitStack) -> None:
        self._stack = stack
        self._open = {"": self._keep(os.open(os.path.realpath(top), _FOLDER))}
        self._made: list[tuple[int, str]] = []

    def find(self, path: str, *, create: bool = False) -> int:
        """The descriptor of a directory inside.

        Raises:
            OSError: there is no such directory, or something else is in its place.
        """
        if path not in self._open:
            above, name = os.path.split(path)
            fd = self.find(above, create=create)
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
                    self._made.append((fd, name))
            self._open[path] = self._keep(os.open(name, _FOLDER, dir_fd=fd))
        return self._open[path]

    def take_back(self) -> None:
        """Remove the directories that were made and are empty."""
        for fd, name in reversed(self._made):
            with suppress(OSError):
                os.rmdir(name, dir_fd=fd)

    def _keep(self, fd: int) -> int:
        self._stack.callback(os.close, fd)
        return fd


def apply_answer(brief: Brief, directory: str, answer: str, record: Path) -> dict[str, int]:
    """Write what an answer says; the lines of each file written.

    Args:
        record: a file outside of `directory`, written when all new files exist: it lists what is renamed then.

    Raises:
        Unclear: the answer does not say what to write, or too much.
        BriefProblem: it would write where it must not.
        OSError: a file cannot be written; none was changed, unless a rename was refused.
    """
    files = _read_answer(brief, directory, answer)
    lines = {path: count_lines(text) for path, text in files.items()}
    limit = brief.max_output_lines
    if brief.mode != "edit" and limit is not None and sum(lines.values()) > limit:
        raise Unclear(f"the answer has {sum(lines.values())} lines, and at most {limit} are allowed")
    owner = hashlib.sha256(os.fsencode(record)).hexdigest()[:16]
    changes = [
        _prepare(brief, directory, path, text, _NEW.format(owner, number))
        for number, (path, text) in enumerate(files.items())
    ]
    _refuse_twice(changes)
    with ExitStack() as stack:
        _write_all(changes, _Folders(directory, stack), record, lines)
    return lines


def finish_answer(directory: str, record: Path) -> dict[str, int]:
    """Finish the renames of an answer whose writing was broken off; the lines of each file."""
    written = orjson.loads(read_regular(record))
    with ExitStack() as stack:
        folders = _Folders(directory, stack)
        for move in written["moves"]:
            with suppress(FileNotFoundError):  # it is in its place
                _rename_all([move], folders)
    return dict(written["lines"])


def _read_answer(brief: Brief, directory: str, answer: str) -> dict[str, str]:
    if brief.mode == "edit":
        edits = read_edits(answer, brief.targets)
        return apply_edits(edits, {edit.path: _current(directory, edit.path) for edit in edits})
    files = read_files(answer, brief.outputs)
    missing = [path for path in brief.outputs if path not in files]
    if missing and (brief.mode == "split" or len(missing) == len(brief.outputs)):
        raise Unclear(f"the answer has no {', '.join(missing)}, but {', '.join(files)}")
    return files


def _current(directory: str, path: str) -> str | None:
    """The text of a file that is to be edited; anything but text is refused, for the file is written anew."""
    real = resolve_inside(directory, path)
    if not os.path.lexists(real):
        return None
    text = read_inside(directory, path)
    if "\ufffd" in text:
        raise BriefProblem(path, f"{path} is not UTF-8 and cannot be edited")
    return text


def _prepare(brief: Brief, directory: str, path: str, text: str, new: str) -> _Change:
    real = resolve_inside(directory, path)
    inside = os.path.relpath(real, os.path.realpath(directory))
    if any(fnmatch.fnmatch(inside, pattern) for pattern in brief.protected):
        raise BriefProblem(path, f"{path} must not be written by an answer")
    if not brief.create_directories and not os.path.isdir(os.path.dirname(real)):
        raise BriefProblem(path, f"{path}: there is no directory {os.path.dirname(path)}")
    if os.path.lexists(real) and not os.path.isfile(real):
        raise BriefProblem(path, f"{path} is not a regular file")
    folder, name = os.path.split(inside)
    return _Change(path, folder, name, new, text.encode("utf-8", "replace"))


def _refuse_twice(changes: Sequence[_Change]) -> None:
    places: dict[tuple[str, str], str] = {}
    for change in changes:
        other = places.setdefault((change.folder, change.name), change.path)
        if other != change.path:
            raise Unclear(f"{other} and {change.path} are the same file")


def _write_all(changes: Sequence[_Change], folders: _Folders, record: Path, lines: Mapping[str, int]) -> None:
    try:
        for change in changes:
            _write_new(change, folders)
        moves = [(change.folder, change.new, change.name) for change in changes]
        with _undisturbed():
            replace_file(record, orjson.dumps({"lines": lines, "moves": moves}), durable=False)
            _rename_all(moves, folders)
    except (OSError, BriefProblem):
        record.unlink(missing_ok=True)
        for change in changes:
            with suppress(OSError):
                os.unlink(change.new, dir_fd=folders.find(change.folder))
        folders.take_back()
        raise


def _rename_all(moves: Iterable[Sequence[str]], folders: _Folders) -> None:
    for folder, new, name in moves:
        fd = folders.find(folder)
        os.replace(new, name, src_dir_fd=fd, dst_dir_fd=fd)


def _write_new(change: _Change, folders: _Folders) -> None:
    try:
        fd = folders.find(change.folder, create=True)
    except NotADirectoryError:
        raise BriefProblem(
            change.path, f"{change.path}: a file or a link is where its directory should be"
        ) from None
    mode = _find_mode(change, fd)
    with suppress(FileNotFoundError):
        os.unlink(change.new, dir_fd=fd)  # left by a writing that was broken off
    with os.fdopen(os.open(change.new, _CREATE, 0o666, dir_fd=fd), "wb") as stream:
        stream.write(change.content)
        if mode is not None:
            os.fchmod(stream.fileno(), mode)


def _find_mode(change: _Change, folder: int) -> int | None:
    try:
        mode = os.stat(change.name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise BriefProblem(change.path, f"{change.path} is not a regular file")
    return mode & 0o7777


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let a request to stop wait until all files are in their places."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
