"""`retry --agent`, `--model` and `--prompt`: who is changed, what stays on record, and what is refused."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from simulation import make_session
from stages import make_program
from test_follow_ups import USED, Script

from sessionrun.engine.moves import begin_attempt
from sessionrun.engine.requests import find_fault, reopen
from sessionrun.engine.status import project
from sessionrun.engine.task import TaskState
from sessionrun.model.events import Change, RequestReceived
from sessionrun.model.spec import AgentSpec, Alternative, Price, TaskSpec, Workspace
from sessionrun.model.usage import usages_by_agent
from sessionrun.session.history import begin, load_spec_now, load_tasks
from sessionrun.store.session import SessionDir

OTHER = AgentSpec("other", ("/bin/other",), model_args=("-m", "{model}"), output="claude")
MUTE = AgentSpec("mute", ("/bin/mute",))


def make_task(name: str = "a", **fields: Any) -> TaskSpec:
    return replace(TaskSpec(name, ("first",), agent="one", model="m1", args=("-x",)), **fields)


def play(*tasks: TaskSpec, **ends: str) -> Script:
    """A session of these tasks that has ended; `ends` are reason classes by task, of the first attempt."""
    script = Script(make_session(tasks))
    script.ends = {f"{name}/1": said for name, said in ends.items()}
    return script.go_on()


def change(script: Script, *names: str, **fields: Any) -> str | None:
    """Ask for another try, as the supervisor takes it; why not."""
    given = Change(**fields)
    request = RequestReceived(
        f"r{len(script.entries)}", "retry", names, outcomes=() if names else ("failed",), change=given
    )
    fault = find_fault(script.state, request)
    if fault is None:
        script.record(request)  # as the journal gives it back
    return fault


def shown(script: Script, name: str) -> dict[str, Any]:
    return next(task for task in project(script.state)["tasks"] if task["id"] == name)


def test_the_chosen_ones_change_and_keep_what_they_had_on_record() -> None:
    labelled = make_task("a", labels={"model": "m1", "task": "t"}, fallback=(Alternative("other", "m2"),))
    script = play(labelled, make_task("b", needs=("a",)), make_task("c"), a="exit_code")
    prices = {"m2": Price(1, 2)}
    assert change(script, agent="other", model="m2", agents={"other": OTHER}, prices=prices) is None
    script.go_on()
    a, b, c = (shown(script, name) for name in "abc")
    assert (a["agent"], a["model"], a["attempt"], a["outcome"]) == ("other", "m2", 2, "succeeded")
    assert a["earlier_agents"] == [{"attempt": 1, "agent": "one", "model": "m1"}]
    assert a["labels"] == {"model": "m2", "task": "t"}
    assert {agent: list(used) for agent, used in a["usage_by_agent"].items()} == {"one": ["m1"], "other": ["m2"]}
    assert [used[:2] for used in usages_by_agent(a)] == [("one", "m1"), ("other", "m2")]
    assert a["usage_by_agent"]["other"]["m2"]["input_tokens"] == USED.input_tokens
    assert [(one["agent"], one["outcome"], one["earlier_agents"]) for one in (b, c)] == [
        ("one", "succeeded", None)
    ] * 2
    spec = script.state.spec
    assert (spec.tasks[0].args, spec.tasks[0].fallback, spec.tasks[1].args) == ((), (), ("-x",))
    assert spec.tasks[0] is script["a"].spec and spec.agents["other"] == OTHER and spec.prices == prices
    assert script.thread["a/2/1/work/1"] is None, "another agent does not know the conversation"
    script.examine_replay()


def test_another_agent_chooses_its_model_and_the_same_one_keeps_its_own() -> None:
    script = play(make_task(), a="exit_code")
    assert change(script, "a", agent="three") is None
    assert (script["a"].spec.agent, script["a"].spec.model) == ("three", None)
    script = play(make_task(), a="exit_code")
    assert change(script, "a", agent="one", prompt="again") is None
    assert (script["a"].spec.model, script["a"].spec.prompts, script["a"].spec.args) == ("m1", ("again",), ("-x",))
    assert shown(script, "a")["earlier_agents"] is None


def test_what_was_used_stays_with_the_agent_that_used_it() -> None:
    script = play(make_task(), a="exit_code")
    assert shown(script, "a")["usage_by_agent"] is None
    script_agent = AgentSpec("sh", ("sh",), prompt_kind="script")
    assert change(script, "a", agent="sh", agents={"sh": script_agent}) is None
    assert shown(script, "a")["agent"] == "sh"
    assert [used[:2] for used in usages_by_agent(shown(script, "a"))] == [("one", "m1")]


def test_after_a_fallback_the_record_says_with_whom_the_attempt_ended() -> None:
    # the first job was refused, the agent that took over fails; a task of that kind is tried anew
    script = Script(make_session([make_task(fallback=(Alternative("three"),))]))
    script.ends["a/1"] = "auth"
    script.go_on("a/1/1/work/2")
    script.ends["a/1"] = "exit_code"
    script.finish()
    assert (shown(script, "a")["outcome"], shown(script, "a")["agent"]) == ("failed", "three")
    script.record(RequestReceived("again", "retry", ("a",)))
    script.go_on()
    a = shown(script, "a")
    assert (a["agent"], a["earlier_agents"]) == ("one", [{"attempt": 1, "agent": "three", "model": None}])


TURNS = make_task(prompts=("one", "two"), prompt_mode="continue")
FAULTS: list[tuple[TaskSpec, dict[str, Any], str]] = [
    (make_task(), {"agent": "nobody"}, "does not know the agent 'nobody'"),
    (make_task(), {"agent": "mute", "model": "m", "agents": {"mute": MUTE}}, "takes no model"),
    (make_task(), {"model": "m"}, "agent 'one' of task 'a' takes no model"),
    (TURNS, {"agent": "three"}, "has several prompts, and agent 'three' cannot go on"),
]


@pytest.mark.parametrize(("task", "fields", "why"), FAULTS, ids=[str(n) for n in range(len(FAULTS))])
def test_what_makes_no_sense_is_refused_and_leaves_no_trace(
    task: TaskSpec, fields: dict[str, Any], why: str
) -> None:
    script = play(task, a="exit_code")
    before = len(script.entries)
    assert why in (change(script, "a", **fields) or "")
    assert (len(script.entries), script["a"].spec) == (before, task)


def test_a_prompt_is_for_one_task_and_a_task_that_succeeded_is_for_none() -> None:
    script = play(make_task("a"), make_task("b"), make_task("c"), a="exit_code", b="exit_code")
    assert "2 would be tried again: name one" in (change(script, prompt="x") or "")
    assert "no task to try again" in (change(script, "c", prompt="x") or "")
    assert change(script, "b", prompt="x") is None
    assert [task.prompts for task in script.state.spec.tasks] == [("first",), ("x",), ("first",)]


def test_a_follow_up_keeps_the_agent_that_knows_the_conversation() -> None:
    script = play(make_task())
    assert script.ask("a") is None
    script.ends["a/2"] = "exit_code"
    script.go_on()
    assert "of which another agent knows nothing" in (change(script, "a", agent="three") or "")
    assert "use sessionrun continue" in (change(script, "a", prompt="x") or "")
    assert change(script, "a", agent="one") is None


def test_a_retry_that_waits_for_its_release_changes_at_once() -> None:
    script = Script(make_session([make_task(workspace=Workspace("worktree"), fallback=(Alternative("three"),))]))
    script.ends["a/1"] = "exit_code"
    script.go_on("a/1/1/release/1")
    assert change(script, "a", agent="three") is None
    assert (script["a"].agent, script["a"].again) == ("three", True)
    script.finish()
    a = shown(script, "a")
    assert (a["attempt"], a["outcome"], a["agent"]) == (2, "succeeded", "three")
    assert a["earlier_agents"] == [{"attempt": 1, "agent": "one", "model": "m1"}]


@pytest.fixture
def agents(own_place: Path) -> Path:
    """The agent `fake`, which prints its arguments and the prompt."""
    program = make_program(own_place / "fake", 'echo "fake $*"\ncat')
    (own_place / "sessionrun.toml").write_text(
        f'[agents.fake]\nargv = [{json.dumps(str(program))}, "{{model_args}}"]\nmodel_args = ["-m", "{{model}}"]\n'
        '[agents.gone]\nargv = ["no-such-program"]\n'
    )
    return own_place


NAMES = [field.name for field in fields(TaskState)]
BEGUN_BY_AN_ATTEMPT = {*NAMES[NAMES.index("attempt") : NAMES.index("failure") + 1]}
"""They stand together in `TaskState`: what is added there has to be put back, what is added elsewhere stays."""

BEGUN_BY_A_REQUEST = BEGUN_BY_AN_ATTEMPT | {
    *("unmet", "cancelled", "cancel_reason", "again", "held", "retried", "backoffs", "suspended", "not_before"),
    *("decided", "outcome", "last_outcome", "started_at", "started_mono", "ended_at", "duration_s", "ended_seq"),
    *("fallbacks", "last_model", "forgiven", "ran"),
}


def test_what_outlives_an_attempt_and_what_a_request_for_another() -> None:
    def wear_out(task: TaskState) -> dict[str, Any]:
        for name in NAMES:
            if name not in ("spec", "num", "job", "follow_ups", "outcome", "fallbacks"):
                setattr(task, name, 7)
        task.ran, task.usage, task.outcome = (), USED, "failed"
        task.fallbacks, task.attempt = 1, 7
        return {name: getattr(task, name) for name in NAMES}

    state = begin(make_session([make_task(fallback=(Alternative("two"),))]))
    task, state.outcomes = state.tasks["a"], {"failed": 1}
    before = wear_out(task)
    begin_attempt(task, 8)
    assert {name for name, value in before.items() if getattr(task, name) is not value} == BEGUN_BY_AN_ATTEMPT
    before = wear_out(task)
    reopen(state, [task])
    assert {name for name, value in before.items() if getattr(task, name) is not value} == BEGUN_BY_A_REQUEST


@pytest.mark.slow
def test_the_command(sessionrun: Command, agents: Path) -> None:
    plan = [{"id": "a", "prompt": "exit 3"}, {"id": "b", "prompt": "true", "needs": "a"}]
    session_id = sessionrun("--agent", "shell", "-q", stdin=json.dumps(plan)).stdout.strip()
    sessionrun.wait(session_id)
    for words, why in (
        ("--agent gone", "'no-such-program' is not on PATH"),
        ("--agent nobody", "unknown agent 'nobody'; there are: "),
        ("--model m", "agent 'shell' of task 'a' takes no model"),
        ("--prompt ' '", "--prompt is empty"),
        ("b --prompt x", "needs 'a', which did not succeed"),
    ):
        done = sessionrun("retry", session_id, *shlex.split(words))
        assert (done.returncode, done.stderr.count("\n"), why in done.stderr) == (2, 1, True), done.stderr
    sessionrun("retry", session_id, "--agent", "fake", "--model", "m 2", "--sync")
    sessionrun.wait(session_id)
    assert (sessionrun.directory(session_id) / "task-a.txt").read_text() == "fake -m m 2\nexit 3"
    session = SessionDir(sessionrun.directory(session_id))
    spec, tasks = load_spec_now(session), load_tasks(session)
    assert {task.id: task for task in spec.tasks} == tasks, "readers take these for its tasks"
    assert [(task.agent, task.model) for task in spec.tasks] == [("fake", "m 2"), ("shell", None)]
    told = sessionrun("explain", session_id, "a").stdout
    assert "\nattempt 1 (shell): work " in told and "\nattempt 2 (fake/m 2): work " in told
