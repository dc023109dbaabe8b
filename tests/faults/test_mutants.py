"""Checks the checkers: a copy of the package is broken, and kills or damage have to show it.

Each mutant takes one promise back.  What only another order of events can show has a test of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from stages import copy_package

TOP: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of the package, as texts of a file and what they become, and the tests that have to notice it."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    tests: str


def run_tests(code: Path, *names: str) -> list[str]:
    """Run tests of this folder with the copy in a directory; those that failed."""
    source = f"import sys; sys.path.insert(0, {str(code)!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    argv = [sys.executable, "-I", "-c", source, *("-x", "-q", "-n", "0", "--slow", "--no-header")]
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:  # a test that fails leaves its files
        words = [f"--basetemp={place}/tests", *(f"tests/faults/{name}" for name in names)]
        environ = {**os.environ, "PYTHONPATH": str(code)}
        done = subprocess.run([*argv, *words], cwd=TOP, env=environ, capture_output=True, text=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return [] if done.returncode == 0 else failed or [done.stdout + done.stderr]


CHILDREN: Final = "keeper/children.py"
CLAIM: Final = """\
            self._ledger.append([logs.make_record(logs.CLAIMED, order.key) for order in orders])
            self._ledger.sync()
"""
TRY: Final = "            self._ledger.append([logs.make_record(logs.TRIED, order.key, order.grace_s)])\n"
S_NOTE: Final = "        self.note(logs.make_record(logs.SPAWNED, order.key, pid, started))\n"
REAP: Final = """\
            if child is not None and status is not None and not self._record_exit(child, status):
                # the disk is full: it stays unreaped, and known to the kernel, until there is room
                self._reap_again_at = time.monotonic() + RETRY_DISK_S
                break
"""
STATUS: Final = "            child.status = raw\n"
KEEPER_DIES: Final = "test_points.py::test_all_points[start-keeper-kill]"
MUTANTS: Final = (
    Mutant(
        "spawn before claim",
        CHILDREN,
        (
            (CLAIM, ""),
            (TRY, "            pass\n"),
            (
                S_NOTE,
                "        self._ledger.append(\n            [logs.make_record(logs.CLAIMED, order.key), "
                "logs.make_record(logs.TRIED, order.key, 3.0), "
                "logs.make_record(logs.SPAWNED, order.key, pid, started)]\n        )\n",
            ),
            (
                "        try:\n        except StoreError as error:\n            self._refuse(orders, str(error))\n"
                "            return\n        finally:\n",
                "        if True:\n",
            ),
        ),
        KEEPER_DIES,
    ),
    Mutant(
        "reap before record",
        CHILDREN,
        ((REAP, ""), (STATUS, STATUS + "            self.note(logs.make_record(logs.EXITED, child.key, raw))\n")),
        KEEPER_DIES,
    ),
    Mutant("S not written", CHILDREN, ((S_NOTE, ""),), KEEPER_DIES),
    Mutant("T not written", CHILDREN, ((TRY, "            pass\n"),), KEEPER_DIES),
    Mutant(
        "what was tried never ran",
        "store/logs.py",
        (
            ("return not self.tried or", "return self.pid is None or"),
            ("return self.tried and not", "return self.pid is not None and not"),
        ),
        KEEPER_DIES,
    ),
    Mutant(
        "hello one record short",
        "keeper/loop.py",
        (("self._me.started, self._ledger.end)", "self._me.started, self._ledger.end - 1)"),),
        "test_points.py::test_all_points[start-supervisor-kill]",
    ),
    Mutant(
        "no sync",
        "store/logs.py",
        (("        if not self._dirty:\n            return\n", "        self._dirty = False\n        return\n"),),
        "test_points.py::test_what_is_refused_once[calls]",
    ),
    Mutant(
        "caches are not checked",
        "store/seal.py",
        (("    return body if whole else None", "    return body"),),
        "test_campaign.py::test_no_damage_makes_a_traceback[noticed]",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_noticed(mutant: Mutant) -> None:
    with tempfile.TemporaryDirectory(prefix="mutant-") as code:
        file = copy_package(Path(code)) / mutant.file
        content = file.read_text()
        for old, new in mutant.changes:
            assert content.count(old) == 1, f"{mutant.file} has not once: {old}"
            content = content.replace(old, new)
        compile(content, mutant.file, "exec")
        file.write_text(content)
        assert run_tests(Path(code), mutant.tests), "nothing was wrong"


@pytest.mark.slow
def test_the_package_as_it_is_is_not_suspected() -> None:
    with tempfile.TemporaryDirectory(prefix="mutant-") as code:
        copy_package(Path(code))
        assert run_tests(Path(code), *{mutant.tests for mutant in MUTANTS}) == []
