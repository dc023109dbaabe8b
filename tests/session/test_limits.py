"""A provider's limit, met by real processes: a program that speaks as claude does, and has a quota.

The limit that a session met is known to the others of its user.
"""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from simulation import make_session

from sessionrun.agents.table import BUILTIN
from sessionrun.session.partners import find_files

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


@pytest.mark.long
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


RED = "echo it is red; [ $SESSIONRUN_ROUND = 2 ]"
SAME = ["--resume=c-1"]
FAILED = re.escape(f"This command failed with exit code 1: {RED}\n\nThe end of its output:\n\nit is red\n")
STOPPED = "1 background job was stopped when the turn ended: 'build it'"
TALKS: dict[str, tuple[dict[str, Any], list[tuple[str, list[str]]]]] = {
    # a task -> the prompt of each run, as a pattern, and which conversation it goes on with
    "broken off": (
        {"prompt": "crash", "retries": 1},
        [("crash", []), (r"Your last run was broken off \(.*Go on where you stopped\.", SAME)],
    ),
    "broken off, and gone": (
        {"prompt": "crash", "retries": 1},
        [("crash", []), (".*", SAME), (r"crash\n\nAn earlier run of this task was broken off \(.*", [])],
    ),
    "a red check": (
        {"prompt": "p", "check": RED, "rounds": 2},
        [("p", []), (rf"Your work did not pass its check\.\n\n{FAILED}", SAME)],
    ),
    "a red check, and gone": (
        {"prompt": "p", "check": RED, "rounds": 2},
        [("p", []), (".*", SAME), (r"p\n\nYour last attempt did not pass its check\..*it is red\n", [])],
    ),
    "left running": (
        {"prompt": "leave", "retries": 1},
        [("leave", []), (f".*{STOPPED}.*Run such work in the foreground, or wait for its end.*", SAME)],
    ),
    "left running, with a check": (
        {"prompt": "leave", "check": "true", "rounds": 2},
        [("leave", []), (f".*{STOPPED}.*Run such work in the foreground, or wait for its end.*", SAME)],
    ),
    "turns": (
        {"prompts": ["one", "two", "three"], "prompt_mode": "continue"},
        [("one", []), ("two", SAME), ("three", SAME)],
    ),
}


@pytest.mark.parametrize("name", TALKS)
def test_a_task_goes_on_in_its_conversation(quota: Quota, name: str) -> None:
    """Where that is gone, it begins anew with the whole prompt."""
    task, runs = TALKS[name]
    if "gone" in name:
        (quota.folder / "gone").touch()
    session = quota.start([{"id": "a", **task}])
    (ended,) = quota.sessionrun.wait(session)["tasks"]
    assert (ended["outcome"], ended["attempt"], ended["round"]) == ("succeeded", 1, task.get("rounds", 1))
    assert [run[2] for run in quota.runs()] == [resumed for _, resumed in runs]
    for (_, prompt, _), (pattern, _) in zip(quota.runs(), runs, strict=True):
        assert re.fullmatch(pattern, prompt, re.DOTALL), prompt
    answer = quota.sessionrun("results", session).stdout
    assert sum(line.strip().startswith("did ") for line in answer.splitlines()) == 1


def test_a_time_limit_while_work_is_open_is_no_reason_to_do_all_of_it_again(quota: Quota) -> None:
    session = quota.start([{"id": "a", "prompt": "leave and wait", "timeout": 2, "check": "true", "rounds": 2}])
    task = quota.sessionrun.wait(session)["tasks"][0]
    assert (task["outcome"], task["reason_class"], task["round"]) == ("failed", "left_running", 1)
    assert task["reason"].endswith("'build it' (timeout: not done after 2 s)")


# --- sessions beside each other ---


def is_held(view: dict[str, Any]) -> bool:
    return any(task["reason_class"] == "held" for task in view["tasks"])


@pytest.mark.slow
def test_a_launch_says_that_its_provider_is_held(quota: Quota) -> None:
    quota.set(time.time() + 600)
    first = quota.start([{"id": "a0", "prompt": "a0"}])
    quota.sessionrun.until(first, is_held)
    done = quota.sessionrun("--agent", "limited", "--json", stdin=json.dumps({"prompts": ["b0"]}))
    second = str(json.loads(done.stdout)["session_id"])
    quota.sessionrun.sessions.append(second)
    said = [line for line in done.stderr.splitlines() if "provider limited is held until " in line]
    assert len(said) == 1, done.stderr
    assert f"met by session {first[:8]}" in said[0] and f"sessionrun explain {second[:8]}" in said[0]
    view = quota.sessionrun.until(second, is_held)
    assert f"(met by session {first[:8]})" in view["tasks"][0]["reason"]
    assert f"met by session {first[:8]}" in quota.sessionrun("explain", second).stdout
    assert len(quota.runs()) == 1
    quota.set(0)
    for session in (first, second):
        assert quota.sessionrun("release", session).returncode == 0
        assert quota.sessionrun.wait(session)["outcome"] == "succeeded"
    assert len(quota.runs()) == 3


def test_two_accounts_of_one_agent_do_not_hold_each_other(own_place: Path) -> None:
    spec = replace(make_session([]), agents={"claude": BUILTIN["claude"]})
    one, other = (find_files(spec, {"ANTHROPIC_API_KEY": key}) for key in ("sk-one", "sk-another"))
    assert one.keys() == other.keys() and one != other
