"""The prompts dialect: a list of prompts, from bare strings up to the native plan format.

Owns what the top level and the list look like.  ``sessionrun-input(5)`` is its contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

from sessionrun.input.fields import DEFAULT_FIELDS, TASK_FIELDS, TOP_FIELDS
from sessionrun.input.formats import FORMATS, find_key
from sessionrun.input.kinds import Misfit, Path, describe, resolve_paths
from sessionrun.input.levels import Level, list_levels, settle_agent, settle_defaults, settle_task
from sessionrun.input.parse import Document, Source
from sessionrun.input.plan import Plan
from sessionrun.input.reading import Reading, Spot
from sessionrun.input.settings import Options, first
from sessionrun.input.text import quote
from sessionrun.model.spec import Limits, TaskSpec, Workspace

_LIST_KEYS: Final = ("prompts", "tasks")

# --- what holds for a plan whose tasks come from the queue, where nothing else is said ---

FRAME: Final = """\
{task}

Rules:
- Do this task and no other. Change only what it needs.
- Work in the current directory: it is a git worktree of your own. Do not switch branches, and do not push.
- Leave task_queue.json, .beads and .current_task.txt alone.
- Commit your work when it is done.
- Then append 1 to 3 ideas for follow-up tasks to suggested_tasks.txt in the top of the worktree: each on a line
  of its own, short, and one that can be done by itself. Do not commit that file. Write none if nothing is left.
"""
"""The prompt around each task of the queue."""

WORKERS: Final = 4
"""How many tasks run at once."""

MENDS: Final = 3
"""How often a conflict is mended by a task before a person is asked."""

DEFAULTS: Final[Mapping[str, Any]] = {"retries": 2, "timeout_s": 1800.0, "expect_change": True}
"""What tasks have that say nothing themselves: one that could not be done closes nothing."""

_OF_TASKS: Final = {
    **dict.fromkeys(TASK_FIELDS, "it is a key of one task: write it there"),
    **dict.fromkeys(DEFAULT_FIELDS, 'it is a key of tasks: write it into "defaults" for all of them, or into one'),
}
_OF_PLAN: Final = dict.fromkeys(TOP_FIELDS, 'it is a key of the whole plan: write it beside "prompts"')


class _Outline(NamedTuple):
    """The list of tasks, the spot of each, and the top level around it."""

    top: Mapping[str, Any]
    tasks: Sequence[Any]
    path: Path
    lines: tuple[int, ...]

    def spot(self, index: int) -> Spot:
        return Spot((), self.lines[index]) if self.lines else Spot((*self.path, index))


def load(source: Source, options: Options) -> Plan:
    return read_plan(Reading(source.name), source.document, source.directory, options)


def read_plan(reading: Reading, document: Document, directory: str, options: Options) -> Plan:
    """Read a plan from plain values; its paths count from `directory`."""
    outline = _read_outline(reading, document)
    top = outline.top
    feed = {**top["feed"], **options.given.get("feed", {})} if "feed" in top else None
    defaults = _read_defaults(reading, top.get("defaults", {}), directory)
    landing, usual = top.get("landing"), None
    if feed is not None:
        defaults = {**DEFAULTS, "workspace": Workspace("worktree"), **defaults}
        usual = WORKERS
        if "landing" not in top and options.given.get("land") is not False:
            landing = reading.read(Spot(), {"land": {"mends": MENDS}}, TOP_FIELDS)["landing"]
    levels = list_levels(options, defaults, top)
    base = settle_defaults(options, defaults, levels)
    tasks = tuple(_read_tasks(reading, outline, base, levels, directory))
    if feed is not None and len(tasks) != 1:
        problem = "is at most one with a feed: what stands around each task of the queue"
        raise reading.error(Spot(), Misfit(problem, *outline.path))
    reading.refuse_unknown()
    return Plan(
        tasks=tasks,
        name=top.get("name"),
        labels=top.get("labels", {}),
        resources=top.get("resources", {}),
        max_parallel=first(options.choose("max_parallel", top.get("max_parallel")), usual) or None,
        limits=top.get("limits", Limits()),
        auto_release=top.get("auto_release", True),
        agent=settle_agent(levels)[0] or None,
        landing=landing,
        feed=feed,
        seats=top.get("seats"),
        require_cache=top.get("require_cache"),
        places=tuple(outline.spot(index).text() for index in range(len(tasks))),
    )


def _read_outline(reading: Reading, document: Document) -> _Outline:
    value = document.value
    if isinstance(value, dict) and ("prompt" not in value or any(key in value for key in (*_LIST_KEYS, "feed"))):
        top = reading.read(Spot(), value, TOP_FIELDS, _OF_TASKS)
        if "feed" in top and "tasks" not in top:
            return _Outline(top, [{"id": "task", "prompt": FRAME}], ("prompts",), ())
        if "tasks" not in top:
            near = find_key(value, _LIST_KEYS)
            if near in _LIST_KEYS:
                raise reading.error(Spot(), Misfit("must be a list of prompts, not null", near))
            raise reading.error(Spot(), Misfit(f'the object has no "prompts"{_meant(near)}'))
        key = next(key for key in _LIST_KEYS if value.get(key) is not None)
        return _Outline(top, top["tasks"], (key,), ())
    # One object a line is a list; so is a single such line.
    tasks = [value] if isinstance(value, dict) else value
    if not isinstance(tasks, list) or not tasks:
        shown = describe(value) if value else "an empty list"
        raise reading.error(Spot(), Misfit(f"expected {FORMATS['prompts'].expects}, not {shown}"))
    return _Outline({}, tasks, (), document.lines)


def _read_defaults(reading: Reading, record: Mapping[str, Any], directory: str) -> dict[str, Any]:
    spot = Spot(("defaults",))
    for key in record:
        if key in TASK_FIELDS and key not in DEFAULT_FIELDS:
            raise reading.error(spot, Misfit("belongs to one task, not to all", key))
    values = reading.read(spot, record, DEFAULT_FIELDS, _OF_PLAN)
    return resolve_paths(directory, values)


def _read_tasks(
    reading: Reading, outline: _Outline, base: Mapping[str, Any], levels: Sequence[Level], directory: str
) -> Iterator[TaskSpec]:
    """The tasks, each on what all stand on: settled defaults, the levels behind them, where paths begin."""
    for index, written in enumerate(outline.tasks):
        spot = outline.spot(index)
        if isinstance(written, str) and not written.strip():  # there is no "prompt" that could be named
            raise reading.error(spot, Misfit("must not be empty"))
        entry = {"prompt": written} if isinstance(written, str) else written
        if not isinstance(entry, dict):
            raise reading.error(spot, Misfit(f"must be text or an object, not {describe(entry)}"))
        own = reading.read(spot, entry, TASK_FIELDS, _OF_PLAN)
        if "prompts" not in own:
            hint = _meant(find_key(entry, ("prompt",)))
            if not hint and len(entry) == 1 and not any(key in TASK_FIELDS for key in entry):
                hint = '; a text with ": " in it must be quoted'
            raise reading.error(spot, Misfit(f'has no "prompt"{hint}'))
        values = settle_task(resolve_paths(directory, own), base, levels)
        yield TaskSpec(**{**values, "id": values.get("id") or str(uuid4())})


def _meant(key: str | None) -> str:
    return f"; is {quote(key)} meant?" if key else ""
