"""What a session came to within a size, first what failed and why: as `results` prints it for readers that pay."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from sessionrun.cli.facts import about_lines, section_lines, title_lines, word_lines
from sessionrun.cli.render import WIDTH, escape
from sessionrun.cli.standing import View, group_lines, head_lines
from sessionrun.client.reading.digest import Part, find_room, make_excerpt, share
from sessionrun.client.reading.outputs import find_tail
from sessionrun.client.reading.telling import (
    LEAST_BYTES,
    Failure,
    Section,
    fit_lines,
    fold_failures,
    group_failures,
)
from sessionrun.client.reading.terse import measure_lines
from sessionrun.client.reading.waiting import has_failed
from sessionrun.model.wording import name_tasks, short_id
from sessionrun.store.session import SessionDir

FOLDS: Final = (None, 8, 3, 1)
"""Of one reason so many different last lines are told, as far as there is room."""

LEAST_BODY: Final = 160
"""So much is told below each reason and of each answer, if there is so much (bytes)."""


class _Block(NamedTuple):
    """What is told of tasks: the first lines, how much there is below them (bytes), and that cut to a size."""

    tasks: Sequence[View]
    frame: Sequence[str]
    need: int
    cut: Callable[[int], Sequence[str]]

    def measure(self) -> Part:
        return Part(measure_lines(self.frame), (self.need,))


def digest_lines(session: SessionDir, view: View, chosen: Sequence[View], room: int | None) -> list[str]:
    """What failed of the chosen tasks, then what the others answered, in at most `room` bytes; None: all.

    Raises:
        InputError: that is too little for anything.
    """
    now, tasks = time.time(), name_tasks(view)
    head = head_lines(view, now)
    failures = group_failures(session, filter(has_failed, chosen), tasks, now)
    answers = [_tell_answer(session, task, tasks, now) for task in chosen if not has_failed(task)]
    blocks: list[_Block] = []
    for most in FOLDS:
        blocks = [*(_tell_failure(view, failure) for failure in fold_failures(failures, most)), *answers]
        least = sum(measure_lines(block.frame) + min(block.need, LEAST_BODY) for block in blocks)
        if room is None or least <= room - measure_lines(head):
            break
    shares = [[block.need] for block in blocks]
    if room is not None:
        find_room(room, measure_lines([*head, *_count_rest(blocks)]))
        parts = [block.measure() for block in blocks]
        left = room - measure_lines(head)
        shares = share(parts, left, LEAST_BODY, lambda place: measure_lines(_count_rest(blocks[place:])))
    fitting = zip(blocks[: len(shares)], shares, strict=True)
    shown = (line for block, (own,) in fitting for line in (*block.frame, *block.cut(own)))
    return [*head, *shown, *_count_rest(blocks[len(shares) :])]


def _count_rest(blocks: Sequence[_Block]) -> list[str]:
    bad = [len(block.tasks) for block in blocks if has_failed(block.tasks[0])]
    words = [f"{sum(bad)} more, for {len(bad)} other reason{'s' * (len(bad) > 1)}"] if bad else []
    words += [f"{len(blocks) - len(bad)} fine"] if len(blocks) > len(bad) else []
    return ["", f"and {' and '.join(words)}{': --failed --all shows them' if bad else ''}"] if words else []


def _tell_failure(view: View, failure: Failure) -> _Block:
    """Which tasks failed, and why; of a task alone also where its work is."""
    group = failure.group
    if len(group.tasks) > 1:
        frame = group_lines(group, WIDTH)
    else:
        (task,) = group.tasks
        frame = [*word_lines(task, group.reason, f"{short_id(task)} "), *about_lines(view, task, "  ")]
    whole = [line for section in failure.sections for line in section_lines(*section, "  ")]
    return _Block(group.tasks, ["", *frame], measure_lines(whole), partial(_cut, failure.sections))


def _tell_answer(session: SessionDir, task: View, tasks: Mapping[str, View], now: float) -> _Block:
    path = session.path / task["output"]
    size = find_tail(path, 0) if task["status"] == "completed" else 0
    clean = escape if sys.stdout.isatty() else str

    def cut(room: int) -> list[str]:
        excerpt = make_excerpt(path, room, lambda text: measure_lines([clean(text)])) if room else None
        return clean(excerpt.text).removesuffix("\n").split("\n") if excerpt and excerpt.text else []

    return _Block([task], ["", *title_lines(task, tasks, now)], size + 1 if size else 0, cut)


def _cut(sections: Sequence[Section], room: int) -> list[str]:
    """As much of the sections as has room, the first ones first."""
    lines: list[str] = []
    for section in sections:
        whole = section_lines(*section, "  ")
        left = room - measure_lines(lines)
        if measure_lines(whole) > left:
            texts = left - measure_lines(whole[:1]) - 4 * len(section.lines)
            if texts < LEAST_BYTES:
                break
            shown = [escape(line.expandtabs()) for line in section.lines]  # as long as it is printed
            whole = section_lines(section.source, fit_lines(shown, texts), "  ")
        lines += whole
    return lines
