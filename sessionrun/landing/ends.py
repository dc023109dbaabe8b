"""What became of each task's work on one branch, as the log of its landings says it.

For readers: nothing here writes, and nothing asks git.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.model.errors import StoreError
from sessionrun.model.frozen import frozen
from sessionrun.store.codec import build
from sessionrun.store.journal import read_log

LOG: Final = "log"
MAX_BYTES: Final = 64 * 2**20
"""A longer log is not read to show something."""

_STATUSES: Final = {"landed": "landed", "bounced": "bounced"}


@frozen
class End:
    """What became of a task's work at last.

    Attributes:
        task: its id.
        status: `landed`, `bounced` or `held`.
        target: the full name of the branch; older logs say it only of what landed.
        commit: the commit of the branch that holds the work, if a landing put it there.
        reason_class: why it has not landed.
        reason: the same in one line.
        mend: the command that ends a hold.
        files: the files in conflict.
        against: tasks that landed before and changed the same files.
        output: what the red gate printed: a file.
        at: when that was, as UTC.
    """

    task: str
    status: str
    target: str | None = None
    commit: str | None = None
    reason_class: str | None = None
    reason: str | None = None
    mend: str | None = None
    files: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    output: str | None = None
    at: str = ""


def note_end(ends: dict[str, End], record: dict[str, Any]) -> None:
    """Take in one record of a log.

    Raises:
        KeyError, TypeError, ValueError: it is not such a record.
    """
    status = record["status"] if record["kind"] == "fate" else _STATUSES.get(record["kind"])
    if status is not None:
        given = {key: value for key, value in record.items() if value}  # an empty text says as little as null
        end = build(End, {**given, "status": status})
        ends[end.task] = end


def load_ends(folder: Path) -> dict[str, End]:
    """What the log in a folder says of each task; nothing if there is none.

    Raises:
        StoreError: it is damaged, or cannot be read.
    """
    ends: dict[str, End] = {}
    fold_log(folder / LOG, lambda record: note_end(ends, record), MAX_BYTES)
    return ends


def fold_log(path: Path, take: Callable[[dict[str, Any]], None], limit: int | None = None) -> int:
    """Give each record of a log to `take`; returns where the last one ends.

    Raises:
        StoreError: it is damaged, or cannot be read.
    """
    contents = read_log(path, limit)
    if contents.damage_at is not None:
        raise StoreError(f"{path} is damaged at byte {contents.damage_at}: put it aside")
    try:
        for payload in contents.payloads:
            take(orjson.loads(payload))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} is damaged: put it aside") from error
    return contents.end
