"""The steps of a PROVE: make the trees, do the check on each that matters, in a room of its own, find the verdict.

| result | old tests | base | new tests | verdict |
|---|---|---|---|---|
| fails | | | | `unproved`: nothing but the work was there, and the check does not pass |
| passes | passes | fails | | `proved` |
| passes | passes | passes | fails | `proved`: the tests of the task show what it mends |
| passes | passes | passes | passes | `not_red` |
| passes | fails | | fails | `proved` if it passes with the old tests and those the task added, else `weakened` |
| passes | fails | | passes | `weakened` |

*Old tests*: the work's source with the tests and the test set-up of the base.  *New tests*: the base's source with
those of the work.  A check that passes on the result, or fails where it should, is done again; if it then ends
otherwise, all of it is `flaky`.  It is `unproved`, too, if a test that ran on the base does not run with the work.

Hidden tests take the place of all that: they run in one room, on the base, the work's source and their patch.  All
files that they are in run first, with JUnit XML for how each test ended, then each test whose id that lacks.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Final, TypeAlias

from sessionrun.checks.audit import CHANCE, find_notes
from sessionrun.checks.crossing import NotApplicable, State, add_tests, cross, take_source
from sessionrun.checks.requests import OBJECTS, SOURCE_PATCH, ProveRequest
from sessionrun.checks.runners import (
    REPORTING,
    RanTests,
    Tests,
    Word,
    find_missing,
    list_test_files,
    match_ids,
)
from sessionrun.checks.running import ALL_FILES, load_red, run_counted
from sessionrun.checks.testing import list_files
from sessionrun.checks.trial import Ran, Trials, tell_end
from sessionrun.git.private import open_fence
from sessionrun.model.checks import HiddenTests, JudgedTests, Note, ProofVerdict, ProveReport
from sessionrun.model.errors import SessionrunError, name_some, printable
from sessionrun.store.trees import remove_tree
from sessionrun.walls.build import raise_if_any
from sessionrun.walls.shell import Ended, Shell
from sessionrun.worktrees.park import write_patch
from sessionrun.worktrees.request import EnvironmentProblem

Check: TypeAlias = Callable[[State, int], Ran]
"""Does the check on a state, for the time of that number, from 1."""

Plant: TypeAlias = Callable[[State, RanTests], Ran]
"""Does the check on a state with tests in place that have to fail, for runners that were seen."""


class _Flaky(Exception):
    """A check ended otherwise when it was done again; the text says how."""


def find_verdict(
    check: Check,
    *,
    red: bool,
    repeat: int,
    reads_report: bool = True,
    set_up: Sequence[str] = (),
    plant: Plant | None = None,
) -> ProveReport:
    """Do the checks that are needed for a verdict; one that ends as it has to is done `repeat` times.

    With `reads_report` the tests that ran have to be those of the base.
    """
    done: dict[State, Ran] = {}

    def ends(state: State, *, passing: bool, often: int = repeat) -> bool:
        """Whether it ends so each time."""
        done[state] = check(state, 1)
        if done[state].passed != passing:
            return False
        for time in range(2, often + 1):
            if check(state, time).passed != passing:
                why, first, then = ("with", "passed", "failed") if passing else ("without", "failed", "passed")
                raise _Flaky(f"{why} the work the check {first}, and then {then} on the same files")
        return True

    try:
        verdict = _find(ends)
    except _Flaky as flaky:
        return ProveReport("flaky", str(flaky))
    if verdict != "proved" and (red or verdict != "not_red"):
        return ProveReport(verdict, _explain(verdict, done, set_up))
    if not reads_report:
        return ProveReport(verdict, None)
    # the state that has the work's source, and tests that it could not bend
    kept: State = "old_tests" if done["old_tests"].passed else "kept_tests"
    base, work = (done.get("base") or check("base", 1)).tests, done[kept].tests
    problem = find_missing(base, work)
    if problem is None and plant is not None:
        problem = _try_canary(base, work, kept, plant)
    return ProveReport("unproved" if problem else verdict, problem)


def _find(ends: Callable[..., bool]) -> ProofVerdict:
    if not ends("result", passing=True):
        return "unproved"
    if ends("old_tests", passing=True, often=1):
        return "proved" if ends("base", passing=False) or ends("new_tests", passing=False) else "not_red"
    kept = ends("kept_tests", passing=True, often=1)
    return "proved" if kept and ends("new_tests", passing=False) else "weakened"


def _try_canary(before: RanTests, plain: RanTests, kept: State, plant: Plant) -> str | None:
    """A test that has to fail has to fail the check with the work, if the check runs it on the base.

    `before` and `plain` are the tests that ran on the base and with the work; returns what is wrong.
    """
    found = before.plus(plain)
    if not found.runners:
        return None  # no test runner is known
    work = plant(kept, found)
    silent = before.runners - plain.runners
    if silent and not any(work.canaries.values()):
        return f"{min(silent)} reports nothing with the work"
    if not work.canaries:
        return None
    unseen = [file for file, seen in work.canaries.items() if not seen]
    # go runs the tests of each package in a process of its own, which the package can end
    if work.passed and len(unseen) < len(work.canaries):
        return f"the check passes although a test fails that was planted in {next(iter(work.canaries))}"
    if not unseen or not (work.passed or "go" in found.runners):
        return None
    base = plant("base", found)
    lost = next((file for file in unseen if base.canaries.get(file)), None)
    if lost is not None:
        return f"with the work a test does not run that was planted in {lost}, and has to fail"
    ran = plain.list_ran() or base.tests.list_ran()
    if work.passed and not ran and found.runners <= REPORTING:
        return f"the check passes with a test in {unseen[0]} that has to fail, and reports no test"
    return None


def _explain(verdict: ProofVerdict, done: dict[State, Ran], set_up: Sequence[str]) -> str:
    if verdict == "unproved":
        return f"in a clean room with nothing but the work the check fails: {done['result'].why}"
    if verdict == "weakened":
        named = name_some(set_up, 3)
        note = f'; the work changes {named}, which "own" of "prove" can leave to it' if set_up else ""
        return f"with the tests and test set-up of the base the check fails: {done['old_tests'].why}{note}"
    return "the check passes without the work too: there was nothing to fix, or no test shows it"


OF_CHANCE: Final = 8
"""How often a check is done, in the place of twice, on work that draws lots and could pass by luck."""


def prove(request: ProveRequest, folder: Path) -> ProveReport:
    """Find the verdict; done again after a crash, begin again.

    Raises:
        SessionrunError, OSError: the repository cannot be read, or the walls not be had here.
    """
    asked, workspace, umask = request.prove, request.workspace, os.umask(0o077)
    try:
        build = None if request.environment is None else raise_if_any(request.environment.walls, builds=True)
        walls = raise_if_any(request.walls)
        with open_fence(workspace.repository, folder, limit_s=workspace.git_limit_s) as fence:
            trials = Trials(fence, request, folder, umask, walls, build)
            notes, often = _audit(trials), asked.repeat
            if asked.hidden is not None:
                report = _judge_by_hidden_tests(trials, asked.hidden)
            else:
                is_of_chance = often > 1 and any(note.rule == CHANCE for note in notes)
                report = _prove(trials, max(often, OF_CHANCE) if is_of_chance else often)
        print(f"verdict: {report.verdict}", flush=True)
        problem = None if report.problem is None else printable(report.problem)
        return replace(report, problem=problem, audit=notes)
    finally:
        with suppress(OSError):
            remove_tree(folder / OBJECTS)  # from a node all that is left in the folder comes home


def _audit(trials: Trials) -> tuple[Note, ...]:
    try:
        return find_notes(trials.fence.main(), trials.place, trials.request.prove.test_files)
    except (SessionrunError, OSError) as error:
        print(f"There are no notes of the audit: {error}", flush=True)
        return ()


def _prove(trials: Trials, repeat: int) -> ProveReport:
    request = trials.request
    try:
        commits, set_up = cross(trials.open_git(), trials.place, request, trials.folder)
    except NotApplicable as error:
        return ProveReport("unproved", str(error))

    return find_verdict(
        lambda state, time: trials.find(state, commits[state], time),
        red=request.prove.red,
        repeat=repeat,
        reads_report=request.check.report == "read",
        set_up=set_up,
        plant=lambda state, found: trials.plant(state, commits[state], found),
    )


MAX_ALONE: Final = 50
"""So many tests are run by their ids, one after the other; others that no file brought count as missing."""


def _judge_by_hidden_tests(trials: Trials, hidden: HiddenTests) -> ProveReport:
    """Run the tests on the base and the work's source."""
    git, base, folder = trials.open_git(), str(trials.place.base_commit), trials.folder
    try:
        source = take_source(git, trials.place, trials.request.prove.test_files, folder)
    except NotApplicable as error:
        tests = _judge({}, hidden, frozenset()).tests  # none passes on a patch that does not apply to the base
        return ProveReport("unproved", str(error), reason_class="unresolved", tests=tests)
    write_patch(git, base, git.line("rev-parse", f"{source}^{{tree}}"), folder / SOURCE_PATCH)
    if not hidden.fail_to_pass and not hidden.pass_to_pass:
        return ProveReport("unproved", "its instance names no tests", reason_class="no_tests")
    patch = hidden.patch.encode("utf-8", "surrogateescape")
    try:
        with_work = add_tests(git, source, base, patch, folder)
    except NotApplicable as error:
        return ProveReport("unproved", str(error), reason_class="tests_not_run")
    return _judge_in_room(trials, hidden, with_work)


def _judge_in_room(trials: Trials, hidden: HiddenTests, commit: str) -> ProveReport:
    output, words = trials.folder / "hidden-tests.txt", dict[str, Word]()
    with output.open("wb") as stream, trials.open_room(commit, is_bare=True) as room, trials.as_user():
        try:
            shell, why = trials.begin(room, trials.folder, stream)
        except EnvironmentProblem as error:
            shell, why = None, f"its environment: {error}"
        if shell is not None:
            words, last = _run_tests(shell, hidden, trials.folder, stream)
            why = None if words else _find_fault(shell, hidden, stream, last)
        if why is not None:
            return ProveReport("unproved", why, reason_class="tests_not_run")
        report = _judge(words, hidden, load_red(trials.request.before))
    if report.problem is not None:
        tell_end(output)
    return report


def _run_tests(
    shell: Shell, hidden: HiddenTests, folder: Path, stream: IO[bytes]
) -> tuple[dict[str, Word], Ended | None]:
    def run(words: Sequence[str], report: str) -> tuple[Ended, Tests | None]:
        script = " ".join([hidden.command, *map(shlex.quote, words)])
        return run_counted(shell, script, stream, hidden.timeout_s, folder / report, ALL_FILES)

    ids = (*hidden.fail_to_pass, *hidden.pass_to_pass)
    files = list_test_files(ids, list_files(hidden.patch.encode("utf-8", "surrogateescape")))
    there = [name for name in files if (shell.directory / name).exists()]
    last, tests = run(there, "junit.xml") if there else (None, None)
    words = match_ids(ids, () if tests is None else tests.cases)
    gone = set(files) - set(there)
    left = [test_id for test_id in ids if test_id not in words and test_id.partition("::")[0] not in gone]
    for number, test_id in enumerate(left if tests is None else left[:MAX_ALONE]):
        if there and last is not None and last.code is None:
            break  # its time was up
        last, alone = run([test_id], f"junit-{number}.xml")
        if alone is None:
            words[test_id] = "passed" if last.code == 0 else "failed"
        else:
            words.update(match_ids([test_id], alone.cases))
    return words, last


def _find_fault(shell: Shell, hidden: HiddenTests, stream: IO[bytes], last: Ended | None) -> str | None:
    """Why the command cannot run tests at all, whatever the work is; None: it can, as far as is known."""
    if "pytest" not in hidden.command:
        lack = None if last is None else last.no_program
        return None if lack is None else f"the program is {lack}: {hidden.command}"
    ended = shell.run(f"{hidden.command} --version", stream, hidden.timeout_s)
    return None if ended.why is None else f"{ended.why} of: {hidden.command} --version"


def _judge(words: dict[str, Word], hidden: HiddenTests, red: frozenset[str] | None) -> ProveReport:
    """The verdict by how the tests ended; those in `red`, or all if that is None, did not pass before the work."""
    failed = tuple(test_id for test_id in hidden.fail_to_pass if words.get(test_id) != "passed")
    broken = tuple(test_id for test_id in hidden.pass_to_pass if words.get(test_id) != "passed")
    errors = sum(words.get(test_id) == "error" for test_id in (*failed, *broken))
    before = tuple(test_id for test_id in broken if red is None or test_id in red)
    found = JudgedTests(len(hidden.fail_to_pass) + len(hidden.pass_to_pass), failed, broken, errors, before)
    if not failed and not broken:
        return ProveReport("proved", None, tests=found)
    parts = [f"{len(failed)} of {len(hidden.fail_to_pass)} tests still fail: {failed[0]}"] if failed else []
    parts += [f"{len(broken)} of {len(hidden.pass_to_pass)} tests no longer pass: {broken[0]}"] if broken else []
    parts += [f"{len(before)} of these did not pass here before the work either"] if before else []
    return ProveReport("unproved", "; ".join(parts), reason_class="unresolved", tests=found)
