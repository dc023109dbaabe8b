"""What can be asked of a session: `retry`, `hold`, `release`; with real processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually, kill_sessions, rests

from sessionrun.cli.replies import _count_retried
from sessionrun.client.ask import select
from sessionrun.client.outbox import send
from sessionrun.model.errors import StoreError
from sessionrun.store.session import SessionDir

WAITS = "while ! [ -e go ]; do sleep 0.05; done"


def outcomes(view: dict[str, Any]) -> dict[str, Any]:
    return {task["id"]: task["outcome"] for task in view["tasks"]}


def task_of(view: dict[str, Any], name: str) -> dict[str, Any]:
    found = next(task for task in view["tasks"] if task["id"] == name)
    assert isinstance(found, dict)
    return found


def requests_of(sessionrun: Command, session_id: str) -> list[Path]:
    return list((sessionrun.directory(session_id) / "requests").iterdir())


# --- retry ---

FAILS_ONCE = {
    "prompts": [
        {"id": "a", "prompt": "echo try $SESSIONRUN_ATTEMPT; [ -e good ]"},
        {"id": "b", "prompt": "cat good", "needs": ["a"]},
        {"id": "c", "prompt": WAITS},
        {"id": "d", "prompt": "true"},
    ]
}


def start_and_fail(sessionrun: Command) -> str:
    session_id = sessionrun.start(FAILS_ONCE)
    sessionrun.until(session_id, lambda view: view["completed"] == 3)
    (sessionrun.cwd / "good").write_text("fine\n")
    return session_id


def test_retried_tasks_that_have_ended_again_are_counted() -> None:
    """A task that was skipped keeps its attempt when its need is tried again, and may be over before we look."""

    def tasks(*ends: tuple[str, int]) -> list[dict[str, Any]]:
        return [
            {"id": str(number), "status": "completed", "outcome": outcome, "attempt": attempt}
            for number, (outcome, attempt) in enumerate(ends)
        ]

    before = {task["id"]: task for task in tasks(("failed", 1), ("skipped", 1))}
    assert _count_retried(tasks(("succeeded", 2), ("succeeded", 1)), before) == 2
    assert _count_retried(tasks(("failed", 2), ("skipped", 1)), before) == 2
    assert _count_retried(tasks(("failed", 1), ("skipped", 1)), before) == 0


def test_retry_in_a_session_that_runs(sessionrun: Command) -> None:
    session_id = start_and_fail(sessionrun)
    done = sessionrun("retry", session_id)
    assert (done.returncode, done.stdout) == (0, f"{session_id[:8]}: retrying 2 tasks\n")
    view = sessionrun.until(session_id, lambda view: view["completed"] == 3)
    assert outcomes(view) == {"a": "succeeded", "b": "succeeded", "c": None, "d": "succeeded"}
    assert [task["attempt"] for task in view["tasks"]] == [2, 1, 1, 1]
    folder = sessionrun.directory(session_id)
    assert (folder / "task-a.txt").read_text() == "try 2\n"
    assert (folder / "jobs" / "a" / "a1-r1-work" / "stdout").read_text() == "try 1\n"
    assert sessionrun("retry", session_id).stdout == f"{session_id[:8]}: nothing to retry\n"
    assert requests_of(sessionrun, session_id) == []
    (sessionrun.cwd / "go").touch()
    assert sessionrun.wait(session_id)["outcome"] == "succeeded"


def test_retry_counts_what_was_skipped_again_at_once(sessionrun: Command) -> None:
    prompts = [{"id": "a", "prompt": "exit 3"}, {"id": "b", "prompt": "true", "needs": ["a"]}]
    session_id = sessionrun.start({"prompts": prompts})
    sessionrun.wait(session_id)
    assert sessionrun("retry", session_id).stdout == f"{session_id[:8]}: retrying 2 tasks\n"


def test_what_cannot_be_retried_is_refused_before_anything_is_asked(sessionrun: Command) -> None:
    session_id = start_and_fail(sessionrun)
    before = (sessionrun.directory(session_id) / "journal").read_bytes()
    for words, said in (
        (["a", "d"], "task 'd' succeeded"),
        (["b"], "task 'b' needs 'a'"),
        (["a", "nobody"], "no task 'nobody'"),
    ):
        for more in ([], ["--new"]):
            done = sessionrun("retry", session_id, *words, *more)
            assert (done.returncode, done.stdout) == (2, "")
            assert said in done.stderr and done.stderr.count("\n") == 1
    for words in (["--lost"], ["c"], ["a", "--lost"]):
        done = sessionrun("retry", session_id, *words)
        assert (done.returncode, done.stdout) == (0, f"{session_id[:8]}: nothing to retry\n")
    assert sessionrun.load("retry", session_id, "--lost")["tasks"] == []
    assert (sessionrun.directory(session_id) / "journal").read_bytes() == before


def test_retry_of_cancelled_tasks_by_name(sessionrun: Command) -> None:
    session_id = sessionrun.start({"prompts": [{"id": "a", "prompt": WAITS}, {"id": "b", "prompt": WAITS}]})
    sessionrun.until(session_id, lambda view: view["running"] == 2)
    assert sessionrun("cancel", session_id, "a").returncode == 0
    assert sessionrun("retry", session_id).stdout == f"{session_id[:8]}: nothing to retry\n"
    record = sessionrun.load("retry", session_id, "1")
    assert [(task["id"], task["attempt"], task["outcome"]) for task in record["tasks"]] == [("a", 2, None)]
    (sessionrun.cwd / "go").touch()
    assert outcomes(sessionrun.wait(session_id)) == {"a": "succeeded", "b": "succeeded"}


def test_retry_of_a_session_that_has_ended(sessionrun: Command) -> None:
    session_id = start_and_fail(sessionrun)
    (sessionrun.cwd / "go").touch()
    first = sessionrun.wait(session_id)
    assert (first["status"], first["outcome"]) == ("completed", "failed")
    done = sessionrun("retry", session_id, "--sync")
    assert done.returncode == 0, done.stderr
    view = sessionrun.status(session_id)
    assert (view["status"], view["outcome"], view["epoch"]) == ("completed", "succeeded", 2)
    assert [task["attempt"] for task in view["tasks"]] == [2, 1, 1, 1]
    assert view["ended_at"] > first["ended_at"]
    assert task_of(view, "d") == task_of(first, "d")


@pytest.mark.slow
def test_many_retries_of_a_session_that_ends_are_all_heard(sessionrun: Command) -> None:
    """Asked for again and again just as the session ends, each retry is one more attempt."""
    session_id = sessionrun.start({"prompts": ["exit 3"]})
    for attempt in range(2, 12):
        sessionrun.until(session_id, lambda view: view["completed"] == 1)
        assert sessionrun("retry", session_id, "-q").stdout == f"{session_id}\n"
        assert sessionrun.wait(session_id)["tasks"][0]["attempt"] == attempt
    assert requests_of(sessionrun, session_id) == []


@pytest.mark.slow
def test_many_retries_at_once(sessionrun: Command) -> None:
    """One starts the session again, all are heard; those that come before the end mean the same attempt."""
    session_id = sessionrun.start({"prompts": ["exit 3"]})
    sessionrun.wait(session_id)
    asking = [sessionrun.popen("retry", session_id, stdout=subprocess.DEVNULL) for _ in range(8)]
    assert [process.wait(60) for process in asking] == [0] * 8
    view = sessionrun.wait(session_id)
    assert view["ended_at"] and 2 <= view["tasks"][0]["attempt"] <= 9
    assert requests_of(sessionrun, session_id) == []


@pytest.mark.slow
def test_a_retry_that_nobody_can_take_says_so(sessionrun: Command) -> None:
    """The session's directory cannot get a supervisor: its FIFO is gone."""
    session_id = sessionrun.start({"prompts": ["exit 3"]})
    sessionrun.wait(session_id)
    (sessionrun.directory(session_id) / "wake").unlink()
    done = sessionrun("retry", session_id, "--timeout", "3")
    assert done.returncode in (4, 124)
    assert "Traceback" not in done.stderr


# --- a new session ---


@pytest.mark.slow
def test_retry_in_a_new_session(sessionrun: Command) -> None:
    session_id = start_and_fail(sessionrun)
    done = sessionrun("retry", session_id, "--new", "--sync", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"agent: shell (as in session {session_id})\n")
    view = json.loads(done.stdout)
    assert view["session_id"] != session_id
    assert outcomes(view) == {"a": "succeeded", "b": "succeeded"}
    assert [(task["num"], task["attempt"], task["needs"]) for task in view["tasks"]] == [(1, 1, []), (2, 1, ["a"])]
    assert outcomes(sessionrun.status(session_id))["a"] == "failed"
    new = sessionrun("retry", session_id, "a", "--new", "-q").stdout.strip()
    assert outcomes(sessionrun.wait(new)) == {"a": "succeeded", "b": "succeeded"}
    record = sessionrun.load("retry", session_id, "--new")
    assert record["total"] == 2 and set(record) >= {"session_id", "results_dir"}
    sessionrun.wait(record["session_id"])
    (sessionrun.cwd / "go").touch()


def test_needs_that_succeeded_are_met_in_a_new_session(sessionrun: Command) -> None:
    plan = [{"id": "a", "prompt": "true"}, {"id": "b", "prompt": "[ -e good ]", "needs": ["a"]}]
    session_id = sessionrun.start({"prompts": plan})
    sessionrun.wait(session_id)
    (sessionrun.cwd / "good").touch()
    view = sessionrun.wait(sessionrun("retry", session_id, "--new", "-q").stdout.strip())
    assert [(task["id"], task["needs"], task["outcome"]) for task in view["tasks"]] == [("b", [], "succeeded")]


def test_a_session_that_cannot_be_started_again_creates_nothing(sessionrun: Command) -> None:
    place = sessionrun.cwd / "place"
    place.mkdir()
    session_id = sessionrun.start({"prompts": [{"id": "a", "prompt": "exit 3", "cwd": str(place)}]})
    sessionrun.wait(session_id)
    place.rmdir()
    done = sessionrun("retry", session_id, "--new")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cwd {place} is not a directory" in done.stderr
    assert len(list(sessionrun.results.glob("session-*"))) == 1


# --- hold and release ---


def test_hold_and_release(sessionrun: Command) -> None:
    plan = {
        "max_parallel": 1,
        "prompts": [
            {"id": "a", "prompt": WAITS},
            {"id": "b", "prompt": "true"},
            {"id": "c", "prompt": "true", "needs": ["b"]},
        ],
    }
    session_id = sessionrun.start(plan)
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    done = sessionrun("hold", session_id, "--reason", "the  model is\ndown")
    assert (done.returncode, done.stdout) == (0, f"{session_id[:8]}: 2 held, 1 running on\n")
    assert sessionrun("hold", session_id, "b").returncode == 0
    (sessionrun.cwd / "go").touch()
    view = sessionrun.until(session_id, lambda view: view["completed"] == 1)
    b, c = view["tasks"][1:]
    assert (b["status"], b["phase"], b["reason_class"], b["reason"], b["held_until"]) == (
        *("pending", "queued", "held"),
        *("held: on request", None),
    )
    assert c["reason"] == "held: the model is down"
    text = sessionrun("status", session_id).stdout
    assert "\n    the model is down\n" in text
    assert sessionrun("wait", session_id).returncode == 75
    assert sessionrun("wait", session_id, "--through-holds", "--timeout", "0.1").returncode == 124
    assert sessionrun("release", session_id, "b").stdout == f"{session_id[:8]}: 1 released\n"
    sessionrun.until(session_id, lambda view: view["completed"] == 2)
    assert sessionrun("release", session_id).stdout == f"{session_id[:8]}: 1 released\n"
    assert sessionrun.wait(session_id)["outcome"] == "succeeded"
    assert sessionrun("hold", session_id).stdout == f"{session_id[:8]}: nothing to hold\n"
    assert sessionrun("release", session_id).stdout == f"{session_id[:8]}: nothing is held\n"
    assert sessionrun("hold", session_id, "nobody").returncode == 2
    assert requests_of(sessionrun, session_id) == []


def test_what_was_taken_is_told_though_status_json_is_behind(sessionrun: Command) -> None:
    """So it is on a disk that has no room for a new status.json, while the journal still takes records."""
    session_id = sessionrun.start({"max_parallel": 1, "prompts": [WAITS, {"id": "b", "prompt": "true"}]})
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    session = SessionDir(sessionrun.directory(session_id))
    target, before = select(session, ("b",)), session.status_path.read_bytes()
    assert sessionrun("hold", session_id, "b").returncode == 0
    session.status_path.write_bytes(before)
    assert target.view["tasks"][1]["reason_class"] != "held"
    assert [task["reason_class"] for task in target.reload().tasks] == ["held"]
    session.spec_path.unlink()  # so the logs mean nothing
    assert target.reload().view["total"] == 2


def test_a_held_session_lives_on_without_work_and_can_be_cancelled(sessionrun: Command) -> None:
    plan = [{"id": "a", "prompt": WAITS}, {"id": "b", "prompt": "true", "needs": ["a"]}]
    session_id = sessionrun.start({"prompts": plan})
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    assert sessionrun.load("hold", session_id)["tasks"][1]["reason"] == "held: on request"
    (sessionrun.cwd / "go").touch()
    sessionrun.until(session_id, lambda view: view["completed"] == 1)
    eventually(rests(sessionrun.supervisor(session_id)))
    assert sessionrun("wait", session_id).returncode == 75
    assert sessionrun("cancel", session_id).stdout == f"{session_id[:8]}: 1 cancelled, 1 had ended before\n"


# --- nobody there, or nobody who understands ---


def test_a_hold_waits_for_a_session_that_nobody_runs(sessionrun: Command) -> None:
    session_id = sessionrun.start({"max_parallel": 1, "prompts": [WAITS, "true"]})
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    session = SessionDir(sessionrun.directory(session_id))
    kill_sessions(sessionrun.results)
    eventually(lambda: not session.is_alive())
    done = sessionrun("hold", session_id)
    assert done.returncode == 4
    assert "waits until the session is resumed" in done.stderr
    assert len(requests_of(sessionrun, session_id)) == 1


def test_a_client_learns_that_its_request_was_refused(sessionrun: Command) -> None:
    session_id = sessionrun.start({"prompts": ["sleep 600"]})
    session = SessionDir(sessionrun.directory(session_id))
    with pytest.raises(StoreError, match="refused the request"):
        send(session, {"kind": "frobnicate"}, timeout_s=60.0)
    assert "does not know the kind 'frobnicate'" in session.log_path.read_text()
    assert requests_of(sessionrun, session_id) == []
