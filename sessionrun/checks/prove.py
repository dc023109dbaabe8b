"""The steps of a PROVE: make the trees, do the check on each that matters, in a room of its own."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Final

from sessionrun.checks.audit import CHANCE, find_notes
from sessionrun.checks.requests import OBJECTS, SOURCE_PATCH, ProveRequest
from sessionrun.checks.runners import Case, Word, list_test_files, match_ids
from sessionrun.checks.running import ALL_FILES, Shell, word_counts
from sessionrun.checks.trial import Trials, open_trials, tell_end
from sessionrun.checks.verdict import State, find_verdict
from sessionrun.git.private import open_fence
from sessionrun.model.checks import HiddenTests, Note
from sessionrun.model.errors import SessionrunError
from sessionrun.model.reports import JudgedTests, ProveReport, Ran, RanTests
from sessionrun.store.trees import remove_tree
from sessionrun.walls.shell import Ended
from sessionrun.worktrees.crossing import NotApplicable, Trees, add_tests, cross, take_source
from sessionrun.worktrees.env_request import EnvironmentProblem
from sessionrun.worktrees.park import write_patch
from sessionrun.worktrees.testing import Rules, list_files

OF_CHANCE: Final = 8
"""How often a check is done, in the place of twice, on work that draws lots and could pass by luck."""

TITLES: Final[dict[State, str]] = {
    "result": "on the base and the work",
    "old_tests": "on the work, with the tests and test set-up of the base",
    "kept_tests": "the same, with the test files that the task added",
    "base": "on the base, without the work",
    "new_tests": "on the base, with the tests and test set-up of the work",
}


def prove(request: ProveRequest, folder: Path) -> ProveReport:
    """Find the verdict; done again after a crash, begin again."""
    try:
        notes = _audit(request, folder)
        if request.prove.hidden is None:
            often = request.prove.repeat
            if often > 1 and any(note.rule == CHANCE for note in notes):
                often = max(often, OF_CHANCE)
            report = _prove(request, often, folder)
        else:
            from sessionrun.checks.prove import judge_by_hidden_tests

            report = judge_by_hidden_tests(request, request.prove.hidden, folder)
        return replace(report, audit=notes)
    finally:
        with suppress(OSError):
            remove_tree(folder / OBJECTS)  # from a node all that is left in the folder comes home


def _audit(request: ProveRequest, folder: Path) -> tuple[Note, ...]:
    workspace = request.workspace
    assert workspace.place is not None
    try:
        with open_fence(workspace.repository, folder, limit_s=workspace.git_limit_s) as fence:
            return find_notes(fence.main(), workspace.repository, workspace.place, request.prove.test_files)
    except (SessionrunError, OSError) as error:
        print(f"There are no notes of the audit: {error}", flush=True)
        return ()


def _prove(request: ProveRequest, repeat: int, folder: Path) -> ProveReport:
    asked = request.prove
    rules = Rules(asked.test_files, asked.own, request.check.commands, request.directory)
    with open_trials(request, folder) as trials:
        try:
            trees = cross(trials.open_git(), trials.place, rules, folder)
        except NotApplicable as error:
            return ProveReport("unproved", str(error))
        report = find_verdict(
            partial(_check, trials, trees),
            red=asked.red,
            repeat=repeat,
            reads_report=request.check.report == "read",
            set_up=trees.set_up,
            plant=lambda state, found: _plant(trials, trees, state, found),
        )
    print(f"verdict: {report.verdict}", flush=True)
    return report


def _plant(trials: Trials, trees: Trees, state: State, found: RanTests) -> Ran:
    ran = trials.plant(state, str(getattr(trees, state)), found)
    if ran.canaries:
        number, seen = len(ran.canaries), sum(ran.canaries.values())
        end = "passes" if ran.passed else "fails"
        print(f"{TITLES[state]}, with {number} planted tests that have to fail: {end}, {seen} failed", flush=True)
    return ran


def _check(trials: Trials, trees: Trees, state: State, time: int) -> Ran:
    """Do the check on a state, and say how it ended.

    Raises:
        SessionrunError, OSError: it cannot be done; that of the work is then one that fails.
    """
    try:
        ran = trials.find(state, str(getattr(trees, state)), time)
    except EnvironmentProblem as error:
        if state != "result":
            raise
        ran = Ran(False, f"its environment: {error}")
    end = "passes" if ran.passed else f"fails: {ran.why}"
    print(f"{TITLES[state]}: {end}{'' if ran.counts is None else f' ({word_counts(ran.counts)})'}", flush=True)
    return ran


OUTPUT: Final = "hidden-tests.txt"
BEFORE: Final = "before"
"""The directory in the job's folder of what tests came to without the work."""
MAX_ALONE: Final = 50
"""So many tests are run by their ids, one after the other; others that no file brought count as missing."""


def judge_by_hidden_tests(request: ProveRequest, hidden: HiddenTests, folder: Path) -> ProveReport:
    """Run the tests on the base and the work's source; done again after a crash, begin again."""
    with open_trials(request, folder) as trials:
        git, base = trials.open_git(), str(trials.place.base_commit)
        try:
            source = take_source(git, trials.place, request.prove.test_files, folder)
        except NotApplicable as error:
            return ProveReport("unproved", str(error), reason_class="unresolved", tests=_count_none(hidden))
        write_patch(git, base, git.line("rev-parse", f"{source}^{{tree}}"), folder / SOURCE_PATCH)
        if not hidden.fail_to_pass and not hidden.pass_to_pass:
            return ProveReport("unproved", "its instance names no tests", reason_class="no_tests")
        patch = hidden.patch.encode("utf-8", "surrogateescape")
        try:
            with_work, without = (add_tests(git, commit, base, patch, folder) for commit in (source, base))
        except NotApplicable as error:
            return ProveReport("unproved", str(error), reason_class="tests_not_run")
        report = _judge_in_room(trials, hidden, with_work)
        if report.tests is not None and report.tests.broken:
            report = _compare(trials, hidden, without, report, report.tests)
    print(f"verdict: {report.verdict}", flush=True)
    return report


def _judge_in_room(trials: Trials, hidden: HiddenTests, commit: str) -> ProveReport:
    with _open_shell(trials, commit, trials.folder) as (shell, why, stream):
        if shell is None:
            return ProveReport("unproved", why, reason_class="tests_not_run")
        words, last = _run_tests(shell, hidden, trials.folder, stream)
        if not words and (why := _find_fault(shell, hidden, stream, last)) is not None:
            return ProveReport("unproved", why, reason_class="tests_not_run")
        report = _judge(words, hidden)
    if report.problem is not None:
        tell_end(trials.folder / OUTPUT)
    return report


def _compare(
    trials: Trials, hidden: HiddenTests, commit: str, report: ProveReport, tests: JudgedTests
) -> ProveReport:
    """Say which tests that the work seems to have broken do not pass without it either: those of this machine."""
    known = replace(hidden, fail_to_pass=(), pass_to_pass=tests.broken)
    folder = trials.folder / BEFORE
    folder.mkdir(exist_ok=True)
    with _open_shell(trials, commit, folder) as (shell, _, stream):
        if shell is None:
            return report
        words, _ = _run_tests(shell, known, folder, stream)
    red = tuple(test_id for test_id in tests.broken if words.get(test_id) != "passed")
    remark = f"; {len(red)} of these do not pass here without the work either" if red else ""
    return replace(report, problem=f"{report.problem}{remark}", tests=replace(tests, red_before=red))


@contextmanager
def _open_shell(trials: Trials, commit: str, folder: Path) -> Iterator[tuple[Shell | None, str | None, IO[bytes]]]:
    """A clean room, and the file for what is printed in it; without a shell, why there is none."""
    with (folder / OUTPUT).open("wb") as stream, trials.open_room(commit) as room, trials.as_user():
        try:
            shell, why = trials.begin(room, folder, stream)
        except EnvironmentProblem as error:
            shell, why = None, f"its environment: {error}"
        yield shell, why, stream


def _run_tests(
    shell: Shell, hidden: HiddenTests, folder: Path, stream: IO[bytes]
) -> tuple[dict[str, Word], Ended | None]:
    """How each test ended, by its id, and how the last command that ran some."""
    ids = (*hidden.fail_to_pass, *hidden.pass_to_pass)
    files = list_test_files(ids, list_files(hidden.patch.encode("utf-8", "surrogateescape")))
    there = [name for name in files if (shell.directory / name).exists()]
    last, cases = _run(shell, hidden, there, folder / "junit.xml", stream) if there else (None, None)
    words = match_ids(ids, cases or ())
    left = [test_id for test_id in ids if test_id not in words and _may_be_there(test_id, files, there)]
    for number, test_id in enumerate(left if cases is None else left[:MAX_ALONE]):
        if there and last is not None and last.code is None:
            break  # its time was up
        last, alone = _run(shell, hidden, [test_id], folder / f"junit-{number}.xml", stream)
        if alone is None:
            words[test_id] = "passed" if last.code == 0 else "failed"
        else:
            words.update(match_ids([test_id], alone))
    return words, last


def _find_fault(shell: Shell, hidden: HiddenTests, stream: IO[bytes], last: Ended | None) -> str | None:
    """Why the command cannot run tests at all, whatever the work is; None: it can, as far as is known."""
    if "pytest" not in hidden.command:
        lack = None if last is None else last.no_program
        return None if lack is None else f"the program is {lack}: {hidden.command}"
    ended = shell.run(f"{hidden.command} --version", stream, hidden.timeout_s)
    return None if ended.why is None else f"{ended.why} of: {hidden.command} --version"


def _may_be_there(test_id: str, files: Sequence[str], there: Sequence[str]) -> bool:
    file = test_id.partition("::")[0]
    return file in there or file not in files


def _run(
    shell: Shell, hidden: HiddenTests, words: Sequence[str], junit: Path, stream: IO[bytes]
) -> tuple[Ended, Sequence[Case] | None]:
    script = " ".join([hidden.command, *map(shlex.quote, words)])
    stream.write(f"$ {script}\n".encode("utf-8", "surrogateescape"))
    stream.flush()
    ended, tests = shell.run_counted(script, stream, hidden.timeout_s, junit, ALL_FILES)
    return ended, None if tests is None else tests.cases


def _count_none(hidden: HiddenTests) -> JudgedTests:
    """No test passes on a patch that does not apply to the base."""
    total = len(hidden.fail_to_pass) + len(hidden.pass_to_pass)
    return JudgedTests(total=total, failed=hidden.fail_to_pass, broken=hidden.pass_to_pass)


def _judge(words: dict[str, Word], hidden: HiddenTests) -> ProveReport:
    failed = tuple(test_id for test_id in hidden.fail_to_pass if words.get(test_id) != "passed")
    broken = tuple(test_id for test_id in hidden.pass_to_pass if words.get(test_id) != "passed")
    errors = sum(words.get(test_id) == "error" for test_id in (*failed, *broken))
    found = JudgedTests(
        total=len(hidden.fail_to_pass) + len(hidden.pass_to_pass), failed=failed, broken=broken, errors=errors
    )
    if not failed and not broken:
        return ProveReport("proved", None, tests=found)
    parts = [
        f"{len(names)} of {len(all_of)} {word}: {names[0]}"
        for names, all_of, word in (
            (failed, hidden.fail_to_pass, "tests still fail"),
            (broken, hidden.pass_to_pass, "tests no longer pass"),
        )
        if names
    ]
    return ProveReport("unproved", "; ".join(parts), reason_class="unresolved", tests=found)
