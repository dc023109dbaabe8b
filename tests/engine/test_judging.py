"""Hidden tests judge what an attempt left, however it ended: the engine alone, on scripted ends of jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation import PLACES, Scripted, make_session

from sessionrun.engine.task import TaskState
from sessionrun.engine.transitions import demands_change, find_better
from sessionrun.model.checks import Checked, Counts, HiddenTests, ProofVerdict
from sessionrun.model.events import JobFinished, JobLost, RequestReceived, TimerFired, Verdict
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.kinds import DiffStat
from sessionrun.model.places import Place
from sessionrun.model.reasons import INFRASTRUCTURE, REASONS
from sessionrun.model.spec import Check, Prove, TaskSpec, Workspace

TASK = TaskSpec(
    "a",
    ("x",),
    workspace=Workspace("mirror"),
    check=Check(("true",)),
    prove=Prove(hidden=HiddenTests("", ("t::a",))),
    rounds=2,
    round_timeout_s=9.0,
)
DIFF: DiffStat = {"files": 1, "insertions": 1, "deletions": 0}
SEEN: dict[int, Checked] = {
    1: Checked(Counts(passed=3, failed=1, total=4), "c" * 40, DIFF),
    2: Checked(Counts(passed=1, failed=3, total=4), "d" * 40, DIFF),
}


class Script(Scripted):
    """One task; each job ends as `ends` says of its phase, also of one round (work_2) or attempt (work_a2)."""

    def __init__(self, spec: TaskSpec = TASK, /, **ends: str) -> None:
        super().__init__(make_session([spec]))
        self.ends, self.phases = ends, list[str]()
        self.better: dict[Phase, int] = {}
        self.places: dict[Phase, Place] = dict(PLACES)

    @property
    def task(self) -> TaskState:
        return self["a"]

    def end(self, key: JobKey) -> None:
        phase = key.phase
        self.phases.append(phase)
        better = find_better(self.task)
        if better is not None:
            self.better[phase] = better.round
        names = (f"{phase}_{key.round}", f"{phase}_a{key.attempt}", phase)
        said = next((self.ends[name] for name in names if name in self.ends), None)
        checked = SEEN[key.round] if phase == "check" and said else None
        place = self.places.get(phase)
        if said == "lost":
            self.record(JobLost(key, "lost", "gone"))
        elif said == "round_timeout":
            self.record(TimerFired(key, "round_timeout"))
            self.record(JobFinished(key, "failed", "signal", "signal: 15", place=place, checked=checked))
        else:
            reason = said and f"{said}: so it was"
            verdict: Verdict = "failed" if said else "passed"
            proof: ProofVerdict | None = "proved" if phase == "prove" and not said else None
            self.record(JobFinished(key, verdict, said, reason, place=place, checked=checked, proof=proof))

    def ended(self) -> tuple[str | None, str | None]:
        return self.task.outcome, self.task.reason_class


ROUNDS = ["prepare", "work", "check", "work", "check"]
JUDGED = ["park", "prove", "release"]
RED = {"check": "check_failed"}
LATE = {"check_1": "check_failed", "work_2": "round_timeout"}
GOOD = ("succeeded", None)


@pytest.mark.parametrize(
    ("ends", "phases", "ended"),
    [
        (RED, [*ROUNDS, *JUDGED], GOOD),
        ({**RED, "prove": "unresolved"}, [*ROUNDS, *JUDGED], ("failed", "check_failed")),
        ({"prove": "no_tests"}, ["prepare", "work", "check", *JUDGED], ("failed", "no_tests")),
        *(
            row
            for reason in ("exit_code", "no_such_class")
            for row in (
                ({"work_1": reason}, ["prepare", "work", *JUDGED], GOOD),
                ({"work_1": reason, "prove": "unresolved"}, ["prepare", "work", *JUDGED], ("failed", reason)),
                ({"work_1": reason, "prove": "no_tests"}, ["prepare", "work", *JUDGED], ("failed", reason)),
            )
        ),
        ({**LATE, "prove": "unresolved"}, [*ROUNDS[:-1], *JUDGED], ("timed_out", "round_timeout")),
        ({"work": "round_timeout"}, ["prepare", "work", "work", *JUDGED], GOOD),
        # tests that cannot be run are the reason: then the instance is run again
        ({**RED, "prove": "tests_not_run"}, [*ROUNDS, *JUDGED], ("failed", "tests_not_run")),
        ({**RED, "park": "not_parked"}, [*ROUNDS, "park", "release"], ("failed", "not_parked")),
        ({**RED, "prove": "lost"}, [*ROUNDS, "park", "prove", "prove", "prove", "release"], ("lost", "lost")),
    ],
)
def test_how_an_attempt_ended_does_not_decide(
    ends: dict[str, str], phases: list[str], ended: tuple[str, str | None]
) -> None:
    """The hidden tests do; if they do not pass, or are none, the failure of the job is the reason."""
    script = Script(**ends).go_on()
    assert (script.phases, script.ended()) == (phases, ended)
    assert ended[0] != "failed" or script.task.reason == f"{ended[1]}: so it was"


def test_what_is_judged_is_the_best_round() -> None:
    """Also when the last one was broken off."""
    for ends in (RED, LATE):
        assert Script(**ends, prove="unresolved").go_on().better == {"park": 1, "prove": 1, "release": 1}
    assert Script(check_1="check_failed").go_on().better == {}, "a check that passed is the last word"


@pytest.mark.parametrize("reason", sorted(INFRASTRUCTURE & set(REASONS) - {"usage_limit"}))
def test_a_failure_that_says_nothing_about_the_work_is_not_judged(reason: str) -> None:
    failed = Script(work_1=reason).go_on()
    assert "prove" not in failed.phases
    assert failed.task.failure is None


def test_a_cancelled_judgement_is_cancelled() -> None:
    script = Script(check="check_failed").go_on(until="prove")
    script.record(RequestReceived("r", "cancel", ("a",)))
    job = script.task.job
    assert job is not None and job.stopping == "cancelled"
    script.record(JobFinished(job.key, "failed", "signal", "signal: 15"))
    assert script.go_on().ended() == ("cancelled", "cancelled")


def test_a_further_attempt_begins_without_the_failure() -> None:
    script = Script(replace(TASK, retries=1), check_a1="check_failed", prove="unresolved").go_on()
    assert script.task.attempt == 2
    assert script.ended() == ("failed", "unresolved")


def test_a_proof_without_hidden_tests_needs_a_check_that_passes() -> None:
    """Its check is what is proved, so a check that fails has nothing to prove."""
    spec = replace(TASK, prove=Prove())
    script = Script(spec, check="check_failed").go_on()
    assert script.phases == [*ROUNDS, "release"]
    assert script.ended() == ("failed", "check_failed")


@pytest.mark.parametrize(
    ("hidden", "ends", "ended"),
    [
        (True, {}, GOOD),  # the tests say more than a diff
        (False, {}, ("failed", "no_change")),
        (True, {"prove": "unresolved"}, ("failed", "unresolved")),
        (True, {"prove": "unresolved", "check": "check_failed"}, ("failed", "check_failed")),
    ],
)
def test_work_without_a_change_fails_where_no_hidden_tests_pass(
    hidden: bool, ends: dict[str, str], ended: tuple[str, str | None]
) -> None:
    script = Script(replace(TASK, expect_change=True, prove=TASK.prove if hidden else None), **ends)
    script.places["release"] = replace(PLACES["release"], changed=False)
    assert script.go_on().ended() == ended
    assert demands_change(script.task) == (ended[0] == "failed"), "RELEASE keeps the worktree of a failure"
