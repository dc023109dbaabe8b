"""What `watch` shows as lines of a screen: a session with its tasks, or all sessions.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Final, NamedTuple

from sessionrun.cli.render import encodes, escape_line, pad, sign
from sessionrun.cli.standing import draw_bar, row_lines, tell_doing, tell_left
from sessionrun.cli.status import comparison_lines
from sessionrun.client.reading.comparison import compare_tasks, name_each
from sessionrun.model.wording import (
    clip,
    fit_counts,
    group_tasks,
    list_ids,
    name_tasks,
    needs_look,
    short_id,
    tell_reason,
    tell_session,
    tell_span,
    tell_state,
    took_s,
)
from sessionrun.model.words import IN_LANDING, is_matrix

_KEYS: Final = (
    "q quit",
    "? keys",
    "up/down",
    "enter why",
    "r retry",
    "c cancel",
    "l logs",
    "d diff",
    "h hold",
    "/ find",
)
"""The keys, those first that a narrow screen must show, too."""

ALL_KEYS: Final = (
    "up/down (or k and j) select a task  enter says why it stands so  l logs  d diff  r retry  c cancel  / find  "
    "f only what needs you  s in the order of the plan  h hold what waits, or release what is held  "
    "q leaves the session running"
)
ARROWS: Final[Mapping[str, int]] = {"up": -1, "k": -1, "down": 1, "j": 1}
_GRID_ROOM: Final = 3
"""A grid of arms may have one of so many parts of the screen."""

View = Mapping[str, Any]
Line = tuple[str, str]
"""A line of the screen, and how it looks: a style of the library, or nothing."""


@dataclass
class Choice:
    """What the person at the screen has chosen."""

    selected: str | None = None
    """The id of a task; None: the first one."""
    only_attention: bool = False
    """Whether only tasks are shown that run or need attention."""
    as_planned: bool = False
    """Whether the tasks of a block are in the order of the plan."""
    find: str = ""
    """What ids or titles of shown tasks have in them."""
    message: str = ""
    """What the last key did, or asks; empty: the keys are shown."""


class Blocks(NamedTuple):
    """The tasks that are shown: those that run, that need a person, that are done."""

    running: list[dict[str, Any]]
    needy: list[dict[str, Any]]
    done: list[dict[str, Any]]

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """All of them in this order, in which arrows go from one to the next."""
        return [*self.running, *self.needy, *self.done]


def choose_tasks(view: View, choice: Choice) -> Blocks:
    """What runs for longest stands first, and what ended last."""
    wanted = choice.find.casefold()
    tasks = [task for task in view["tasks"] if wanted in f"{task['id']} {task['title']}".casefold()]
    running = [task for task in tasks if task["status"] == "running"]
    needy = [task for task in tasks if task["status"] != "running" and needs_look(task)]
    done = [task for task in tasks if task["status"] == "completed" and not needs_look(task)]
    if not choice.as_planned:
        running.sort(key=lambda task: task["started_at"] or "")
        for block in (needy, done):
            block.sort(key=lambda task: task["ended_at"] or "", reverse=True)
    return Blocks(running, needy, [] if choice.only_attention else done)


def draw(
    view: View, blocks: Blocks, last: Mapping[str, str], choice: Choice, now: float, size: tuple[int, int]
) -> list[Line]:
    """The lines of a screen of so many columns and rows.

    `last` has the last line that a task printed, or that tells why it failed, by its id.
    """
    width, height = size
    head = _draw_head(view, now, size)
    waiting = [task for task in view["tasks"] if task["word"] == "waiting"]
    begin = f"{sign('waiting')} {len(waiting)} waiting: next "
    foot: list[Line] = [(begin + list_ids(waiting, max(8, width - len(begin))), "dim")] if waiting else []
    keys = ("  ".join(_KEYS[:shown]) for shown in range(len(_KEYS), 0, -1))
    fitting = next((line for line in keys if len(line) <= width), _KEYS[0])
    foot += [(line, "bold") for line in wrap(choice.message, width) or [fitting]]
    rows = _draw_blocks(view, blocks, last, choice, now, (width, height - len(head) - len(foot)))
    lines = [*head, *(rows or [("nothing to show", "dim")])]
    room = height - len(foot)  # the foot stays, whatever does not fit
    lines = [*lines[:room], *[("", "")] * (room - len(lines)), *foot]
    return [(clip(text, width), style) for text, style in lines]


def _draw_head(view: View, now: float, size: tuple[int, int]) -> list[Line]:
    """How the session stands: its counts as a bar and in words; what is held and why; what lands; a matrix."""
    width, height = size
    left, by_id = tell_left(view, now), name_tasks(view)
    begin = escape_line(f"{tell_session(view)}: {tell_state(view, now)}, {tell_span(took_s(view, now))}")
    end = f"{view['completed']}/{view['total']}"
    held = [task for task in view["tasks"] if task["word"] == "held" and task["status"] != "completed"]
    why = "; ".join(group.head for group in group_tasks(held, by_id, now))
    landing = [task for task in view["tasks"] if (task["landing"] or {}).get("status") in IN_LANDING]
    lands = " ".join(f"{short_id(task)} {task['landing']['status']}" for task in landing)
    counts = fit_counts(view["counts"], width)
    lines: list[Line] = [
        (pad(begin, max(0, width - len(end) - 1)) + f" {end}", "bold"),
        ("".join(part for _, part in draw_bar(view, width)), ""),
        (f"{counts}   {left}" if left else counts, "red" if view["failed"] else ""),
        *([(escape_line(why), "yellow")] if why else []),
        *([(escape_line(f"landing: {lands}"), "cyan")] if lands else []),
    ]
    if is_matrix(view["tasks"]):
        record = compare_tasks(view, view["tasks"], "model")
        grid = comparison_lines(record, width, show_all=False)
        rows = {cell["task"] for group in record["groups"] for cell in group["cells"]}
        needed = 2 + len(rows)  # its head, and what was solved
        lines += [(line, "") for line in grid[: height // _GRID_ROOM]] if needed <= height // _GRID_ROOM else []
    return lines


def _draw_blocks(
    view: View, blocks: Blocks, last: Mapping[str, str], choice: Choice, now: float, size: tuple[int, int]
) -> list[Line]:
    """The rows of the blocks with a rule between two; a block that does not fit says how many more there are."""
    width, by_id, place = size[0], name_tasks(view), find_place(blocks.tasks, choice.selected)
    rules = max(0, sum(map(bool, blocks)) - 1)
    shares = _share(size[1] - rules, *map(len, blocks))
    parts: list[tuple[Sequence[View], int, int]] = []
    begin = 0
    for block, room in zip(blocks, shares, strict=True):
        rows = max(0, room - 1) if len(block) > room else room
        # the selected one is in the middle of what is shown, or as near to it as the ends of the block let it
        first = min(max(0, min(place - begin, len(block) - 1) - rows // 2), max(0, len(block) - rows))
        shown = block[first : first + rows]
        parts.append((shown, begin + first, len(block) - len(shown) if room else 0))
        begin += len(block)

    def tell_last(task: View) -> str:
        if task["status"] == "running":
            return " ".join(filter(None, (tell_doing(task), last.get(task["id"]))))
        return " - ".join(filter(None, (tell_reason(task, by_id, now), last.get(task["id"]))))

    drawn = [task for tasks, _, _ in parts for task in tasks]
    ends, names = {task["num"]: tell_last(task) for task in drawn}, name_each(view["tasks"])
    named = [{**task, "id": names[task["id"]] if encodes("·") else short_id(task)} for task in drawn]
    lines = iter(row_lines(named, now, width, tell_last=lambda task: ends[task["num"]]))
    made: list[Line] = []
    for tasks, first, more in parts:
        made += [(("─" if encodes("─") else "-") * width, "dim")] if made and (tasks or more) else []
        for number, task in enumerate(tasks, first):
            is_red = task["status"] == "completed" and needs_look(task)
            made.append((next(lines), "reverse" if number == place else "red" if is_red else ""))
        made += [(f"  and {more} more", "dim")] if more else []
    return made


def _share(room: int, running: int, needy: int, done: int) -> tuple[int, int, int]:
    """How many lines each block gets: what runs half of them, what needs a person the rest, then what is done."""
    first = min(running, max(room // 2, room - needy))
    second = min(needy, room - first)
    return first, second, max(0, min(done, room - first - second))


def find_place(shown: Sequence[View], selected: str | None) -> int:
    """Where the selected one is; the first one if it is not shown."""
    return next((place for place, each in enumerate(shown) if each["id"] == selected), 0)
