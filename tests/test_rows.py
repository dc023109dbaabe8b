"""The rows of the table of the house about jobs: what they name is there, and each side imports its own."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import fields
from typing import get_args

import pytest

from sessionrun.house import HOUSE, Mark, Wrap, load
from sessionrun.model.keys import PHASES, WORKSPACE_PHASES
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.session.rows import Moment

ROWS = {row.name: row for business in HOUSE for row in business.phases}
PROGRAMS = {name: work for business in HOUSE for name, work in business.programs}
FIELDS = {
    owner: {field.name for field in fields(cls)} for owner, cls in (("task", TaskSpec), ("spec", SessionSpec))
}
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


def test_each_phase_has_one_row_but_the_session_s_own() -> None:
    names = Counter([row.name for business in HOUSE for row in business.phases] + ["work"])
    assert names == Counter(PHASES)
    assert not PROGRAMS.keys() & names.keys()
    assert {row.name for row in ROWS.values() if row.in_turn} == WORKSPACE_PHASES  # their time counts from a turn


def test_what_the_rows_name_is_there() -> None:
    for row in ROWS.values():
        assert callable(load(row.maker).build) and callable(load(row.maker).judge)
        assert isinstance(load(row.request), type) and callable(load(row.work))
    assert all(callable(load(work)) for work in PROGRAMS.values())
    for mark in (mark for business in HOUSE for mark in business.marks):
        assert mark.phase in ROWS and isinstance(load(mark.file), str)
        assert all(callable(load(name)) for name in (mark.before, mark.after, mark.end) if name)
    for wrap in (wrap for business in HOUSE for wrap in business.wraps):
        owner, _, field = wrap.of.partition(".")
        assert field in FIELDS[owner]
        assert all(callable(load(name)) for name in wrap[1:] if name)
    assert all(isinstance(load(name), str) for business in HOUSE for name in business.placed)


def test_the_moments_are_the_columns() -> None:
    assert Wrap._fields == ("of", *get_args(Moment))
    assert Mark._fields == ("phase", "file", "before", "after", "end")


@pytest.mark.check
@pytest.mark.parametrize("name", [*ROWS, *PROGRAMS])
def test_the_process_of_a_job_imports_nothing_of_the_supervisor_s(name: str) -> None:
    """And one that is many at once imports no record of the session."""
    done = subprocess.run([sys.executable, "-c", IMPORTS, name], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    makers = {f"sessionrun.{row.maker}" for row in ROWS.values()}
    assert not imported & {*makers, *(f"sessionrun.session.{own}" for own in ("maker", "rows", "shared"))}
    assert not [one for one in imported if one.startswith("sessionrun.engine")]
    if name in ROWS and ROWS[name].in_turn:
        assert "sessionrun.model.spec" not in imported
