"""Sessions that were recorded still fold to the same status.json: between them they use each feature.

`GOLDEN=write pytest -n 0 --basetemp /tmp/sample tests/house/test_journals.py` records them anew, with real git and
real processes, when the form of the journal has changed: spec, journal, and what these fold to.  Beside them lie
the script that is run for that, and its plan.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from stages import make_repository_of

from sessionrun.engine.status import project
from sessionrun.session.history import replay
from sessionrun.store.session import SessionDir

KEPT: Final = Path(__file__).parent.parent / "data" / "journals"
REPOSITORY: Final = KEPT.with_name("journal_repository.json")
EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"


def fold(session: Path) -> dict[str, Any]:
    """What status.json shows once the journal beside the spec is folded."""
    folded: dict[str, Any] = orjson.loads(orjson.dumps(project(replay(SessionDir(session))[0])))
    return folded


def record(kept: Path, place: Path) -> None:
    """Run the script that lies beside a journal; keep the session's spec, its journal, and what they fold to."""
    make_repository_of(place, json.loads(REPOSITORY.read_text()))
    if (kept / "plan.json").exists():
        shutil.copy(kept / "plan.json", place)
    program = f'sessionrun() {{ {sys.executable} -m sessionrun "$@"; }}'
    script = f"{program}\n{(kept / 'record.sh').read_text()}\nsessionrun wait last"
    subprocess.run(["sh", "-c", script], cwd=place, env={**os.environ, "EXAMPLES": str(EXAMPLES)})
    (session,) = (place / "results").glob("session-*")
    for file in ("spec.json", "journal"):
        shutil.copyfile(session / file, kept / file)
    (kept / "folded.json").write_bytes(orjson.dumps(fold(kept), option=orjson.OPT_INDENT_2) + b"\n")


@pytest.mark.parametrize("kept", sorted(KEPT.iterdir()), ids=lambda kept: kept.name)
def test_a_recorded_journal_folds_to_the_same_status(kept: Path, own_place: Path) -> None:
    if os.environ.get("GOLDEN") == "write":
        record(kept, own_place)
    assert fold(kept) == orjson.loads((kept / "folded.json").read_bytes())
