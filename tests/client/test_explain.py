"""`explain`: each cause for which a task waits, the story of each end; the words of what failed, in each verb."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Command, eventually
from shown import check_golden, mask
from simulation import make_session
from terminal import Terminal

from sessionrun.cli.standing import section_lines
from sessionrun.client.explain import CAUSES, Grounds, explain_session, find_holders, tell_record
from sessionrun.client.reading.telling import LINE_BYTES, add_tellings, choose_lines
from sessionrun.doors.mcp import Tools
from sessionrun.engine.fold import apply
from sessionrun.engine.status import project
from sessionrun.model.events import Entry, HoldPlaced
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import OUTCOMES, TaskSpec
from sessionrun.model.wording import name_tasks
from sessionrun.session.history import begin
from sessionrun.store import processes
from sessionrun.store.logs import BEGAN, fold_ledger, make_record
from sessionrun.store.session import SessionDir

# --- why a task waits, or how it ended ---


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
    plan = [
        {"id": "rounds", "prompt": "true", "check": "exit 1", "rounds": 2},
        {"id": "slow", "prompt": "exec sleep 600", "timeout": 0.2},
    ]
    session_id = sessionrun.finished(plan)
    rounds, slow = explain(sessionrun, session_id, "1", "2")["tasks"]
    assert rounds["attempts"][0]["rounds"] == 2
    assert [job["phase"] for job in rounds["attempts"][0]["jobs"]] == ["work", "check"] * 2
    job = slow["attempts"][0]["jobs"][0]
    assert (slow["cause"], job["timer"], job["signal"]) == ("timed_out", "timeout", 15)
    block = sessionrun("explain", session_id, "slow").stdout
    assert " failed (stopped by timeout; signal 15)\n" in block


def test_a_session_that_nobody_runs(sessionrun: Command) -> None:
    plan = [
        {"id": "lives", "prompt": "sleep 600"},
        {"id": "dies", "prompt": "sleep 600"},
        {"id": "waits", "prompt": "true", "needs": ["lives"]},
    ]
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


@pytest.mark.parametrize(("records", "says"), LEDGERS)
def test_what_the_ledger_says_of_a_job_without_an_end(records: list[bytes], says: str) -> None:
    here = make_record(BEGAN, 1, 1, processes.boot_id(), processes.pid_namespace())
    assert tell_record(fold_ledger([here, *records]), JobKey("a", 1, 1, "work", 1)) == says


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


# --- why tasks failed: once for each reason, and the same in each verb ---

PLAN = [
    {"id": "fine", "prompt": "echo All is well."},
    {
        "id": "check",
        "prompt": "echo thinking; echo All tests pass.; echo deprecated >&2",
        "check": "echo 'FAILED test_a' && sh -c 'exit 2'",
    },
    *({"id": f"a{num}", "prompt": f"echo I am {num}; echo took 0.$$ s >&2; exit 3"} for num in range(3)),
    {"id": "other", "prompt": "echo another >&2; exit 3"},
    {"id": "root", "prompt": "echo no such table >&2; exit 7"},
    {"id": "mid", "prompt": "true", "needs": ["root"]},
    {"id": "end", "prompt": "true", "needs": ["mid"]},
]


@pytest.mark.parametrize(
    ("codes", "last"),
    [
        (range(1, 41), " other reasons: --failed --all shows them"),
        ([4] * 40, "32 failed: exit code 4, each with other last lines"),
    ],
)
def test_it_is_bounded_where_no_terminal_reads_unless_all_is_wanted(
    sessionrun: Command, codes: Sequence[int], last: str
) -> None:
    lines = "; ".join(f"echo {number}{'x' * 90} >&2" for number in range(6))
    prompts = [f"{lines}; echo {place} >&2; exit {code}" for place, code in enumerate(codes)]
    plan = {"prompts": [{"id": f"t{place}", "prompt": prompt} for place, prompt in enumerate(prompts)]}
    session = sessionrun.finished(plan, "--agent", "shell")
    shown = sessionrun("results", session, "--failed").stdout
    whole = sessionrun("results", session, "--failed", "--all").stdout
    assert len(shown.encode()) <= 3000 and last in shown[-200:]
    assert len(whole) > 15_000 and "--all" not in whole
    with Terminal([*sessionrun.argv, "results", session, "--failed"], sessionrun.cwd) as terminal:
        assert terminal.finish() == 0
    assert len(terminal.output) > 15_000
    for words in (("--all",), ("--failed", "--all", "--max-bytes", "900"), ("--failed", "--max-bytes", "50")):
        refused = sessionrun("results", session, *words)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)


def test_each_reason_stands_once_with_what_tells_and_each_task_has_its_story(sessionrun: Command) -> None:
    session = sessionrun.finished(PLAN, "--agent", "shell")
    asked = [["results", session, "--failed"], *(["explain", session, name] for name in ("check", "end", "fine"))]
    text = "".join(f"== {words[0]} {words[-1]}\n{sessionrun(*words).stdout}" for words in asked)
    check_golden("failures", mask(text, session))
    for name in ("check", "end", "fine"):
        files = sessionrun("explain", session, name, "--files").stdout
        assert (f"/task-{name}.txt\n" in files) == (name != "end")
        assert f"/task-{name}.txt" not in sessionrun("explain", session, name).stdout


STEPS = [
    {
        "id": "checked",
        "prompt": "echo round >> rounds; echo 'All tests pass.'",
        "check": "cat rounds; echo =====; echo; echo 'FAILED test_a: 3 is not 42'; echo 'Error 1' >&2; exit 2",
        "rounds": 2,
    },
    {"id": "set", "prompt": "true", "setup": "echo begins; echo no such package >&2; exit 3"},
    {"id": "unrun", "prompt": "echo done >&2", "check": "echo no such program; exit 127"},
    {"id": "worked", "prompt": "echo the server is gone >&2; exit 7"},
    {"id": "fine", "prompt": "true", "check": "echo all is well"},
]
TOLD = {
    "checked": ("check", ["round", "round", "FAILED test_a: 3 is not 42", "Error 1"]),
    "set": ("setup", ["begins", "no such package"]),
    "unrun": ("check", ["no such program"]),
    "worked": ("work", ["the server is gone"]),
}


def words_of(record: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    tellings = {task["id"]: task.get("telling") for task in record["tasks"]}
    return {task: (told["step"], told["lines"]) for task, told in tellings.items() if told}


def test_each_verb_has_the_same_words_and_logs_the_whole(sessionrun: Command, tmp_path: Path) -> None:
    session_id = sessionrun.finished(STEPS, "--agent", "shell")
    for verb, *words in (("results",), ("results", "--failed"), ("status", "--brief"), ("explain", *TOLD, "fine")):
        assert words_of(json.loads(sessionrun(verb, session_id, *words, "--json").stdout)) == TOLD, verb
    brief = sessionrun.load("status", session_id, "--brief")["tasks"]
    assert all("stderr" not in task for task in brief), "the lines have what is in it"
    assert all("attempt" not in task for task in brief), "it was the first"
    tools = Tools(sessionrun.results)
    assert words_of(tools.status(session_id)) == TOLD
    assert words_of(tools.results(session_id)) == {task: TOLD[task] for task in ("checked", "set", "unrun")}
    sessionrun("report", session_id, "-o", str(tmp_path / "page"))
    assert "Check, last lines" in (tmp_path / "page").read_text()
    last = sessionrun("logs", session_id, "checked", "--check").stdout
    first = sessionrun("logs", session_id, "checked", "--check", "--round", "1", "-f").stdout
    assert (first.count("round\n"), last.count("round\n")) == (1, 2)
    assert "=====\n\nFAILED test_a: 3 is not 42\nError 1\n" in first
    shown = sessionrun("logs", session_id, "set", "--setup", "--json").stdout.splitlines()
    assert [json.loads(line)["stream"] for line in shown] == ["stdout", "stderr"]
    nothing = sessionrun("logs", session_id, "set", "--gate")
    assert (nothing.returncode, nothing.stdout) == (0, "") and "no gate" in nothing.stderr
    wrong = sessionrun("logs", session_id, "--round", "1")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    session = SessionDir(sessionrun.directory(session_id))
    (failed, *_) = (session.load_status() or {})["tasks"]
    for room, lines in ((30, None), (40, ["FAILED test_a: 3 is not 42", "Error 1"]), (10_000, TOLD["checked"][1])):
        (told,) = add_tellings(session, [failed], room)
        assert (told.get("telling") and told["telling"]["lines"]) == lines
    assert all("telling" not in task for task in add_tellings(session, [failed] * 100, 1600))


TRACE = ['  File "a.py", line 3', "    def a(b)", "            ^", "SyntaxError: expected"]


@pytest.mark.parametrize(
    ("printed", "lines"),
    [
        ("", []),
        ("a\n\n  \n====\n - - \nb", ["a", " - -", "b"]),
        ("".join(f"{number}\n" for number in range(20)), [str(number) for number in range(14, 20)]),
        ("\n".join(["Traceback", '  File "/x/z.py", line 1', *TRACE, "", "Ran 1 test", "FAILED", "make: ***"]),
         [*TRACE, "Ran 1 test", "FAILED", "make: ***"]),
        ("\x1b[31mred\x1b[0m\n10 %\r100 %\r\nafter", ["red", "100 %", "after"]),
        ("/w/tree/a.py: in /w/tree/b\n/w/.room-0123456789abcdef/c.py", ["a.py: in b", "c.py"]),
        ("$ make one\nfine\n$ make two\nnot fine", ["not fine"]),
        ("é" * 300, ["é" * ((LINE_BYTES - 3) // 2) + "..."]),
    ],
)  # fmt: skip
def test_which_lines_tell(printed: str, lines: list[str]) -> None:
    assert choose_lines(printed, "/w/tree") == lines


def test_foreign_words_do_not_reach_the_terminal() -> None:
    shown = section_lines("check", ["\x1b]0;title\x07"], "")
    assert all(line.isprintable() for line in shown) and len(shown) == 2
