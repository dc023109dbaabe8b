"""`merge` and `land` as a user sees them: what real sessions left, or do, lands on a branch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson
import pytest
from conftest import IGNORING, eventually, kill_sessions
from stages import make_repository_of
from test_cli_worktrees import Finished, Project, finished, project, stage

from sessionrun.doors.mcp import Tools
from sessionrun.landing.landed import is_of
from sessionrun.landing.records import Fate, LandingLog
from sessionrun.store.locks import hold_lock
from sessionrun.store.logs import fold_ledger, read_log

__all__ = ["finished", "project", "stage"]

GATE = "! grep -rqs BAD --include=*.txt ."
PLAN: list[dict[str, Any]] = [
    {"id": "one", "prompt": "echo one > one.txt", "title": "Write one"},
    {"id": "two", "prompt": "echo two > two.txt", "needs": ["one"], "setup": ["echo set > set.txt"]},
    {"id": "bad", "prompt": "echo BAD > bad.txt"},
    {"id": "clash", "prompt": "echo clash > one.txt"},
    {"id": "after", "prompt": "echo a > after.txt", "needs": ["bad"]},
    {"id": "idle", "prompt": "true"},
    {"id": "fails", "prompt": "echo half > half.txt; exit 3"},
]
ENDS = {
    "one": ("landed", None),
    "two": ("landed", None),
    "bad": ("bounced", "gate_red"),
    "clash": ("bounced", "conflict"),
    "after": ("waiting", "needs"),
    "idle": ("none", "no_change"),
    "fails": ("none", "not_succeeded"),
}


@pytest.fixture
def ended(finished: Finished) -> Project:
    return finished(PLAN)


def ends_of(record: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {task["id"]: (task["status"], task["reason_class"]) for task in record["tasks"]}


def test_the_work_of_a_session_lands(ended: Project) -> None:
    session = ended.sessions[0]
    before = ended.snapshot()
    forecast = ended.load("merge", session, "--dry-run", "--gate", GATE)
    assert ended.snapshot() == before, "a dry run changes nothing"
    assert ends_of(forecast) == ENDS | dict.fromkeys(("one", "two", "bad", "after"), ("ready", None))
    assert forecast["tasks"][3]["against"] == ["one"] and forecast["gate_runs"] == 0
    assert forecast["choose"] is None
    shown = ended("merge", session, "--dry-run", "--gate", GATE)
    assert "gates" not in shown.stdout and shown.stderr == ""

    tip = ended.git("rev-parse", "main")
    failed = ended("merge", session, "fails")
    assert (failed.returncode, failed.stdout) == (1, f"fails: not merged: it is failed\nmain: {tip[:12]}\n")
    assert ended("merge", session, "idle").returncode == 0, "a task that changed nothing has nothing to land"

    done = ended("merge", session, "--gate", GATE, "--json")
    record = json.loads(done.stdout)
    assert (done.returncode, ends_of(record)) == (1, ENDS)
    assert (record["target"], record["new"]) == ("main", ended.git("rev-parse", "main"))
    assert ended.git("status", "--porcelain") == ""
    assert ended.git("diff", "--name-only", record["old"], "main") == "one.txt\ntwo.txt", (
        "what setup left is not there"
    )
    message = ended.git("log", "--format=%B", "--grep=Merge task one", "main").split("\n")
    assert message[0] == "Merge task one: Write one"
    assert {"Sessionrun-Task: one", f"Sessionrun-Session: {session}", "Sessionrun-Agent: shell"} <= set(message)

    again = ended("merge", session, "one", "2")
    assert again.returncode == 0
    landed = {task["id"]: task["commit"][:12] for task in record["tasks"] if task["commit"]}
    assert again.stdout.split("\n")[:2] == [f"one: landed {landed['one']}", f"two: landed {landed['two']}"]
    assert ended.git("rev-parse", "main") == record["new"], "what has landed does not land again"


def test_a_gate_is_red_for_a_caller_who_ignores_the_ends_of_children(finished: Finished) -> None:
    """What it starts begins so, as below some daemons: no program's exit code could be had."""
    yard = finished(PLAN[:1])
    argv = [sys.executable, "-c", IGNORING, *yard.argv, "merge", yard.sessions[0], "--gate", "false"]
    done = subprocess.run(argv, cwd=yard.cwd, capture_output=True, text=True)
    assert done.returncode == 75 and "held: main itself is red: exit code 1 of: false" in done.stdout, done


def test_all_verbs_tell_the_same_counts_and_words(ended: Project) -> None:
    """Also after a `merge`, of which the session itself knows nothing."""
    session = ended.sessions[0]
    assert ended("merge", session, "--gate", GATE).returncode == 1
    view = ended.load("status", session)
    words = {task["id"]: task["word"] for task in view["tasks"]}
    landed = {name: status for name, (status, _) in ENDS.items()}
    assert words == {**landed, "after": "succeeded", "idle": "changed_nothing", "fails": "failed"}
    waited = json.loads(ended("wait", session, "--json").stdout)
    ends = json.loads(ended("wait", session, "--any", "--json").stdout)
    overview = ended.load("list", "--totals")
    tools = Tools(ended.results)
    heads = [
        *(view, waited, ends, ended.load("list")["sessions"][0], ended.load("explain", session)),
        *(ended.load("status", session, "--brief"), tools.status(session), tools.list()["sessions"][0]),
        {**overview["task_counts"], "state": "ended", "result": "failed"},
    ]
    for head in heads:
        assert (head["state"], head["result"]) == ("ended", "failed")
        assert {word: count for word, count in head["counts"].items() if count} == Counter(words.values())
        assert sum(head["counts"].values()) == head["total"] == len(words)
    told = [*waited["tasks"], *ends["tasks"], *ended.load("explain", session, *words)["tasks"]]
    told += [*ended.load("results", session)["tasks"], *tools.results(session)["tasks"]]
    assert all(task["word"] == words[task["id"]] for task in told) and len(told) == 5 * len(words)
    counts = "2 landed, 1 succeeded, 2 bounced, 1 failed, 1 changed nothing"
    for verb in ("wait", "status", "status --brief", "list --totals"):
        assert counts in " ".join(ended(*verb.split(), session).stdout.split()), verb
    assert counts in ended("report", session).stdout


@pytest.mark.slow
def test_readers_tell_what_became_of_the_work(ended: Project) -> None:
    session = ended.sessions[0]
    plain = ended("status", session, "--json").stdout
    mend = f"mv {ended.cwd}/two.txt {ended.cwd}/two.txt.mine"
    (ended.cwd / "two.txt").write_text("mine\n")
    done = ended("merge", session, "two", "one")
    assert (done.returncode, f"mend: {mend}" in done.stderr) == (75, True)
    assert f"\nmend: {mend}\nnext: sessionrun merge {session[:8]} two " in ended("status", session, "two").stdout
    shown = ended("status", session).stdout
    assert f"\n    mend: {mend}\n" in shown and f"sessionrun merge {session[:8]} one two " in shown

    (ended.cwd / "two.txt").unlink()
    assert ended("merge", session, "--gate", GATE).returncode == 1
    tasks = {task["id"]: task for task in ended.load("status", session)["tasks"]}
    tip = ended.git("rev-parse", "main")
    told = [tasks["two"]["landing"][key] for key in ("status", "target", "commit", "mend")]
    assert told == ["landed", "main", tip, None]
    assert tasks["bad"]["landing"]["reason_class"] == "gate_red" and GATE in tasks["bad"]["landing"]["reason"]
    assert tasks["clash"]["landing"]["files"] == ["one.txt"]
    assert {name for name, task in tasks.items() if task["landing"]} == {"one", "two", "bad", "clash"}
    before = json.loads(plain)["tasks"]
    for task in (*tasks.values(), *before):
        task["landing"] = task["word"] = None  # a reader makes them with what the merge did
    assert list(tasks.values()) == before, "status.json is as it was"

    assert ended.load("explain", session)["landings"] == {"bounced": 2, "landed": 2}
    shown = ended("explain", session, "clash", "two").stdout
    assert " bounced: it conflicts with main in one.txt" in shown
    assert f"\nlanded on main with {tip[:12]}\n" in shown


def test_the_room_of_gates_has_links_and_copied_files(project: Project) -> None:
    (project.cwd / "shared").mkdir()
    (project.cwd / "shared" / "lib.txt").write_text("lib\n")
    (project.cwd / "local.env").write_text("env\n")
    (project.cwd / ".worktreeinclude").write_text("*.env\n")
    with (project.cwd / ".git" / "info" / "exclude").open("a") as rules:
        rules.write("shared\n.worktreeinclude\n*.env\n")
    plan = {"prompts": [{"id": "a", "prompt": "echo a > a.txt", "links": ["shared"]}]}
    session = project.finished(plan, "--worktree", "--agent", "shell")
    gate = "test -L shared && grep -q lib shared/lib.txt && grep -q env local.env"
    for more in ("", " && true"):  # the room stays between landings
        done = project("merge", session, "--gate", gate + more)
        assert (done.returncode, done.stdout.startswith("a: landed")) == (0, True), done.stdout
        project.git("reset", "-q", "--hard", "main^1")
    assert (project.cwd / "shared" / "lib.txt").exists()
    assert project.git("status", "--porcelain") == ""


@pytest.mark.slow
def test_a_damaged_log_of_landings_is_a_warning(ended: Project) -> None:
    session = ended.sessions[0]
    assert ended("merge", session, "one").returncode == 0
    (log,) = (ended.directory(session) / "landing").glob("*/log")
    whole = log.read_bytes()
    records = (b'{"kind":"fate","task":"one","status":"bounced","files":7}', b'{"kind":"fate"}', b"[]", b"\xff")
    damaged = [whole[:20] + b"#" + whole[21:] + whole, *(b"%08x %b\n" % (crc32(one), one) for one in records)]
    for content in damaged:
        log.write_bytes(content)
        for words in (("status", session), ("status", session, "--json"), ("explain", session, "one")):
            done = ended(*words)
            assert (done.returncode, done.stderr.count("\n"), str(log) in done.stderr) == (0, 1, True), content
    assert ended("merge", session, "one").returncode != 0, "a damaged log is put aside by a person"
    log.unlink()
    log.mkdir()
    assert ended("status", session).returncode == 0
    shutil.rmtree(ended.directory(session) / "landing")
    (ended.directory(session) / "landing").write_text("")
    done = ended("status", session)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)


@pytest.mark.parametrize("is_gone", [False, True])
def test_of_a_damaged_journal_nothing_lands_and_that_is_said(finished: Finished, is_gone: bool) -> None:
    """Readers of a session that has ended need no journal, and show that its work could land."""
    yard = finished(PLAN[:1])
    path = yard.directory(yard.sessions[0]) / "journal"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"" if is_gone else b"".join([*lines[:3], b"#" + lines[3][1:], *lines[4:]]))
    assert yard("status", yard.sessions[0]).returncode == 0
    done = yard("merge", yard.sessions[0], "--json")
    assert done.returncode == 3
    assert f"{path} has lost records" in json.loads(done.stdout)["error"]["message"]


def test_the_work_of_an_attempt_after_a_landing_is_not_told_as_landed() -> None:
    task = {"id": "a", "status": "completed", "ended_at": "2026-01-01T00:00:05.123Z"}
    assert is_of(task, "2026-01-01T00:00:05.000001+00:00")
    assert not is_of(task, "2026-01-01T00:00:04.999999+00:00")
    assert not is_of({**task, "status": "running", "ended_at": None}, "2026-01-01T00:00:06+00:00")


def test_work_of_a_new_attempt_that_is_held_again_is_told_anew(tmp_path: Path) -> None:
    with closing(LandingLog(tmp_path)) as log:
        seen = []
        for _ in range(2):
            fate = Fate("a", "held", "dirty", "it is dirty", mend="git stash")
            log.note_fates([fate], {"a": "tip"}, "refs/heads/main")
            seen.append(log.history.ends["a"].at)
    assert seen[0] < seen[1]


@pytest.mark.slow
def test_the_message_of_a_merge_says_whose_work_it_is_unless_that_is_not_wanted(ended: Project) -> None:
    (ended.cwd / ".git" / "info" / "exclude").write_text("sessionrun.toml\n")
    for words, setting in (("--no-trailers",), "true"), ((), "false"):
        # another setting may be wrong: that stops only launches
        (ended.cwd / "sessionrun.toml").write_text(f"merge_trailers = {setting}\nof_a_newer_version = 1\n")
        assert ended("merge", ended.sessions[0], "one", *words).returncode == 0
        assert "Sessionrun-" not in ended.git("log", "-1", "--format=%B", "main")
        ended.git("reset", "-q", "--hard", "main^1")


ATTEMPTS: list[dict[str, Any]] = [
    {"id": "x1", "prompt": "seq 3 > x.txt", "labels": {"task": "x"}},
    {"id": "x2", "prompt": "seq 1 > x.txt", "labels": {"task": "x"}},
    {"id": "x3", "prompt": "exit 3", "labels": {"task": "x"}},
    {"id": "y1", "prompt": "echo BAD > y.txt", "labels": {"task": "y"}},
    {"id": "y2", "prompt": "seq 2 > y.txt", "labels": {"task": "y"}},
    {"id": "alone", "prompt": "echo alone > alone.txt"},
]


@pytest.mark.slow
def test_of_several_attempts_at_a_task_one_lands(finished: Finished) -> None:
    project = finished(ATTEMPTS)
    session, before = project.sessions[0], project.git("rev-parse", "main")
    hint = "2 tasks have several attempts that succeeded: --choose best lands one of each\n"
    assert project("merge", session, "--dry-run").stderr == hint
    assert project("merge", session, "--dry-run", "x1", "y1", "alone").stderr == ""
    done = project("merge", session, "--choose", "best", "--gate", GATE, "--json")
    record = json.loads(done.stdout)
    assert (done.returncode, done.stderr.count("several")) == (0, 0), "each task has an attempt that landed"
    told = {task["id"]: (task["status"], task["chosen"], task["not_chosen"]) for task in record["tasks"]}
    assert told == {
        "x1": ("none", False, "x2 landed"),
        "x2": ("landed", True, None),
        "x3": ("none", False, "it is failed"),
        "y1": ("bounced", True, None),
        "y2": ("landed", True, None),
        "alone": ("landed", True, None),
    }
    assert [task["group"] for task in record["tasks"]] == ["x", "x", "x", "y", "y", "alone"]
    assert (record["choose"], record["old"], record["new"]) == ("best", before, project.git("rev-parse", "main"))
    again = project("merge", session, "--choose", "best", "x1", "y1").stdout
    assert again.startswith("x1: not chosen: x2 landed\ny1: not chosen: y2 landed\n")
    assert project.git("rev-parse", "main") == record["new"]


@pytest.mark.slow
def test_what_landings_keep_goes_when_no_landing_uses_it(ended: Project) -> None:
    git_dir, worktrees = ended.cwd / ".git", ended.cwd.with_name(f"{ended.cwd.name}-worktrees")
    session, left = ended.sessions[0], git_dir / f"sessionrun-land-{'0' * 8}.json"

    def clean(*more: str) -> dict[str, Any]:
        found = ended.load("clean", "--worktrees", "--keep", "0", *more)["findings"]
        (record,) = (record for record in found if record["what"] == "room")
        return dict(record)

    assert ended("merge", session, "one", "--gate", "true").returncode == 0
    (room,) = worktrees.glob(".gate-*")
    foreign = room.with_name(".gate-00000000-00000000")
    foreign.mkdir()
    (lock,) = git_dir.glob("sessionrun-land-*.lock")
    with hold_lock(lock):
        kept = clean()
        assert (kept["name"], kept["removed"], kept["why"]) == (str(room), False, "a landing uses it")
    before, dry = ended.snapshot(), clean("--dry-run")
    assert (dry["removed"], dry["would_remove"], dry["id"]) == (False, True, None)
    assert ended.snapshot() == before, "a dry run changes nothing"
    gone = clean()
    assert (gone["removed"], gone["why"], gone["repository"]) == (True, "no landing uses it", str(ended.cwd))
    assert [*worktrees.glob(".gate-*")] == [foreign], "that of another repository stays"
    foreign.rmdir()
    assert ended("merge", session, "two", "--gate", "true").returncode == 0, "the next landing makes it anew"
    assert ended("queue", "add", "more").returncode == 0
    branches = ended.git("for-each-ref", "--format=%(refname:short)", "refs/heads").split()
    ended.git("branch", "-D", *(branch for branch in branches if branch != "main"))
    left.with_suffix(".lock").touch()
    left.touch()  # of a landing that was killed: the next one needs it
    assert ended("clean", *ended.sessions, "--worktrees").returncode == 0
    assert sorted(path.name for path in git_dir.glob("sessionrun*")) == [left.name, left.with_suffix(".lock").name]
    assert ended.git("for-each-ref", "refs/sessionrun") == "" and not worktrees.exists()


def test_it_lands_on_another_branch_and_says_what_is_wrong(ended: Project) -> None:
    session, bare = ended.sessions[0], ended.finished({"prompts": ["true"]}, "--agent", "shell")
    ended.git("branch", "-q", "other")
    assert ended("merge", session, "one", "--into", "other").returncode == 0
    assert ended.git("log", "-1", "--format=%s", "other") == "Merge task one: Write one"
    for words, problem in {
        (session, "--into", "nowhere"): "has no branch 'nowhere'",
        (session, "nobody"): "no task 'nobody'",
        (session, "--gate", " "): "Invalid value for '--gate': must not be empty",
        (session, "--batch", "0"): "is not a whole number of 1 or more",
        (): "Missing argument 'ID [TASK]...'",
        (session, "--choose", "best"): " has one attempt at each task: leave out --choose\n",
        (bare,): " has no worktrees of this repository: nothing can land\n",
    }.items():
        done = ended("merge", *words)
        assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_tasks_that_have_not_ended_wait(project: Project) -> None:
    plan = [
        {"id": "done", "prompt": "echo done > done.txt"},
        {"id": "runs", "prompt": "while ! [ -e ../../go ]; do sleep 0.1; done; echo runs > runs.txt"},
    ]
    session = project.start({"prompts": plan}, "--worktree")
    project.until(session, lambda view: view["tasks"][0]["outcome"])
    ends = {"done": ("landed", None), "runs": ("waiting", "not_ended")}
    assert ends_of(json.loads(project("merge", session, "--json").stdout)) == ends
    (project.cwd.parent / "go").touch()
    project.wait(session)
    assert eventually(lambda: project("merge", session).returncode == 0)
    assert {"done.txt", "runs.txt"} <= set(project.git("ls-tree", "--name-only", "main").split("\n"))


def test_work_does_not_wait_for_a_need_in_another_repository(project: Project) -> None:
    make_repository_of(project.cwd.parent / "other", {"f": "f\n"})
    plan = [
        {"id": "away", "prompt": "echo away > f", "repo": str(project.cwd.parent / "other")},
        {"id": "here", "prompt": "echo here > here.txt", "needs": ["away"], "base": "session"},
    ]
    session = project.finished({"prompts": plan}, "--worktree", "--agent", "shell")
    ends = {"away": ("none", "other_repository"), "here": ("landed", None)}
    assert ends_of(project.load("merge", session)) == ends


def test_of_work_that_no_commit_can_hold_nothing_says_that_there_is_none(project: Project) -> None:
    plan = {"prompts": [{"id": "a", "prompt": "git init -q inner && echo work > inner/f"}]}
    session = project.finished(plan, "--worktree", "--agent", "shell")
    (ended,) = project.load("merge", session)["tasks"]
    kept = project.status(session)["tasks"][0]["worktree"]
    assert (Path(kept) / "inner" / "f").read_text() == "work\n"
    assert (ended["status"], ended["reason_class"]) == ("none", "rescued") and kept in ended["reason"]
    shown = project("diff", session)
    assert shown.stdout == "" and "nothing committed; worktree kept: inner/" in shown.stderr


# --- LAND: the work of a session lands by itself while the session runs ---

THREE = [{"id": name, "prompt": f"echo {name} > {name}.txt"} for name in ("one", "two", "three")]


def landings_of(project: Project, session_id: str) -> dict[str, tuple[str, str | None] | None]:
    """By task, where its work stands, and the word for why."""
    landings = {task["id"]: task["landing"] for task in project.load("status", session_id)["tasks"]}
    return {name: one and (one["status"], one["reason_class"]) for name, one in landings.items()}


def count_merges(project: Project) -> dict[str, int]:
    """How often the work of each task was merged, by the task's id."""
    lines = project.git("log", "--format=%s", "--grep=^Merge task", "main").split("\n")
    return Counter(line.removeprefix("Merge task ").partition(":")[0] for line in lines)


def assert_clean(project: Project) -> None:
    """No lock is left, and the user's work tree is as the branch is."""
    assert project.git("status", "--porcelain") == ""
    locks = [path.name for path in (project.cwd / ".git").rglob("*.lock")]
    assert [name for name in locks if not name.startswith("sessionrun")] == []


def test_three_tasks_land_by_themselves(project: Project) -> None:
    (project.cwd / "Makefile").write_text("check:\n\t@! grep -qs BAD *.txt\n")
    project.git("add", "Makefile")
    project.git("commit", "-q", "-m", "Gate")
    session_id = project.finish({"land": {"into": "main", "gates": ["make check"]}, "prompts": THREE})
    status = project.load("status", session_id)
    assert status["outcome"] == "succeeded"
    assert landings_of(project, session_id) == dict.fromkeys(("one", "two", "three"), ("landed", None))
    assert [(project.cwd / f"{name}.txt").read_text() for name in ("one", "two")] == ["one\n", "two\n"]
    assert_clean(project)
    assert count_merges(project) == {"one": 1, "two": 1, "three": 1}
    commits = {task["landing"]["commit"] for task in status["tasks"]}
    assert commits <= set(project.git("rev-list", "--first-parent", "main").split("\n"))
    events = [orjson.loads(one) for one in read_log(project.directory(session_id) / "journal").payloads]
    assert [event["task"] for event in events if event["ev"] == "WorkLanded"] != []
    claimed = [event["key"] for event in events if event["ev"] == "JobClaimed" and "/land/" in event["key"]]
    assert [key.rpartition("/")[2] for key in claimed] == [str(n) for n in range(1, len(claimed) + 1)]


@pytest.mark.slow
def test_conflict_red_and_those_that_need_them(project: Project) -> None:
    session_id = project.finish({"land": {"gates": GATE}, "prompts": PLAN, "max_parallel": 1})
    assert project.load("status", session_id)["outcome"] == "failed"
    assert landings_of(project, session_id) == {**ENDS, "idle": None, "fails": None}
    short = session_id[:8]
    assert project("results", session_id).stdout.endswith(
        f"\nNext:\n  sessionrun merge {short} bad clash    # after the work is mended on its branch\n"
        f"  sessionrun retry {short} --failed\n"
        f"  sessionrun diff {short} fails    # what is not to land unseen\n"
    )
    assert " bounced: gate failed, " in project("explain", session_id, "bad").stdout
    assert project("wait", session_id).returncode == 1
    assert "\nLanding: 2 bounced, 2 landed, 1 waiting\n" in project("explain", session_id).stdout
    assert [path for path in project.directory(session_id).rglob("*") if path.stat().st_mode & 0o077] == []
    assert not (project.cwd / "bad.txt").exists() and not (project.cwd / "set.txt").exists()
    assert_clean(project)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["retry", "merge"])
def test_a_dirty_target_holds_until_it_is_mended(project: Project, verb: str) -> None:
    (project.cwd / "one.txt").write_text("mine\n")
    session_id = project.finish({"land": True, "prompts": THREE[:1]})
    assert landings_of(project, session_id) == {"one": ("held", "checkout_untracked")}
    shown = project.load("status", session_id)
    assert shown["outcome"] == "failed"
    assert shown["tasks"][0]["landing"]["mend"].endswith(f"; then sessionrun retry {session_id}")
    assert project("wait", session_id).returncode == 1
    (project.cwd / "one.txt").unlink()
    done = project(verb, session_id)
    assert (done.returncode, verb == "merge" or done.stdout == f"{session_id[:8]}: retrying 1 task\n") == (0, True)
    assert project("wait", session_id).returncode == 0, "a later merge is what all verbs tell"
    assert landings_of(project, session_id) == {"one": ("landed", None)}
    assert (project.load("status", session_id)["outcome"] == "succeeded") == (verb == "retry")
    assert count_merges(project) == {"one": 1}
    assert project.load("status", session_id)["tasks"][0]["attempt"] == 1
    assert_clean(project)


def begin(project: Project, tasks: int = 3) -> str:
    """A session whose gate waits for the file `go`."""
    gate = f"touch {project.cwd.parent}/began; while ! [ -e {project.cwd.parent}/go ]; do sleep 0.05; done"
    plan = {"land": {"gates": [gate]}, "prompts": THREE[:tasks], "max_parallel": 1}
    session_id = project.start(plan, "--worktree")
    eventually(lambda: (project.cwd.parent / "began").exists())
    return session_id


def find_land_pid(project: Project, session_id: str) -> int:
    """The process of the LAND that runs."""
    ledger = fold_ledger(read_log(project.directory(session_id) / "ledger").payloads)
    jobs = [job for key, job in ledger.jobs.items() if "/land/" in key and job.pid and job.wait_status is None]
    return jobs[-1].pid or 0


@pytest.mark.slow
@pytest.mark.parametrize("all_of_them", [False, True], ids=["the landing", "all"])
def test_what_is_killed_is_followed_by_another_landing(project: Project, all_of_them: bool) -> None:
    session_id = begin(project)
    if all_of_them:
        kill_sessions(project.results)
    else:
        os.kill(find_land_pid(project, session_id), signal.SIGKILL)
    (project.cwd.parent / "go").touch()
    assert not all_of_them or project("resume", session_id).returncode == 0
    project.wait(session_id)
    assert landings_of(project, session_id) == dict.fromkeys(("one", "two", "three"), ("landed", None))
    assert count_merges(project) == {"one": 1, "two": 1, "three": 1}
    assert_clean(project)


@pytest.mark.slow
@pytest.mark.parametrize("now", [("--now",), ()], ids=str)
def test_cancel_leaves_the_branch_whole(project: Project, now: tuple[str, ...]) -> None:
    session_id = begin(project, tasks=1)
    before = project.git("rev-parse", "main")
    assert project("cancel", session_id, *now).returncode == 0
    status = project.load("status", session_id)
    assert status["status"] == "cancelled"
    assert landings_of(project, session_id) == {"one": ("held", "cancelled")}
    assert project.git("rev-parse", "main") == before
    assert_clean(project)
    merged = project.load("merge", session_id)
    assert [task["status"] for task in merged["tasks"]] == ["landed"]


@pytest.mark.slow
def test_a_held_session_lands_when_it_is_released(project: Project) -> None:
    go = project.cwd.parent / "go"
    prompt = f"echo one > one.txt; while ! [ -e {go} ]; do sleep 0.05; done"
    session_id = project.start({"prompts": [{"id": "one", "prompt": prompt}]}, "--worktree", "--land")
    project.until(session_id, lambda view: view["tasks"][0]["phase"] == "running")
    assert project("hold", session_id).returncode == 0
    go.touch()
    project.until(session_id, lambda view: view["tasks"][0]["status"] == "completed")
    assert landings_of(project, session_id) == {"one": ("ready", None)}
    assert not (project.cwd / "one.txt").exists()
    told = "its work is number 1 of 1 to land on main, held: on request"
    assert told in project("explain", session_id, "one").stdout
    assert project("release", session_id).returncode == 0
    project.wait(session_id)
    assert landings_of(project, session_id) == {"one": ("landed", None)}


def test_a_preview_says_where_it_lands(project: Project) -> None:
    plan = orjson.dumps({"land": {"gates": ["make check", "true"]}, "prompts": ["true"]})
    shown = project("run", "--dry-run", "--worktree", "--agent", "shell", stdin=plan).stdout
    assert "\nLands: on main, if they pass `make check` and `true`\n" in shown
