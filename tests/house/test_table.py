"""The table of the house: every name in it is there, and is what its column says; what is not due does nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from sessionrun.cli.argv import KNOWN
from sessionrun.client.config import Config
from sessionrun.client.findings import Findings
from sessionrun.client.planning.draft import Choice, Draft
from sessionrun.client.schemas.outputs import OUTPUTS
from sessionrun.engine.rules import Rules
from sessionrun.house import ASKED, HOUSE, STEPS, Business, Format, Mark, Phase, Step, Wrap, find_due, load
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan
from sessionrun.input.rows import BY_NAME, SETTINGS
from sessionrun.input.settings import Options
from sessionrun.model.keys import PHASES, WORKSPACE_PHASES
from sessionrun.model.landings import LANDING_FOLDER
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.session.exports import ExportFile
from sessionrun.session.rows import Moment

Named = tuple[str, Callable[[Any], bool]]
"""A name of the table, and what has to be true of what it names."""

NAMES = {row.name for row in HOUSE}
ALL_STEPS = [step for steps in STEPS.values() for step in steps]
OF_TASK, OF_SPEC, OF_PLAN = ({field.name for field in fields(cls)} for cls in (TaskSpec, SessionSpec, Plan))


def is_text(found: Any) -> bool:
    return isinstance(found, str)


def has(*names: str) -> Callable[[Any], bool]:
    return lambda found: all(callable(getattr(found, name)) for name in names)


def is_a(kind: type) -> Callable[[Any], bool]:
    return lambda found: isinstance(found, kind)


def names_of(row: Business) -> Iterator[Named]:
    """The names in all columns of a row."""
    for one in row.formats.values():
        yield from _names_of_format(one)
    for phase in row.phases:
        yield from _names_of_phase(phase)
    yield from ((name, callable) for _, name in row.programs)
    yield from ((name, callable) for wrap in row.wraps for name in wrap[1:])
    for mark in row.marks:
        yield from ((mark.file, is_text), *((name, callable) for name in mark[2:]))
    yield from ((name, is_text) for name in row.placed)
    yield from ((name, callable) for name in (row.partners, row.trial, row.views[1] if row.views else ""))
    yield from ((row.rules, is_a(Rules)), (row.findings, is_a(Findings)), (row.outputs, is_a(dict)))


def _names_of_format(one: Format) -> Iterator[Named]:
    yield one.module, has("load")
    yield from ((name, lambda found: issubclass(found, ExportFile)) for name in one.exports.values())


def _names_of_phase(phase: Phase) -> Iterator[Named]:
    yield from ((phase.maker, has("build", "judge")), (phase.request, is_a(type)), (phase.work, callable))


@pytest.mark.parametrize(
    ("name", "is_meant"),
    [
        *(
            pytest.param(*named, id=f"{row.name}-{named[0]}")
            for row in HOUSE
            for named in names_of(row)
            if named[0]
        ),
        *(pytest.param(step.function, callable, id=f"step-{step.function}") for step in ALL_STEPS),
    ],
)
def test_what_is_named_is_there(name: str, is_meant: Callable[[Any], bool]) -> None:
    assert is_meant(load(name))


def test_no_column_is_passed_over() -> None:
    columns = {"name", "formats", "rules", "phases", "programs", "wraps", "marks", "placed", "partners", "trial"}
    assert {*Business._fields} == {*columns, "findings", "views", "outputs"}, "names_of has to go through it"
    assert Phase._fields == ("name", "maker", "request", "work", "in_turn", "damaged")
    assert Wrap._fields == ("of", *get_args(Moment))
    assert Mark._fields == ("phase", "file", "before", "after", "end")
    assert Step._fields == ("business", "function", "words", "of_tasks")


def test_each_phase_has_one_row_but_the_session_s_own() -> None:
    rows = [phase for row in HOUSE for phase in row.phases]
    names = Counter([phase.name for phase in rows] + ["work"])
    assert names == Counter(PHASES)
    assert not {name for row in HOUSE for name, _ in row.programs} & names.keys()
    assert {mark.phase for row in HOUSE for mark in row.marks} <= {phase.name for phase in rows}
    assert {phase.name for phase in rows if phase.in_turn} == WORKSPACE_PHASES  # their time counts from a turn


def test_what_makes_a_row_due_is_a_field() -> None:
    asked = [name for names in ASKED.values() for name in names]
    for name in [*asked, *(wrap.of for row in HOUSE for wrap in row.wraps)]:
        owner, _, field = name.partition(".")
        assert field in {"task": OF_TASK, "spec": OF_SPEC}[owner]
    assert {row.name for row in HOUSE if row.rules} <= ASKED.keys()
    for step in ALL_STEPS:
        assert {*step.words} <= {*BY_NAME, "into"} | OF_PLAN | OF_SPEC
        assert {name.partition(".")[0] for name in step.of_tasks} <= OF_TASK


def test_what_names_a_business_names_one_that_is_there() -> None:
    rows: list[Any] = [*SETTINGS, *KNOWN.values(), *ALL_STEPS]
    of_words = {row.business for row in rows}
    assert of_words - {""} <= NAMES and ASKED.keys() <= NAMES


def test_each_check_has_its_own_name() -> None:
    from sessionrun.client.doctor.report import OWN
    from sessionrun.client.findings import load_findings

    parts = OWN, *load_findings()
    for checks in ([part.session_checks for part in parts], [part.machine_checks for part in parts]):
        names = [name for part in checks for name in part]
        assert len(set(names)) == len(names)


def test_a_view_is_asked_where_its_folder_is() -> None:
    assert {row.name: row.views[0] for row in HOUSE if row.views} == {"landing": LANDING_FOLDER}


def test_each_output_is_of_one_verb_of_its_business() -> None:
    verbs = [*OUTPUTS]
    for row in HOUSE:
        own = load(row.outputs) if row.outputs else {}
        assert {KNOWN[verb].business for verb in own} <= {row.name}
        verbs += own
    assert len(set(verbs)) == len(verbs) and set(verbs) <= KNOWN.keys()


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    """Of a task that says nothing but its prompt."""
    tasks = (TaskSpec("a", ("true",)),)
    spec = SessionSpec("s", "2026-01-01T00:00:00Z", "prompts", "-p", str(tmp_path), "shell", {}, tasks)
    options, config = Options(), Config({})
    source = Source("-p", b"", str(tmp_path))
    return Draft(source, Plan(tasks), options, config, spec, Choice("shell", ""), None, tmp_path, preview=False)


@pytest.mark.parametrize("step", [step for step in STEPS["plan"] if step.business], ids=lambda step: step.function)
def test_a_step_without_business_does_nothing(step: Step, draft: Draft) -> None:
    """So the words by which a step is due only save its import."""
    assert load(step.function)(draft) == draft


def test_only_the_core_has_steps_for_a_task_that_says_nothing_else(draft: Draft) -> None:
    due = list(find_due("plan", draft.plan.tasks, draft, draft.options.given, {}, draft.plan, None))
    assert due == [load(step.function) for step in STEPS["plan"] if not (step.words or step.of_tasks)]
    assert not any(list(find_due(moment, draft.plan.tasks, draft.spec)) for moment in STEPS if moment != "plan")
