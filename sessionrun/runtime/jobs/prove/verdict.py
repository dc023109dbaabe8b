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
those of the work.  A check that fails where it should is done again; if it passes then, all of it is `flaky`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from sessionrun.model.spec import ProofVerdict
from sessionrun.runtime.jobs.prove.request import ProveReport, Ran

State: TypeAlias = Literal["result", "old_tests", "kept_tests", "base", "new_tests"]
"""On which files a check is done; see `workspaces.crossing.Trees`."""

Check: TypeAlias = Callable[[State, int], Ran]
"""Does the check on a state, for the time of that number, from 1."""


class _Flaky(Exception):
    """On the same files the check failed and passed."""


def find_verdict(check: Check, *, red: bool, repeat: int) -> ProveReport:
    """Do the checks that are needed for a verdict.

    Args:
        check: does one.
        red: whether it has to fail without the work.
        repeat: how often a check that fails without the work is done.
    """
    done: dict[str, Ran] = {}

    def passes(state: State) -> bool:
        done[state] = check(state, 1)
        return done[state].passed

    def fails(state: State) -> bool:
        """Whether it fails each time, without the work."""
        if passes(state):
            return False
        for time in range(2, repeat + 1):
            if check(state, time).passed:
                raise _Flaky(state)
        return True

    try:
        verdict = _find(passes, fails)
    except _Flaky as flaky:
        verdict = "flaky"
        done[str(flaky)] = Ran(False, "it failed and passed")
    if verdict == "proved" or (verdict == "not_red" and not red):
        return ProveReport(verdict, None, done)
    return ProveReport(verdict, _explain(verdict, done), done)


def _find(passes: Callable[[State], bool], fails: Callable[[State], bool]) -> ProofVerdict:
    if not passes("result"):
        return "unproved"
    if passes("old_tests"):
        return "proved" if fails("base") or fails("new_tests") else "not_red"
    return "proved" if passes("kept_tests") and fails("new_tests") else "weakened"


def _explain(verdict: ProofVerdict, done: dict[str, Ran]) -> str:
    if verdict == "unproved":
        return f"in a clean room with nothing but the work the check fails: {done['result'].why}"
    if verdict == "weakened":
        return f"with the tests and test set-up of the base the check fails: {done['old_tests'].why}"
    if verdict == "flaky":
        return "without the work the check failed, and then passed on the same files"
    return "the check passes without the work too: there was nothing to fix, or no test shows it"
