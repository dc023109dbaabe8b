"""A provider's limit, met by real processes: a program that speaks as claude does, and has a quota."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest
from conftest import Command

PROGRAM = """\
import json, os, pathlib, signal, sys, time

here = pathlib.Path(sys.argv[1])
prompt = sys.stdin.read()
if (here / "span").exists():
    (here / "until").write_text(str(int(time.time()) + int((here / "span").read_text())))
    (here / "span").unlink()
until = float((here / "until").read_text())
gated = time.time() >= until and (here / "shut").exists()
resumed = [word for word in sys.argv if word.startswith("--resume=")]
with (here / "runs").open("a") as runs:
    runs.write(json.dumps([time.time(), prompt, resumed]) + chr(10))
if resumed and (here / "gone").exists():
    said = "No conversation found with session ID: c-1"
    print(said, file=sys.stderr)
    lost = {"type": "result", "subtype": "error_during_execution", "is_error": True, "num_turns": 0}
    print(json.dumps({**lost, "session_id": "c-1", "errors": [said]}))
    sys.exit(1)
print(json.dumps({"type": "system", "subtype": "init", "session_id": "c-1", "model": "m"}))
usage = {"input_tokens": 3, "output_tokens": 0 if time.time() < until else 5}
result = {"type": "result", "subtype": "success", "session_id": "c-1", "num_turns": 1, "usage": usage}
while gated and (here / "shut").exists():
    time.sleep(0.02)
if prompt == "crash":
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSEGV)
if prompt.startswith("leave"):
    job = {"task_id": "b1", "run_id": "r1", "is_backgrounded": True, "description": "build it"}
    print(json.dumps({"type": "system", "subtype": "task_started", **job}))
if time.time() < until:
    print(json.dumps({**result, "is_error": True, "result": f"Claude AI usage limit reached|{int(until)}"}))
    sys.exit(1)
print(json.dumps({**result, "is_error": False, "result": f"did {prompt.strip()}"}))
if prompt == "leave and wait":
    sys.stdout.flush()
    time.sleep(600)
"""


class Quota:
    """An agent `limited` with a quota, and another one without."""

    def __init__(self, sessionrun: Command) -> None:
        self.sessionrun = sessionrun
        self.folder = folder = sessionrun.cwd
        (folder / "agent.py").write_text(PROGRAM)
        self.set(0.0)
        argv = json.dumps([sys.executable, str(folder / "agent.py"), str(folder)])
        agent = f"argv = {argv}\noutput = 'claude'\ncontinue_args = ['--resume={{conversation}}']\n"
        (folder / "sessionrun.toml").write_text(f"[agents.limited]\n{agent}\n[agents.other]\n{agent}")

    def set(self, until: float) -> None:
        """The quota is used up until then."""
        (self.folder / "until").write_text(str(until))

    def set_at_next_run(self, seconds: int) -> None:
        """The next run finds the quota used up, for so long from then on."""
        (self.folder / "span").write_text(str(seconds))

    def start(self, tasks: list[dict[str, Any]], *words: str) -> str:
        """A session of these tasks."""
        done = self.sessionrun("-q", "--agent", "limited", *words, stdin=json.dumps({"prompts": tasks}))
        assert done.returncode == 0, done.stderr
        self.sessionrun.sessions.append(done.stdout.strip())
        return self.sessionrun.sessions[-1]

    def runs(self) -> list[list[Any]]:
        """Each run: when, its prompt, the conversation that it went on with."""
        return [json.loads(line) for line in (self.folder / "runs").read_text().splitlines()]


@pytest.fixture
def quota(sessionrun: Command) -> Quota:
    return Quota(sessionrun)


def test_tasks_wait_for_the_reset_and_lose_no_retry(quota: Quota) -> None:
    quota.set(time.time() + 600)
    tasks = [{"id": f"t{number}", "prompt": f"p{number}"} for number in range(3)]
    session = quota.start(
        [
            *tasks,
            {"id": "n", "prompt": "p3", "needs": ["t2"]},
            {"id": "s", "agent": "shell", "prompt": "echo fine"},
        ],
        "--max-parallel",
        "1",
    )
    view = quota.sessionrun.until(session, lambda view: view["tasks"][0]["held_until"])
    assert view["tasks"][0]["reason"].startswith("held: usage_limit: ")
    done = quota.sessionrun.until(session, lambda view: view["tasks"][4]["outcome"] == "succeeded")
    assert done["tasks"][1]["status"] == "pending", "it was started although its provider was held"
    said = quota.sessionrun("explain", session, "t1").stdout
    assert "Claude AI usage limit reached|" in said and "until " in said
    waited = quota.sessionrun("wait", session, "--timeout", "0.2")
    assert (
        waited.returncode == 124
        and ": 1 of 5 ended: 1 succeeded, 3 held, 1 waiting\n    held until " in waited.stdout
    )
    assert quota.sessionrun("wait", session, "s").returncode == 0
    quota.set_at_next_run(2)
    assert quota.sessionrun("release", session).returncode == 0
    view = quota.sessionrun.wait(session)
    assert [(task["outcome"], task["attempt"]) for task in view["tasks"]] == [("succeeded", 1)] * 5
    runs, reset = quota.runs(), float((quota.folder / "until").read_text())
    assert [run[1] for run in runs] == ["p0", "p0", "p0", "p1", "p2", "p3"], "others met the limit too"
    assert runs[1][0] < reset and all(run[0] >= reset for run in runs[2:])
    assert [run[2] for run in runs] == [[]] * 6, "a conversation in which nothing was said went on"


def test_another_agent_takes_over(quota: Quota) -> None:
    quota.set(time.time() + 600)
    tasks = [{"id": "a", "prompt": "one"}, {"id": "b", "prompt": "two"}]
    session = quota.start(tasks, "--fallback", "shell", "--max-parallel", "1")
    quota.sessionrun.wait(session)
    view = quota.sessionrun.status(session)
    assert [task["agent"] for task in view["tasks"]] == ["shell", "shell"]
    assert len(quota.runs()) == 1
    said = quota.sessionrun("explain", session, "a").stdout
    assert " failed (exit code 1; usage limit: Claude AI usage limit reached|" in said


def test_without_auto_release_somebody_has_to_say_so(quota: Quota) -> None:
    quota.set(time.time() + 600)
    session = quota.start([{"id": "a", "prompt": "p"}], "--no-auto-release")
    quota.sessionrun.until(session, lambda view: view["tasks"][0]["reason_class"] == "held")
    assert quota.sessionrun.status(session)["held_until"] is None
    assert quota.sessionrun("wait", session).returncode == 75
    quota.set(0)
    quota.sessionrun("release", session)
    assert quota.sessionrun.wait(session)["outcome"] == "succeeded"


def test_what_is_held_waits_in_vain_where_nobody_runs_the_session(quota: Quota) -> None:
    quota.set(time.time() + 600)
    session = quota.start([{"id": "a", "prompt": "p"}])
    quota.sessionrun.until(session, lambda view: view["tasks"][0]["held_until"])
    assert " a held: " in quota.sessionrun("results", session).stdout
    quota.sessionrun.kill_chain(session)
    assert quota.sessionrun("wait", session).returncode == 4


def test_a_run_that_broke_off_goes_on_in_its_conversation(quota: Quota) -> None:
    session = quota.start([{"id": "a", "prompt": "crash", "retries": 1}])
    view = quota.sessionrun.wait(session)
    assert (view["tasks"][0]["outcome"], view["tasks"][0]["attempt"]) == ("succeeded", 1)
    (_, first, none), (_, second, resumed) = quota.runs()
    assert (first, none, resumed) == ("crash", [], ["--resume=c-1"])
    assert second.startswith("Your last run was broken off (") and second.endswith("Go on where you stopped.")


@pytest.mark.parametrize("more", [{"check": {"commands": ["true"]}, "rounds": 2}, {"retries": 1}])
def test_what_was_left_running_is_named_in_the_same_conversation(quota: Quota, more: dict[str, Any]) -> None:
    session = quota.start([{"id": "a", "prompt": "leave", **more}])
    task = quota.sessionrun.wait(session)["tasks"][0]
    assert (task["outcome"], task["attempt"], task["round"]) == ("succeeded", 1, more.get("rounds", 1))
    (_, first, none), (_, second, resumed) = quota.runs()
    assert (first, none, resumed) == ("leave", [], ["--resume=c-1"])
    assert "1 background job was stopped when the turn ended: 'build it'" in second
    assert "Run such work in the foreground, or wait for its end" in second


def test_a_time_limit_while_work_is_open_is_no_reason_to_do_all_of_it_again(quota: Quota) -> None:
    check = {"commands": ["true"]}
    session = quota.start([{"id": "a", "prompt": "leave and wait", "timeout": 2, "check": check, "rounds": 2}])
    task = quota.sessionrun.wait(session)["tasks"][0]
    assert (task["outcome"], task["reason_class"], task["round"]) == ("failed", "left_running", 1)
    assert task["reason"].endswith("'build it' (timeout: not done after 2 s)")


def test_a_conversation_that_is_gone_begins_anew_with_the_whole_prompt(quota: Quota) -> None:
    (quota.folder / "gone").touch()
    session = quota.start([{"id": "a", "prompt": "crash", "retries": 1}])
    view = quota.sessionrun.wait(session)
    assert (view["tasks"][0]["outcome"], view["tasks"][0]["attempt"]) == ("succeeded", 1)
    prompts, resumed = [run[1] for run in quota.runs()], [run[2] for run in quota.runs()]
    assert resumed == [[], ["--resume=c-1"], []]
    assert prompts[2].startswith("crash\n\nAn earlier run of this task was broken off (")


def test_a_red_check_of_a_conversation_that_is_gone(quota: Quota) -> None:
    (quota.folder / "gone").touch()
    check = {"commands": "echo it is red; [ $SESSIONRUN_ROUND = 2 ]"}
    session = quota.start([{"id": "a", "prompt": "p", "check": check, "rounds": 2}])
    assert quota.sessionrun.wait(session)["outcome"] == "succeeded"
    (_, first, _), _, (_, last, resumed) = quota.runs()
    assert (first, resumed) == ("p", [])
    assert last.startswith("p\n\nYour last attempt did not pass its check.") and last.endswith("it is red\n")


def test_a_red_check_goes_on_in_the_conversation(quota: Quota) -> None:
    check = {"commands": "echo it is red; [ $SESSIONRUN_ROUND = 2 ]"}
    session = quota.start([{"id": "a", "prompt": "p", "check": check, "rounds": 2}])
    assert quota.sessionrun.wait(session)["outcome"] == "succeeded"
    failed = f"This command failed with exit code 1: {check['commands']}"
    told = f"Your work did not pass its check.\n\n{failed}\n\nThe end of its output:\n\nit is red\n"
    assert [run[1:] for run in quota.runs()] == [["p", []], [told, ["--resume=c-1"]]]


def test_prompts_that_are_turns_of_one_conversation(quota: Quota) -> None:
    plan = [{"id": "a", "prompts": ["one", "two", "three"], "prompt_mode": "continue"}]
    assert quota.sessionrun.wait(quota.start(plan))["outcome"] == "succeeded"
    resumed = ["--resume=c-1"]
    assert [run[1:] for run in quota.runs()] == [["one", []], ["two", resumed], ["three", resumed]]
    session = quota.sessionrun.sessions[-1]
    assert quota.sessionrun("results", session).stdout.count("did three") == 1
