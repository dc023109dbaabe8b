"""What of a session failed and why, as `results --failed`, `explain` and `status TASK` print it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from sessionrun.cli.render import WIDTH, check_lines, escape, escape_line, mark, proof_lines, wrap_line
from sessionrun.cli.standing import group_lines, head_lines, whereabouts_lines
from sessionrun.client.lookup import name_for_command
from sessionrun.client.reading.digest import divide
from sessionrun.client.reading.digest_record import find_room
from sessionrun.client.reading.failures import SAID, Failure, Section, group_failures
from sessionrun.client.reading.telling import LEAST_BYTES, fit_lines
from sessionrun.model.wording import name_tasks, short_id, tell_word
from sessionrun.store.session import SessionDir

SIGN_COLUMNS: Final = 3
MOST_ALIKE: Final = 3
"""In little room, of tasks that failed for one reason and printed something else, so many are told one by one."""

LEAST_BODY: Final = 160
"""So much is told below each reason, if there is so much (bytes)."""

_LABELS: Final = {SAID: "the agent said", "work": "standard error, last lines"}

View = Mapping[str, Any]


def print_failures(session: SessionDir, view: View, chosen: Sequence[View], room: int | None) -> None:
    """Print what failed of the chosen tasks, in at most `room` bytes; None: all of it.

    Raises:
        InputError: that is too little.
    """
    now = time.time()
    head = head_lines(view, now)
    failures = group_failures(session, chosen, name_tasks(view), now, None if room is None else MOST_ALIKE)
    blocks = [["", *_frame(view, failure)] for failure in failures]
    if room is None:
        bodies = [_body(failure.sections) for failure in failures]
        last: list[str] = []
    else:
        bodies, last = _choose(failures, blocks, find_room(room, _measure([*head, *_rest(failures)])))
    for block, body in zip(blocks, bodies, strict=False):
        head += [*block, *body]
    click.echo("\n".join([*head, *last]))


def _choose(
    failures: Sequence[Failure], blocks: Sequence[Sequence[str]], room: int
) -> tuple[list[list[str]], list[str]]:
    """The lines below as many of the failures as fit, and what is said of the others: for that there is room."""
    count, left = 0, room + _measure(_rest(failures))
    needs = [_measure(_body(failure.sections)) for failure in failures]
    for block, need in zip(blocks, needs, strict=True):
        after = left - _measure(block) - min(need, LEAST_BODY)
        if after < _measure(_rest(failures[count + 1 :])):
            break
        count, left = count + 1, after
    rest = _rest(failures[count:])
    left += sum(min(need, LEAST_BODY) for need in needs[:count]) - _measure(rest)
    shares = divide(needs[:count], left)
    return [_cut(failure.sections, share) for failure, share in zip(failures[:count], shares, strict=True)], rest


def _rest(failures: Sequence[Failure]) -> list[str]:
    if not failures:
        return []
    tasks = sum(len(failure.group.tasks) for failure in failures)
    return ["", f"and {tasks} more, for {len(failures)} other reason{'s' * (len(failures) > 1)}: --all shows them"]


def _measure(lines: Sequence[str]) -> int:
    return sum(len(line.encode("utf-8", "backslashreplace")) + 1 for line in lines)


def _frame(view: View, failure: Failure) -> Iterator[str]:
    """Which tasks failed, and why; of a task alone also where its work is."""
    group = failure.group
    if len(group.tasks) > 1:
        yield from group_lines(group, WIDTH)
        return
    (task,) = group.tasks
    yield from word_lines(task, group.reason, f"{short_id(task)} ")
    yield from about_lines(view, task, "  ")


def word_lines(task: View, why: str, name: str = "") -> list[str]:
    """A task with its word, and why that is so; a long reason takes several lines."""
    between = "" if not why else " " if why.startswith("because ") else ": "
    word = escape_line(f"{name}{tell_word(task['word'])}")
    first, *more = wrap_line(f"{word}{between}{why}", "", WIDTH - SIGN_COLUMNS)
    return [mark(task["word"], word) + first[len(word) :], *(f"    {line}" for line in more)]


def about_lines(view: View, task: View, indent: str) -> list[str]:
    """What there is to know of a task beside word and reason: its tests, its proof, where its work is."""
    lines = [*(indent + line for line in check_lines(task)), *proof_lines(task, indent)]
    if task["word"] == "bounced" and task["branch"]:
        show = f"sessionrun diff {name_for_command(view)} {short_id(task)}"
        lines.append(indent + escape_line(f"work kept on {task['branch']}; see it: {show}"))
    return [*lines, *whereabouts_lines(task, indent)]


def section_lines(section: Section, indent: str, form: str = "[{}]") -> Iterator[str]:
    """The lines of a source below its name."""
    label = _LABELS.get(section.source, f"{section.source}, last lines")
    yield indent + form.format(label)
    yield from (f"{indent}  {escape(line.expandtabs())}" for line in section.lines)


def _body(sections: Sequence[Section]) -> list[str]:
    return [line for section in sections for line in section_lines(section, "  ")]


def _cut(sections: Sequence[Section], room: int) -> list[str]:
    """As much of the sections as has room, the first ones first."""
    lines: list[str] = []
    for section in sections:
        whole = [*section_lines(section, "  ")]
        left = room - _measure(lines)
        if _measure(whole) > left:
            texts = left - _measure(whole[:1]) - 4 * len(section.lines)
            if texts < LEAST_BYTES:
                break
            whole = [*section_lines(section._replace(lines=fit_lines(section.lines, texts)), "  ")]
        lines += whole
    return lines
