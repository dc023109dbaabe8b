"""Agents that print nothing: `idle_timeout` on real processes, and limits that an agent is silent about."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from conftest import Command, eventually
from simulation import make_session

from sessionrun.agents import table
from sessionrun.engine.task import RunningJob
from sessionrun.model.events import Event, TimerFired
from sessionrun.model.keys import parse_job_key
from sessionrun.model.spec import TaskSpec
from sessionrun.session import partners
from sessionrun.session.history import begin
from sessionrun.session.shared import Site
from sessionrun.store.session import SessionDir

AGENT = """[agents.streaming]
argv = ["/bin/sh", "{prompt_file}"]
stdin = "none"
prompt_kind = "script"
output = "codex"
"""
CHATTY = 'i=0; while [ $i -lt 25 ]; do echo \'{"type":"turn.started"}\' %s; sleep 0.1; i=$((i+1)); done'


@pytest.mark.slow
def test_who_prints_goes_on(sessionrun: Command) -> None:
    """Two and a half seconds of work are fine with one second of patience, whichever file they show in."""
    (sessionrun.cwd / "sessionrun.toml").write_text(AGENT)
    plan = [
        {"prompt": f'{CHATTY % where}; echo \'{{"type":"turn.completed"}}\'', "agent": agent}
        for agent in ("shell", "streaming")
        for where in ("", ">&2")
    ]
    session = sessionrun.start(plan, "--idle-timeout", "1s", "--max-parallel", "4")
    tasks = sessionrun.wait(session)["tasks"]
    assert [(task["outcome"], task["reason"]) for task in tasks] == [("succeeded", None)] * 4
    journal = (sessionrun.directory(session) / "journal").read_text().splitlines()
    for task in tasks:
        looks = sum('"OutputSeen"' in line and f'"{task["id"]}/' in line for line in journal)
        assert 1 <= looks <= task["duration_s"] + 2, "it is looked at once a second, not all the time"


@pytest.mark.parametrize("prompt", ["exec sleep 600", "echo begun; exec sleep 600"])
def test_who_falls_silent_is_stopped(sessionrun: Command, prompt: str) -> None:
    session = sessionrun.start([{"id": "a", "prompt": prompt, "idle_timeout": 0.4}])
    task = sessionrun.wait(session)["tasks"][0]
    assert (task["outcome"], task["reason_class"]) == ("timed_out", "stalled")
    assert task["reason"] == "stalled: no output for 0.4 s"
    assert task["duration_s"] >= 0.4


@pytest.mark.slow
def test_a_new_supervisor_goes_on_watching(sessionrun: Command) -> None:
    prompt = "echo begun; touch begun; exec sleep 600"
    session = sessionrun.start([{"id": "a", "prompt": prompt, "idle_timeout": 1, "retries": 1}])
    eventually((sessionrun.cwd / "begun").exists)
    os.kill(sessionrun.supervisor(session), signal.SIGKILL)
    task = sessionrun.wait(session)["tasks"][0]
    assert (task["reason_class"], task["attempt"]) == ("stalled", 2)
    events = [
        json.loads(line[9:]) for line in (sessionrun.directory(session) / "journal").read_bytes().splitlines()
    ]
    fired = [(event["key"], event["timer"]) for event in events if event["ev"] == "TimerFired"]
    assert fired == [("a/1/1/work/1", "idle_timeout"), ("a/2/1/work/1", "idle_timeout")]


QUOTA = "You exceeded your current quota, please check your plan and billing details."
INIT = '{"type":"system","subtype":"init","session_id":"c-1","model":"m"}\n'
RETRIED = 'Attempt 1 failed with status 429. Retrying with backoff... {"status":"RESOURCE_EXHAUSTED"}\n'
AIDER = "litellm.RateLimitError: no\nThe API provider has rate limited you.\nRetrying in 8.0 seconds...\n"
PLACE = 'level=INFO run={run} message="creating instance" directory={cwd}'
ASKED = "level=INFO run={run} message=stream session.id=s small={small} agent=build"
FAILED = 'level=ERROR run={run} message="stream error" small={small} error.error="AI_APICallError: {words}"'


def opencode_log(*lines: str, **words: str) -> str:
    return "".join(
        line.format(**{"run": "a1", "small": "false", "words": QUOTA, **words}) + "\n" for line in lines
    )


def qwen_log(event: str) -> str:
    error = {"event.name": event, "error_message": f"429 {QUOTA}", "status_code": 429}
    return json.dumps(
        {"type": "system", "systemPayload": {"uiEvent": error}, "timestamp": "2099-01-01T00:00:00.500Z"}
    )


SILENT: dict[str, tuple[str, str, str, str, str | None]] = {
    # what agent, standard output, standard error, its own log -> what it waits for
    "opencode": ("opencode", "", "", opencode_log(PLACE, ASKED, FAILED, cwd="/here"), "usage_limit"),
    "opencode, HTTP 500": ("opencode", "", "", opencode_log(FAILED, words="Internal Server Error"), "api_error"),
    "opencode asks again": ("opencode", "", "", opencode_log(FAILED, ASKED), None),
    "opencode, the title alone": ("opencode", "", "", opencode_log(FAILED, small="true"), None),
    "opencode, somewhere else": ("opencode", "", "", opencode_log(PLACE, FAILED, cwd="/there"), None),
    "opencode, long ago": ("opencode", "", "", "timestamp=2020-01-01T00:00:00.000Z " + opencode_log(FAILED), None),
    "opencode, another conversation": (
        "opencode",
        '{"type":"step_start","sessionID":"ses_1"}\n',
        "",
        opencode_log(FAILED.replace(" small", " session.id=ses_2 small")),
        None,
    ),
    "qwen": ("qwen", INIT, "", qwen_log("qwen-code.api_error"), "usage_limit"),
    "qwen, another event": ("qwen", INIT, "", qwen_log("qwen-code.api_response"), None),
    "gemini": ("gemini", '{"type":"init"}\n', RETRIED, "", "rate_limited"),
    "gemini, other words": ("gemini", '{"type":"init"}\n', "Ripgrep is not available.\n", "", None),
    "aider": ("aider", AIDER, "", "", "rate_limited"),
    "aider, answered": ("aider", AIDER + "Tokens: 10 sent, 5 received.\n", "", "", None),
    "codex": ("codex", '{"type":"error","message":"You\'ve hit your usage limit."}\n', "", "", "usage_limit"),
    "codex reconnects": ("codex", '{"type":"error","message":"Reconnecting... 1/5"}\n', "", "", None),
    "claude works": ("claude", INIT, "", "", None),
    "text": ("shell", "usage limit reached\n", "", "", None),
}


@pytest.mark.parametrize("case", SILENT)
def test_what_a_silent_agent_waits_for(tmp_path: Path, case: str) -> None:
    agent, stdout, stderr, log, expected = SILENT[case]
    for name, content in (("out", stdout), ("err", stderr)):
        (tmp_path / name).write_text(content)
    for path in ("data/opencode/log/opencode.log", ".qwen/projects/-here/chats/c-1.jsonl"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(log)
    environ = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    found = table.find_silent_limit(table.BUILTIN[agent], tmp_path / "out", tmp_path / "err", environ, "/here")
    assert (found and found.reason_class) == expected


def test_a_request_that_failed_before_it_went_on_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(RETRIED)
    os.utime(tmp_path / "err", (1, 1))
    (tmp_path / "out").write_text('{"type":"init"}\n')
    assert table.find_silent_limit(table.BUILTIN["gemini"], tmp_path / "out", tmp_path / "err", {}, "/") is None


@pytest.mark.parametrize("limit", ["timeout", "idle_timeout"])
def test_a_time_limit_while_an_agent_waits_for_its_provider(sessionrun: Command, limit: str) -> None:
    """That it waited for a limit says more than that its time was up."""
    (sessionrun.cwd / "sessionrun.toml").write_text(AGENT.replace('"codex"', '"gemini"'))
    prompt = f"echo '{RETRIED.strip()}' >&2; exec sleep 600"
    session = sessionrun.start([{"id": "a", "prompt": prompt, "agent": "streaming", limit: 1}])
    view = sessionrun.until(session, lambda view: view["tasks"][0]["held_until"])
    assert view["tasks"][0]["reason"].startswith("held: rate_limited: Attempt 1 failed with status 429.")


@pytest.mark.slow
def test_a_limit_that_an_agent_is_silent_about_is_held(sessionrun: Command) -> None:
    line = opencode_log(FAILED).strip()
    prompt = (
        f"mkdir -p data/opencode/log; printf '%s\\n' '{line}' > data/opencode/log/opencode.log; exec sleep 600"
    )
    env = f'env = {{XDG_DATA_HOME = "{sessionrun.cwd}/data"}}\n'
    (sessionrun.cwd / "sessionrun.toml").write_text(AGENT.replace('"codex"', '"opencode"') + env)
    session = sessionrun.start([{"id": "a", "prompt": prompt, "agent": "streaming", "timeout": 300}])
    view = sessionrun.until(session, lambda view: view["tasks"][0]["held_until"], timeout_s=120)
    assert view["tasks"][0]["reason"].startswith(f"held: usage_limit: AI_APICallError: {QUOTA}")


LAST_WORDS: dict[str, tuple[str, str, str | None]] = {
    # what it prints -> how the task ends
    "success": ('{"type":"turn.completed"}', "succeeded", "lingered"),
    "late": ('{"type":"turn.completed"}', "succeeded", "lingered"),
    "failure": ('{"type":"turn.failed","error":{"message":"odd"}}', "failed", "agent_error"),
    "none": ('{"type":"turn.started"}', "timed_out", "timeout"),
}


@pytest.mark.parametrize("case", LAST_WORDS)
def test_an_agent_that_does_not_exit_after_its_last_word_is_ended(sessionrun: Command, case: str) -> None:
    """Its output says how it ended, whatever it dies of, and it is not done again."""
    printed, outcome, reason_class = LAST_WORDS[case]
    (sessionrun.cwd / "sessionrun.toml").write_text(f"linger = {60 if case == 'late' else 0.5}\n{AGENT}")
    prompt = f"echo x >>runs; echo '{printed}'; trap 'exit 9' TERM; while :; do sleep 0.1; done"
    task = {"id": "a", "prompt": prompt, "agent": "streaming", "timeout": 2 if case in ("late", "none") else 300}
    session = sessionrun.start([task | {"retries": int(outcome == "succeeded")}])
    ended = sessionrun.wait(session)["tasks"][0]
    assert (ended["outcome"], ended["reason_class"]) == (outcome, reason_class), ended["reason"]
    if outcome == "succeeded":
        assert (sessionrun.cwd / "runs").read_text() == "x\n"
        when = "when its time was up" if case == "late" else "after 0.5 s"
        assert ended["reason"] == f"lingered: did not exit by itself; ended {when}"
        for words in (("status", session), ("results", session), ("explain", session, "a")):
            assert ended["reason"].removeprefix("lingered: ") in sessionrun(*words).stdout


def test_what_work_leaves_behind_is_told_and_is_a_failure_where_it_is_said(sessionrun: Command) -> None:
    plan = [{"prompt": "sleep 600 &"}, {"prompt": "sleep 600 &", "leftovers": "fail"}, {"prompt": "true"}]
    session = sessionrun.start([{"id": str(number), **task} for number, task in enumerate(plan)])
    told, failed, clean = sessionrun.wait(session)["tasks"]
    left = [{"command": "sleep 600", "how": "stopped by us"}]
    assert (told["outcome"], told["leftovers"]) == ("succeeded", left)
    assert (failed["outcome"], failed["reason_class"], failed["leftovers"]) == ("failed", "left_running", left)
    assert (clean["outcome"], clean["leftovers"]) == ("succeeded", None)
    for words in (("status", session), ("results", session), ("explain", session, "0")):
        assert "left running: sleep 600 (stopped by us)" in sessionrun(*words).stdout


def test_what_work_leaves_behind_is_kept_for_later_tasks_until_the_session_ends(sessionrun: Command) -> None:
    server = "sh -c 'sleep 600; echo over > over' & echo $! > pid"
    plan = [
        {"id": "server", "prompt": server, "leftovers": "keep"},
        {"id": "user", "prompt": "kill -0 $(cat pid)", "needs": "server"},
    ]
    view = sessionrun.wait(sessionrun.start(plan))
    assert [(task["outcome"], task["leftovers"]) for task in view["tasks"]] == [("succeeded", None)] * 2
    pid = int((sessionrun.cwd / "pid").read_text())
    eventually(lambda: not psutil.pid_exists(pid))
    assert not (sessionrun.cwd / "over").exists()


class Asked:
    """Jobs of which only the size of the output is known, and whether their agent waits for a limit."""

    def __init__(self) -> None:
        self.size, self.asked, self.waits = 0, 0, False

    def measure_output(self, *_: object) -> int:
        return self.size

    def note_limit(self, *_: object) -> bool:
        self.asked += 1
        return self.waits


def test_an_agent_is_looked_at_when_it_has_been_silent_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, key, jobs = (
        begin(make_session([TaskSpec("a", ("x",), agent="shell")])),
        parse_job_key("a/1/1/work/1"),
        Asked(),
    )
    state.tasks["a"].job, state.running_jobs = RunningJob(key, pid=1), 1
    for name in ("measure_output", "note_limit"):
        monkeypatch.setattr(partners, name, getattr(jobs, name))
    monkeypatch.setattr(partners, "is_final", lambda *_: False)
    watch = partners.SilenceWatch(Site(SessionDir(tmp_path), lambda: state.spec), tmp_path / "contact.json")
    asked_at: list[int] = []
    fired: list[tuple[int, Event]] = []
    for second in range(0, 360, 5):
        before = jobs.asked
        jobs.size += second <= 100 and second % 20 == 0
        jobs.waits = second > 300
        fired += [(second, event) for event in watch.hear(state, 0.0, float(second))]
        asked_at += [second] * (jobs.asked - before)
    assert asked_at == [130, 160, 220, 340], "each time when the silence is twice as long"
    assert fired == [(340, TimerFired(key, "silent_limit"))]
    (tmp_path / "contact.json").touch()
    assert [event for second in range(360, 960, 5) for event in watch.hear(state, 0.0, float(second))] == []
    (tmp_path / "contact.json").unlink()
    assert list(watch.hear(state, 0.0, 960.0)) == list(watch.hear(state, 0.0, 985.0)) == []
    assert list(watch.hear(state, 0.0, 990.0)) == [TimerFired(key, "silent_limit")]
    state.tasks["a"].job, state.running_jobs = None, 0
    assert (list(watch.hear(state, 0.0, 400.0)), watch.look_at) == ([], None), "a session that waits is not woken"
