"""Checks the checkers: a copy of the package is broken, and kills or damage have to show it.

Each mutant takes one promise back.  What only another order of events can show has a test of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from .campaign import run_campaign
from .points import sweep

TOP: Final = Path(__file__).parents[2]
SEED: Final = 5
LONGEST_S: Final = 1800.0
"""A campaign ends by its number of kills, on a slow machine too."""


Catcher = Callable[[Path], str]
"""Looks at the copy in a directory; says what it saw wrong, '' when it noticed nothing."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of the package, as texts of a file and what they become, and what has to notice it."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    catcher: Catcher


def by_points(case: str, role: str) -> Catcher:
    """The sweep of a role's deaths."""

    def look(code: Path) -> str:
        figures = sweep(case, role, code=code, first_wrong=True)
        return "" if figures.is_good else (figures.wrong or ["run twice"])[0]

    return look


def by_kills(mode: str, kills: int = 60) -> Catcher:
    """Random deaths."""

    def look(code: Path) -> str:
        figures = run_campaign([mode], kills, LONGEST_S, SEED, code)[mode]
        return "" if figures.is_good else (figures.wrong or ["run twice"])[0]

    return look


def by_test(*words: str) -> Catcher:
    """Tests, as pytest selects them."""

    def look(code: Path) -> str:
        source = (
            f"import sys; sys.path.insert(0, {str(code)!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
        )
        argv = [sys.executable, "-I", "-c", source]
        environ = {**os.environ, "PYTHONPATH": str(code)}
        with tempfile.TemporaryDirectory(prefix="mutant-") as place:  # a test that fails leaves its files
            words_of_ours = ("-x", "-q", "--no-header", f"--basetemp={place}/tests")
            done = subprocess.run(
                [*argv, *words_of_ours, *words], cwd=TOP, env=environ, capture_output=True, text=True
            )
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return "" if done.returncode == 0 else (lines or ["failed"])[0]

    return look


CHILDREN: Final = "keeper/children.py"
CLAIM: Final = """\
            self._ledger.append([make_record(CLAIMED, order.key) for order in orders])
            self._ledger.sync()
"""
TRY: Final = "            self._ledger.append([make_record(TRIED, order.key, order.grace_s)])\n"
S_NOTE: Final = "        self.note(make_record(SPAWNED, order.key, pid, started))\n"
REAP: Final = """\
            if child is not None and status is not None and not self._record_exit(child, status):
                # the disk is full: it stays unreaped, and known to the kernel, until there is room
                self._reap_again_at = time.monotonic() + RETRY_DISK_S
                break
"""
STATUS: Final = "            child.status = raw\n"
MUTANTS: Final = (
    Mutant(
        "spawn before claim",
        CHILDREN,
        (
            (CLAIM, ""),
            (TRY, "            pass\n"),
            (
                S_NOTE,
                "        self._ledger.append(\n            [make_record(CLAIMED, order.key), "
                "make_record(TRIED, order.key, 3.0), make_record(SPAWNED, order.key, pid, started)]\n        )\n",
            ),
            (
                "        try:\n        except StoreError as error:\n            self._refuse(orders, str(error))\n"
                "            return\n        finally:\n",
                "        if True:\n",
            ),
        ),
        by_points("start", "keeper"),
    ),
    Mutant(
        "reap before record",
        CHILDREN,
        ((REAP, ""), (STATUS, STATUS + "            self.note(make_record(EXITED, child.key, raw))\n")),
        by_points("start", "keeper"),
    ),
    Mutant("S not written", CHILDREN, ((S_NOTE, ""),), by_kills("keeper", 16)),
    Mutant("T not written", CHILDREN, ((TRY, "            pass\n"),), by_kills("keeper", 16)),
    Mutant(
        "what was tried never ran",
        "store/logs.py",
        (
            ("return not self.tried or", "return self.pid is None or"),
            ("return self.tried and not", "return self.pid is not None and not"),
        ),
        by_points("start", "keeper"),
    ),
    Mutant(
        "hello one record short",
        "keeper/loop.py",
        (("self._me.started, self._ledger.end)", "self._me.started, self._ledger.end - 1)"),),
        by_points("start", "supervisor"),
    ),
    Mutant(
        "no sync",
        "store/logs.py",
        (("        if not self._dirty:\n            return\n", "        self._dirty = False\n        return\n"),),
        by_test("tests/faults/test_points.py", "-k", "sample_of_refused_calls", "--slow"),
    ),
    Mutant(
        "caches are not checked",
        "store/seal.py",
        (("    return body if whole else None", "    return body"),),
        by_test("tests/faults/test_campaign.py", "-k", "noticed", "--slow"),
    ),
)


@contextmanager
def make_copy(mutant: Mutant | None) -> Iterator[Path]:
    """A directory with a copy of the package, changed.

    Raises:
        AssertionError: the text to be changed is not there any more.
    """
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    try:
        shutil.copytree(TOP / "sessionrun", folder / "sessionrun", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            file = folder / "sessionrun" / mutant.file
            content = file.read_text()
            for old, new in mutant.changes:
                assert content.count(old) == 1, f"{mutant.name}: {mutant.file} has not once: {old}"
                content = content.replace(old, new)
            compile(content, mutant.file, "exec")
            file.write_text(content)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_noticed(mutant: Mutant) -> None:
    with make_copy(mutant) as code:
        assert mutant.catcher(code), f"nothing was wrong with: {mutant.name}"


@pytest.mark.slow
def test_the_package_as_it_is_is_not_suspected() -> None:
    with make_copy(None) as code:
        assert {mutant.name: seen for mutant in MUTANTS if (seen := mutant.catcher(code))} == {}
