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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import orjson

from sessionrun.checks.answers import Unclear, apply_edits, read_edits, read_files
from sessionrun.model.checks import Brief
from sessionrun.model.frozen import frozen
from sessionrun.session.prompt import BriefProblem, count_lines, read_inside, resolve_inside
from sessionrun.store.files import NotRegular, read_regular, replace_file
from sessionrun.store.outside import open_folder

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@frozen
class _Change:
    """One file to be written: its place, links resolved, and the new file's name."""

    path: str
    folder: str
    name: str
    new: str
    content: bytes


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
    changes: dict[tuple[str, str], _Change] = {}
    for number, (path, text) in enumerate(files.items()):
        change = _prepare(brief, directory, path, text, f".sessionrun-{owner}-{number}")
        other = changes.setdefault((change.folder, change.name), change)
        if other is not change:
            raise Unclear(f"{other.path} and {path} are the same file")
    _write_all(list(changes.values()), Path(os.path.realpath(directory)), record, lines)
    return lines


def finish_answer(directory: str, record: Path) -> dict[str, int]:
    """Finish the renames of an answer whose writing was broken off; the lines of each file."""
    written, top = orjson.loads(read_regular(record)), Path(os.path.realpath(directory))
    for move in written["moves"]:
        with suppress(FileNotFoundError):  # it is in its place
            _rename(top, *move)
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
    folder, name = os.path.split(inside)
    return _Change(path, folder, name, new, text.encode("utf-8", "replace"))


def _write_all(changes: Sequence[_Change], top: Path, record: Path, lines: Mapping[str, int]) -> None:
    folders = {top / change.folder for change in changes}
    parents = {parent for folder in folders for parent in (folder, *folder.parents)}
    to_make = [folder for folder in sorted(parents, reverse=True) if not os.path.lexists(folder)]
    try:
        for change in changes:
            _write_new(change, top)
        moves = [(change.folder, change.new, change.name) for change in changes]
        with _undisturbed():
            replace_file(record, orjson.dumps({"lines": lines, "moves": moves}), durable=False)
            for move in moves:
                _rename(top, *move)
    except (OSError, BriefProblem):
        record.unlink(missing_ok=True)
        for change in changes:
            with suppress(OSError), open_folder(top / change.folder) as fd:
                os.unlink(change.new, dir_fd=fd)
        for folder in to_make:
            with suppress(OSError), open_folder(folder.parent) as fd:
                os.rmdir(folder.name, dir_fd=fd)
        raise


def _rename(top: Path, folder: str, new: str, name: str) -> None:
    with open_folder(top / folder) as fd:
        os.replace(new, name, src_dir_fd=fd, dst_dir_fd=fd)


def _write_new(change: _Change, top: Path) -> None:
    try:
        with open_folder(top / change.folder, make=True) as fd:
            mode = None
            with suppress(FileNotFoundError):
                mode = os.stat(change.name, dir_fd=fd, follow_symlinks=False).st_mode
            if mode is not None and not stat.S_ISREG(mode):
                raise BriefProblem(change.path, f"{change.path} is not a regular file")
            with suppress(FileNotFoundError):
                os.unlink(change.new, dir_fd=fd)  # left by a writing that was broken off
            with os.fdopen(os.open(change.new, _CREATE, 0o666, dir_fd=fd), "wb") as stream:
                stream.write(change.content)
                if mode is not None:
                    os.fchmod(stream.fileno(), mode & 0o7777)
    except NotRegular:
        why = f"{change.path}: a file or a link is where its directory should be"
        raise BriefProblem(change.path, why) from None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let a request to stop wait until all files are in their places."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
