"""Proof: the check on the work alone, without it, and crosswise; on real git, with real checks."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually, kill_sessions
from stages import begin_repository, commit_all, lay_out_repository
from test_cli_worktrees import Project

from sessionrun.runtime.jobs.prove.request import Ran
from sessionrun.runtime.jobs.prove.verdict import find_verdict
from sessionrun.workspaces.crossing import SECTIONS, SET_UP, TEST_FILES, compile_patterns, exchange_sections

# --- the verdict ---

NAMES = ("result", "old_tests", "kept_tests", "base", "new_tests")


@pytest.mark.parametrize(
    ("passing", "verdict"),
    [
        ((), "unproved"),
        (("old_tests", "base", "new_tests"), "unproved"),
        (("result", "old_tests"), "proved"),
        (("result", "old_tests", "new_tests"), "proved"),
        (("result", "old_tests", "base"), "proved"),
        (("result", "old_tests", "base", "new_tests"), "not_red"),
        (("result",), "weakened"),
        (("result", "base"), "weakened"),
        (("result", "kept_tests"), "proved"),
        (("result", "kept_tests", "new_tests"), "weakened"),
        (("result", "new_tests"), "weakened"),
    ],
)
def test_the_verdict(passing: tuple[str, ...], verdict: str) -> None:
    report = find_verdict(lambda state, time: Ran(state in passing), red=True, repeat=2)
    assert report.verdict == verdict
    assert (report.problem is None) == (verdict == "proved")


def test_without_red_there_may_be_nothing_to_fix() -> None:
    report = find_verdict(lambda state, time: Ran(True), red=False, repeat=2)
    assert (report.verdict, report.problem) == ("not_red", None)


@pytest.mark.parametrize("unsteady", ["base", "new_tests"])
def test_a_check_that_fails_and_passes_is_flaky(unsteady: str) -> None:
    def check(state: str, time: int) -> Ran:
        if state == unsteady:
            return Ran(time == 3)
        return Ran(state in ("result", "old_tests", "base"))

    assert find_verdict(check, red=True, repeat=3).verdict == "flaky"
    assert find_verdict(check, red=True, repeat=2).verdict == "proved", "twice it failed"


# --- which files are tests ---


def test_what_is_a_test_and_what_is_test_set_up() -> None:
    tests, set_up = compile_patterns(TEST_FILES), compile_patterns(SET_UP)
    for name in ("tests/a.py", "a/tests/b/c", "test_x.py", "a/b/test_x.py", "x_test.go", "web/a.test.tsx"):
        assert tests.match(name), name
    for name in ("latest/x", "src/foo.py", "mytest.py", "contest.py", "src/testing.py"):
        assert not tests.match(name), name
        assert not set_up.match(name), name
    for name in ("conftest.py", "a/conftest.py", "pytest.ini", "x/sitecustomize.py", "a.pth", "jest.config.mjs"):
        assert set_up.match(name), name


def test_sections_of_test_set_up() -> None:
    work = '[project]\nname = "new"\n[tool.pytest.ini_options]\naddopts = "-k nothing"\n[tool.ruff]\nx = 1\n'
    base = '[project]\nname = "old"\n[tool.pytest.ini_options]\naddopts = ""\n'
    mixed = exchange_sections(work, base, SECTIONS["pyproject.toml"])
    assert 'name = "new"' in mixed and "-k nothing" not in mixed and 'addopts = ""' in mixed and "ruff" in mixed
    assert (
        exchange_sections(work, "", SECTIONS["pyproject.toml"]) == '[project]\nname = "new"\n[tool.ruff]\nx = 1\n'
    )
    assert (
        exchange_sections("[a]\n", "[tool:pytest]\nx=1\n[b]\n", SECTIONS["setup.cfg"])
        == "[a]\n[tool:pytest]\nx=1\n"
    )


# --- sessions ---

TEST = 'grep -q good "$(dirname "$0")/../src/answer" && ! [ -e "$(dirname "$0")/skip" ]\n'
CHECK = "for t in tests/*.sh; do [ -e tests/skip ] || sh $t || exit 1; done"
FIX = "echo good > src/answer"


def make_repository(top: Path) -> None:
    begin_repository(top)
    (top / "src").mkdir()
    (top / "tests").mkdir()
    (top / "src" / "answer").write_text("bad\n")
    (top / "tests" / "answer.sh").write_text("grep -q good src/answer\n")
    (top / ".gitignore").write_text("plan-*\n*.log\n")
    commit_all(top)


@pytest.fixture
def project(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    project = Project(own_place / "repo", own_place / "results")
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(project.results))
    lay_out_repository(make_repository, project.cwd)
    yield project
    kill_sessions(project.results)


def verdicts(view: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {task["id"]: (task["outcome"], task["proof"]) for task in view["tasks"]}


def test_what_is_proved_and_what_is_not(project: Project) -> None:
    """Each task's own checkout passes the check; only a clean room tells them apart."""
    new_test = "echo 'grep -q good src/new' > tests/new.sh"
    prompts = {
        "fixes": FIX,
        "commits": f"{FIX}; git commit -qam fixed",
        "edits the test": "echo true > tests/answer.sh",
        "deletes the test": "rm tests/answer.sh; echo true > tests/other.sh",
        "adds set-up": "touch tests/skip",
        "by what git ignores": "echo good > src/x.log; echo 'grep -q good src/*.log' > tests/answer.sh",
        "fixes and adds a test": f"{FIX}; {new_test}; echo good > src/new",
    }
    plan = [
        {"id": name.replace(" ", "-"), "prompt": prompt, "check": CHECK, "prove": True}
        for name, prompt in prompts.items()
    ]
    session = project.finish(plan)
    assert verdicts(project.status(session)) == {
        "fixes": ("succeeded", "proved"),
        "commits": ("succeeded", "proved"),
        "edits-the-test": ("failed", "weakened"),
        "deletes-the-test": ("failed", "weakened"),
        "adds-set-up": ("failed", "weakened"),
        "by-what-git-ignores": ("failed", "unproved"),
        "fixes-and-adds-a-test": ("succeeded", "proved"),
    }
    tasks = {task["id"]: task for task in project.status(session)["tasks"]}
    assert tasks["edits-the-test"]["reason"].startswith("weakened: with the tests and test set-up of the base")
    assert tasks["edits-the-test"]["branch"], "its work is kept for all that"
    assert "     proof: proved\n" in project("status", session).stdout
    assert "\nproof: proved\n" in project("results", session, "fixes").stdout
    compared = project("status", session, "--by", "agent")
    assert "PROVED" in compared.stdout and "3/7" in compared.stdout
    (group,) = json.loads(project("status", session, "--by", "agent", "--json").stdout)["groups"]
    assert group["proof"] == {"proved": 3, "unproved": 1, "weakened": 3}
    assert not list(project.cwd.parent.glob("repo-worktrees/.room-*"))
    done = project("doctor", session)
    assert done.returncode == 0, done.stdout


def test_setup_runs_in_each_room_and_is_no_work(project: Project) -> None:
    """What the agent did to the files of setup is not there; what setup left in the worktree is not either."""
    setup = "echo good > built.log; echo set > from-setup"
    check = "grep -q good built.log && grep -q good src/answer && grep -q set from-setup"
    plan = [
        {"id": "a", "prompt": FIX, "setup": [setup], "check": check, "prove": True},
        {
            "id": "b",
            "prompt": f"{FIX}; echo tampered >> from-setup",
            "setup": [setup],
            "check": check,
            "prove": True,
        },
    ]
    view = project.status(project.finish(plan))
    assert verdicts(view)["a"] == ("succeeded", "proved")
    assert verdicts(view)["b"] == ("failed", "unproved")
    assert "does not apply without what setup left" in view["tasks"][1]["reason"]


def test_a_need_to_be_red(project: Project) -> None:
    plan = [
        {"id": "red", "prompt": "echo x > f", "check": "true", "prove": True},
        {"id": "any", "prompt": "echo x > f", "check": "true", "prove": {"red": False}},
    ]
    view = project.status(project.finish(plan))
    assert verdicts(view) == {"red": ("failed", "not_red"), "any": ("succeeded", "not_red")}
    assert view["tasks"][0]["reason_class"] == "not_red"


def test_a_failed_proof_goes_back_to_the_agent(project: Project) -> None:
    """Round 1 fixes it in a file that git ignores; round 2 reads why that does not count."""
    prompt = (
        'if [ "$SESSIONRUN_ROUND" = 1 ]; then echo good > src/x.log; else cp "$SESSIONRUN_FEEDBACK" seen; fi; '
    )
    prompt += f'[ "$SESSIONRUN_ROUND" = 1 ] || {FIX}'
    plan = [{"id": "a", "prompt": prompt, "check": "grep -qr good src", "rounds": 2, "prove": True}]
    session = project.finish(plan)
    task = project.status(session)["tasks"][0]
    assert (task["outcome"], task["round"], task["proof"]) == ("succeeded", 2, "proved")
    seen = project.git("show", f"{task['commit']}:seen")
    assert "on the base and the work: fails: exit code 1" in seen


def test_the_base_is_checked_once_for_all_tasks(project: Project) -> None:
    count = project.cwd.parent / "count"
    check = f"cat src/answer >> {count}; grep -q good src/answer"
    plan = [{"id": name, "prompt": f"{FIX}; echo {name} > f", "check": check, "prove": True} for name in "abc"]
    view = project.status(project.finish(plan))
    assert {task["proof"] for task in view["tasks"]} == {"proved"}
    assert count.read_text().count("bad") == 2, "once, and once more because it failed"


def test_what_a_proof_needs(sessionrun: Command, project: Project) -> None:
    for words, what in ((["--worktree"], "prove needs a check"), ([], "prove needs a worktree")):
        done = project("--agent", "shell", "--prove", *words, stdin='[{"id": "a", "prompt": "true"}]')
        assert (done.returncode, done.stdout) == (2, "")
        assert what in done.stderr
    assert not project.results.exists()


def test_work_that_no_commit_can_hold_is_not_proved(project: Project) -> None:
    plan = [{"id": "a", "prompt": f"{FIX}; git switch -q --detach", "check": CHECK, "prove": True}]
    task = project.status(project.finish(plan))["tasks"][0]
    assert (task["outcome"], task["reason_class"], task["proof"]) == ("failed", "not_parked", None)
    assert "HEAD is on no branch" in task["reason"]


def test_a_check_that_never_ends_in_the_room(project: Project) -> None:
    """Its time is that of the check, and nothing of it is left."""
    check = 'case "$PWD" in *.room-*) sleep 600;; esac'
    plan = [{"id": "a", "prompt": FIX, "check": {"commands": check, "timeout": 1}, "prove": True}]
    task = project.status(project.finish(plan))["tasks"][0]
    assert (task["outcome"], task["proof"]) == ("failed", "unproved")
    assert "not done after 1 s" in task["reason"]


@pytest.mark.parametrize("victim", ["supervisor", "prove"])
def test_a_process_that_dies_during_the_proof(project: Project, victim: str) -> None:
    begun, go = project.cwd.parent / "begun", project.cwd.parent / "go"
    wait = f'case "$PWD" in *.room-*) echo $PPID > {begun}; while ! [ -e {go} ]; do sleep 0.2; done;; esac'
    plan = [{"id": "a", "prompt": FIX, "check": f"{wait}; grep -q good src/answer", "prove": True}]
    session = project.start(plan, "--worktree")
    parent = int(eventually(lambda: begun.exists() and begun.read_text()))
    os.kill(project.supervisor(session) if victim == "supervisor" else parent, signal.SIGKILL)
    go.touch()
    assert verdicts(project.wait(session)) == {"a": ("succeeded", "proved")}
    assert not list(project.cwd.parent.glob("repo-worktrees/.room-*"))


def test_a_program_in_the_room_cannot_reach_the_repository(project: Project) -> None:
    """It has a git of its own: commits, branches and settings stay there."""
    inside = "git commit -q --allow-empty -m x && git branch evil && git config core.hooksPath /evil && git log -1"
    check = f'case "$PWD" in *.room-*) {inside};; esac; grep -q good src/answer'
    before = (project.cwd / ".git" / "config").read_bytes()
    view = project.status(project.finish([{"id": "a", "prompt": FIX, "check": check, "prove": True}]))
    assert verdicts(view) == {"a": ("succeeded", "proved")}
    assert "evil" not in project.branches()
    assert (project.cwd / ".git" / "config").read_bytes() == before


def test_pytest_and_a_conftest_that_lets_all_pass(project: Project) -> None:
    (project.cwd / "conftest.py").write_text("")
    (project.cwd / "test_answer.py").write_text(
        "def test_it():\n    assert open('src/answer').read() == 'good\\n'\n"
    )
    project.git("add", ".")
    project.git("commit", "-qm", "pytest")
    hook = (
        "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
        "    out = yield\n    out.get_result().outcome = 'passed'\n"
    )
    check = f"{sys.executable} -m pytest -q -p no:cacheprovider"
    (project.cwd.parent / "hook.py").write_text(hook)
    plan = [
        {"id": "bends", "prompt": "cp ../../hook.py conftest.py", "check": check, "prove": True},
        {"id": "fixes", "prompt": FIX, "check": check, "prove": True},
    ]
    view = project.status(project.finish(plan))
    assert verdicts(view) == {"bends": ("failed", "weakened"), "fixes": ("succeeded", "proved")}


def test_a_room_has_the_links_and_copied_files_of_the_worktree(project: Project) -> None:
    """But where the work has put something in their place, that stays."""
    (project.cwd / "shared").mkdir()
    (project.cwd / "shared" / "tool").write_text("good\n")
    (project.cwd / "local.log").write_text("good\n")
    (project.cwd / ".worktreeinclude").write_text("*.log\n")
    (project.cwd.parent / "outside").mkdir()
    with (project.cwd / ".git" / "info" / "exclude").open("a") as rules:
        rules.write("shared\n.worktreeinclude\n")
    brought = "grep -q good shared/tool && grep -q good local.log && test -d outside"
    links = ["shared", str(project.cwd.parent / "outside")]
    check = f"{brought} && grep -q good src/answer"
    own = "rm shared; mkdir shared; echo good > shared/tool; git add -f shared"
    plan = [
        {"id": "a", "prompt": FIX, "links": links, "check": check, "prove": True},
        {"id": "b", "prompt": f"{FIX}; {own}", "links": links, "check": check, "prove": True},
        {
            "id": "c",
            "prompt": f"{FIX}; echo good > other.log",
            "check": f"{check} && test -e other.log",
            "prove": True,
        },
    ]
    plan[2]["links"] = links
    session = project.finish(plan)
    view = project.status(session)
    assert verdicts(view) == {
        "a": ("succeeded", "proved"),
        "b": ("succeeded", "proved"),
        "c": ("failed", "unproved"),
    }
    assert project.git("show", f"{view['tasks'][1]['commit']}:shared/tool") == "good"
    assert (project.cwd / "shared" / "tool").read_text() == "good\n"


def test_a_proof_counts_tests_and_none_is_a_failure(project: Project) -> None:
    (project.cwd / "conftest.py").write_text("")
    (project.cwd / "test_answer.py").write_text(
        "def test_it():\n    assert open('src/answer').read() == 'good\\n'\ndef test_other():\n    pass\n"
    )
    project.git("add", ".")
    project.git("commit", "-qm", "pytest")
    pytest_ = f"{sys.executable} -m pytest -q -p no:cacheprovider"
    nothing = f'case "$PWD" in *.room-*) {pytest_} -k nothing || true;; esac'
    plan = [
        {"id": "counted", "prompt": FIX, "check": {"commands": pytest_, "prove": True}},
        {"id": "nothing", "prompt": FIX, "check": [nothing], "prove": True},
    ]
    session = project.finish(plan)
    view = project.status(session)
    assert verdicts(view) == {"counted": ("succeeded", "proved"), "nothing": ("failed", "unproved")}
    assert "no test was found of: " in view["tasks"][1]["reason"]
    (folder,) = (project.directory(session) / "jobs" / "counted").glob("a1-*-prove*")
    checks = json.loads((folder / "answer.json").read_text())["checks"]
    assert checks["result"]["counts"] == {"passed": 2, "failed": 0, "errors": 0, "skipped": 0, "total": 2}
    assert checks["base"]["counts"]["failed"] == 1
    assert "on the base and the work: passes (2 of 2 tests passed.)" in (folder / "stdout").read_text()
