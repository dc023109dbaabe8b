"""The steps of a PROVE: make the trees, do the check on each that matters, in a room of its own."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from sessionrun.checks.audit import CHANCE, find_notes
from sessionrun.checks.requests import OBJECTS, ProveRequest
from sessionrun.checks.running import word_counts
from sessionrun.checks.trial import Trials, open_trials
from sessionrun.checks.verdict import State, find_verdict
from sessionrun.git.private import open_fence
from sessionrun.model.checks import Note
from sessionrun.model.errors import SessionrunError
from sessionrun.model.reports import ProveReport, Ran, RanTests
from sessionrun.store.trees import remove_tree
from sessionrun.worktrees.crossing import NotApplicable, Trees, cross
from sessionrun.worktrees.env_request import EnvironmentProblem
from sessionrun.worktrees.testing import Rules

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
            from sessionrun.checks.hidden import judge_by_hidden_tests

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
