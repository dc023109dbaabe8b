"""The digest of a session's answers as a record, for JSON: it fits in a given size once it is spelled."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from sessionrun.client.lookup import DEFAULT_RESULTS_DIR
from sessionrun.client.reading.digest import Digest, Shown, Task, make_digest
from sessionrun.model.errors import InputError
from sessionrun.model.shown import Verdict
from sessionrun.store.session import SessionDir

LEAST_BYTES: Final = 500
"""The names of many tasks by number have room in this."""

REASON_LENGTH: Final = 160

_HEAD_KEYS: Final = (*Verdict.__annotations__, "total", "completed", "successful", "failed", "results_dir")
_TASK_KEYS: Final = ("num", "id", "word")


def describe_digest(
    session: SessionDir,
    view: Mapping[str, Any],
    tasks: Sequence[Task],
    max_bytes: int,
    spell: Callable[[Mapping[str, Any]], bytes] = orjson.dumps,
) -> dict[str, Any]:
    """The record of `results --max-bytes`.

    Args:
        session: whose answers they are.
        view: the view of the session.
        tasks: the tasks of which something is to be shown.
        max_bytes: how long the record may be.
        spell: makes JSON of it.

    Raises:
        InputError: that is too little for anything.
    """
    head = {**{key: view[key] for key in _HEAD_KEYS}, "rest": tell_rest(view)}

    def describe(digest: Digest) -> dict[str, Any]:
        ends = {"more_failed": digest.ids, "more_failed_numbers": digest.numbers, "more_fine": digest.left_out}
        return {**head, **ends, "tasks": [_describe(shown) for shown in digest.shown]}

    def frame(empty: Shown) -> int:
        return len(orjson.dumps(_describe(empty))) + 1

    room = find_room(max_bytes, len(spell(describe(Digest([], [], [], 10**10)))))
    return describe(make_digest(session, tasks, room, frame=frame, measure=_measure))


def find_room(max_bytes: int, taken: int) -> int:
    """How many bytes are left.

    Raises:
        InputError: fewer than none.
    """
    if max_bytes < taken:
        raise InputError(f"{max_bytes} bytes are too few for any answer: ask for {taken + LEAST_BYTES} or more")
    return max_bytes - taken


def tell_rest(view: Mapping[str, Any]) -> str:
    """The command that prints a whole answer."""
    words = ["sessionrun", "results", str(view["session_id"]), "TASK"]
    folder = os.path.dirname(view["results_dir"])
    given = [] if folder == os.path.abspath(DEFAULT_RESULTS_DIR) else ["--results-dir", shlex.quote(folder)]
    return " ".join([*words, *given])


def shorten_reason(task: Task) -> str:
    """The reason of a task's outcome, cut where it is long."""
    reason = str(task["reason"] or "")
    return reason if len(reason) <= REASON_LENGTH else reason[: REASON_LENGTH - 3] + "..."


def _describe(shown: Shown) -> dict[str, Any]:
    record = {key: shown.task[key] for key in _TASK_KEYS}
    record |= {"reason": shorten_reason(shown.task) or None}
    record |= {"telling": shown.task["telling"]} if shown.task.get("telling") else {}
    record |= {"text": shown.answer.text, "text_bytes": shown.answer.size}
    if shown.errors is not None:
        record |= {"stderr_text": shown.errors.text, "stderr_bytes": shown.errors.size}
    return record


def _measure(text: str) -> int:
    """How many bytes a text takes inside of its quotes."""
    return len(orjson.dumps(text)) - 2
