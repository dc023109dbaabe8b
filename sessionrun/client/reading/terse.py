"""What callers get that pay for each byte: only what changed, only what is not fine, only some keys, no nulls.

Of what changed the caller keeps only a number: the `seq` of the view that it saw.  How the tasks stood then is
folded from the journal anew, so the session keeps nothing for its readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from sessionrun.client.reading.view import add_views, load_history, load_view, show_as_it_lies
from sessionrun.model.errors import InputError, suggest
from sessionrun.model.shown import BriefTask, Seen, Standing
from sessionrun.model.wording import needs_look
from sessionrun.store.session import SessionDir

_HEAD_KEYS: Final = (*Standing.__annotations__, "name", "budget", "view_problems", *Seen.__annotations__)
_TASK_KEYS: Final = (*BriefTask.__annotations__, "telling")

BRIEF_BYTES: Final = 1600
"""A short answer has no more, however many tasks there are; nor have all telling lines together in one."""


def make_brief(
    view: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], *, every: bool = False
) -> dict[str, Any]:
    """The counts of a session and the tasks that need a look, without what is null or empty.

    With `every`, the other tasks behind them.
    """
    ordered = sorted(tasks, key=needs_look, reverse=True)
    shown = [_shorten(task) for task in ordered if every or needs_look(task)]
    head = drop_empty(_choose(view, _HEAD_KEYS)) | {"counts": {word: n for word, n in view["counts"].items() if n}}
    return {**head, "cursor": view["seq"], "tasks": shown}


def _shorten(task: Mapping[str, Any]) -> dict[str, Any]:
    """A task in the brief form; the word says how it stands, and the telling lines what its standard error has."""
    record = drop_empty(_choose(task, _TASK_KEYS))
    needless = ["attempt"] if task["attempt"] == 1 else []
    needless += ["stderr"] if "telling" in record else []
    return {name: value for name, value in record.items() if name not in needless}


def choose_fields(
    view: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], fields: Sequence[str]
) -> dict[str, Any]:
    """The given keys of the session and of its tasks; a key that both have is shown of both."""
    head = [key for key in fields if key in view and key != "tasks"]
    of_task = [key for key in fields if any(key in task for task in view["tasks"])]
    unknown = next((key for key in fields if key not in head and key not in of_task), None)
    if unknown is not None and view["tasks"]:
        known = sorted({*view, *view["tasks"][0]} - {"tasks"})
        raise InputError(f"--fields: no field {unknown!r}{suggest(unknown, known)}; known are: {', '.join(known)}")
    chosen = {**_choose(view, ("session_id", *head)), "cursor": view["seq"]}
    return {**chosen, "tasks": [_choose(task, of_task) for task in tasks]} if of_task else chosen


def _choose(record: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: record.get(key) for key in keys}


def drop_empty(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without nulls, empty lists and empty objects; what stands in its objects is left alone."""
    return {key: value for key, value in record.items() if value not in (None, [], {})}


def measure_lines(lines: Iterable[str]) -> int:
    """How many bytes lines take, each with its end."""
    return sum(len(line.encode("utf-8", "backslashreplace")) + 1 for line in lines)


def cut_bytes(line: str, most: int) -> str:
    """The beginning of a line in so many bytes, with dots where it was cut."""
    content = line.encode("utf-8", "backslashreplace")
    return line if len(content) <= most else content[: most - 3].decode("utf-8", "ignore") + "..."


# --- what changed ---


def load_since(session: SessionDir, since: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The view of a session, and those of its tasks that are not as they were at the cursor `since`.

    A task of a session whose processes are gone may be shown although it did not change.
    """
    view = load_view(session)
    if view["seq"] < since:  # status.json may lag behind what a reader without a supervisor saw
        view = load_history(session)[0]
    if view["seq"] < since:
        raise InputError(
            f"--since {since}: session {view['session_id']} has only come to {view['seq']}; "
            "give the cursor that was printed for this session"
        )
    if view["seq"] == since and view["status"] != "interrupted":
        return view, []
    from sessionrun.session.history import project_status, replay

    shown = [show_as_it_lies(task) for task in project_status(session, replay(session, since)[0])["tasks"]]
    before = {task["id"]: _spell(task) for task in add_views(session, shown)}
    return view, [task for task in view["tasks"] if _spell(task) != before.get(task["id"])]


def _spell(task: Mapping[str, Any]) -> bytes:
    return orjson.dumps(task, option=orjson.OPT_SORT_KEYS)
