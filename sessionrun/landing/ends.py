"""What became of each task's work on one branch, as the log of its landings says it.

For readers: nothing here writes, and nothing asks git.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.model.errors import StoreError
from sessionrun.model.frozen import frozen
from sessionrun.store.files import read_regular
from sessionrun.store.journal import parse_log

LOG: Final = "log"
MAX_BYTES: Final = 64 * 2**20
"""A longer log is not read to show something."""

_STATUSES: Final = {"landed": "landed", "bounced": "bounced"}


@frozen
class End:
    """What became of a task's work at last.

    Attributes:
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
    if status is None:
        return
    words = [record.get(key) or None for key in ("target", "commit", "reason_class", "reason", "mend", "output")]
    files, against, at = record.get("files") or [], record.get("against") or [], record.get("at") or ""
    texts = (status, record["task"], at, *(word for word in words if word is not None), *files, *against)
    if not (isinstance(files, list) and isinstance(against, list)) or not all(
        isinstance(text, str) for text in texts
    ):
        raise ValueError("it has a value of another type")
    target, commit, reason_class, reason, mend, output = words
    about = (tuple(files), tuple(against), output)
    ends[record["task"]] = End(status, target, commit, reason_class, reason, mend, *about, at)


def load_ends(folder: Path) -> dict[str, End]:
    """What the log in a folder says of each task; nothing if there is none.

    Raises:
        StoreError: it is damaged, or cannot be read.
    """
    path = folder / LOG
    ends: dict[str, End] = {}
    try:
        contents = parse_log(read_regular(path, MAX_BYTES))
        for payload in contents.payloads:
            note_end(ends, orjson.loads(payload))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{path} is damaged: put it aside") from error
    if contents.damage_at is not None:
        raise StoreError(f"{path} is damaged at byte {contents.damage_at}: put it aside")
    return ends
