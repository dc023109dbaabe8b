"""`explain`: each cause for which a task waits, and the story of each way to end."""

from __future__ import annotations

import os
import re
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Command, eventually
from simulation import make_session

from sessionrun.client.explain import CAUSES, Grounds, explain_session, find_holders
from sessionrun.engine.fold import apply
from sessionrun.engine.status import project
from sessionrun.model.events import Entry, HoldPlaced
from sessionrun.model.spec import OUTCOMES, TaskSpec
from sessionrun.model.wording import name_tasks
from sessionrun.session.history import begin
from sessionrun.store.session import SessionDir

GATE = "while ! [ -e go ]; do sleep 0.05; done"


def explain(sessionrun: Command, session_id: str, *tasks: str) -> dict[str, Any]:
    told: dict[str, Any] = sessionrun.load("explain", session_id, *tasks)
    assert set(told["causes"]) <= {*CAUSES, *OUTCOMES}
    assert sum(told["causes"].values()) == told["total"]
    return told


def causes(told: dict[str, Any]) -> dict[str, str]:
    return {task["id"]: task["cause"] for task in told["tasks"]}


def test_who_waits_for_a_slot_a_need_or_a_person(sessionrun: Command) -> None:
    prompts = [
        {"id": "done", "prompt": "true", "priority": 9},
        *({"id": name, "prompt": "sleep 600"} for name in "abcd"),
        {"id": "waits", "prompt": "true", "needs": ["done", "a"]},
        {"id": "last", "prompt": "true", "needs": ["z"]},
        {"id": "z", "prompt": "true"},
    ]
    session_id = sessionrun.start({"max_parallel": 2, "prompts": prompts})
    sessionrun.until(session_id, lambda view: (view["completed"], view["running"]) == (1, 2))
    sessionrun("hold", session_id, "z", "--reason", "not yet")
    told = explain(sessionrun, session_id)
    waiting = {"c": "token", "d": "token", "waits": "need", "last": "need", "z": "hold"}
    assert causes(told) == {"a": "running", "b": "running", **waiting}
    slot = {"resource": "slot", "capacity": 2, "free": 0, "holders": ["a", "b"]}
    assert (told["causes"]["need"], told["tokens"]) == (2, [slot])
    _, _, c, _, waits, last, z = told["tasks"]
    assert (c["tokens"], c["why"]) == ([{**slot, "wants": 1}], "slot: 2 of 2 slots in use by a, b")
    assert waits["needs"] == [
        {"id": "done", "status": "completed", "outcome": "succeeded"},
        {"id": "a", "status": "running", "outcome": None},
    ]
    assert (waits["why"], last["why"], z["why"]) == ("needs a (running)", "needs z (pending)", "held: not yet")
    hold = {"resource": "request", "reason": "not yet", "until": None}
    assert (told["holds"], z["holds"]) == ([], [hold])
    block = sessionrun("explain", session_id).stdout
    assert f"\nRun by: process {sessionrun.supervisor(session_id)}, supervisor number 1\n" in block
    assert "\n2 waiting for a slot or resource: slot: 2 of 2 slots in use by a, b\n  c d\n" in block
    block = sessionrun("explain", session_id, "waits").stdout
    assert " waiting: needs a (running)\nneeds done: succeeded\nneeds a: running\n" in block
    sessionrun("hold", session_id)
    assert explain(sessionrun, session_id)["holds"] == [{**hold, "reason": "on request"}]


def test_who_waits_for_another_token_between_two_jobs(sessionrun: Command) -> None:
    plan = {
        "resources": {"gpu": 3},
        "prompts": [
            {"id": "holds", "prompt": "sleep 600", "uses": {"gpu": 2}},
            {"id": "between", "prompt": "true", "uses": {"gpu": 2}, "setup": "true"},
        ],
    }
    session_id = sessionrun.start(plan)
    sessionrun.until(session_id, lambda view: view["tasks"][1]["phase"] == "running")
    task = explain(sessionrun, session_id, "between")["tasks"][0]
    assert (task["cause"], task["status"]) == ("token", "running")
    assert task["why"] == "gpu: 2 of 3 in use by holds, 2 wanted"
    assert [job["phase"] for job in task["attempts"][0]["jobs"]] == ["setup"]


def test_backoff_and_the_attempts_so_far(sessionrun: Command) -> None:
    plan = {"prompts": [{"id": "a", "prompt": "exit 3", "retries": 9}]}
    session_id = sessionrun.start(plan)

    def waits() -> Any:
        """On a busy machine a pause may be over before it is explained; the next one is longer."""
        sessionrun.until(session_id, lambda view: view["tasks"][0]["attempt"] >= 3 and not view["running"])
        task = explain(sessionrun, session_id, "a")["tasks"][0]
        return task["cause"] == "backoff" and task

    task = eventually(waits)
    assert (task["status"], task["attempt"] >= 3) == ("pending", True)
    assert task["retry_at"] in task["why"]
    assert [one["outcome"] for one in task["attempts"]] == ["failed"] * (task["attempt"] - 1)
    for number, attempt in enumerate(task["attempts"], 1):
        assert (attempt["attempt"], attempt["rounds"], attempt["reason"]) == (number, 1, "exit_code: exit code 3")
        assert attempt["started_at"] <= attempt["ended_at"]
        assert attempt["duration_s"] >= 0
        (job,) = attempt["jobs"]
        assert (job["key"], job["verdict"], job["exit_code"]) == (f"a/{number}/1/work/1", "failed", 3)
        assert job["ledger"].endswith(f", wait status {3 << 8}")
    assert re.search(
        r"\nattempt 2: work .* s failed \(exit code 3\)", sessionrun("explain", session_id, "a").stdout
    )


def test_rounds_and_a_timer(sessionrun: Command) -> None:
    plan = {
        "prompts": [
            {"id": "rounds", "prompt": "true", "check": "exit 1", "rounds": 2},
            {"id": "slow", "prompt": "exec sleep 600", "timeout": 0.2},
        ]
    }
    session_id = sessionrun.finished(plan)
    rounds, slow = explain(sessionrun, session_id, "1", "2")["tasks"]
    assert rounds["attempts"][0]["rounds"] == 2
    assert [job["phase"] for job in rounds["attempts"][0]["jobs"]] == ["work", "check"] * 2
    job = slow["attempts"][0]["jobs"][0]
    assert (slow["cause"], job["timer"], job["signal"]) == ("timed_out", "timeout", 15)
    block = sessionrun("explain", session_id, "slow").stdout
    assert " failed (stopped by timeout; signal 15)\n" in block


def test_a_cancelled_task_that_is_still_stopping(sessionrun: Command) -> None:
    patient = '[agents.patient]\nargv = ["sh", "{prompt_file}"]\nstdin = "none"\nstop_grace_s = 600\n'
    (sessionrun.cwd / "sessionrun.toml").write_text(patient)
    plan = {"prompts": [{"id": "a", "prompt": "trap '' TERM; touch up; " + GATE}]}
    session_id = sessionrun.start(plan, "--agent", "patient")
    eventually((sessionrun.cwd / "up").exists)
    sessionrun("cancel", session_id, "--timeout", "0")
    eventually(lambda: causes(explain(sessionrun, session_id)) == {"a": "stopping"})
    (sessionrun.cwd / "go").touch()
    sessionrun.wait(session_id)
    assert explain(sessionrun, session_id, "a")["tasks"][0]["why"] == "cancelled: on request"


def test_a_session_that_nobody_runs(sessionrun: Command) -> None:
    plan = {
        "prompts": [
            {"id": "lives", "prompt": "sleep 600"},
            {"id": "dies", "prompt": "sleep 600"},
            {"id": "waits", "prompt": "true", "needs": ["lives"]},
        ]
    }
    session_id = sessionrun.start(plan)
    view = sessionrun.until(session_id, lambda view: view["running"] == 2)
    lives, dies = (view["tasks"][number]["pid"] for number in (0, 1))
    sessionrun.kill_chain(session_id)
    os.killpg(dies, signal.SIGKILL)
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    told = explain(sessionrun, session_id)
    assert told["resume"] == f"sessionrun resume {session_id}"
    assert told["causes"] == {"lost": 1, "no_process": 2}
    assert causes(told) == {"lives": "no_process", "waits": "no_process"}
    block = sessionrun("explain", session_id).stdout
    gone = "no process runs the session; to go on with it: sessionrun resume"
    assert f"\nsession {session_id}: {gone} {session_id}\n" in block
    assert f"process group {lives}; to stop it: kill -TERM -{lives}" in block
    told = explain(sessionrun, session_id, "lives", "dies")
    for task, pid, word in zip(told["tasks"], (lives, dies), ("still alive", "gone"), strict=True):
        assert task["attempts"][0]["jobs"][0]["ledger"] == f"process {pid}, no exit recorded, {word}"
    block = sessionrun("explain", session_id, "dies").stdout
    assert f"process {dies}, no exit recorded, gone" in block


LEDGERS: tuple[tuple[list[bytes], str], ...] = (
    ([], "the ledger has no claim of it: it never ran"),
    ([b"C a/1/1/work/1"], "claimed, but its start was never tried: it never ran"),
    ([b"C a/1/1/work/1", b"T a/1/1/work/1"], "its start was tried, and no process of it was recorded"),
    ([b"C a/1/1/work/1", b"T a/1/1/work/1", b"F a/1/1/work/1 2"], "could not be started (errno 2)"),
    ([b"T a/1/1/work/1", b"S a/1/1/work/1 1 1", b"X a/1/1/work/1 9"], "process 1, wait status 9"),
    ([b"T a/1/1/work/1", b"S a/1/1/work/1 1 1"], "process 1, no exit recorded, gone"),
)


def test_what_the_ledger_says_of_a_job_without_an_end(sessionrun: Command) -> None:
    from sessionrun.store import processes
    from sessionrun.store.logs import BEGAN, AppendLog, make_record

    session_id = sessionrun.start({"prompts": [{"id": "a", "prompt": "sleep 600"}]})
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    sessionrun.kill_chain(session_id)
    session = SessionDir(sessionrun.directory(session_id))
    for records, said in LEDGERS:
        session.ledger_path.unlink()
        log = AppendLog(session.ledger_path)
        log.append([make_record(BEGAN, 1, 1, processes.boot_id(), processes.pid_namespace()), *records])
        log.close()
        assert said in sessionrun("explain", session_id, "a").stdout


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ("slot", {"a": "hold", "b": "hold", "c": "need"}),
        ("gpu", {"a": "ready", "b": "hold", "c": "need"}),
        ("disk:worktrees", {"a": "ready", "b": "ready", "c": "need"}),
    ],
)
def test_a_hold_with_its_reason_stops_who_needs_it(held: str, expected: dict[str, str]) -> None:
    """No hold that a test can bring about lasts, so these are told to the fold."""
    tasks = [
        TaskSpec("a", ("true",)),
        TaskSpec("b", ("true",), uses={"gpu": 1}),
        TaskSpec("c", ("true",), needs=("a",)),
    ]
    state = begin(make_session(tasks, resources={"gpu": 1, "slot": 2}))
    apply(state, Entry(1, 1000.0, 10.0, HoldPlaced(held, "the provider said no", until=70.0)))
    view = {**project(state), "results_dir": "", "stopped": []}
    evidence: Any = SimpleNamespace(damage=None, now=1000.0)
    told = explain_session(Grounds(view, name_tasks(view), state, evidence, find_holders(state)))
    assert causes(told) == expected
    hold = {"resource": held, "reason": "the provider said no", "until": "1970-01-01T00:17:40.000Z"}
    assert told["holds"] == [hold]
    for task in told["tasks"]:
        if task["cause"] == "hold":
            assert task["holds"] == [hold]
            assert task["why"] == f"{held} is held: the provider said no, until 1970-01-01T00:17:40.000Z"


def test_the_chain_of_skipped_tasks_leads_to_the_root_also_by_a_journal_that_is_cut(sessionrun: Command) -> None:
    prompts = [
        {"id": "root", "prompt": "exit 7"},
        {"id": "mid", "prompt": "true", "needs": ["root"]},
        {"id": "end", "prompt": "true", "needs": ["mid"]},
    ]
    session_id = sessionrun.finished({"prompts": prompts})
    told = explain(sessionrun, session_id, "end")
    (end,) = told["tasks"]
    assert told["causes"] == {"failed": 1, "skipped": 2}
    assert (end["cause"], end["chain"], end["attempts"]) == ("skipped", ["mid", "root"], [])
    assert end["why"] == "because of mid <- root: exit_code: exit code 7"
    assert explain(sessionrun, session_id)["tasks"] == []
    journal = sessionrun.directory(session_id) / "journal"
    journal.write_bytes(journal.read_bytes()[:-30])
    assert sessionrun.load("explain", session_id)["session_id"] == session_id
