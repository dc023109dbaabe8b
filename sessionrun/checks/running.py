"""Runs tests, counts them, and words what failed: the commands of a CHECK, in their order, and what a proof runs.

Each command finds in ``PYTEST_ADDOPTS`` where pytest is to write JUnit XML: a file of its own in the job's folder.
The next round is told the telling part first, and never more than fits.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

import orjson

from sessionrun.agents.reading import one_line
from sessionrun.checks.requests import KnownRequest
from sessionrun.checks.runners import (
    NO_TEST,
    Case,
    Tests,
    Word,
    count_words,
    find_contradiction,
    list_test_files,
    match_ids,
    read_junit,
    split_id,
)
from sessionrun.model.checks import Counts, HiddenTests
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import Check
from sessionrun.model.words import NO_PROGRAM
from sessionrun.store.files import read_end, replace_file
from sessionrun.store.jobfiles import KNOWN, load_record, load_usable
from sessionrun.store.trees import remove_entry
from sessionrun.walls.argv import TMP, Walls
from sessionrun.walls.build import raise_if_any
from sessionrun.walls.shell import SHELL, Ended, Shell, word_end

ADDOPTS: Final = "PYTEST_ADDOPTS"
OUTPUT: Final = "known.txt"
RED: Final = "known-red.json"
"""In the folder of a SETUP: what the tests printed that should pass before the work, and a `Red`."""

MAX_BYTES: Final = 12 * 1024
"""Of the whole feedback."""

_HEAD_BYTES: Final = 8 * 1024
"""Of what stands before the output."""

ALL_FILES: Final = "--continue-on-collection-errors"
"""Of pytest: that a file cannot be loaded keeps no other from being run."""


@frozen
class Red:
    """The ids of the tests that did not pass; None: the command could not run any of them."""

    ids: tuple[str, ...] | None


class Ran(NamedTuple):
    """What the commands came to: in one line what failed, what the next round is told of it, and the tests."""

    problem: str | None
    feedback: str
    counts: Counts | None
    lacks: str | None = None
    """The program that is not found or not executable."""


def run_commands(check: Check, directory: str, folder: Path, walls: Walls | None = None) -> Ran:
    """Run the commands of a check, each in a shell of its own, until one fails; they print where we do.

    If it reads reports, a command fails whose report says that a test failed, or that there is none.
    """
    counts: Counts | None = None
    for number, command in enumerate(check.commands, 1):
        tests, code, output, printed = _run(command, directory, folder, f"junit-{number}.xml", walls)
        if tests is not None:
            counts = tests.counts if counts is None else counts.plus(tests.counts)
        denied = find_contradiction([tests]) if tests is not None and check.report == "read" else None
        if not code and denied is None:
            continue
        why = NO_PROGRAM.get(code)
        how = f"{word_end(code)}{f' ({why})' if why else ''}" if code else f"{denied}, but the exit code is 0,"
        problem = f"{NO_TEST} by: {command}" if denied == NO_TEST else f"{how} of: {command}"
        own = tests or Tests()
        feedback = word_failure(command, code, tests and own.counts, own.failed, output, printed)
        return Ran(problem, feedback, counts, command.split()[0] if why else None)
    return Ran(None, "", counts)


def run_known(
    known: HiddenTests, directory: str, folder: Path, red: frozenset[str] | None, walls: Walls | None
) -> Ran:
    """Run the files of tests that passed before; what else is in them does not count, nor an id that is not there.

    `red` did not pass before the work either, and do not count; None: no test could be run then.
    """
    command = word_known(known, directory)
    if command is None or red is None:
        return Ran(None, "", None)
    tests, code, output, printed = _run(command, directory, folder, "junit-known.xml", walls, ALL_FILES)
    words = match_ids(known.pass_to_pass, () if tests is None else tests.cases)
    broken = [test_id for test_id, word in words.items() if word in ("failed", "error") and test_id not in red]
    counts = count_words(words.values())
    if not broken and (words or not code):
        return Ran(None, "", counts)
    messages = {(case.place, case.name): case.message for case in (tests.cases if tests is not None else ())}
    failed = [Case("", one, words[one], message=messages.get(split_id(one), "")) for one in broken]
    feedback = word_failure(command, code, counts if words else None, failed, output, printed)
    problem = f"{len(broken)} tests that passed before fail, such as {broken[0]}" if broken else None
    return Ran(problem or f"{word_end(code)} of: {command}", feedback, counts if words else None)


def word_known(known: HiddenTests, directory: str) -> str | None:
    """The command that runs the files of tests that are there; None: there are none."""
    files = [name for name in list_test_files(known.pass_to_pass, ()) if os.path.exists(f"{directory}/{name}")]
    return " ".join([known.command, *map(shlex.quote, files)]) if files else None


def _run(
    command: str, directory: str, folder: Path, report: str, walls: Walls | None, *words: str
) -> tuple[Tests | None, int, bytes, int]:
    """Run a command: its tests, its exit code, the end of what it printed, and how much that was (bytes)."""
    print(f"$ {command}", flush=True)
    begun = _size(folder / "stdout")
    argv: Sequence[str] = [SHELL, "-ec", command]
    argv = argv if walls is None else walls.wrap(directory, *argv)
    junit, environ = add_junit(os.environ if walls is None else walls.env, folder / report, walls, *words)
    done = subprocess.run(argv, cwd=directory, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    printed = max(0, _size(folder / "stdout") - begun)
    output = read_end(folder / "stdout", min(printed, MAX_BYTES))
    return read_junit(junit), done.returncode, output, printed


def run_counted(
    shell: Shell, script: str, stream: IO[bytes], limit_s: float | None, report: Path, *words: str
) -> tuple[Ended, Tests | None]:
    """Run a script, and read what pytest reported.

    `report` is the file outside of walls, `words` are more arguments of pytest.
    """
    place, environ = add_junit(shell.environ, report, shell.walls, *words)
    return shell._replace(environ=environ).run(script, stream, limit_s), read_junit(place)


def run_first(_: object, folder: Path) -> None:
    """Run the files of the tests that should pass and are there, before it is committed what the SETUP left.

    They run in the current directory.  If they cannot be run, a line says so, and the setup goes on.
    """
    request = load_record(folder / KNOWN, KnownRequest)
    known, command = request.known, word_known(request.known, ".")
    if command is None:
        return
    try:
        walls = raise_if_any(request.walls)
        environ = {**(os.environ if walls is None else walls.env), "PYTHONDONTWRITEBYTECODE": "1"}
        with open(folder / OUTPUT, "wb") as stream:
            shell, report = Shell(Path.cwd(), environ, walls), folder / "junit-known.xml"
            words = ("-p", "no:cacheprovider", ALL_FILES)
            ended, tests = run_counted(shell, command, stream, known.timeout_s, report, *words)
        ran, red = _list_red(known, tests)
        record = Red(tuple(red) if ran or ended.code == 0 else None)  # if it names no test, its exit code decides
        replace_file(folder / RED, orjson.dumps(record), durable=False)
    except (SessionrunError, OSError) as error:
        print(error, file=sys.stderr)


def _list_red(known: HiddenTests, tests: Tests | None) -> tuple[dict[str, Word], list[str]]:
    """How each of the tests ended, and those that did not pass, also as their file could not be loaded.

    What is in no report for another reason may be there with the patch of the tests.
    """
    cases = () if tests is None else tests.cases
    words = match_ids(known.pass_to_pass, cases)
    unloaded = {case.name for case in cases if not case.place and case.word == "error"}
    red = []
    for test_id in known.pass_to_pass:
        module, _ = split_id(f"{test_id.partition('::')[0]}::test")
        if words.get(test_id, "error" if module in unloaded else "passed") != "passed":
            red.append(test_id)
    return words, red


def load_red(folder: str | None) -> frozenset[str] | None:
    """The tests that a SETUP, if there was one, found red; None if the command could not run any of them."""
    red = None if folder is None else load_usable(Path(folder, RED), Red)
    if red is None:
        return frozenset()
    return None if red.ids is None else frozenset(red.ids)


def add_junit(
    environ: Mapping[str, str], report: Path, walls: Walls | None, *words: str
) -> tuple[Path, dict[str, str]]:
    """Where pytest's report of a command will lie, and the variables with which it writes that; `words` are more.

    That is `report`, a file of the job's folder, or with walls a file of what is /tmp inside of them.
    """
    place = report.absolute() if walls is None else Path(walls.tmp, report.name)
    seen = place if walls is None else Path(TMP, report.name)
    try:
        remove_entry(place)  # an agent that foresaw this name may have put something there
    except OSError:
        seen = Path(os.devnull)  # nothing is counted
    added = " ".join(map(shlex.quote, (*words, f"--junitxml={seen}")))
    return place, {**environ, ADDOPTS: f"{environ.get(ADDOPTS, '')} {added}".strip()}


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def word_failure(
    command: str, code: int, counts: Counts | None, failed: Sequence[Case], output: bytes, size: int
) -> str:
    """Describe a command that failed, for the agent: the first tests that did not pass and the end of its output.

    `size` is how much it printed in all (bytes).
    """
    how = f"failed with {word_end(code)}" if code else "did not pass, though its exit code is 0"
    head, shown = f"This command {how}: {one_line(command, 1000)}", 0
    if counts is not None:
        head += f"\n\n{word_counts(counts)}"
        for test in failed:
            name = "::".join(part for part in (test.place, test.name) if part)[:200]
            line = one_line(f"FAILED {name}" + (f": {test.message}" if test.message else ""), 500)
            if len(f"{head}{line}".encode("utf-8", "replace")) > _HEAD_BYTES:
                break
            head, shown = f"{head}\n{line}", shown + 1
        missing = counts.failed + counts.errors - shown
        head += f"\n[... {missing} more tests that did not pass]" if missing > 0 else ""
    text = _cut_end(output.decode("utf-8", "replace"), MAX_BYTES - len(head.encode()) - 200)
    if not text.strip():
        return f"{head}\n\nIt printed nothing.\n"
    left_out = size - len(text.encode("utf-8", "replace"))
    mark = f"[... {left_out:,} bytes left out]\n" if left_out > 0 else ""
    return f"{head}\n\nThe end of its output:\n\n{mark}{text}"


def word_counts(counts: Counts) -> str:
    if not counts.total:
        return "No test was found."
    others = {"failed": counts.failed, "with an error": counts.errors, "skipped": counts.skipped}
    rest = [f"{number} {word}" for word, number in others.items() if number]
    return ", ".join([f"{counts.passed} of {counts.total} tests passed", *rest]) + "."


def _cut_end(text: str, limit: int) -> str:
    """The end of a text in so many bytes, from the beginning of a line where there is one."""
    content = text.encode("utf-8", "replace")
    if len(content) <= limit:
        return text
    cut = content[-limit:].decode("utf-8", "ignore")
    _, newline, rest = cut.partition("\n")
    return rest if newline and rest.strip() else cut
