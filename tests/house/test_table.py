"""The table of the house: every name in it is there, and a step that is not due does nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import sessionrun as package
from sessionrun.cli.argv import KNOWN
from sessionrun.client.findings import Findings
from sessionrun.client.planning.assemble import Draft
from sessionrun.client.planning.plan import settle_rest
from sessionrun.client.shapes import OUTPUTS
from sessionrun.engine.state import Rules
from sessionrun.house import ASKED, HOUSE, STEPS, Business, Step, find_due, load
from sessionrun.input.config import Config
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan
from sessionrun.input.rows import BY_NAME, SETTINGS
from sessionrun.input.settings import Options
from sessionrun.model.asked import SLURM, Cluster
from sessionrun.model.errors import InputError
from sessionrun.model.keys import PHASES, WORKSPACE_PHASES
from sessionrun.model.landings import LANDING_FOLDER
from sessionrun.model.spec import AgentSpec, SessionSpec, TaskSpec

ROOT = Path(package.__file__).parent
NAMES = {row.name for row in HOUSE}
ALL_STEPS = [step for steps in STEPS.values() for step in steps]
OF_TASK, OF_SPEC, OF_PLAN = ({field.name for field in fields(cls)} for cls in (TaskSpec, SessionSpec, Plan))


def find_names(value: Any) -> Iterator[str]:
    """The names of modules, and of what is in them, wherever in a row they stand."""
    if isinstance(value, str) and re.fullmatch(r"\w+(\.\w+)+(:\w+)?", value):
        yield from [value] if (ROOT / value.partition(".")[0]).is_dir() else ()
    elif isinstance(value, Mapping):
        yield from find_names(tuple(value.values()))
    elif isinstance(value, tuple):
        for one in value:
            yield from find_names(one)


KINDS = {
    "rules": Rules,
    "findings": Findings,
    "outputs": dict,
    **dict.fromkeys(("partners", "trial", "machine"), FunctionType),
}


@pytest.mark.parametrize("row", [*HOUSE, *ALL_STEPS], ids=lambda row: row[0])
def test_what_is_named_is_there(row: Business | Step) -> None:
    for name in find_names(row):
        found = load(name)
        assert callable(found) or isinstance(found, (str, dict, ModuleType, Rules, Findings)), name
    columns = row._asdict()
    for column, kind in KINDS.items():
        assert not columns.get(column) or isinstance(load(columns[column]), kind), column
    for phase in columns.get("phases", ()):
        assert not phase.maker or {"build", "judge"} <= vars(load(phase.maker)).keys(), phase.name


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
    rows: list[Any] = [*SETTINGS, *KNOWN.values()]
    of_words = {row.business for row in rows}
    assert {step.function.partition(".")[0] for step in ALL_STEPS} <= NAMES | {"client"}
    assert of_words - {""} <= NAMES and ASKED.keys() <= NAMES


def test_each_check_has_its_own_name() -> None:
    from sessionrun.client.doctor import OWN
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
    return Draft(source, Plan(tasks), options, config, spec, None, tmp_path, preview=False)


def test_a_step_without_business_does_nothing(draft: Draft) -> None:
    """So the words by which a step is due only save its import."""
    for step in STEPS["plan"]:
        assert step.function.startswith("client.") or load(step.function)(draft) == draft, step.function
    for step in STEPS["rest"]:
        assert load(step.function)(draft.spec, draft.options) == draft.spec, step.function


def test_only_the_core_has_steps_for_a_task_that_says_nothing_else(draft: Draft) -> None:
    due = list(find_due("plan", draft.plan.tasks, draft, draft.options.given, {}, draft.plan, None))
    assert due == [load(step.function) for step in STEPS["plan"] if not (step.words or step.of_tasks)]
    assert not any(list(find_due(moment, draft.plan.tasks, draft.spec)) for moment in STEPS if moment != "plan")


def test_what_a_cluster_cannot_do_is_known_where_the_cluster_is(draft: Draft) -> None:
    agents = {"shell": AgentSpec("shell", ("sh",))}
    asked = draft.settle(tasks=(TaskSpec("a", ("true",), agent="shell", leftovers="keep"),), agents=agents)
    assert settle_rest(asked) == asked
    with pytest.raises(InputError, match="leftovers: keep cannot be had in a cluster"):
        settle_rest(asked.settle(cluster=Cluster(SLURM)))


# --- jobs: each side imports its own ---

JOBS = {row.name: row for business in HOUSE for row in business.phases}
PROGRAMS = {name: work for business in HOUSE for name, work in business.programs}
IMPORTS = """
import sys
from sessionrun.session.job import find_phase, find_program
from sessionrun.house import load
row = find_phase(sys.argv[1])
if row is None:
    find_program(sys.argv[1])
else:
    load(row.request), load(row.work)
print(*(name for name in sys.modules if name.startswith("sessionrun.")))
"""


@pytest.mark.check
@pytest.mark.parametrize("name", [*JOBS, *PROGRAMS])
def test_the_process_of_a_job_imports_nothing_of_the_supervisor_s(name: str) -> None:
    """And one that is many at once imports no record of the session."""
    done = subprocess.run([sys.executable, "-c", IMPORTS, name], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    makers = {f"sessionrun.{row.maker}" for row in JOBS.values()}
    assert not imported & {*makers, *(f"sessionrun.session.{own}" for own in ("maker", "rows", "shared"))}
    assert not [one for one in imported if one.startswith("sessionrun.engine")]
    if name in JOBS and JOBS[name].in_turn:
        assert "sessionrun.model.spec" not in imported
