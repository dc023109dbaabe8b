"""What goes wrong with one job, its files or our own code for it, is that job's failure: the session goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from calls import Calls, needs_calls
from conftest import Command, eventually
from simulated import Fate
from test_supervisor import Observed, SimulatedClock, make_session, replay
from test_workspace_limits import project, slow
from test_workspaces import Project

from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.model.checks import Brief
from sessionrun.model.events import Event, JobFinished
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.places import Place
from sessionrun.model.spec import AgentSpec, Job, TaskSpec, Workspace
from sessionrun.session.executor import Exit
from sessionrun.session.history import begin
from sessionrun.session.maker import JobMaker
from sessionrun.session.partners import Partners
from sessionrun.session.supervisor import Supervisor
from sessionrun.store.jobfiles import ANSWER
from sessionrun.store.logs import AppendLog, read_log
from sessionrun.store.session import SessionDir

__all__ = ["project", "slow"]

COMMIT = "0" * 40
PLACE = Place(branch="main-task-a", worktree="/w/a", base_commit=COMMIT)
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
}


# --- judged ---


def judge(
    own_place: Path, task: TaskSpec, key: JobKey, place: Place | None, name: str, damage: Damage
) -> JobFinished:
    """The verdict on a job that ended well, and whose answer was damaged since."""
    session, spec = make_session(own_place, task)
    spec = replace(spec, agents={"shell": AgentSpec("shell", ("x",))})  # a script is not shown a brief
    (session.make_job_path(key) / name).write_bytes(orjson.dumps(PLACE))
    damage(session.make_job_path(key) / name)
    state = TaskState(task, 1, place=place)
    (verdict,) = JobMaker(session, spec).judge(state, Exit(key, 0))
    assert isinstance(verdict, JobFinished)
    return verdict


WORKTREE = TaskSpec("a", ("x",), workspace=Workspace("worktree"))
ANSWERED: dict[Phase, tuple[TaskSpec, Place | None, str]] = {
    "prepare": (WORKTREE, None, "workspace_failed: its answer cannot be used: "),
    "release": (WORKTREE, PLACE, "release_failed: its answer cannot be used: "),
    "check": (TaskSpec("a", ("x",), brief=Brief(outputs=("a.py",))), None, "check_failed: its report "),
}


@pytest.mark.parametrize("phase", ANSWERED)
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_job_whose_answer_cannot_be_used_has_failed(phase: Phase, kind: str, own_place: Path) -> None:
    """And a RELEASE leaves the worktree."""
    task, place, says = ANSWERED[phase]
    verdict = judge(own_place, task, JobKey("a", 1, 1, phase, 1), place, ANSWER, DAMAGES[kind])
    assert (verdict.verdict, verdict.reason_class) == ("failed", says.partition(":")[0])
    assert verdict.reason is not None and verdict.reason.startswith(says)
    assert verdict.place == (place and replace(place, kept=verdict.reason))


def test_a_prepare_that_names_no_worktree_has_failed(own_place: Path) -> None:
    """Else the task would run in the user's checkout."""
    key = JobKey("a", 1, 1, "prepare", 1)
    assert judge(own_place, WORKTREE, key, None, ANSWER, lambda path: path.write_bytes(b"{}")).verdict == "failed"


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
    """A session of three tasks, of which `b` meets the error."""
    session, spec = make_session(own_place, *(TaskSpec(name, ("true",)) for name in "abc"))
    executor = Observed(lambda job: Fate(), lambda: None)
    jobs = Faulty(session, spec)
    jobs.fault = (where, "b", error)
    state = begin(spec)
    journal = AppendLog(session.journal_path)
    Supervisor(session, state, journal, Partners(executor), jobs, SimulatedClock(executor)).run()
    journal.close()
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


@pytest.mark.parametrize(
    "error", [NotADirectoryError(20, "Not a directory"), PermissionError(13, "Permission denied")]
)
def test_what_lies_in_the_way_of_one_job_fails_it(own_place: Path, error: OSError) -> None:
    state, _ = run_faulty(own_place, "build", error)
    assert {task.spec.id: task.reason_class for task in state.tasks.values()} == {
        "a": None,
        "b": "infra",
        "c": None,
    }


@pytest.mark.parametrize("where", ["build", "judge"])
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), SystemExit()])
def test_what_is_no_jobs_fault_passes(own_place: Path, where: str, error: Exception) -> None:
    with pytest.raises(type(error)):
        run_faulty(own_place, where, error)


@pytest.mark.slow
def test_a_file_in_place_of_a_folder_stops_one_task(sessionrun: Command) -> None:
    """The folder of its next job cannot be made: no other task waits for that."""
    jobs = "../results/session-$SESSIONRUN_SESSION/jobs"
    plant = f"mkdir -p {jobs} && touch {jobs}/b; touch planted"
    wait = "while ! [ -e planted ]; do sleep 0.05; done; exit 1"
    sessionrun.cwd = sessionrun.cwd / "here"
    sessionrun.cwd.mkdir()
    plan = {"prompts": [{"id": "a", "prompt": plant}, {"id": "b", "prompt": wait, "retries": 1}, "true"]}
    session_id = sessionrun.start(plan, "--results-dir", str(sessionrun.results))
    tasks = {task["id"]: task for task in sessionrun.wait(session_id)["tasks"]}
    assert tasks["a"]["outcome"] == "succeeded"
    assert (tasks["b"]["outcome"], tasks["b"]["reason_class"], tasks["b"]["attempt"]) == ("failed", "infra", 2)


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


@needs_calls
@pytest.mark.slow
def test_what_the_keeper_gave_up_is_finished_by_resume(
    sessionrun: Command, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor dies again and again; once it does not any more, nothing is lost and nothing runs twice."""
    calls = Calls(project.root / "calls", "supervisor:any:1+:kill")
    calls.stay_quiet()
    calls.watch(monkeypatch)
    gate = f"echo begun >>{project.root}/begun; while ! [ -e {project.root}/go ]; do sleep 0.05; done"
    prompts = [
        {"id": "a", "prompt": f"{gate}; echo work >made.txt"},
        {"id": "b", "prompt": "true", "needs": ["a"]},
    ]
    session_id = sessionrun.start({"prompts": prompts}, "--worktree")
    session = SessionDir(sessionrun.directory(session_id))
    eventually((project.root / "begun").exists)
    calls.begin()
    os.kill(sessionrun.supervisor(session_id), signal.SIGKILL)
    (project.root / "go").touch()  # nothing is given up while a job runs
    eventually(lambda: not session.is_alive())
    assert read_log(session.ledger_path).payloads[-1].startswith(b"G ")
    assert sessionrun.status(session_id)["status"] == "interrupted"
    for name in calls.environ():
        monkeypatch.delenv(name)
    assert sessionrun("resume", session_id).returncode == 0
    view = sessionrun.wait(session_id)
    assert [task["outcome"] for task in view["tasks"]] == ["succeeded", "succeeded"]
    assert (project.root / "begun").read_text() == "begun\n"
    assert project.run("show", "main-task-a:made.txt") == "work"
