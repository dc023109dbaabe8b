"""What callers get that pay for each byte: answers within a given size, what changed, what is not fine, some keys.

In a digest each task has a fair share, and nothing that failed goes unnamed.  Tasks that are not fine come first.
One that has no room for its answer is named, by id or by number; the others are counted.  Of an answer that is too
long, the beginning is shown, and the end.

Of what changed the caller keeps only a number: the `seq` of the view that it saw.  How the tasks stood then is
folded from the journal anew, so the session keeps nothing for its readers.
"""

from __future__ import annotations

import codecs
import os
import shlex
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from sessionrun.client.reading.outputs import find_tail, open_output, read_text
from sessionrun.client.reading.telling import add_tellings
from sessionrun.client.reading.view import add_views, load_history, load_view, show_as_it_lies
from sessionrun.model.errors import InputError, suggest
from sessionrun.model.shown import BriefTask, Seen, Standing, Verdict
from sessionrun.model.wording import Task, needs_look
from sessionrun.store.session import DEFAULT_RESULTS_DIR, SessionDir

BYTES_PER_TOKEN: Final = 3
"""The counting rule of `--max-tokens`: models need fewer tokens than a third of the bytes for words and code."""

LEAST_TEXT: Final = 120
"""Bytes of text that a shown task has at least, if it printed so many: less tells nothing."""

LEAST_BYTES: Final = 500
"""The names of many tasks by number have room in this."""

SHORT_BYTES: Final = 4096
REASON_LENGTH: Final = 160
CUT: Final = "\n[...]\n"

_HEAD_KEYS: Final = (*Verdict.__annotations__, "total", "completed", "successful", "failed", "results_dir")
_TASK_KEYS: Final = ("num", "id", "word")
_BRIEF_KEYS: Final = (*Standing.__annotations__, "name", "budget", "view_problems", *Seen.__annotations__)
_SIZES: Final = {"text": "text_bytes", "stderr_text": "stderr_bytes"}
_INSIDE_CHARACTER: Final = bytes(range(0x80, 0xC0))

Measure = Callable[[str], int]
"""How many bytes a text takes in the format in which it is printed."""


# --- what has room ---


class Part(NamedTuple):
    """What is told of one task or several: its size beside its texts, and that of each of these (bytes)."""

    frame: int
    texts: Sequence[int]


def share(parts: Sequence[Part], room: int, least: int, rest: Callable[[int], int]) -> list[list[int]]:
    """How many bytes the texts of the first parts have, the most telling ones: of so many as fit in the room.

    At least so much of a text is told, if there is so much; `rest` is what it takes to name the parts from a place
    on, which are left out.
    """
    count, left = 0, room
    for place, part in enumerate(parts, 1):
        after = left - part.frame - sum(min(text, least) for text in part.texts)
        if after < rest(place):
            break
        count, left = place, after
    chosen = parts[:count]
    texts = room - rest(count) - sum(part.frame for part in chosen)
    shares = iter(divide([text for part in chosen for text in part.texts], texts))
    return [[next(shares) for _ in part.texts] for part in chosen]


def divide(sizes: Sequence[int], room: int) -> list[int]:
    """The room for each of several texts: an equal part, and what short ones leave goes to the longer ones."""
    shares = [0] * len(sizes)
    left = room
    for rank, place in enumerate(sorted(range(len(sizes)), key=lambda place: sizes[place])):
        shares[place] = min(sizes[place], left // (len(sizes) - rank))
        left -= shares[place]
    return shares


def find_room(max_bytes: int, taken: int) -> int:
    """How many bytes are left; InputError: fewer than none."""
    if max_bytes < taken:
        raise InputError(f"{max_bytes} bytes are too few for any answer: ask for {taken + LEAST_BYTES} or more")
    return max_bytes - taken


# --- as a record ---


def describe_digest(
    session: SessionDir,
    view: Mapping[str, Any],
    tasks: Sequence[Task],
    max_bytes: int,
    spell: Callable[[Mapping[str, Any]], bytes] = orjson.dumps,
) -> dict[str, Any]:
    """The record of `results --max-bytes`, of which `spell` makes JSON.

    Raises:
        InputError: that is too little for anything, or for the names of the tasks that are not fine.
    """
    head = {**{key: view[key] for key in _HEAD_KEYS}, "rest": _tell_rest(view)}
    ends = {"more_failed": [], "more_failed_numbers": [], "more_fine": 10**10, "tasks": []}
    room = find_room(max_bytes, len(spell({**head, **ends})))
    ordered = sorted(add_tellings(session, [*map(dict, tasks)], room // 2), key=needs_look, reverse=True)
    bad = [task for task in ordered if needs_look(task)]
    by_id = _measure_names([task["id"] for task in bad]) <= room // 2

    def name(place: int) -> list[str]:
        return [str(task["id"]) for task in bad[place:]] if by_id else _find_ranges(bad[place:])

    lacking = _measure_names(name(0)) - room
    if lacking > 0:
        raise InputError(
            f"{len(bad)} tasks need attention; their names take {lacking} bytes more: ask for more, or name tasks"
        )
    sources = [_describe_task(session, task) for task in ordered]
    shares = share([part for *_, part in sources], room, LEAST_TEXT, lambda place: _measure_names(name(place)))
    shown = []
    for (record, files, _), rooms in zip(sources, shares, strict=False):
        texts = zip(files.items(), rooms, strict=True)
        shown.append({**record, **{key: make_excerpt(path, room, _measure).text for (key, path), room in texts}})
    return {
        **head,
        "more_failed": name(len(shares)) if by_id else [],
        "more_failed_numbers": [] if by_id else name(len(shares)),
        "more_fine": len(sources) - max(len(bad), len(shares)),
        "tasks": sorted(shown, key=lambda record: int(record["num"])),
    }


def _describe_task(session: SessionDir, task: Task) -> tuple[dict[str, Any], dict[str, Path], Part]:
    """What is told of a task, the files of which parts come to its texts, by their keys, and what room all takes.

    The files are its answer and, if it is not fine and has some, its standard error.
    """
    reason = str(task["reason"] or "")
    telling = task.get("telling")
    record = {key: task[key] for key in _TASK_KEYS}
    record["reason"] = (reason if len(reason) <= REASON_LENGTH else reason[: REASON_LENGTH - 3] + "...") or None
    if telling and telling["step"] != "work":  # that of the work is in its standard error, which is shown anyway
        record["telling"] = telling
    files = {"text": session.path / task["output"]}
    errors = session.path / task["stderr"]
    if needs_look(task) and find_tail(errors, 0):
        files["stderr_text"] = errors
    for key, path in files.items():
        record |= {key: "", _SIZES[key]: find_tail(path, 0)}
    return record, files, Part(len(orjson.dumps(record)) + 1, [_measure_file(path) for path in files.values()])


def _find_ranges(tasks: Sequence[Task]) -> list[str]:
    """The numbers of tasks, neighbours as a range: ``1-3``, ``7``."""
    runs: list[list[int]] = []
    for number in sorted(int(task["num"]) for task in tasks):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]


def _measure_names(names: Sequence[str]) -> int:
    """How much room names take in a list, with quotes around them and what parts them."""
    return sum(_measure(str(name)) + len('"", ') for name in names)


def _measure(text: str) -> int:
    """How many bytes a text takes inside of its quotes."""
    return len(orjson.dumps(text)) - 2


def _measure_file(path: Path) -> int:
    """The same of a file; one that is long is not read: its size says enough."""
    size = find_tail(path, 0)
    return size if size > SHORT_BYTES else _measure(_read(path, 0, size))


def _tell_rest(view: Mapping[str, Any]) -> str:
    """The command that prints a whole answer."""
    folder = os.path.dirname(view["results_dir"])
    given = [] if folder == os.path.abspath(DEFAULT_RESULTS_DIR) else ["--results-dir", shlex.quote(folder)]
    return " ".join(["sessionrun", "results", str(view["session_id"]), "TASK", *given])


# --- parts of a file ---


class Excerpt(NamedTuple):
    """What is shown of one output file; `size` is that of the whole file (bytes)."""

    text: str
    size: int
    is_cut: bool


def make_excerpt(path: Path, room: int, measure: Measure) -> Excerpt:
    """What of a file fits: all of it, or its beginning and its end."""
    size = find_tail(path, 0)
    if size <= max(room, SHORT_BYTES):
        whole = read_text(path)
        if measure(whole) <= room:
            return Excerpt(whole, size, False)
    left = room - measure(CUT)
    if left <= LEAST_TEXT:
        return Excerpt(_fit_end(_read(path, size - room, size), left, measure), size, True)
    head = _read(path, 0, left // 4)
    head = head[: find_most(len(head), lambda length: measure(head[:length]) <= left // 4)]
    head = head[: head.rfind("\n")] if head.rfind("\n") > 0 else head  # in whole lines if there are some
    end = _fit_end(_read(path, size - left, size), left - measure(head), measure)
    return Excerpt(CUT.join(part for part in (head, end) if part), size, True)


def _fit_end(text: str, room: int, measure: Measure) -> str:
    """As much of the end as fits, in whole lines if there are some."""
    length = find_most(len(text), lambda length: measure(text[len(text) - length :]) <= room)
    fitting = text[len(text) - length :]
    at = fitting.find("\n", 0, -1)
    return fitting[at + 1 :] if at >= 0 and length < len(text) else fitting


def find_most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `limit` that fits, or 0; each number below one that fits must fit, too."""
    return max(0, bisect_left(range(limit + 1), True, key=lambda number: not fits(number)) - 1)


def _read(path: Path, begin: int, end: int) -> str:
    """The characters between two places of a file; half a character at either place is left out."""
    fd = open_output(path)
    if fd is None:
        return ""
    try:
        content = os.pread(fd, end - max(0, begin), max(0, begin))
    finally:
        os.close(fd)
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    return decoder.decode(content.lstrip(_INSIDE_CHARACTER) if begin > 0 else content)


# --- only some keys, or only some tasks ---


def make_brief(
    view: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], *, every: bool = False
) -> dict[str, Any]:
    """The counts of a session and the tasks that need a look, without what is null or empty.

    With `every`, the other tasks behind them.
    """
    shown = []
    for task in (task for task in sorted(tasks, key=needs_look, reverse=True) if every or needs_look(task)):
        record = drop_empty(_choose(task, (*BriefTask.__annotations__, "telling")))
        if task["attempt"] == 1:
            del record["attempt"]
        if "telling" in record:  # it has what standard error says
            record.pop("stderr", None)
        shown.append(record)
    counts = {word: number for word, number in view["counts"].items() if number}
    return {**drop_empty(_choose(view, _BRIEF_KEYS)), "counts": counts, "cursor": view["seq"], "tasks": shown}


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
