"""Attempts in the engine: follow-ups, retries with another agent, model or prompt, and how hidden tests judge.

What each goes on with, what others see of it, what stays on record, and what is refused.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields, replace
from typing import Any

import pytest
from conftest import Command
from simulation import PLACES, Scripted, make_session
from stages import make_program

from sessionrun.engine.moves import begin_attempt
from sessionrun.engine.requests import find_fault, reopen
from sessionrun.engine.status import project
from sessionrun.engine.task import TaskState, Thread, find_earlier, find_handed
from sessionrun.engine.transitions import demands_change, find_better
from sessionrun.landing.mends import land_of
from sessionrun.model.checks import Checked, Counts, HiddenTests, ProofVerdict
from sessionrun.model.events import Change, JobFinished, JobLost, JobStarted, RequestReceived, TimerFired, Verdict
from sessionrun.model.keys import JobKey, Phase, parse_job_key
from sessionrun.model.kinds import DiffStat
from sessionrun.model.places import Place, Upstream
from sessionrun.model.spec import (
    AgentSpec,
    Alternative,
    Check,
    Landing,
    Price,
    Prove,
    SessionSpec,
    TaskSpec,
    Workspace,
    hides_tests,
)
from sessionrun.model.usage import Usage, usages_by_agent
from sessionrun.model.words import INFRASTRUCTURE, REASONS
from sessionrun.session.history import begin, load_spec_now
from sessionrun.session.prompt import word_prompt
from sessionrun.store.session import SessionDir

USED = Usage(input_tokens=10, output_tokens=5)


class Script(Scripted):
    """A session whose jobs pass, but for those in `ends`: a reason class by `TASK/ATTEMPT` of a WORK job."""

    ahead_s = 1e6

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        self.ends: dict[str, str] = {}
        self.thread: dict[str, str | None] = {}

    def begins(self, key: JobKey) -> None:
        self.record(JobStarted(key, 1, 1, 1))
        super().begins(key)

    def end(self, key: JobKey) -> None:
        phase, place = key.phase, None
        said = self.ends.get(f"{key.task}/{key.attempt}") if phase == "work" else None
        if phase == "work":
            self.thread[key.text()] = self[key.task].thread.conversation
        if phase == "prepare":
            earlier = find_earlier(self[key.task])
            place = Place("b", f"/w{key.attempt}", "base", taken_up=earlier.commit if earlier else None)
        if phase == "release":
            has_place = self[key.task].place is not None
            place = Place("b", None, "base", commit=f"c{key.attempt}") if has_place else Place()
        verdict = "failed" if said else "passed"
        talk = {"conversation": f"talk-{key.task}", "usage": USED} if phase == "work" else {}
        reason = f"{said}: so it was" if said else None
        self.record(JobFinished(key, verdict, said, reason, place=place, **talk))  # type: ignore[arg-type]

    def ask(self, name: str, text: str = "more") -> str | None:
        """Continue a task, as the supervisor does; why not."""
        request = RequestReceived(f"r{len(self.entries)}", "continue", (name,), text=text)
        fault = find_fault(self.state, request)
        if fault is None:
            self.record(request)
        return fault

    def follow(self, name: str = "a", text: str = "more") -> Script:
        """Continue a task, and go on until its next attempt works."""
        assert self.ask(name, text) is None
        return self.go_on(f"{name}/{self[name].attempt}/1/work/1")

    def finish(self) -> Script:
        """The job that was waited for ends, and all others."""
        self.end(parse_job_key(self.until))
        return self.go_on()

    def fail(self, said: str, **fields: Any) -> Script:
        """The job that was waited for fails, for that reason."""
        key = parse_job_key(self.until)
        self.record(JobFinished(key, "failed", said, f"{said}: so it was", **fields))
        return self

    def prompt(self, name: str = "a", answer: str = "") -> str:
        """What the next WORK job of a task is told."""
        task, agent = self[name], self.spec.agents[self[name].agent]
        talk = task.thread.conversation if agent.continue_args else None
        words = word_prompt(
            self.spec,
            task,
            agent,
            prompt="\n\n".join(task.spec.prompts),
            feedback=b"",
            conversation=talk,
            answer=answer,
        )
        return words.decode()


def make_task(name: str = "a", **changes: object) -> TaskSpec:
    task = TaskSpec(name, ("first", "second"), agent="one", workspace=Workspace("worktree"))
    return replace(task, **changes)  # type: ignore[arg-type]


def make_script(*tasks: TaskSpec, **ends: str) -> Script:
    """A session of these tasks; `ends` are reason classes by task, of the first attempt."""
    script = Script(make_session(tasks or [make_task()]))
    script.ends = {f"{name}/1": said for name, said in ends.items()}
    return script


def test_each_follow_up_goes_on_in_the_conversation_and_where_the_work_lies() -> None:
    script, used = make_script(make_task(prompt_mode="continue")).go_on(), USED
    for number in (2, 3, 4):
        used = used.plus(USED)
        assert script.state.ended is not None
        script.follow(text=f"more {number}")
        assert script.state.ended is None and script["a"].outcome is None
        assert script["a"].place == Place("b", f"/w{number}", "base", taken_up=f"c{number - 1}")
        assert script["a"].thread == Thread("talk-a", used, turn=2)
        assert script.prompt() == f"more {number}"
        assert project(script.state)["tasks"][0]["follow_ups"] == number - 1
        script.finish()
        assert (script["a"].outcome, script["a"].attempt) == ("succeeded", number)
        assert script["a"].place == Place("b", None, "base", commit=f"c{number}")
    assert script["a"].follow_ups == ("more 2", "more 3", "more 4")
    jobs = ["a/1/1/work/1", "a/1/1/work/2", *(f"a/{number}/1/work/1" for number in (2, 3, 4))]
    assert [*script.thread] == jobs, "turns of a conversation are not taken again"
    script.examine_replay()


@pytest.mark.parametrize("by_hand", [False, True])
def test_an_attempt_that_is_tried_again_goes_on_with_the_follow_up(by_hand: bool) -> None:
    script = make_script(make_task(retries=0 if by_hand else 1)).go_on()
    script.ends["a/2"] = "agent_error"
    script.ask("a")
    if by_hand:
        assert script.go_on()["a"].outcome == "failed"
        script.record(RequestReceived("again", "retry", ("a",)))
    task = script.go_on("a/3/1/work/1")["a"]
    assert task.place == Place("b", "/w3", "base", taken_up="c2"), "it goes on where the failed one stopped"
    assert (script.prompt(), task.thread.conversation) == ("more", "talk-a")


def test_a_broken_attempt_at_a_follow_up_is_told_of() -> None:
    script = make_script(make_task(agent="three", retries=1)).go_on()
    script.ends["a/2"] = "agent_crashed"
    script.ask("a")
    script.go_on("a/3/1/work/1")
    assert "It ended: failed (agent_crashed: so it was)" in script.prompt()


def test_a_conversation_that_is_too_long_begins_anew() -> None:
    script = make_script(a="context_full").go_on()
    assert script["a"].last_thread.conversation == "talk-a"
    script.follow()
    assert script["a"].thread.conversation is None
    assert script.prompt(answer="my answer") == (
        "first\n\nsecond\n\nYou have worked on this before, in another conversation. "
        "It ended: failed (context_full: so it was). Your work is here.\n\n"
        "The end of your answer was:\n\nmy answer\n\nNow you are asked:\n\nmore"
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("no_conversation", r"first\n\nYou have worked.*Now you are asked:\n\nmore"),
        ("usage_limit", r"Your last run .* Go on where you stopped\. You were asked:\n\nmore"),
    ],
)
def test_a_follow_up_that_was_broken_off_is_asked_again(said: str, words: str) -> None:
    """A conversation that is gone begins anew."""
    script = make_script(make_task(prompts=("first",))).go_on().follow()
    assert script.prompt() == "more"
    script.fail(said, resets_at=1.0).go_on("a/2/1/work/2")
    assert script["a"].thread.conversation == (None if said == "no_conversation" else "talk-a")
    assert re.fullmatch(words, script.prompt(), re.DOTALL)


def test_a_new_conversation_is_told_of_all_follow_ups() -> None:
    script = make_script(make_task(agent="three")).go_on()  # it has no continue_args
    for number in (2, 3):
        words = script.follow(text=f"more {number}").prompt()
        script.finish()
    assert words.startswith("first\n\nsecond\n\nThen you were asked:\n\nmore 2\n\nYou have worked")
    assert words.endswith("It ended: succeeded. Your work is here.\n\nNow you are asked:\n\nmore 3")


@pytest.mark.parametrize(("used", "goes_on"), [(None, None), (Usage(5, 0), None), (Usage(5, 7), "c1")])
def test_a_conversation_in_which_nothing_was_answered_is_not_gone_on_with(
    used: Usage | None, goes_on: str | None
) -> None:
    script = make_script().go_on("a/1/1/work/1").fail("usage_limit", conversation="c1", usage=used)
    assert script["a"].thread.conversation == goes_on


def test_a_turn_that_met_a_limit_is_asked_again() -> None:
    """In the conversation of those before; after another attempt's start all turns come again."""
    script = make_script(TaskSpec("a", ("x", "y", "z"), "continue", agent="one", retries=1))
    script.go_on("a/1/1/work/2")
    assert (script.prompt(), script["a"].thread.turn) == ("y", 2)
    script.fail("usage_limit", conversation="talk-a").go_on("a/1/1/work/3")
    assert (script["a"].thread.conversation, script["a"].thread.turn) == ("talk-a", 2)
    assert script.prompt().endswith("You were asked:\n\ny")
    script.end(parse_job_key(script.until))
    assert script.go_on("a/1/1/work/4").prompt() == "z"
    assert script.fail("auth").go_on("a/2/1/work/1")["a"].thread == Thread()


def test_the_agent_that_knows_the_conversation_goes_on_with_it() -> None:
    script = make_script(make_task(fallback=(Alternative("two"),)), a="auth").go_on("a/1/1/work/2")
    assert script["a"].agent == "two"
    del script.ends["a/1"]
    script.finish()
    script.follow()
    assert script["a"].agent == "two"


def test_tasks_that_need_it_get_its_work_as_it_was_until_the_follow_up_succeeds() -> None:
    """One that has run does not run again; one that runs again meanwhile does not wait either."""
    script = make_script(make_task("a"), make_task("b", needs=("a",))).go_on()

    def handed() -> list[str | None]:
        return [end.commit for end in find_handed(script["b"], script.state.tasks)]

    script.ask("a")
    script.ask("b")
    script.go_on("a/2/1/work/1")
    assert handed() == ["c1"]
    script.ends["a/2"] = "agent_error"
    script.finish()
    assert (script["a"].outcome, script["b"].outcome, handed()) == ("failed", "succeeded", ["c1"])
    script.ask("a")
    script.go_on()
    assert handed() == ["c3"]


def test_a_prepare_that_fails_leaves_the_place_as_it_was() -> None:
    script = make_script().go_on()
    script.ask("a")
    script.go_on("a/2/1/prepare/1").fail("workspace_failed").go_on()
    assert script["a"].reason_class == "workspace_failed"
    assert script["a"].place == Place("b", None, "base", commit="c1")
    script.ask("a")
    script.go_on("a/3/1/work/1")
    assert script["a"].thread.conversation == "talk-a" and script["a"].place is not None
    assert script["a"].place.taken_up == "c1"


def test_what_cannot_be_continued_is_refused() -> None:
    script = make_script(
        *(make_task("a"), make_task("b", needs=("a",)), make_task("m", upstream=Upstream("u", None, "/m"))),
        a="agent_error",
    ).go_on("a/1/1/work/1")
    assert script["m"].outcome == "succeeded"
    assert script.ask("a") == "task 'a' has not ended: wait for it, or cancel it first"
    assert script.ask("none") == "there is no task 'none'"
    assert script.ask("a", " \n") == "it has to name one task and a text"
    script.finish()
    assert script.ask("b") == "task 'b' has not begun: there is nothing to go on with; use sessionrun retry"
    assert script.ask("m") == "task 'm' worked in a repository of its own, which may be gone: start a new session"
    both = RequestReceived("x", "continue", ("a", "b"), text="more")
    assert find_fault(script.state, both) == "it has to name one task and a text"


def test_nothing_goes_on_in_a_session_that_is_being_cancelled() -> None:
    script = make_script(make_task("a"), make_task("b"))
    script.go_on("b/1/1/work/1")
    script.record(RequestReceived("stop", "cancel"))
    assert script.ask("a") == "the session is being cancelled"
    assert script.finish().state.ended is not None and script.ask("a") is None


@pytest.fixture
def landing() -> Script:
    """A session whose work is to land, that of `a` before that of `b`."""
    spec = make_session([make_task("a"), make_task("b", needs=("a",))])
    return Script(replace(spec, landing=Landing("refs/heads/main")))


def test_work_that_is_landing_is_not_continued(landing: Script) -> None:
    landing.go_on("a/1/1/land/1")
    assert land_of(landing.state).taken == ("a",)
    assert landing.ask("a") == "the work of task 'a' is landing: continue it when it has landed"


def test_work_in_the_queue_waits_for_the_follow_up_and_others_with_it(landing: Script) -> None:
    script = landing
    script.record(RequestReceived("wait", "hold"))
    for name in ("a", "b"):
        script.record(RequestReceived(f"go {name}", "release", (name,)))
    script.go_on()
    for expected in ([("ready", None)] * 2, [("waiting", "follow_up"), ("waiting", "needs")]):
        entries = [one.landing for one in script.state.tasks.values()]
        assert [entry and (entry.status, entry.reason_class) for entry in entries] == expected
        script.ask("a")
    script.record(RequestReceived("on", "release"))
    script.go_on("a/2/1/land/1")
    assert land_of(script.state).taken == ("a", "b")


# --- `retry --agent`, `--model` and `--prompt` ---

OTHER = AgentSpec("other", ("/bin/other",), model_args=("-m", "{model}"), output="claude")
MUTE = AgentSpec("mute", ("/bin/mute",))


def make_with_model(name: str = "a", **fields: Any) -> TaskSpec:
    return replace(TaskSpec(name, ("first",), agent="one", model="m1", args=("-x",)), **fields)


def play(*tasks: TaskSpec, **ends: str) -> Script:
    """A session of these tasks that has ended."""
    return make_script(*tasks, **ends).go_on()


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
    labelled = make_with_model("a", labels={"model": "m1", "task": "t"}, fallback=(Alternative("other", "m2"),))
    script = play(labelled, make_with_model("b", needs=("a",)), make_with_model("c"), a="exit_code")
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
    script = play(make_with_model(), a="exit_code")
    assert change(script, "a", agent="three") is None
    assert (script["a"].spec.agent, script["a"].spec.model) == ("three", None)
    script = play(make_with_model(), a="exit_code")
    assert change(script, "a", agent="one", prompt="again") is None
    assert (script["a"].spec.model, script["a"].spec.prompts, script["a"].spec.args) == ("m1", ("again",), ("-x",))
    assert shown(script, "a")["earlier_agents"] is None


def test_what_was_used_stays_with_the_agent_that_used_it() -> None:
    script = play(make_with_model(), a="exit_code")
    assert shown(script, "a")["usage_by_agent"] is None
    script_agent = AgentSpec("sh", ("sh",), prompt_kind="script")
    assert change(script, "a", agent="sh", agents={"sh": script_agent}) is None
    assert shown(script, "a")["agent"] == "sh"
    assert [used[:2] for used in usages_by_agent(shown(script, "a"))] == [("one", "m1")]


def test_after_a_fallback_the_record_says_with_whom_the_attempt_ended() -> None:
    # the first job was refused, the agent that took over fails; a task of that kind is tried anew
    script = make_script(make_with_model(fallback=(Alternative("three"),)), a="auth").go_on("a/1/1/work/2")
    script.ends["a/1"] = "exit_code"
    script.finish()
    assert (shown(script, "a")["outcome"], shown(script, "a")["agent"]) == ("failed", "three")
    script.record(RequestReceived("again", "retry", ("a",)))
    script.go_on()
    a = shown(script, "a")
    assert (a["agent"], a["earlier_agents"]) == ("one", [{"attempt": 1, "agent": "three", "model": None}])


TURNS = make_with_model(prompts=("one", "two"), prompt_mode="continue")
FAULTS: list[tuple[TaskSpec, dict[str, Any], str]] = [
    (make_with_model(), {"agent": "nobody"}, "does not know the agent 'nobody'"),
    (make_with_model(), {"agent": "mute", "model": "m", "agents": {"mute": MUTE}}, "takes no model"),
    (make_with_model(), {"model": "m"}, "agent 'one' of task 'a' takes no model"),
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
    script = play(make_with_model("a"), make_with_model("b"), make_with_model("c"), a="exit_code", b="exit_code")
    assert "2 would be tried again: name one" in (change(script, prompt="x") or "")
    assert "no task to try again" in (change(script, "c", prompt="x") or "")
    assert change(script, "b", prompt="x") is None
    assert [task.prompts for task in script.state.spec.tasks] == [("first",), ("x",), ("first",)]


def test_a_follow_up_keeps_the_agent_that_knows_the_conversation() -> None:
    script = play(make_with_model())
    assert script.ask("a") is None
    script.ends["a/2"] = "exit_code"
    script.go_on()
    assert "of which another agent knows nothing" in (change(script, "a", agent="three") or "")
    assert "use sessionrun continue" in (change(script, "a", prompt="x") or "")
    assert change(script, "a", agent="one") is None


def test_a_retry_that_waits_for_its_release_changes_at_once() -> None:
    asked = make_with_model(workspace=Workspace("worktree"), fallback=(Alternative("three"),))
    script = make_script(asked, a="exit_code").go_on("a/1/1/release/1")
    assert change(script, "a", agent="three") is None
    assert (script["a"].agent, script["a"].again) == ("three", True)
    script.finish()
    a = shown(script, "a")
    assert (a["attempt"], a["outcome"], a["agent"]) == (2, "succeeded", "three")
    assert a["earlier_agents"] == [{"attempt": 1, "agent": "one", "model": "m1"}]


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

    state = begin(make_session([make_with_model(fallback=(Alternative("two"),))]))
    task, state.outcomes = state.tasks["a"], {"failed": 1}
    before = wear_out(task)
    begin_attempt(task, 8)
    assert {name for name, value in before.items() if getattr(task, name) is not value} == BEGUN_BY_AN_ATTEMPT
    before = wear_out(task)
    reopen(state, [task])
    assert {name for name, value in before.items() if getattr(task, name) is not value} == BEGUN_BY_A_REQUEST


@pytest.mark.slow
def test_the_command(sessionrun: Command) -> None:
    """Its agent `fake` prints its arguments and the prompt."""
    program = make_program(sessionrun.cwd / "fake", 'echo "fake $*"\ncat')
    (sessionrun.cwd / "sessionrun.toml").write_text(
        f'[agents.fake]\nargv = [{json.dumps(str(program))}, "{{model_args}}"]\nmodel_args = ["-m", "{{model}}"]\n'
        '[agents.gone]\nargv = ["no-such-program"]\n'
    )
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
    spec = load_spec_now(SessionDir(sessionrun.directory(session_id)))
    assert [(task.agent, task.model) for task in spec.tasks] == [("fake", "m 2"), ("shell", None)]
    told = sessionrun("explain", session_id, "a").stdout
    assert "\nattempt 1 (shell): work " in told and "\nattempt 2 (fake/m 2): work " in told


# --- hidden tests judge what an attempt left, however it ended ---

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


class Judged(Scripted):
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
    script = Judged(**ends).go_on()
    assert (script.phases, script.ended()) == (phases, ended)
    assert ended[0] != "failed" or script.task.reason == f"{ended[1]}: so it was"


def test_what_is_judged_is_the_best_round() -> None:
    """Also when the last one was broken off."""
    for ends in (RED, LATE):
        assert Judged(**ends, prove="unresolved").go_on().better == {"park": 1, "prove": 1, "release": 1}
    assert Judged(check_1="check_failed").go_on().better == {}, "a check that passed is the last word"


@pytest.mark.parametrize("reason", sorted(INFRASTRUCTURE & set(REASONS) - {"usage_limit"}))
def test_a_failure_that_says_nothing_about_the_work_is_not_judged(reason: str) -> None:
    failed = Judged(work_1=reason).go_on()
    assert "prove" not in failed.phases
    assert failed.task.failure is None


def test_a_cancelled_judgement_is_cancelled() -> None:
    script = Judged(check="check_failed").go_on(until="prove")
    script.record(RequestReceived("r", "cancel", ("a",)))
    job = script.task.job
    assert job is not None and job.stopping == "cancelled"
    script.record(JobFinished(job.key, "failed", "signal", "signal: 15"))
    assert script.go_on().ended() == ("cancelled", "cancelled")


@pytest.mark.parametrize(
    ("changes", "ends", "ended"),
    [
        ({"retries": 1}, {"check_a1": "check_failed", "prove": "unresolved"}, ("failed", "unresolved")),
        ({"prove": Prove()}, {"check": "check_failed"}, ("failed", "check_failed")),  # it has nothing to prove
        ({"expect_change": True}, {}, GOOD),  # the tests say more than a diff
        ({"expect_change": True, "prove": None}, {}, ("failed", "no_change")),
        ({"expect_change": True}, {"prove": "unresolved"}, ("failed", "unresolved")),
        ({"expect_change": True}, {"prove": "unresolved", "check": "check_failed"}, ("failed", "check_failed")),
    ],
    ids=["a further attempt", "no hidden tests", "no change", "and no tests", "unresolved", "red, and unresolved"],
)
def test_which_failure_counts(
    changes: dict[str, Any], ends: dict[str, str], ended: tuple[str, str | None]
) -> None:
    """That of the last attempt; of work without a change none, where hidden tests pass."""
    script = Judged(replace(TASK, **changes), **ends)
    script.places["release"] = replace(PLACES["release"], changed=False)
    assert script.go_on().ended() == ended
    assert script.task.attempt == 1 + changes.get("retries", 0)
    assert ("prove" in script.phases) == hides_tests(script.task.spec)
    assert demands_change(script.task) == ("expect_change" in changes and ended != GOOD), "then the worktree stays"
