"""Writes the files of an answer: all of them or none, and only inside of the task's directory."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sessionrun.answers.reading import Unclear, apply_edits, read_edits, read_files
from sessionrun.brief import Brief
from sessionrun.briefing import BriefProblem, count_lines, read_inside, resolve_inside

_SUFFIX: Final = ".sessionrun-new"


@dataclass(frozen=True, slots=True)
class _Change:
    """One file to be written: where links lead, what stood there before (None: nothing)."""

    path: str
    real: str
    content: bytes
    before: bytes | None


def apply_answer(brief: Brief, directory: str, answer: str) -> dict[str, int]:
    """Write what an answer says; the lines of each file written.

    Raises:
        Unclear: the answer does not say what to write, or too much.
        BriefProblem: it would write where it must not.
        OSError: it cannot be written; nothing was.
    """
    files = _read_answer(brief, directory, answer)
    lines = {path: count_lines(text) for path, text in files.items()}
    limit = brief.max_output_lines
    if brief.mode != "edit" and limit is not None and sum(lines.values()) > limit:
        raise Unclear(f"the answer has {sum(lines.values())} lines, and at most {limit} are allowed")
    _write_all([_prepare(brief, directory, path, text) for path, text in files.items()])
    return lines


def _read_answer(brief: Brief, directory: str, answer: str) -> dict[str, str]:
    if brief.mode == "edit":
        edits = read_edits(answer, brief.targets)
        return apply_edits(edits, {edit.path: _current(directory, edit.path) for edit in edits})
    files = read_files(answer, brief.outputs)
    missing = [path for path in brief.outputs if path not in files] if brief.mode == "split" else []
    if missing:
        raise Unclear(f"the answer has no {', '.join(missing)}")
    return files


def _current(directory: str, path: str) -> str | None:
    """The text of a file that is to be edited; it has to be text, for it is written again."""
    real = resolve_inside(directory, path)
    if not os.path.lexists(real):
        return None
    text = read_inside(directory, path)
    if "\ufffd" in text:
        raise BriefProblem(f"{path} is not UTF-8 and cannot be edited")
    return text


def _prepare(brief: Brief, directory: str, path: str, text: str) -> _Change:
    real = resolve_inside(directory, path)
    inside = os.path.relpath(real, os.path.realpath(directory))
    if any(fnmatch.fnmatch(inside, pattern) for pattern in brief.protected):
        raise BriefProblem(f"{path} must not be written by an answer")
    if not brief.create_directories and not os.path.isdir(os.path.dirname(real)):
        raise BriefProblem(f"{path}: there is no directory {os.path.dirname(path)}")
    if os.path.lexists(real) and not os.path.isfile(real):
        raise BriefProblem(f"{path} is no regular file")
    before = None
    if os.path.isfile(real):
        with open(real, "rb") as stream:
            before = stream.read()
    return _Change(path, real, text.encode("utf-8", "replace"), before)


def _write_all(changes: list[_Change]) -> None:
    """New files first beside the old ones, then one rename after the other; the first that fails undoes them."""
    fresh: list[tuple[_Change, str]] = []
    done: list[_Change] = []
    try:
        for change in changes:
            name = _write_new(change)
            fresh.append((change, name))
        for change, name in fresh:
            os.replace(name, change.real)
            done.append(change)
    except OSError:
        for change in reversed(done):
            _undo(change)
        raise
    finally:
        for _, name in fresh:
            if os.path.lexists(name):
                os.unlink(name)


def _write_new(change: _Change) -> str:
    folder = os.path.dirname(change.real)
    os.makedirs(folder, exist_ok=True)
    if os.path.realpath(folder) != folder:
        raise BriefProblem(f"{change.path}: a link took the place of its directory")
    name = f"{change.real}.{os.getpid()}{_SUFFIX}"
    mode = os.stat(change.real).st_mode & 0o7777 if change.before is not None else 0o666
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as stream:
        stream.write(change.content)
    if change.before is not None:
        os.chmod(name, mode)
    return name


def _undo(change: _Change) -> None:
    if change.before is None:
        os.unlink(change.real)
        return
    with open(change.real, "wb") as stream:
        stream.write(change.before)


def describe_written(lines: Mapping[str, int]) -> str:
    """What was written, for the output of the check."""
    return "\n".join(f"wrote {path} ({count} lines)" for path, count in lines.items())
