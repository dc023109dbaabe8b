"""The rows of the table of the house about jobs: each side imports its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sessionrun.house import HOUSE

ROWS = {row.name: row for business in HOUSE for row in business.phases}
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
