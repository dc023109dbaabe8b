"""What goes wrong with one job, its files or our own code for it, is that job's failure: the session goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson
import pytest
from conftest import Command
from simulated import Fate
from test_supervisor import make_session, replay, run
from test_workspaces import Project
from test_worktrees import project

from sessionrun.agents.table import BUILTIN
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.model.checks import Brief
from sessionrun.model.events import Event, JobFinished
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.places import Place
from sessionrun.model.spec import AgentSpec, Job, TaskSpec, Workspace
from sessionrun.session.context_files import BriefProblem
from sessionrun.session.executor import Exit
from sessionrun.session.history import begin
from sessionrun.session.maker import JobMaker, _render
from sessionrun.session.prompt import read_earlier_answer
from sessionrun.store.files import NotRegular
from sessionrun.store.jobfiles import ANSWER
from sessionrun.store.session import SessionDir

__all__ = ["project"]

PLACE = Place(branch="main-task-a", worktree="/w/a", base_commit="0" * 40)
Damage = Callable[[Path], object]


def instead(plant: Damage) -> Damage:
    """Something else lies where the file was."""

    def damage(path: Path) -> None:
        path.unlink()
        plant(path)

    return damage


DAMAGES: dict[str, Damage] = {
    "no JSON": lambda path: path.write_bytes(b"{"),
    "no object": lambda path: path.write_bytes(b"[]"),
    "of other types": lambda path: path.write_bytes(b'{"worktree":7,"written":7}'),
    "a link": instead(lambda path: os.symlink("/dev/zero", path)),
    "a FIFO": instead(os.mkfifo),
    "a directory": instead(os.mkdir),
    "gone": instead(lambda path: None),
    "names no worktree": lambda path: path.write_bytes(b"{}"),  # else the task would run in the user's checkout
}


# --- judged ---


WORKTREE = TaskSpec("a", ("x",), workspace=Workspace("worktree"))
ANSWERED: dict[Phase, tuple[TaskSpec, Place | None, str]] = {
    "prepare": (WORKTREE, None, "workspace_failed: its answer cannot be used: "),
    "release": (WORKTREE, PLACE, "release_failed: its answer cannot be used: "),
    "check": (TaskSpec("a", ("x",), brief=Brief(outputs=("a.py",))), None, "check_failed: its report "),
}


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        (phase, kind)
        for phase in ANSWERED
        for kind in DAMAGES
        if kind != "names no worktree" or phase == "prepare"  # the others need not name one
    ],
)
def test_a_job_whose_answer_cannot_be_used_has_failed(phase: Phase, kind: str, own_place: Path) -> None:
    """It ended well, and its answer was damaged since.  A RELEASE leaves the worktree."""
    task, place, says = ANSWERED[phase]
    key = JobKey("a", 1, 1, phase, 1)
    session, spec = make_session(own_place, task)
    spec = replace(spec, agents={"shell": AgentSpec("shell", ("x",))})  # a script is not shown a brief
    answer = session.make_job_path(key) / ANSWER
    answer.write_bytes(orjson.dumps(PLACE))
    DAMAGES[kind](answer)
    (verdict,) = JobMaker(session, lambda: spec).judge(TaskState(task, 1, place=place), Exit(key, 0))
    assert isinstance(verdict, JobFinished)
    assert (verdict.verdict, verdict.reason_class) == ("failed", says.partition(":")[0])
    assert verdict.reason is not None and verdict.reason.startswith(says)
    assert verdict.place == (place and replace(place, kept=verdict.reason))


# --- our own code ---


class Faulty(JobMaker):
    """Raises for one job, when it is built or when it is judged."""

    fault: tuple[str, str, Exception] = ("", "", Exception())

    def build(self, key: JobKey, whole: State) -> Job:
        self._raise("build", key)
        return super().build(key, whole)

    def judge(self, state: TaskState, ended: Exit) -> list[Event]:
        self._raise("judge", ended.key)
        return super().judge(state, ended)

    def _raise(self, where: str, key: JobKey) -> None:
        if (where, key.task) == self.fault[:2]:
            raise self.fault[2]


def run_faulty(own_place: Path, where: str, error: Exception) -> tuple[State, SessionDir]:
    """Three tasks, of which `b` meets the error; without `where` it fails, and its next folder cannot be made."""
    session, spec = make_session(own_place, *(TaskSpec(name, ("true",), retries=1) for name in "abc"))
    if not where:
        (session.path / "jobs").mkdir()
        (session.path / "jobs" / "b").touch()
    fates = {"b": Fate(wait_status=0 if where else 256)}
    comes_to_an_end = partial(next, iter([None] * 1000))
    jobs = Faulty(session, lambda: spec)
    jobs.fault = (where, "b", error)
    state, _ = run(session, spec, lambda job: fates.get(job.key.task, Fate()), on_wait=comes_to_an_end, jobs=jobs)
    return state, session


@pytest.mark.parametrize("where", ["build", "judge"])
def test_a_bug_met_by_one_job_ends_that_job(
    own_place: Path, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    state, session = run_faulty(own_place, where, KeyError("surprise"))
    ends = {task.spec.id: (task.outcome, task.reason_class) for task in state.tasks.values()}
    assert ends == {"a": ("succeeded", None), "b": ("failed", "internal"), "c": ("succeeded", None)}
    assert state.tasks["b"].reason == "internal: KeyError: 'surprise' (see supervisor.log)"
    logged = capfd.readouterr().err
    assert "b/1/1/work/1" in logged and "Traceback" in logged and "raise self.fault[2]" in logged
    assert replay(session) == state


@pytest.mark.parametrize("where", ["", "build"])
def test_what_lies_in_the_way_of_one_job_fails_it(own_place: Path, where: str) -> None:
    state, _ = run_faulty(own_place, where, PermissionError(13, "Permission denied"))
    reasons = {task.spec.id: task.reason_class for task in state.tasks.values()}
    assert reasons == {"a": None, "b": "infra", "c": None}


def test_a_brief_that_cannot_be_shown_starts_nothing_and_costs_nothing(own_place: Path) -> None:
    session, spec = make_session(own_place, TaskSpec("a", ("x",), brief=Brief(context=("gone",))))
    state, executor = run(session, replace(spec, agents={"shell": AgentSpec("a", ("x",))}), lambda job: Fate())
    said, used = state.tasks["a"].reason, state.usage_by_model
    assert (said, executor.started, used) == ("bad_context: gone: No such file or directory", [], {})


def test_what_an_earlier_attempt_printed_is_not_shown_of_one_whose_brief_cannot_be_shown(own_place: Path) -> None:
    session, spec = make_session(own_place, TaskSpec("a", ("x",), brief=Brief(context=("gone",))))
    spec = replace(spec, agents={"shell": AgentSpec("shell", ("x",))})
    session.output_path("a").write_text("of the first")
    state, key = begin(spec), JobKey("a", 2, 1, "work", 1)
    with pytest.raises(BriefProblem):
        JobMaker(session, lambda: spec).build(key, state)
    assert not session.output_path("a").exists()
    assert (session.job_path(key._replace(attempt=1)) / "stdout").read_text() == "of the first"
    asked = TaskState(spec.tasks[0], 1, attempt=3, follow_ups=("more", "more"))
    assert read_earlier_answer(session, asked) == "of the first", "it is what the next follow-up is told"


@pytest.mark.parametrize("where", ["build", "judge"])
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), SystemExit()])
def test_what_is_no_jobs_fault_passes(own_place: Path, where: str, error: Exception) -> None:
    with pytest.raises(type(error)):
        run_faulty(own_place, where, error)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_an_answer_that_cannot_be_opened_leaves_no_file_open(own_place: Path) -> None:
    raw = own_place / "raw"
    raw.write_text("{}\n")
    (own_place / "answer").mkdir()
    with pytest.raises(NotRegular) as told:
        _render(BUILTIN["claude"], raw, own_place / "answer")
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert told.value.filename == str(own_place / "answer") and str(raw) not in opened


# --- real processes ---


@pytest.mark.slow
def test_a_damaged_claim_keeps_the_worktree_of_its_task_alone(sessionrun: Command, project: Project) -> None:
    claim = f"{sessionrun.results}/session-$SESSIONRUN_SESSION/jobs/a/a1-r1-prepare/claim.json"
    prompts = [{"id": "a", "prompt": f"echo a >made.txt; : >{claim}"}, {"id": "b", "prompt": "echo b >made.txt"}]
    a, b = sessionrun.wait(sessionrun.start({"prompts": prompts}, "--worktree"))["tasks"]
    assert (a["outcome"], b["outcome"]) == ("succeeded", "succeeded")
    assert a["worktree_kept"].startswith("release_failed: ") and "claim.json" in a["worktree_kept"]
    assert Path(a["worktree"], "made.txt").read_text() == "a\n"
    assert (b["worktree"], project.run("show", "main-task-b:made.txt")) == (None, "b")
