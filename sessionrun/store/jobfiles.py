"""Reads the files of a job's folder back into records, and checks them: kind of file, JSON, keys and types.

Every task can write into the folders of the others.  A file that is damaged, or is another thing than a file, is
one exception, `JobFileError`: the failure of the one job that it belongs to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

from sessionrun.model.errors import JobFileError
from sessionrun.store.files import list_folders, open_regular, read_regular, replace_file

MAX_BYTES: Final = 64 * 1024 * 1024
"""A larger file is none of ours: the longest are requests, with the rules of what git ignores."""

REQUEST: Final = "request.json"
ANSWER: Final = "answer.json"
"""How a process of ours is asked, and how it answers (see `runtime.jobs.job`)."""

CLAIM: Final = "claim.json"
"""In the folder of a PREPARE: what it is about to make."""

TAIL_BYTES: Final = 16 * 1024
"""How much of what a job printed is read: the next round is told so much of a failed check's output."""

_Record = TypeVar("_Record")


class _Misfit(ValueError):
    """A value is not of the type that its record wants."""


def load_record(path: Path, cls: type[_Record]) -> _Record:
    """Read a JSON object into a dataclass; keys that it does not know are left out.

    Raises:
        JobFileError: it is not there, no regular file, no JSON, or does not fit.
    """
    try:
        content = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise JobFileError(path, error.strerror or str(error)) from error
    try:
        record: _Record = _build(orjson.loads(content), cls, "it")
        return record
    except orjson.JSONDecodeError as error:
        raise JobFileError(path, "it is damaged: no JSON") from error
    except _Misfit as error:
        raise JobFileError(path, f"it is damaged: {error}") from error


def load_record_if_any(path: Path, cls: type[_Record]) -> _Record | None:
    """As `load_record`; None where nothing lies there.

    Raises:
        JobFileError: something lies there, and it cannot be used.
    """
    try:
        return load_record(path, cls)
    except JobFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def load_request(folder: Path, cls: type[_Record]) -> _Record:
    """What a job of ours is asked for.

    Raises:
        JobFileError: it cannot be used.
    """
    return load_record(folder / REQUEST, cls)


def load_answer(folder: Path, cls: type[_Record]) -> _Record | None:
    """What a job of ours answered; None when it did not come so far.

    Raises:
        JobFileError: an answer is there and cannot be used.
    """
    return load_record_if_any(folder / ANSWER, cls)


def write_answer(folder: Path, answer: object) -> None:
    """Leave the answer of a job of ours: it is there in whole, or it is not there."""
    replace_file(folder / ANSWER, orjson.dumps(answer), durable=True)


def find_job_folder(
    session: Path, task: str, phase: str, attempt: int, round_number: int | None = None
) -> Path | None:
    """The folder of the last job of a phase in an attempt: of its last round, unless one is given."""
    wanted = re.compile(rf"a{attempt}-r(\d+)-{phase}(?:-s(\d+))?")
    jobs = session / "jobs" / task
    found = [match for name in list_folders(jobs) if (match := wanted.fullmatch(name))]
    found = [match for match in found if round_number in (None, int(match[1]))]
    last = max(found, key=lambda match: (int(match[1]), int(match[2] or 1)), default=None)
    return None if last is None else jobs / last[0]


def list_outputs(folder: Path, *, whole: bool = False) -> list[Path]:
    """The files with what a job printed; with `whole` also those of the checks that a proof did, in full."""
    checks = sorted(folder.glob("*.txt")) if whole else []
    return [*checks, folder / "stdout", folder / "stderr"]


def load_worktree(session: Path, task: str, attempt: int) -> str | None:
    """Where the worktree of an attempt is, or was: its claim says so when the worktree is gone, too."""
    folder = find_job_folder(session, task, "prepare", attempt)
    try:
        claim = None if folder is None else orjson.loads(read_regular(folder / CLAIM, MAX_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return None
    worktree = claim.get("worktree") if isinstance(claim, dict) else None
    return worktree if isinstance(worktree, str) and worktree else None


def read_tail(path: Path) -> bytes:
    """The end of what a job printed; nothing where it printed nothing or something else lies there."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
            return stream.read(TAIL_BYTES)
    except OSError:
        return b""


def _build(value: object, cls: type[Any], where: str) -> Any:
    if not isinstance(value, dict):
        raise _Misfit(f"{where} is not an object")
    hints = get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}
    missing = [
        name
        for name, field in known.items()
        if name not in value and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise _Misfit(f"{missing[0]} is missing")
    return cls(**{name: _fit(member, hints[name], name) for name, member in value.items() if name in known})


def _fit(value: Any, hint: Any, where: str) -> Any:
    """The value as a field of type `hint` has it: lists become tuples, objects records."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        return _fit(value, next(kind for kind in inner if kind is not NoneType), where)
    if origin is tuple and isinstance(value, list):
        kinds = inner if inner[-1] is not ... else inner[:1] * len(value)
        if len(kinds) != len(value):
            raise _Misfit(f"{where} has {len(value)} parts")
        return tuple(_fit(element, kind, where) for element, kind in zip(value, kinds, strict=True))
    if origin is Mapping and isinstance(value, dict):
        return {name: _fit(element, inner[1], f"{where}.{name}") for name, element in value.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        return _build(value, hint, where)
    if hint is float and type(value) is int:
        return float(value)  # JSON has one kind of number, and other programs write 60 where we write 60.0
    if (origin is Literal and type(value) is str and value in inner) or (origin is None and type(value) is hint):
        return value
    raise _Misfit(f"{where} is {_describe(value)}")


def _describe(value: object) -> str:
    return (
        "null"
        if value is None
        else f"{value!r:.40}"
        if isinstance(value, (str, int, float))
        else "of another type"
    )
