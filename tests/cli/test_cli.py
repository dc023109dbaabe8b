"""The verbs as a caller uses them: what they print, which errors they give, how they end."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import Any, Final

import pytest
from conftest import Command
from shown import check_golden, mask
from terminal import Terminal

MIXED = {"prompts": [{"id": "good", "prompt": "echo fine"}, {"id": "bad", "prompt": "exit 7"}]}


def shell(*prompts: str, **fields: Any) -> str:
    """A plan as JSON, with short ids."""
    tasks = [{"id": f"t{num}", "prompt": prompt} for num, prompt in enumerate(prompts, 1)]
    return json.dumps({"prompts": tasks, **fields})


def test_run_prints_one_object(sessionrun: Command) -> None:
    plan = shell("true", "true", name="from the file")
    words = ["--agent", "shell", "--label", "team=a b", "--label", "n=1", "--max-parallel", "2", "--json"]
    done = sessionrun(*words, stdin=plan)
    started = json.loads(done.stdout)
    assert started["agent"] == "shell"
    assert started["dialect"] == "prompts"
    assert started["name"] == "from the file"
    assert started["labels"] == {"team": "a b", "n": "1"}
    assert started["total"] == started["max_parallel"] == 2
    assert started["results_dir"] == str(sessionrun.directory(started["session_id"]))
    assert done.stderr == "agent: shell (asked for)\n"


def test_status_says_what_became_of_each_task(sessionrun: Command) -> None:
    session_id = sessionrun.start(MIXED, "--name", "mine")
    view = sessionrun.wait(session_id)
    assert (view["status"], view["outcome"], view["name"]) == ("completed", "failed", "mine")
    assert (view["total"], view["completed"], view["successful"], view["failed"]) == (2, 2, 1, 1)
    good, bad = view["tasks"]
    assert (good["outcome"], good["exit_code"], good["signal"], good["reason"]) == ("succeeded", 0, None, None)
    assert (bad["outcome"], bad["exit_code"], bad["reason_class"]) == ("failed", 7, "exit_code")
    assert bad["reason"].startswith("exit_code")
    assert view["started_at"] <= good["started_at"] <= good["ended_at"] <= view["ended_at"]
    on_disk = json.loads((sessionrun.directory(session_id) / "status.json").read_bytes())
    assert list(on_disk)[-1] == "checksum"
    del on_disk["checksum"]
    assert {
        **on_disk,
        "results_dir": view["results_dir"],
        "stopped": [],
        "disk_full": None,
        "no_contact": [],
    } == view
    assert [task["id"] for task in sessionrun.load("status", session_id, "2", "good")["tasks"]] == ["bad", "good"]


def test_quiet_prints_the_id_alone(sessionrun: Command) -> None:
    done = sessionrun("-q", "--agent", "shell", stdin=shell("true"))
    assert done.stderr == ""
    assert len(done.stdout) == 37
    done = sessionrun("-q", "--sync", "--agent", "shell", stdin=shell("echo never shown"))
    assert (len(done.stdout), done.stderr) == (37, "")


def test_dry_run_creates_nothing(sessionrun: Command) -> None:
    plan = {"prompts": [{"id": "b", "prompt": "true", "needs": ["a"]}, {"id": "a", "prompt": "false"}]}
    record = json.loads(sessionrun("--dry-run", "--json", "--agent", "shell", stdin=json.dumps(plan)).stdout)
    assert [task["id"] for task in record["tasks"]] == ["a", "b"]
    assert record["tasks"][0]["argv"][1:] == ["PROMPT-FILE"]
    assert record["tasks"][0]["cwd"] == str(sessionrun.cwd)
    assert record["dialect_reason"]
    assert [task["prompts"] for task in record["tasks"]] == [["false"], ["true"]]
    for words, count in (((), 3), (("--verbose",), 9)):
        prompt = "".join(f"line {number}\n" for number in range(9))
        shown = sessionrun("--dry-run", "--agent", "shell", *words, stdin=json.dumps([prompt])).stdout
        assert shown.count("      line ") == count
        assert ("... 6 lines more (--verbose shows all)" in shown) == (not words)
    assert list(sessionrun.cwd.iterdir()) == []


def test_verbose_says_more_on_standard_error(sessionrun: Command) -> None:
    done = sessionrun("--verbose", "--agent", "shell", stdin=shell("true"))
    assert f"/sh PROMPT-FILE (in {sessionrun.cwd})" in done.stderr
    assert done.stdout.startswith("\U0001f680")


@pytest.mark.parametrize(("suffix", "reason_class"), [("raw", "bad_output"), ("txt", "infra")])
def test_a_fifo_in_an_outputs_place_stops_nobody(sessionrun: Command, suffix: str, reason_class: str) -> None:
    (sessionrun.cwd / "sessionrun.toml").write_text(
        "[agents.odd]\noutput = 'claude'\n"
        "argv = ['sh', '-c', 'echo text; f=results/session-$SESSIONRUN_SESSION/task-a.$0; rm -f $f; mkfifo $f', "
        f"'{suffix}']\n"
    )
    session_id = sessionrun.start([{"id": "a", "agent": "odd", "prompt": "x"}])
    assert sessionrun.wait(session_id)["tasks"][0]["reason_class"] == reason_class


def test_words_say_why_an_agent_failed_and_not_why_a_script_did(sessionrun: Command) -> None:
    script = "echo HTTP 429: too many requests >&2; exit 1"
    (sessionrun.cwd / "sessionrun.toml").write_text(f"[agents.plain]\nargv = ['sh', '-c', '{script}']\n")
    plan = [{"id": "plain", "agent": "plain", "prompt": "x"}, {"id": "script", "prompt": script}]
    session_id = sessionrun.start({"prompts": plan})
    view = sessionrun.until(session_id, lambda view: view["state"] == "held" and view["completed"] == 1)
    plain, other = (task["reason"].split(": ") for task in view["tasks"])
    assert (plain[:2], other[0]) == (["held", "rate_limited"], "exit_code")


def test_alone_on_a_terminal_it_says_what_to_do(sessionrun: Command) -> None:
    for words in ([], ["--json"]):
        with Terminal([*sessionrun.argv, *words], sessionrun.cwd) as terminal:
            assert terminal.finish() == 2
        assert b"give a FILE" in terminal.output
        assert b"--help" in terminal.output


def test_a_bug_gives_a_traceback_and_3(sessionrun: Command) -> None:
    """A broken installation is as good a bug as any."""
    (sessionrun.cwd / "yaml.py").write_text("raise RuntimeError('broken')")
    done = sessionrun("--dry-run", "--json", stdin="- a: b", env={"PYTHONPATH": str(sessionrun.cwd)})
    assert done.returncode == 3
    assert "bug" in json.loads(done.stdout)["error"]["message"]
    assert "Traceback" in done.stderr


def test_an_odd_working_directory(sessionrun: Command) -> None:
    odd = os.path.join(os.fsencode(sessionrun.cwd), b"\xff")
    os.mkdir(odd)
    done = subprocess.run([*sessionrun.argv, "-"], cwd=odd, input=b'["true"]', capture_output=True)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


MISTAKES: Final = (
    *("status last bb", "results last TASKx", "diff last", "merge last", "set last --max-parallel 3"),
    *("'Write tests'", "--agent shell --results-dir tasks.json/x tasks.json", "-- --json"),
    *("--agent shell --results-dir tasks.json tasks.json", "report last -o gone/x.html"),
)


def test_mistakes_about_a_session_or_a_place(sessionrun: Command) -> None:
    (sessionrun.cwd / "tasks.json").write_text('["true"]')
    session_id = sessionrun.finished(["true", {"id": "b", "prompt": "true"}])
    folder, other = sessionrun.directory(session_id), f"{session_id[:-4]}0000"
    unbegun = f"{'0' * 8}-0000-4000-8000-{'0' * 12}"  # its launcher was killed
    task = sessionrun.status(session_id)["tasks"][0]["id"]
    text = "".join(tell(sessionrun, *shlex.split(words.replace("TASK", task))) for words in MISTAKES)
    shutil.copytree(folder, folder.with_name(f"session-{other}"), ignore=shutil.ignore_patterns("wake"))
    folder.with_name(f"session-{unbegun}").mkdir()
    text += "".join(tell(sessionrun, "status", word) for word in (session_id[:8], unbegun, unbegun[:8]))
    shutil.rmtree(folder)
    text += tell(sessionrun, "status", session_id)
    for known, name in ((other, "OTHER"), (task, "TASK"), (str(sessionrun.cwd), "/place")):
        text = text.replace(known, name)
    check_golden("mistakes", re.sub(r"session-[0-9a-f-]{36}", "session-NEW", mask(text, session_id)))


def tell(sessionrun: Command, *words: str) -> str:
    """A command, its exit code, and its error."""
    done = sessionrun(*words)
    assert done.stdout == ""
    return f"{' '.join(words)}\n  {done.returncode}: {done.stderr.splitlines()[-1]}\n"


def test_a_verb_needs_a_directory_that_is_there(sessionrun: Command) -> None:
    program = f"mkdir gone && cd gone && rmdir ../gone && exec {' '.join(sessionrun.argv)} list"
    done = subprocess.run(["sh", "-c", program], cwd=sessionrun.cwd, capture_output=True, text=True)
    says = "sessionrun: error: the current directory was deleted; cd to another one\n"
    assert (done.returncode, done.stderr) == (2, says)


def test_list_and_overview(sessionrun: Command) -> None:
    done = sessionrun.finished(MIXED, "--name", "first")
    running = sessionrun.start({"prompts": ["sleep 600", "true"]})
    sessionrun.until(running, lambda view: view["completed"] == 1)
    cancelled = sessionrun.start({"prompts": ["sleep 600"]})
    sessionrun("cancel", cancelled)
    for options, wanted in (
        ("--state completed,running,cancelled", [cancelled, running, done]),
        ("--limit 2", [cancelled, running]),
        ("--state running", [running]),
        ("--state cancelled", [cancelled]),
        ("--state interrupted,completed", [done]),
    ):
        sessions = sessionrun.load("list", *options.split())["sessions"]
        assert [view["session_id"] for view in sessions] == wanted, options
    counts = sessionrun.load("list", "--totals")
    states = counts["session_counts"].pop("states")
    words = counts["task_counts"].pop("counts")
    all_counts = (counts["session_counts"], counts["task_counts"], states, words)
    shown = [{key: number for key, number in each.items() if number} for each in all_counts]
    assert shown == [
        {"total": 3, "running": 1, "completed": 1, "cancelled": 1},
        {"total": 5, "completed": 4, "running": 1, "successful": 2, "failed": 1},
        {"running": 1, "ended": 2},
        {"succeeded": 2, "failed": 1, "running": 1, "cancelled": 1},
    ]


def test_list_passes_over_what_it_cannot_read(sessionrun: Command) -> None:
    session_id = sessionrun.finished(MIXED)
    broken = sessionrun.results / "session-broken"
    broken.mkdir()
    (broken / "spec.json").write_text("{")
    (sessionrun.results / "session-empty").mkdir()
    done = sessionrun("list", "--json")
    assert [view["session_id"] for view in json.loads(done.stdout)["sessions"]] == [session_id]
    assert done.stderr.startswith("sessionrun: warning: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="macOS takes no limit of the address space")
def test_too_little_memory_is_one_line(sessionrun: Command) -> None:
    """A file that does not fit: no traceback."""
    (sessionrun.cwd / "large.json").write_bytes(b'["' + b"x" * (60 << 20) + b'"]')
    code = (
        "import resource, sys; from sessionrun.cli import main, run; from sessionrun.client import planning;"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + (80 << 20);"
        "resource.setrlimit(resource.RLIMIT_AS, (used, used)); sys.exit(main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", code, "--dry-run", "--agent", "shell", "large.json"]
    done = subprocess.run(argv, cwd=sessionrun.cwd, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("sessionrun: error: out of memory")
    assert done.stderr.count("\n") == 1
