"""Checks the checkers: ``python -m tests.faults.mutants`` breaks a copy of the package and looks who notices.

Each mutant takes one promise back.  What kills can find is looked for by kills; what only another order of events
can show, by the named test.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    """A change of the package, as texts of a file and what they become, and who has to notice it."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    catcher: Catcher
    by: str


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
TELL: Final = """\
            _tell(codes_fd, line)
"""
MUTANTS: Final = (
    Mutant(
        "no fence",
        CHILDREN,
        (
            (CLAIM, "            pass\n"),
            ("if order.key in self.claimed:  #", "if False:  #"),
            ("if order.key not in self.claimed]", "]"),
        ),
        by_test("tests/keeper/test_keeper.py", "-k", "claimed_once"),
        "test_a_key_is_claimed_once",
    ),
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
        "sweep of the keeper",
    ),
    Mutant(
        "reap before record",
        CHILDREN,
        ((REAP, ""), (STATUS, STATUS + "            self.note(make_record(EXITED, child.key, raw))\n")),
        by_points("start", "keeper"),
        "sweep of the keeper",
    ),
    Mutant("S not written", CHILDREN, ((S_NOTE, ""),), by_kills("keeper", 16), "kills of keepers"),
    Mutant("T not written", CHILDREN, ((TRY, "            pass\n"),), by_kills("keeper", 16), "kills of keepers"),
    Mutant(
        "what was tried never ran",
        "store/logs.py",
        (
            ("return not self.tried or", "return self.pid is None or"),
            ("return self.tried and not", "return self.pid is not None and not"),
        ),
        by_points("start", "keeper"),
        "sweep of the keeper",
    ),
    Mutant(
        "root reaps before it tells (with a pause between)",
        "keeper/root.py",
        (
            (TELL, ""),
            (
                "            os.waitpid(pid, 0)\n",
                "            os.waitpid(pid, 0)\n        time.sleep(5)\n        if pid != keeper:\n"
                "            _tell(codes_fd, line)\n",
            ),
        ),
        by_test("tests/faults/test_stopped.py", "-k", "root_tells"),
        "test_the_root_tells_how_jobs_of_a_dead_keeper_ended",
    ),
    Mutant(
        "root tells nothing",
        "keeper/root.py",
        ((TELL, ""),),
        by_test("tests/faults/test_stopped.py", "-k", "root_tells"),
        "test_the_root_tells_how_jobs_of_a_dead_keeper_ended",
    ),
    Mutant(
        "hello one record short",
        "keeper/loop.py",
        (("self._me.started, self._ledger.end\n", "self._me.started, self._ledger.end - 1\n"),),
        by_points("start", "supervisor"),
        "sweep of the supervisor",
    ),
    Mutant(
        "lock lost while detaching",
        "session/launch.py",
        (("files_preserve=[ready_fd, lock_fd]", "files_preserve=[ready_fd]"),),
        by_test("tests/session/test_detach.py", "-k", "left_everything"),
        "test_the_detached_process_has_left_everything",
    ),
    Mutant(
        "no sync",
        "store/logs.py",
        (("        if not self._dirty:\n            return\n", "        self._dirty = False\n        return\n"),),
        by_test("tests/faults/test_points.py", "-k", "sample_of_refused_calls", "--slow"),
        "test_a_sample_of_refused_calls",
    ),
    Mutant(
        "keeper reads the ledger before it has the lock",
        "keeper/loop.py",
        (
            (
                "        if locks.hold(",
                "        early = Keeper(session, codes_fd, SupervisorProcess(supervisor, session))\n"
                "        if locks.hold(",
            ),
            (
                "        keeper = Keeper(session, codes_fd, SupervisorProcess(supervisor, session))\n"
                "        return",
                "        keeper = early\n        return",
            ),
        ),
        by_test("tests/faults/test_damage.py", "-k", "once_it_has_the_lock", "--slow"),
        "test_a_keeper_reads_the_ledger_once_it_has_the_lock",
    ),
    Mutant(
        "a wrong checksum of status.json is believed",
        "store/seal.py",
        (("seal == _SEAL % crc32(body, _OF_KEYS)", "seal == seal"),),
        by_test("tests/store/test_caches.py", "-k", "wrong_byte"),
        "test_every_wrong_byte_is_seen",
    ),
    Mutant(
        "caches are not checked",
        "store/seal.py",
        (("    if find_body(content) is None:", "    if False:"),),
        by_test("tests/faults/test_damaged.py", "-k", "no_damage_makes", "--slow"),
        "test_no_damage_makes_a_traceback",
    ),
    Mutant(
        "a cache of other keys is believed",
        "store/seal.py",
        (("for key in shape.__annotations__", "for key in ()"),),
        by_test("tests/store/test_caches.py", "-k", "another_version"),
        "test_a_file_of_another_version_is_as_if_it_were_absent",
    ),
    Mutant(
        "records are not checked",
        "store/codec.py",
        (
            ("msgspec.json.Decoder(cls)", "msgspec.json.Decoder(cls, strict=False)"),
            ("        if not is_good(value):", "        if False:"),
        ),
        by_test("tests/store/test_caches.py", "-k", "other_types"),
        "test_a_spec_of_other_types_is_damage",
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


def run_mutant(mutant: Mutant) -> str:
    """What was noticed of it; '' for nothing."""
    with make_copy(mutant) as code:
        return mutant.catcher(code)


def main(names: Sequence[str]) -> None:
    """Run the named mutants, all when none is named; exit code 1 when one was not caught."""
    from tabulate import tabulate

    rows = []
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        seen = run_mutant(mutant)
        rows.append((mutant.name, "caught" if seen else "NOT CAUGHT", mutant.by, seen.replace("\n", " ")[:70]))
        print(*rows[-1], sep=" | ", flush=True)
    print(tabulate(rows, ("mutant", "", "by", "what was seen")))
    sys.exit(0 if all(row[1] == "caught" for row in rows) else 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="MUTANT")
    main(parser.parse_args().names)
