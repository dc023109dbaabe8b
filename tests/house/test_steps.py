"""The steps and the formats of the house: their names mean something, and a step without business does nothing."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sessionrun.client.config import Config
from sessionrun.client.planning.draft import Choice, Draft, find_due
from sessionrun.house import HOUSE, STEPS, Step
from sessionrun.input.plan import Plan, Source
from sessionrun.input.rows import BY_NAME
from sessionrun.input.settings import Options
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.session.exports import ExportFile

OF_BUSINESSES = [step for step in STEPS["plan"] if step.business]
WORDS = {*BY_NAME, "into", *(field.name for record in (Plan, SessionSpec) for field in fields(record))}


def load(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(f"sessionrun.{module}"), function)


@pytest.mark.parametrize(
    "step", [step for steps in STEPS.values() for step in steps], ids=lambda one: one.function
)
def test_what_a_step_names_is_there(step: Step) -> None:
    assert callable(load(step.function))
    assert set(step.words) <= WORDS
    assert {name.partition(".")[0] for name in step.of_tasks} <= {field.name for field in fields(TaskSpec)}
    assert step.business in {"", *(business.name for business in HOUSE)}


def test_what_a_format_names_is_there() -> None:
    for business in HOUSE:
        for row in business.formats.values():
            assert callable(import_module(f"sessionrun.{row.module}").load)
            assert all(issubclass(load(name), ExportFile) for name in row.exports.values())


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    """Of a task that says nothing but its prompt."""
    tasks = (TaskSpec("a", ("true",)),)
    spec = SessionSpec("s", "2026-01-01T00:00:00Z", "prompts", "-p", str(tmp_path), "shell", {}, tasks)
    options, config = Options(), Config({})
    source = Source("-p", b"", str(tmp_path))
    return Draft(source, Plan(tasks), options, config, spec, Choice("shell", ""), None, tmp_path, preview=False)


@pytest.mark.parametrize("step", OF_BUSINESSES, ids=lambda step: step.function)
def test_a_step_without_business_does_nothing(step: Step, draft: Draft) -> None:
    """So the words by which a step is due only save its import."""
    assert load(step.function)(draft) == draft


def test_only_the_core_has_steps_for_a_task_that_says_nothing_else(draft: Draft) -> None:
    due = list(find_due("plan", draft.plan.tasks, draft, draft.options.given, {}, draft.plan, None))
    assert due == [load(step.function) for step in STEPS["plan"] if not (step.words or step.of_tasks)]
    assert not any(list(find_due(moment, draft.plan.tasks, draft.spec)) for moment in STEPS if moment != "plan")
