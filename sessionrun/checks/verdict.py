"""The verdict of a proof, from how the check ends on five trees of files.  Pure.

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from sessionrun.checks.runners import REPORTING, find_missing, merge
from sessionrun.model.reports import ProveReport, Ran, RanTests
from sessionrun.model.spec import ProofVerdict

State: TypeAlias = Literal["result", "old_tests", "kept_tests", "base", "new_tests"]
"""On which files a check is done; see `worktrees.crossing.Trees`."""

Check: TypeAlias = Callable[[State, int], Ran]
"""Does the check on a state, for the time of that number, from 1."""

Plant: TypeAlias = Callable[[State, RanTests], Ran]
"""Does the check on a state with tests in place that have to fail, for runners that were seen."""


class _Ended(Exception):
    """The proof is over before its table is, with this verdict, for this reason."""

    def __init__(self, verdict: ProofVerdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict: ProofVerdict = verdict


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
    done: dict[str, Ran] = {}

    def ends(state: State, *, passing: bool) -> bool:
        """Whether it ends so each time."""
        done[state] = check(state, 1)
        if done[state].passed != passing:
            return False
        for time in range(2, repeat + 1):
            if check(state, time).passed != passing:
                why, first, then = ("with", "passed", "failed") if passing else ("without", "failed", "passed")
                raise _Ended("flaky", f"{why} the work the check {first}, and then {then} on the same files")
        return True

    def passes(state: State) -> bool:
        done[state] = check(state, 1)
        return done[state].passed

    try:
        verdict = _find(ends, passes)
        good = verdict == "proved" or (verdict == "not_red" and not red)
        if good and reads_report:
            _compare_tests(done, passes)
            if plant is not None:
                _try_canary(done, plant)
        problem = None if good else _explain(verdict, done, set_up)
    except _Ended as ended:
        verdict, problem = ended.verdict, str(ended)
    return ProveReport(verdict, problem, {state: replace(ran, tests=None) for state, ran in done.items()})


def _find(ends: Callable[..., bool], passes: Callable[[State], bool]) -> ProofVerdict:
    if not ends("result", passing=True):
        return "unproved"
    if passes("old_tests"):
        return "proved" if ends("base", passing=False) or ends("new_tests", passing=False) else "not_red"
    return "proved" if passes("kept_tests") and ends("new_tests", passing=False) else "weakened"


def _name_kept(done: Mapping[str, Ran]) -> State:
    """The state that has the work's source and tests that it could not bend."""
    return "old_tests" if done["old_tests"].passed else "kept_tests"


def _compare_tests(done: dict[str, Ran], passes: Callable[[State], bool]) -> None:
    """Each test that ran on the base has to run with the work and the tests of the base.

    Raises:
        _Ended: one did not.
    """
    if "base" not in done:
        passes("base")
    base, work = done["base"].tests, done[_name_kept(done)].tests
    missing = find_missing(base or RanTests(), work or RanTests())
    if missing is not None:
        raise _Ended("unproved", missing)


def _try_canary(done: dict[str, Ran], plant: Plant) -> None:
    """A test that has to fail has to fail the check with the work, if the check runs it on the base.

    Raises:
        _Ended: it does not.
    """
    state = _name_kept(done)
    plain, before = done[state].tests or RanTests(), done["base"].tests or RanTests()
    found = merge((), [before, plain])
    if not found.runners:
        return  # no test runner is known
    work = plant(state, found)
    silent = before.runners - plain.runners
    if silent and not any(work.canaries.values()):
        raise _Ended("unproved", f"{min(silent)} reports nothing with the work")
    if not work.canaries:
        return
    unseen = [file for file, seen in work.canaries.items() if not seen]
    # go runs the tests of each package in a process of its own, which the package can end
    if work.passed and len(unseen) < len(work.canaries):
        raise _Ended(
            "unproved", f"the check passes although a test fails that was planted in {next(iter(work.canaries))}"
        )
    if not unseen or not (work.passed or "go" in found.runners):
        return
    base = plant("base", found)
    lost = next((file for file in unseen if base.canaries.get(file)), None)
    if lost is not None:
        raise _Ended("unproved", f"with the work a test does not run that was planted in {lost}, and has to fail")
    is_empty = plain.is_empty and (base.tests is None or base.tests.is_empty)
    if work.passed and is_empty and found.runners <= REPORTING:
        raise _Ended(
            "unproved", f"the check passes with a test in {unseen[0]} that has to fail, and reports no test"
        )


def _explain(verdict: ProofVerdict, done: dict[str, Ran], set_up: Sequence[str]) -> str:
    if verdict == "unproved":
        return f"in a clean room with nothing but the work the check fails: {done['result'].why}"
    if verdict == "weakened":
        names = f"{', '.join(set_up[:3])}{' and others' if len(set_up) > 3 else ''}"
        note = f'; the work changes {names}, which "own" of "prove" can leave to it' if set_up else ""
        return f"with the tests and test set-up of the base the check fails: {done['old_tests'].why}{note}"
    return "the check passes without the work too: there was nothing to fix, or no test shows it"
