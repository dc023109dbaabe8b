"""Tasks that a command line says itself: prompts, a task for each item, keys of all tasks, and when they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessionrun.client.planning.inputs import list_items
from sessionrun.client.planning.plan import Planned, plan
from sessionrun.model.errors import InputError
from sessionrun.model.spec import TaskSpec


def planned(given: Any, **asked: Any) -> dict[str, TaskSpec]:
    made = plan(given, {"agent": "shell", **asked})
    assert isinstance(made, Planned)
    return {task.id: task for task in made.spec.tasks}


# --- items ---


def test_what_the_places_in_a_prompt_stand_for(own_place: Path) -> None:
    (own_place / "src" / "c.py").mkdir(parents=True)
    for name in ("b.py", "a.py"):
        (own_place / "src" / name).touch()
    assert [one.text for one in list_items("src/*/")] == ["src/c.py"], "directories are meant only with a slash"
    tasks = planned(None, prompts=("{n} {} {.} {/} {{}} {{n}} {x} {",), each="src/*.py", title="of {/}")
    assert {name: (task.prompts, task.title) for name, task in tasks.items()} == {
        "src-a.py": (("1 src/a.py src/a a.py {} {n} {x} {",), "of a.py"),
        "src-b.py": (("2 src/b.py src/b b.py {} {n} {x} {",), "of b.py"),
    }


def test_a_task_for_each_line_and_each_prompt(own_place: Path) -> None:
    (own_place / "list").write_bytes(b"\xef\xbb\xbfFix it\r\n\r\n../x y\r\nfix it\r\n???\r\n")
    assert [one.id for one in list_items("@list")] == ["Fix-it", "x-y", "fix-it-3", "item-4"]
    tasks = planned(None, prompts=("a {}", "b {}"), each="@list")
    assert list(tasks) == [
        f"{name}-{number}" for name in ("Fix-it", "x-y", "fix-it-3", "item-4") for number in (1, 2)
    ]
    assert tasks["x-y-2"].prompts == ("b ../x y",)


def test_each_task_of_a_plan_is_there_for_each_item(own_place: Path) -> None:
    (own_place / "list").write_text("one\ntwo\n")
    (own_place / "plan.json").write_text(
        '{"max_parallel": 1, "prompts": ['
        '{"id": "a", "prompt": "make {}"}, {"id": "b", "prompt": "x", "needs": "a"}]}'
    )
    tasks = planned("plan.json", each="@list")
    assert {name: task.needs for name, task in tasks.items()} == {
        "one-a": (),
        "one-b": ("one-a",),
        "two-a": (),
        "two-b": ("two-a",),
    }
    assert tasks["two-a"].prompts == ("make two",)
    numbered = [{"id": 1, "prompt": "{}"}, {"prompt": "x", "depends_on": [1]}]
    assert planned(numbered, each="@list")["two-2"].needs == ("two-1",)
    (own_place / "lines.jsonl").write_text('{"id": "a", "prompt": "make {}"}\n{"prompt": "x\\u2028{}"}\n')
    assert list(planned("lines.jsonl", each="@list")) == ["one-a", "one-2", "two-a", "two-2"]


def test_a_name_that_is_no_text(own_place: Path) -> None:
    (own_place / "\udcff.py").touch()
    with pytest.raises(InputError, match=r"the name is not text \(UTF-8\)"):
        planned(None, prompts=("{}",), each="\udcff*")


# --- keys of all tasks ---


def test_keys_of_the_command_line_beat_defaults_and_give_way_to_tasks() -> None:
    value = {
        "defaults": {"retries": 1, "env": {"A": "plan", "B": "plan"}, "priority": 5},
        "prompts": ["x", {"id": "own", "prompt": "x", "retries": 7}],
    }
    keys = {"retries": 2, "env": {"A": "line"}, "check": ["true"], "rounds": 3}
    first, own = planned(value, defaults=keys).values()
    assert (first.retries, first.env, first.rounds, first.priority) == (2, {"A": "line", "B": "plan"}, 3, 5)
    assert first.check is not None and first.check.commands == ("true",)
    assert own.retries == 7
