"""An answer that is whole counts, also when all of ours were killed and nobody saw how its agent ended."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from simulated import Fate, SimulatedExecutor
from simulation import Drive, make_session
from test_supervisor import make_session as make_real

from sessionrun.agents.table import read_result
from sessionrun.engine.fold import apply
from sessionrun.engine.task import TaskState
from sessionrun.model.events import JobFinished, JobLost, TaskEnded, to_record
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import AgentSpec, Check, TaskSpec
from sessionrun.session.executor import Exit
from sessionrun.session.history import begin
from sessionrun.session.maker import JobMaker
from sessionrun.store.records import read_entry
from sessionrun.store.session import SessionDir

OUTCOMES = Path(__file__).parents[1] / "data" / "outcomes"
SAMPLES = {
    "claude": OUTCOMES / "claude" / "2.1.329" / "ok.raw",
    "codex": OUTCOMES / "codex" / "0.169.0" / "ok.raw",
}
AGENT = """
[agents.fake]
argv = ["/bin/sh", "{script}"]
output = "{output}"
"""
SCRIPT = """echo begun >>{root}/begun
while ! [ -e {root}/said ]; do sleep 0.05; done
cat {root}/said; echo $$ >{root}/pid.new; mv {root}/pid.new {root}/pid
exec sleep 600
"""


def start(sessionrun: Command, output: str, said: bytes, **task: object) -> str:
    """A session whose agent prints that and then does not end; all of ours are killed when it has said it."""
    root = sessionrun.cwd
    (root / "agent.sh").write_text(SCRIPT.format(root=root))
    (root / "sessionrun.toml").write_text(AGENT.format(script=root / "agent.sh", output=output))
    (root / "said").write_bytes(said)
    session_id = sessionrun.start({"prompts": [{"id": "a", "prompt": "do it", **task}]}, "--agent", "fake")
    eventually((root / "pid").exists)
    sessionrun.until(session_id, lambda view: view["tasks"][0]["pid"])
    sessionrun.kill_chain(session_id)
    return session_id


def kill_agent(sessionrun: Command) -> None:
    """kill -9 of the agent."""
    os.kill(int((sessionrun.cwd / "pid").read_text()), signal.SIGKILL)


def only(view: dict[str, Any]) -> dict[str, Any]:
    """The one task."""
    (task,) = view["tasks"]
    assert isinstance(task, dict)
    return task


@pytest.mark.parametrize("output", ["claude", pytest.param("codex", marks=pytest.mark.slow)])
def test_a_whole_answer_is_a_success(sessionrun: Command, output: str) -> None:
    sample = SAMPLES[output]
    session_id = start(sessionrun, output, sample.read_bytes(), check="touch checked")
    kill_agent(sessionrun)
    before = only(sessionrun.until(session_id, lambda view: only(view)["status"] == "completed"))
    assert before["outcome"] == "lost"
    assert before["reason"].endswith("its answer is complete, and resume counts it as a success")
    assert sessionrun("resume", session_id).returncode == 0
    task = only(sessionrun.wait(session_id))
    assert (task["outcome"], task["reason_class"]) == ("succeeded", "exit_unseen")
    assert task["reason"].startswith("exit_unseen: its answer is complete")
    assert (task["exit_code"], task["signal"], task["check"]["passed"]) == (None, None, True)
    told = read_result(output, sample, Path("/nowhere"))  # type: ignore[arg-type]
    assert told.usage is not None
    assert task["usage"]["output_tokens"] == told.usage.output_tokens
    assert (task["conversation"], task["model"]) == (told.conversation, told.model)
    assert (sessionrun.directory(session_id) / "task-a.txt").read_text() == told.text
    for verb in ("status", "results"):
        assert "its answer is complete" in sessionrun(verb, session_id).stdout
    assert (sessionrun.cwd / "begun").read_text() == "begun\n"
    assert (sessionrun.cwd / "checked").exists()


def test_an_answer_that_breaks_off_is_lost(sessionrun: Command) -> None:
    session_id = start(sessionrun, "codex", cut(SAMPLES["codex"].read_bytes()))
    kill_agent(sessionrun)
    assert sessionrun("resume", session_id).returncode == 0
    task = only(sessionrun.wait(session_id))
    assert (task["outcome"], task["reason_class"]) == ("lost", "lost")


def cut(said: bytes) -> bytes:
    """The stream without the end of its last event."""
    return said[: said.rstrip().rindex(b"}")]


def test_an_agent_that_lives_is_waited_for(sessionrun: Command) -> None:
    """It has reported its success, and may still do something: its end counts, not its words."""
    session_id = start(sessionrun, "claude", SAMPLES["claude"].read_bytes())
    assert sessionrun("resume", session_id).returncode == 0
    session = SessionDir(sessionrun.directory(session_id))
    view = sessionrun.until(session_id, lambda view: view["epoch"] == 2)
    assert only(view)["status"] == "running"
    assert not any(isinstance(entry.event, (JobFinished, JobLost)) for entry in session.load_journal()[0])
    kill_agent(sessionrun)
    task = only(sessionrun.wait(session_id))
    assert (task["outcome"], task["reason_class"]) == ("succeeded", "exit_unseen")


def test_the_reason_lasts_through_the_check_and_a_replay() -> None:
    """The journal says that it passed, and why: nothing is judged again."""
    reason = "its answer is complete"
    seen = JobFinished(JobKey("a", 1, 1, "work", 1), "passed", "exit_unseen", reason)

    def judged(ended: Exit) -> JobFinished:
        return seen if ended.key.phase == "work" else JobFinished(ended.key, "passed", wait_status=0, exit_code=0)

    spec = make_session((TaskSpec("a", ("x",), check=Check(("true",))),))
    drive = Drive(spec, SimulatedExecutor(lambda job: Fate()), judged=judged).run()
    assert TaskEnded("a", "succeeded", "exit_unseen", reason) in [entry.event for entry in drive.entries]
    replayed = begin(spec)
    for entry in drive.entries:
        apply(replayed, read_entry(to_record(entry)))
    assert replayed == drive.state
    assert replayed.tasks["a"].reason == reason


WORK = JobKey("a", 1, 1, "work", 1)
GONE = JobLost(WORK, "interrupted", "the machine was restarted", gone=True)


@pytest.mark.parametrize("output", SAMPLES)
@pytest.mark.parametrize(
    ("lost", "case", "verdict"),
    [
        (GONE, "ok", "passed"),
        (replace(GONE, verdict="lost"), "ok", "passed"),
        (replace(GONE, gone=None), "ok", None),
        (replace(GONE, verdict="void", gone=None), "ok", None),
        (replace(GONE, key=JobKey("a", 1, 1, "check", 1)), "ok", None),
        (GONE, "cut", None),
        (GONE, "api_error", None),
        (GONE, "gone", None),
    ],
)
def test_what_is_judged(own_place: Path, output: str, lost: JobLost, case: str, verdict: str | None) -> None:
    """Only WORK of which nothing lives any more, and whose report is whole and good."""
    session, spec = make_real(own_place, TaskSpec("a", ("x",)))
    spec = replace(spec, agents={"shell": AgentSpec("shell", ("x",), output=output)})  # type: ignore[arg-type]
    sample = SAMPLES[output].with_name("api_error.raw") if case == "api_error" else SAMPLES[output]
    said = cut(sample.read_bytes()) if case == "cut" else sample.read_bytes()
    if case != "gone":
        session.raw_path("a").write_bytes(said)
    judged = JobMaker(session, spec).judge_unseen(TaskState(spec.tasks[0], 1), lost)
    assert (judged and judged.verdict) == verdict
