"""The answers of a session within a given size: a fair share for each task, and nothing that failed goes unnamed.

Tasks that are not fine come first.  One that has no room for its answer is named, by id or by number; the others
are counted.  Of an answer that is too long, the beginning is shown, lines that look like errors, and the end.
"""

from __future__ import annotations

import codecs
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.reading.outputs import find_tail, iterate_chunks, open_output
from sessionrun.client.reading.telling import add_tellings
from sessionrun.model.errors import InputError
from sessionrun.model.wording import needs_look
from sessionrun.store.session import SessionDir

BYTES_PER_TOKEN: Final = 3
"""The counting rule of `--max-tokens`: models need fewer tokens than a third of the bytes for words and code."""

LEAST_TEXT: Final = 120
"""Bytes of text that a shown task has at least, if it printed so many: less tells nothing."""

SHORT_BYTES: Final = 4096

SCAN_BYTES: Final = 1024 * 1024
"""How much of an output is searched for errors: its last part."""

CUT: Final = "\n[...]\n"
_ERROR_WORDS: Final = (b"error", b"exception", b"fail", b"fatal", b"panic", b"traceback", b"assert", b"denied")
_MOST_FINDS: Final = 100
_INSIDE_CHARACTER: Final = bytes(range(0x80, 0xC0))
_LINE_LENGTH: Final = 200

Task = Mapping[str, Any]
Measure = Callable[[str], int]
"""How many bytes a text takes in the format in which it is printed."""


class Excerpt(NamedTuple):
    """What is shown of one output file; `size` is that of the whole file (bytes)."""

    text: str
    size: int
    is_cut: bool


class Shown(NamedTuple):
    """A task with what is shown of its answer and, if it is not fine and has some, of its standard error."""

    task: Task
    answer: Excerpt
    errors: Excerpt | None = None


class Digest(NamedTuple):
    """What fits.

    `shown` are tasks with text.  `ids` names the other tasks that are not fine; where those have no room it is
    empty, and `numbers` has them, such as ``1-3`` and ``7``.  `left_out` counts the other tasks.
    """

    shown: list[Shown]
    ids: list[str]
    numbers: list[str]
    left_out: int


def make_digest(
    session: SessionDir, tasks: Sequence[Task], room: int, *, frame: Callable[[Shown], int], measure: Measure
) -> Digest:
    """Choose what is shown of tasks.

    Args:
        session: whose tasks they are.
        tasks: the tasks.
        room: how many bytes there are for all of them.
        frame: how many bytes a task takes beside its texts.
        measure: how many bytes a text takes.

    Raises:
        InputError: there is no room for the names of the tasks that are not fine.
    """
    worded = add_tellings(session, [dict(task) for task in tasks], room // 2)
    sources = [_find_source(session, task, frame, measure) for task in map(_without_work, worded)]
    bad = [one for one in sources if needs_look(one.task)]
    fine = [one for one in sources if not needs_look(one.task)]
    by_id = sum(_measure_names(_ids(bad), measure)) <= room // 2
    names = _measure_names(_ids(bad) if by_id else _find_ranges(bad), measure)
    chosen: list[_Source] = []
    left = room - sum(names)
    if left < 0:
        raise InputError(
            f"{len(bad)} tasks need attention; their names take {-left} bytes more: ask for more, or name tasks"
        )
    for place, source in enumerate([*bad, *fine]):
        left += (names[place] if by_id and place < len(bad) else 0) - source.least
        if left < 0:
            break
        chosen.append(source)
    named = bad[len(chosen) :]
    ids, numbers = (_ids(named), []) if by_id else ([], _find_ranges(named))
    texts = room - sum(_measure_names([*ids, *numbers], measure)) - sum(source.frame for source in chosen)
    shown = _share(sorted(chosen, key=lambda source: int(source.task["num"])), texts, measure)
    return Digest(shown, ids, numbers, len(fine) - max(0, len(chosen) - len(bad)))


def _without_work(task: Task) -> Task:
    """A task without the telling lines of its work: its standard error is shown anyway."""
    is_work = (task.get("telling") or {}).get("step") == "work"
    return {**task, "telling": None} if is_work else task


class _Source(NamedTuple):
    """A task, the files of which something is shown, their needs, and what the task takes beside them (bytes)."""

    task: Task
    paths: list[Path]
    needs: list[int]
    frame: int

    @property
    def least(self) -> int:
        """How much room the task takes at least."""
        return self.frame + sum(min(need, LEAST_TEXT) for need in self.needs)


def _find_source(session: SessionDir, task: Task, frame: Callable[[Shown], int], measure: Measure) -> _Source:
    paths = [session.path / name for name in (task["output"], *((task["stderr"],) if needs_look(task) else ()))]
    paths = [path for place, path in enumerate(paths) if place == 0 or find_tail(path, 0)]
    needs = [_find_need(path, measure) for path in paths]
    empty = [Excerpt("", find_tail(path, 0), need > LEAST_TEXT) for path, need in zip(paths, needs, strict=True)]
    return _Source(task, paths, needs, frame(Shown(task, *empty)))


def _find_need(path: Path, measure: Measure) -> int:
    """How much room a whole file takes: measured, but where it is so long that its size says enough."""
    size = find_tail(path, 0)
    return size if size > SHORT_BYTES else measure(_read(path, 0, size))


def _find_ranges(sources: Sequence[_Source]) -> list[str]:
    """The numbers of tasks, neighbours as a range: ``1-3``, ``7``."""
    runs: list[list[int]] = []
    for number in sorted(int(source.task["num"]) for source in sources):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]


def _ids(sources: Sequence[_Source]) -> list[str]:
    return [str(source.task["id"]) for source in sources]


def _measure_names(names: Sequence[str], measure: Measure) -> list[int]:
    """How much room names take in a list, with quotes around them and what parts them."""
    return [measure(name) + len('"", ') for name in names]


def _share(sources: Sequence[_Source], room: int, measure: Measure) -> list[Shown]:
    shares = iter(divide([need for source in sources for need in source.needs], room))
    return [
        Shown(source.task, *(make_excerpt(path, next(shares), measure) for path in source.paths))
        for source in sources
    ]


def divide(sizes: Sequence[int], room: int) -> list[int]:
    """The room for each of several texts: an equal part, and what short ones leave goes to the longer ones."""
    shares = [0] * len(sizes)
    left = room
    for rank, place in enumerate(sorted(range(len(sizes)), key=lambda place: sizes[place])):
        shares[place] = min(sizes[place], left // (len(sizes) - rank))
        left -= shares[place]
    return shares


def make_excerpt(path: Path, room: int, measure: Measure) -> Excerpt:
    """What of a file fits: all of it, or its beginning, lines that look like errors, and its end."""
    size = find_tail(path, 0)
    if size <= max(room, SHORT_BYTES):
        whole = _decode(b"".join(iterate_chunks(path)))
        if measure(whole) <= room:
            return Excerpt(whole, size, False)
    left = room - 2 * measure(CUT)
    if left <= LEAST_TEXT:
        return Excerpt(_fit_end(_read(path, size - room, size), room - measure(CUT), measure), size, True)
    head = _fit_beginning(_read(path, 0, left // 4), left // 4, measure)
    errors = "\n".join(_find_errors(path, size, left // 4, measure))
    end = _fit_end(_read(path, size - left, size), left - measure(head) - measure(errors), measure)
    return Excerpt(CUT.join(part for part in (head, errors, end) if part), size, True)


def _find_errors(path: Path, size: int, room: int, measure: Measure) -> Iterator[str]:
    """The first different lines that look like errors, each cut to a bearable length."""
    seen: set[str] = set()
    for line in _find_lines(_read_bytes(path, size - SCAN_BYTES, size)):
        text = _decode(line.strip())[:_LINE_LENGTH]
        room -= measure(text) + measure("\n")
        if room < 0:
            return
        if text not in seen:
            seen.add(text)
            yield text


def _find_lines(content: bytes) -> Iterator[bytes]:
    """The lines with one of the words, in their order; of each word only the first finds count."""
    lowered, end = content.lower(), 0
    for at in sorted(at for word in _ERROR_WORDS for at in islice(_find_all(lowered, word), _MOST_FINDS)):
        if at >= end:
            begin, end = content.rfind(b"\n", 0, at) + 1, content.find(b"\n", at)
            end = len(content) if end < 0 else end
            yield content[begin:end]


def _find_all(content: bytes, word: bytes) -> Iterator[int]:
    at = content.find(word)
    while at >= 0:
        yield at
        at = content.find(word, at + len(word))


def _fit_beginning(text: str, room: int, measure: Measure) -> str:
    """As much of the beginning as fits, in whole lines if there are some."""
    fitting = text[: find_most(len(text), lambda length: measure(text[:length]) <= room)]
    at = fitting.rfind("\n")
    return fitting[:at] if at > 0 else fitting


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
    content = _read_bytes(path, begin, end)
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    return decoder.decode(content.lstrip(_INSIDE_CHARACTER) if begin > 0 else content)


def _read_bytes(path: Path, begin: int, end: int) -> bytes:
    fd = open_output(path)
    if fd is None:
        return b""
    try:
        return os.pread(fd, end - max(0, begin), max(0, begin))
    finally:
        os.close(fd)


def _decode(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")
