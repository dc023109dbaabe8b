"""Worktrees as a user sees them: `run --worktree`, `diff`, `clean --worktrees`, and what to type to merge."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from stages import Stage, commit_all, git, lay_out_repository, make_program, make_repository_of, refresh, stage
from terminal import Terminal
from test_workspaces import Project as Repo
from test_worktrees import by_id

from sessionrun.store.session import SessionDir

__all__ = ["stage"]

THREE = {
    "prompts": [
        {"id": "hello", "prompt": "echo hello > hello.txt"},
        {"id": "readme", "prompt": "echo more >> README; git commit -q -a -m 'Say more'"},
        {"id": "idle", "prompt": "true"},
    ]
}
"""The branch of `idle` goes with its worktree: it holds nothing."""


BROKEN = {
    "prompts": [
        {"id": "half", "prompt": "echo half > half.txt; exit 3"},
        {"id": "nest", "prompt": "git init -q inner; echo in > inner/f; echo plain > plain.txt"},
        {"id": "none", "prompt": "true", "workspace": "none"},
    ]
}


class Project(Command):
    """The command in a repository; the session's results and its worktrees lie outside."""

    def git(self, *argv: str, cwd: Path | None = None) -> str:
        return git(cwd or self.cwd, *argv)

    def branches(self) -> list[str]:
        return self.git("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads").split("\n")

    def subjects(self, commit: str) -> list[str]:
        return self.git("log", "--format=%s", "--first-parent", commit).split("\n")

    def worktree(self, branch: str) -> Path:
        return self.cwd.parent / "repo-worktrees" / branch

    def snapshot(self) -> dict[str, bytes]:
        """Every file of the repository and of the directory around it, but for plans and results."""
        root = self.cwd.parent
        return {
            str(path.relative_to(root)): path.read_bytes() if path.is_file() else b""
            for path in sorted(root.rglob("*"))
            if not path.name.startswith("plan-") and self.results not in (path, *path.parents)
        }

    def finish(self, plan: object, *words: str) -> str:
        """Run a plan in worktrees to its end."""
        file = self.cwd / f"plan-{len(self.sessions)}.json"
        file.write_text(json.dumps(plan))
        done = self.to_end("-q", "--agent", "shell", "--worktree", *words, str(file))
        assert done.returncode == 0, done.stderr
        self.sessions.append(done.stdout.strip())
        return self.sessions[-1]


def make_repository(top: Path) -> None:
    make_repository_of(top, {"README": "first\n", ".gitignore": "plan-*\n*.log\n"})


def project_in(
    place: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object] = make_repository
) -> Project:
    """The project below a working directory; its repository may be there already."""
    project = Project(place / "repo", place / "results")
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(project.results))
    if not project.cwd.exists():
        lay_out_repository(make, project.cwd)
    return project


@pytest.fixture
def project(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return project_in(own_place, monkeypatch)


Finished = Callable[..., Project]
"""Called with a plan and words: a project in which these ran in worktrees to the end, as `sessions[0]`."""


@pytest.fixture
def finished(own_place: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Finished:
    """Each plan runs once per worker; what it left is laid out for every test that asks for it."""

    def finish(plan: object, *words: str, make: Callable[[Path], object] = make_repository) -> Project:
        def run(place: Path) -> None:
            project = project_in(place / "work", monkeypatch, make)
            session = SessionDir(project.directory(project.finish(plan, *words)))
            eventually(lambda: not session.is_alive())

        place = stage.enter(("finished", make.__module__, json.dumps(plan), words), monkeypatch, run)
        project = project_in(place / "work", monkeypatch)
        refresh(project.cwd)
        project.sessions = [path.name.removeprefix("session-") for path in project.results.glob("session-*")]
        return project

    return finish


# --- run ---


def test_a_dry_run_names_branches_says_with_whose_work_a_task_begins_and_creates_nothing(project: Project) -> None:
    project.git("branch", "main-task-b")
    before = project.snapshot()
    plan = {
        "prompts": [
            {"id": "a", "prompt": "true"},
            {"id": "b", "prompt": "true"},
            {"id": "in_place", "prompt": "true", "needs": ["a"], "workspace": "none"},
            {"id": "one", "prompt": "true", "needs": ["a"]},
            {"id": "two", "prompt": "true", "needs": ["in_place", "b"]},
            {"id": "own", "prompt": "true", "needs": ["a", "b"], "base": "session"},
        ]
    }
    words = ("--dry-run", "--worktree", "--agent", "shell")
    done = project(*words, stdin=json.dumps(plan))
    head, first, second, *_ = done.stdout.split("\n\n")
    assert head.split("\n")[3:] == [
        f"Worktrees: in {project.cwd.parent}/repo-worktrees",
        f"Base: main at {project.git('rev-parse', 'main')[:12]}",
    ]
    assert f"\n    cwd: {project.worktree('main-task-a')}\n    branch: main-task-a" in first
    assert f"\n    cwd: {project.worktree('main-task-b-2')}\n    branch: main-task-b-2" in second
    lines = [line.strip() for line in done.stdout.split("\n") if line.startswith(("    needs: ", "    begins: "))]
    assert lines == [
        "needs: a",
        "needs: a",
        "begins: with the work of a",
        "needs: a, b",
        "begins: at the session's base, without that of its needs",
        "needs: in_place, b",
        "begins: with the work of a and b",
    ]
    record = json.loads(project(*words, "--json", stdin=json.dumps(plan)).stdout)
    foreseen = {task["id"]: task["begins_at"] for task in record["tasks"]}
    assert foreseen == {"a": [], "b": [], "in_place": None, "one": ["a"], "two": ["a", "b"], "own": []}
    assert done.stderr == ""
    assert project.snapshot() == before
    assert not project.results.exists()


@pytest.mark.slow
def test_a_directory_that_the_base_commit_has_not_is_refused_unless_it_comes_along(project: Project) -> None:
    new = project.cwd / "new" / "deep*[x]"
    new.mkdir(parents=True)
    (project.cwd / "linked").mkdir()
    words = ("--worktree", "--agent", "shell")
    base = project.git("rev-parse", "--short=12", "main")
    why = (
        f"new/deep*[x] is not a directory in main ({base}), where its worktree begins; "
        "commit it, start in another directory, or give another --base\n"
    )
    top, project.cwd = project.cwd, new
    done = project(*words, stdin='["true"]')
    assert (done.returncode, done.stdout, project.results.exists()) == (2, "", False)
    assert done.stderr.startswith("sessionrun: error: task 1 (ID: ") and done.stderr.endswith(why)
    project.cwd = top
    (project.cwd / "data").mkdir()
    (project.cwd / "data" / "x.log").write_text("x")
    (project.cwd / ".worktreeinclude").write_text("*.log\n")
    comes_along = [
        {"id": "linked", "prompt": "pwd", "cwd": "linked", "links": "linked"},
        {"id": "included", "prompt": "cat x.log", "cwd": "data"},
        {"id": "makes", "prompt": "mkdir new; touch new/made"},
        {"id": "needs", "prompt": "ls made", "cwd": "new", "needs": "makes"},
    ]
    session = project.finish({"prompts": comes_along})
    assert project.status(session)["outcome"] == "succeeded"
    assert (project.directory(session) / "task-included.txt").read_text() == "x"
    (new / "file").touch()
    commit_all(project.cwd, "new")
    done = project(*words, "--base", "HEAD~1", stdin=json.dumps([{"prompt": "true", "cwd": "new/deep*[x]"}]))
    assert (done.returncode, f"in {base} ({base})" in done.stderr) == (2, True)


# --- diff ---


def test_diff_of_a_session_of_one_task_in_numbers_and_as_json(finished: Finished) -> None:
    """The patch of one task is the file; numbers are whole also below the top, where git counts less."""
    project = finished(THREE)
    session, top = project.sessions[0], project.cwd
    patch = project.directory(session) / "jobs" / "hello" / "a1-diff.patch"
    assert project("diff", session, "hello").stdout == project("diff", "last", "1").stdout == patch.read_text()
    assert project("diff", session, "idle").stdout == ""
    assert project("diff", session, "nosuch").returncode == 2
    (top / "sub").mkdir()
    for project.cwd in (top / "sub", top):
        assert project("diff", "--stat").stdout == (
            "# Task 1 (ID: hello): main-task-hello\n"
            " hello.txt |    1 +\n 1 file changed, 1 insertion(+)\n"
            "# Task 2 (ID: readme): main-task-readme\n"
            " README |    1 +\n 1 file changed, 1 insertion(+)\n"
            "# Task 3 (ID: idle): nothing changed\n"
        )
    in_place = project.start({"prompts": [{"id": "none", "prompt": "true"}]})
    done = project("diff", in_place)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"sessionrun: error: session {in_place} has no worktrees; start one with --worktree\n"
    hello, readme, idle = project.load("diff", session)["tasks"]
    assert hello["diff_stat"] == {"files": 1, "insertions": 1, "deletions": 0}
    assert hello["branch"] == "main-task-hello" and hello["worktree"] is hello["rescue_branch"] is None
    assert project.git("rev-parse", "main-task-readme") == readme["commit"]
    assert idle["commit"] == idle["base_commit"] == project.git("rev-parse", "main")
    assert all(Path(record["patch"]).is_absolute() and Path(record["patch"]).exists() for record in (hello, idle))
    done = project("diff", session)
    assert re.findall(r"^# .*$", done.stdout, re.MULTILINE) == [
        "# Task 1 (ID: hello): main-task-hello",
        "# Task 2 (ID: readme): main-task-readme",
        "# Task 3 (ID: idle): nothing changed",
    ]
    assert "\n+hello\n" in done.stdout and "\n+more\n" in done.stdout
    project.git("switch", "-q", "-c", "both")
    subprocess.run(["git", "apply", "--index"], input=done.stdout, cwd=project.cwd, text=True, check=True)
    assert (project.cwd / "hello.txt").read_text() == "hello\n"
    assert (project.cwd / "README").read_text() == "first\nmore\n"


@pytest.mark.slow
def test_diff_of_a_running_task_is_its_worktree_as_it_is(project: Project) -> None:
    (project.cwd / "seen.log").write_text("ignored")
    (project.cwd / "old").write_text("1\n2\n")
    project.git("add", "old")
    project.git("commit", "-q", "-m", "old")
    prompt = (
        "echo more >> README; git commit -q -a -m x; echo again >> README;"
        "echo new > 'new file'; echo no > no.log; mv old renamed; touch ready; sleep 600"
    )
    plan = {"prompts": [{"id": "a", "prompt": prompt, "links": "seen.log"}, {"id": "b", "prompt": "sleep 600"}]}
    session = project.start(plan, "--worktree", "--max-parallel", "1")
    project.until(session, lambda view: view["tasks"][0]["branch"])
    project.until(session, lambda view: (project.worktree("main-task-a") / "ready").exists())
    before = project.git("status", "--porcelain", cwd=project.worktree("main-task-a"))
    text = project("diff", session).stdout
    assert re.findall(r"^diff --git a/(.*) b/", text, re.MULTILINE) == ["README", "new file", "ready", "old"]
    assert "+more\n+again\n" in text and "+new\n" in text and "no.log" not in text and "seen.log" not in text
    assert "old => renamed | 0" in project("diff", session, "a", "--stat").stdout
    (record,) = project.load("diff", session)["tasks"]
    assert record["worktree"] == str(project.worktree("main-task-a")) and record["patch"] is None
    assert project("diff", session, "b").returncode == 2
    assert project.git("status", "--porcelain", cwd=project.worktree("main-task-a")) == before
    project("cancel", session)
    assert project("diff", session, "a").stdout == text


@pytest.mark.slow
def test_cancel_stops_the_tree_before_it_parks_and_parks_before_it_removes(project: Project) -> None:
    """A child that ignores TERM writes to the end: its last line is in the commit, and then it is gone."""
    count = "trap '' TERM; n=0; while :; do n=$((n + 1)); echo $n >> $SESSIONRUN_WORKTREE/count; sleep 0.01; done"
    (project.cwd / "sessionrun.toml").write_text(
        '[agents.short]\nargv = ["sh", "{prompt_file}"]\nstdin = "none"\nstop_grace_s = 0.3\n'
    )
    prompt = f"setsid sh -c '{count.replace(chr(39), chr(34))}' & wait"
    plan = {"prompts": [{"id": name, "prompt": prompt} for name in ("kindly", "now")]}
    session = project.start(plan, "--worktree", "--agent", "short")
    trees = {name: project.worktree(f"main-task-{name}") for name in ("kindly", "now")}
    project.until(session, lambda view: all((tree / "count").exists() for tree in trees.values()))
    for name, words in (("kindly", ()), ("now", ("--now",))):
        (task,) = project.load("cancel", session, name, *words)["tasks"]
        assert (task["outcome"], task["worktree"], task["worktree_kept"]) == ("cancelled", None, None)
        assert not trees[name].exists()
        lines = project.git("show", f"main-task-{name}:count").split("\n")
        assert lines == [str(number + 1) for number in range(len(lines))]


def test_a_session_that_a_hook_starts_leaves_the_repository_of_the_hook_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git tells hooks by variables which repository and index they are in; the session has others."""
    hooked = project.cwd.parent / "hooked"
    project.git("init", "-q", str(hooked))
    main = project.git("rev-parse", "main")
    with monkeypatch.context() as patch:
        patch.setenv("GIT_DIR", str(hooked / ".git"))
        patch.setenv("GIT_INDEX_FILE", str(hooked / ".git" / "index"))
        prompt = "echo x > f; git add f; git -c user.name=Bob -c user.email=b@example.org commit -q -m mine"
        project.wait(project.start({"prompts": [{"id": "a", "prompt": prompt}]}, "--worktree"))
    assert project.git("rev-parse", "main", "main-task-a~1").split() == [main, main]
    assert project.git("log", "-1", "--format=%s", "main-task-a") == "mine"
    assert project.git("for-each-ref", cwd=hooked) == "" and not (hooked / ".git" / "index").exists()


@pytest.mark.slow
def test_what_an_agent_writes_for_itself_is_no_work(project: Project) -> None:
    """Two branches with aider's history and cache would conflict with each other; its settings are work."""
    (project.cwd / "sessionrun.toml").write_text(
        '[agents.mine]\nargv = ["sh", "{prompt_file}"]\nstdin = "none"\noutput = "aider"\n'
    )
    script = "for f in chat.history.md tags.cache.v4/db conf.yml; do mkdir -p $(dirname .aider.$f); "
    script += "echo x > .aider.$f; done; exit 3"
    session = project.finish({"prompts": [{"id": "a", "prompt": script}]}, "--agent", "mine")
    assert project.to_end("retry", session, "a", "--sync").returncode == 1
    for branch in ("main-task-a", "main-task-a-2"):
        names = project.git("ls-tree", "-r", "--name-only", branch)
        assert names.split() == [".aider.conf.yml", ".gitignore", "README"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--stat",)])
def test_diff_goes_on_after_a_task_whose_worktree_is_none_any_more(
    finished: Finished, words: tuple[str, ...]
) -> None:
    tasks = [{"id": "cut", "prompt": "rm .git; git init -q; echo x > x"}, THREE["prompts"][0]]
    project = finished({"prompts": tasks})
    session = project.sessions[0]
    done = project("diff", *words, session)
    assert done.returncode == 0 and "task cut: " in done.stderr and "is not a worktree of" in done.stderr
    assert "# Task 2 (ID: hello)" in done.stdout and "hello.txt" in done.stdout
    alone = project("diff", *words, session, "cut")
    assert alone.returncode == 3 and "is not a worktree of" in alone.stderr and alone.stdout == ""


@pytest.mark.slow
def test_diff_on_a_terminal_goes_through_the_pager_and_is_harmless(project: Project) -> None:
    project.finish({"prompts": [{"id": "a", "prompt": "printf 'red \\033[31m \\342\\202\\254\\n' > a"}]})
    marked = make_program(project.cwd / "plan-pager", "echo PAGED\nexec cat")
    for pager in ("cat", str(marked)):
        with Terminal([*project.argv, "diff"], project.cwd, {"PAGER": pager}) as terminal:
            assert terminal.finish() == 0
        assert b"+red \\x1b[31m \xe2\x82\xac" in terminal.output
        assert b"\x1b[31m" not in terminal.output
        assert (b"PAGED" in terminal.output) == (pager != "cat")


# --- what comes next ---


def next_block(results: str) -> str:
    return results[results.index("\nNext:\n") + 7 :]


@pytest.mark.slow
def test_results_and_status_say_where_the_work_is_and_what_comes_next(finished: Finished) -> None:
    project = finished({"prompts": [*THREE["prompts"], *BROKEN["prompts"]]})
    session, said = project.sessions[0], project("results", project.sessions[0]).stdout
    ids = [record["id"] for record in project.load("diff", session)["tasks"]]
    assert ids == ["hello", "readme", "idle", "half", "nest"]
    done = project("diff", session, "none")
    assert (done.returncode, done.stderr) == (2, "sessionrun: error: task 'none' has no worktree\n")
    short = session[:8]
    assert "half failed: exit code 3\n  branch main-task-half: 1 file +1 -0\n" in said
    assert (
        "\n  worktree kept: inner/ is a repository of its own\n"
        f"  worktree: {project.worktree('main-task-nest')}\n  its work is on: main-task-nest-rescue\n" in said
    )
    assert next_block(said) == (
        f"  sessionrun retry {short} --failed\n"
        f"  sessionrun diff {short} half nest    # what is not to land unseen\n"
        f"  sessionrun merge {short}    # land what succeeded on main\n"
    )
    one = next_block(project("results", session, "readme").stdout)
    assert one == f"  sessionrun merge {short} readme    # land what succeeded on main\n"
    assert " merge " not in next_block(project("results", session, "nest").stdout)
    assert "Next:" not in project("results", session, "idle").stdout
    kept = [
        "worktree kept: inner/ is a repository of its own",
        f"worktree: {project.worktree('main-task-nest')}",
        "its work is on: main-task-nest-rescue",
    ]
    shown = project("status", session).stdout
    rows = shown[: shown.index("\nNext:\n")].splitlines()
    assert [row.strip() for row in rows if row.startswith("    ")] == ["exit code 3", *kept]
    assert rows[rows.index(f"    {kept[0]}") - 1].split()[:3] == ["\u2713", "succeeded", "nest"]
    assert project("status", session, "nest").stdout.splitlines()[-3:] == kept


def type_in(project: Project, block: str) -> None:
    """Type a block of commands into a shell; `sessionrun` is the one under test."""
    program = f'sessionrun() {{ {" ".join(project.argv)} "$@"; }}\n'
    subprocess.run(["sh", "-e", "-c", program + block], check=True, cwd=project.cwd)


def test_what_comes_next_does_what_it_says(project: Project) -> None:
    """The name of a branch may hold what a shell would act upon."""
    project.git("switch", "-q", "-c", odd := "x;touch${IFS}hacked;$(touch${IFS}hacked)'")
    project.finish(THREE)
    type_in(project, next_block(project("results").stdout))
    assert (project.cwd / "hello.txt").read_text() == "hello\n"
    assert (project.cwd / "README").read_text() == "first\nmore\n"
    block = next_block(project("results").stdout)
    assert " merge " not in block, "it has landed"
    type_in(project, block)
    assert project.branches() == ["main", odd]
    assert "Next:" not in project("results").stdout
    assert not (project.cwd / "hacked").exists()


@pytest.mark.slow
def test_worktrees_that_were_kept_on_request_are_cleared_up_behind_the_merge(finished: Finished) -> None:
    project = finished(THREE, "--keep-worktree", "always")
    said = project("results", project.sessions[0]).stdout
    assert "branch main-task-hello: 1 file +1 -0\n  worktree kept: worktrees are kept\n" in said
    type_in(project, next_block(said))
    assert project.branches() == ["main"]
    assert (project.cwd / "hello.txt").exists() and not project.worktree("main-task-hello").exists()


# --- clean ---


def test_clean_says_what_goes_then_does_it_then_finds_nothing_new(finished: Finished) -> None:
    project = finished(THREE)
    session = project.sessions[0]
    project.git("branch", "main-task-idle")  # as a version before this one left it
    project.git("merge", "-q", "main-task-hello")
    before = project.snapshot()
    expected = (
        "{verb} branch main-task-hello: it is merged into main\n"
        "kept branch main-task-readme: it holds work that is not merged\n"
        "{verb} branch main-task-idle: it is empty: nothing was committed on it\n"
    )
    assert project("clean", "--worktrees", "--dry-run").stdout == expected.format(verb="would remove")
    assert project.load("clean", "--worktrees", "--dry-run")["findings"][2] == {
        "session_id": session,
        "repository": str(project.cwd),
        "what": "branch",
        "name": "main-task-idle",
        "id": "idle",
        "removed": False,
        "would_remove": True,
        "why": "it is empty: nothing was committed on it",
    }
    assert project.snapshot() == before
    assert project("clean", "--worktrees", session).stdout == expected.format(verb="removed")
    assert project.branches() == ["main", "main-task-readme"]
    again = project("clean", "--worktrees")
    assert again.stdout == "kept branch main-task-readme: it holds work that is not merged\n"
    project.git("branch", "-D", "main-task-readme")
    assert project("clean", "--worktrees").stdout == "Nothing to clean.\n"


@pytest.mark.slow
def test_clean_waits_for_the_last_process_of_a_dead_session(project: Project) -> None:
    plan = {"prompts": [{"id": "a", "prompt": "echo work > work.txt; exec sleep 600"}]}
    session = project.start(plan, "--worktree")
    eventually((project.worktree("main-task-a") / "work.txt").exists)
    view = project.until(session, lambda view: view["tasks"][0]["phase"] == "running" and view["tasks"][0]["pid"])
    pid = view["tasks"][0]["pid"]
    assert view["tasks"][0]["seat"] is None, "no worktree of the session stays"
    project.kill_chain(session)
    project.until(session, lambda view: view["status"] == "interrupted")
    done = project("clean", "--worktrees")
    assert (done.stdout, done.stderr) == (
        f"kept worktree {project.worktree('main-task-a')}: task a still runs\n",
        "",
    )
    (record,) = project.load("clean", session, "--state", "interrupted")["findings"]
    assert record["why"].startswith("what it made is still there: "), "the process may end before it is looked for"
    assert (project.worktree("main-task-a") / "work.txt").exists()
    os.killpg(pid, signal.SIGKILL)
    project.until(session, lambda view: view["tasks"][0]["outcome"] == "lost")
    assert f"\n    worktree: {project.worktree('main-task-a')}\n" in project("status", session).stdout
    assert f"\n  worktree: {project.worktree('main-task-a')}\n" in project("results", session).stdout
    assert "\n+work\n" in project("diff", session).stdout
    done = project("clean", "--worktrees")
    assert done.stdout == (
        f"removed worktree {project.worktree('main-task-a')}: its work is on its branch\n"
        "kept branch main-task-a: it holds work that is not merged\n"
    )
    assert project.git("show", "main-task-a:work.txt") == "work"
    assert not project.worktree("main-task-a").exists()
    assert "\n+work\n" in project("diff", session).stdout
    assert " work.txt | 1 +" in project("diff", session, "--stat").stdout


@pytest.mark.slow
def test_a_damaged_claim_keeps_what_it_was_made_for(finished: Finished) -> None:
    """Its worktree and its session stay, with the reason; once it is whole, what was kept on request goes."""
    project = finished(BROKEN, "--keep-worktree", "always")
    damaged = project.sessions[0]
    trees = {task["id"]: Path(task["worktree"]) for task in project.status(damaged)["tasks"] if task["worktree"]}
    claim = project.directory(damaged) / "jobs" / "half" / "a1-r1-prepare" / "claim.json"
    whole = claim.read_bytes()
    for content in (b"", b'{"branch": 5}'):
        claim.write_bytes(content)
        told = project("doctor", damaged, "--json")
        assert (told.returncode, "its claim cannot be read" in told.stdout) == (1, True)
        for words in (("--worktrees", "--dry-run"), ("--worktrees",)):
            (kept,) = [
                one for one in project.load("clean", *words)["findings"] if one["name"] == str(trees["half"])
            ]
            assert (kept["removed"], kept["why"].partition(": ")[0]) == (False, "its claim cannot be read")
            assert trees["half"].is_dir()
    assert (trees["half"] / "half.txt").read_text() == "half\n"
    removed = project.load("clean", "--worktrees", "--older-than", "0s")["findings"]
    assert [one["session_id"] for one in removed if one["what"] == "session" and one["removed"]] == []
    assert project.directory(damaged).is_dir()
    claim.write_bytes(whole)
    done = project("clean", "--worktrees", damaged)
    assert f"removed worktree {trees['half']}" in done.stdout
    assert f"kept worktree {trees['nest']}: inner/ is a repository of its own" in done.stdout
    assert not trees["half"].exists()
    assert (trees["nest"] / "inner" / "f").read_text() == "in\n"
    assert project.git("show", "main-task-half:half.txt") == "half"


# --- what counts as work: not what SETUP leaves, which becomes a commit of its own ---

SETUP = ["echo set > from-setup", "echo more >> README", "echo x > x.log"]


SETTING_UP: list[dict[str, Any]] = [
    {"id": "a", "prompt": "git status --short; echo work > f", "setup": SETUP},
    {"id": "idle", "prompt": "true", "setup": SETUP, "expect_change": True},
    {
        "id": "undone",
        "prompt": "rm from-setup; git checkout -q HEAD~1 README",
        "setup": SETUP,
        "expect_change": True,
    },
    {"id": "still", "prompt": "true", "setup": ["echo set > still"]},
    {"id": "late", "prompt": "true", "setup": ["echo left > left; exec sleep 600"], "setup_timeout": "0.5s"},
    {"id": "b", "prompt": "ls", "needs": ["a", "still"]},
]
SETUPS = {
    "nothing": "echo x > x.log",
    "commits": "echo a > a; git add a; git commit -qm own; echo b > b",
    "leaves": "echo a > a; git switch -q --detach",
    "fails": "echo left > left; exit 3",
    "shot": "echo left > left; kill -KILL $$",
    "spoils": "export GIT_DIR=/nowhere PATH=/nowhere PYTHONPATH=/nowhere; cd /; set -o nounset",
}
"""What leaves nothing, a commit of its own, another branch; what fails, and what spoils its shell."""


@pytest.fixture
def ended(finished: Finished) -> Project:
    """All tasks have ended, in `sessions[0]`."""
    return finished(
        SETTING_UP + [{"id": name, "prompt": "echo work > f", "setup": [text]} for name, text in SETUPS.items()]
    )


def test_work_is_counted_from_what_setup_left(ended: Project) -> None:
    session, task = ended.sessions[0], by_id(ended.status(ended.sessions[0]))["a"]
    folder = ended.directory(session)
    assert task["diff_stat"] == {"files": 1, "insertions": 1, "deletions": 0}
    patch = (folder / "jobs" / "a" / "a1-diff.patch").read_text()
    assert "+work" in patch and "from-setup" not in patch and "README" not in patch
    assert (folder / "task-a.txt").read_text() == "", "the agent begins with a clean worktree"
    assert ended.subjects(task["commit"])[:2] == ["Work of task a", "Setup of task a"]
    assert ended.git("rev-parse", f"{task['commit']}~1") == task["setup_commit"]
    assert ended.git("rev-parse", f"{task['commit']}~2") == task["base_commit"]
    named = ended.git("diff", "--name-only", task["base_commit"], task["setup_commit"]).split("\n")
    assert named == ["README", "from-setup"], "and what git ignores is in no commit"
    assert "from-setup" not in ended("diff", session, "a").stdout


def test_what_setups_leave_is_no_change(ended: Project) -> None:
    """Its branch holds no work, so it goes, and `expect_change` says that nothing came out."""
    tasks = by_id(ended.status(ended.sessions[0]))
    idle, undone = tasks["idle"], tasks["undone"]
    assert (idle["reason_class"], idle["branch"], idle["worktree"]) == ("no_change", None, None)
    assert idle["commit"] == idle["base_commit"]
    assert undone["outcome"] == "succeeded", "to undo what setup did is work"
    assert undone["diff_stat"]["files"] == 2
    assert tasks["nothing"]["setup_commit"] is None
    assert ended.subjects(tasks["nothing"]["commit"])[:2] == ["Work of task nothing", "first"]
    assert ended.subjects(tasks["commits"]["commit"])[:3] == [
        "Work of task commits",
        "Setup of task commits",
        "own",
    ]
    assert tasks["commits"]["diff_stat"]["files"] == 1
    assert tasks["leaves"]["setup_commit"] is None, "what is not on the task's branch is left for RELEASE to name"
    assert "HEAD is on no branch" in tasks["leaves"]["worktree_kept"]
    for name, code in (("fails", 3), ("shot", 137)):
        assert (tasks[name]["outcome"], tasks[name]["reason_class"]) == ("failed", "setup_failed")
        assert f"exit code {code}" in tasks[name]["reason"]
    assert tasks["late"]["reason_class"] == "setup_timeout", tasks["late"]["reason"]
    for name in ("fails", "shot", "late"):
        assert tasks[name]["branch"] is None and tasks[name]["diff_stat"]["files"] == 0, "no work has begun"
        assert tasks[name]["commit"] == tasks[name]["base_commit"]
    assert (tasks["spoils"]["outcome"], tasks["spoils"]["setup_commit"]) == ("succeeded", None)
    shown = (ended.directory(ended.sessions[0]) / "task-b.txt").read_text().split()
    assert {"f", "from-setup"} <= set(shown), "a dependent begins with work and setup of its need"
    assert "still" not in shown, "a need without work hands on nothing"


def test_a_supervisor_that_dies_during_setup_or_work_changes_nothing(project: Project) -> None:
    wait = "touch ../../begun-$SESSIONRUN_TASK; while ! [ -e ../../go ]; do sleep 0.2; done"
    plan = [
        {"id": "a", "prompt": "echo work > f", "setup": [f"{wait}; echo set > s"]},
        {"id": "b", "prompt": wait},
    ]
    session = project.start(plan, "--worktree", "--expect-change")
    eventually(lambda: all((project.cwd.parent / f"begun-{name}").exists() for name in "ab"))
    os.kill(project.supervisor(session), signal.SIGKILL)
    (project.cwd.parent / "go").touch()
    view = project.wait(session)
    reason = "no_change: nothing in its worktree differs from the base commit"
    ends = [(task["outcome"], task["reason"]) for task in view["tasks"]]
    assert ends == [("succeeded", None), ("failed", reason)]
    assert view["tasks"][0]["setup_commit"] is not None
    assert view["tasks"][0]["diff_stat"]["files"] == 1


# --- `expect_change`: a task that ends well and leaves its worktree as it was has failed ---

NOTHING = (
    "true",
    "echo x > x.log",
    "echo x > f; git add f; git commit -qm f; git rm -q f; git commit -qm back",
    "cp a.txt r; rm a.txt; mv r a.txt; touch a.txt",
    "git commit -q --allow-empty -m nothing",
    "echo x > f; git add f; git stash -q; git stash drop -q",
    'rm -rf "$PWD"',
    'cd ../../repo; git worktree remove -f "$OLDPWD"; git branch -qD main-task-t',
)
SOMETHING = (
    "echo x > f",
    "echo x > f; git add f; git commit -qm f",
    "rm a.txt",
    "chmod +x a.txt",
    "echo x > x.log; git add -f x.log",
    "echo x > f; git add f; git commit -qm f; git switch -q --detach HEAD~1",
    "git init -q inner; echo in > inner/f",
)


@pytest.mark.parametrize("script", [*NOTHING, *SOMETHING])
def test_what_is_no_change_and_what_is_one(own_place: Path, script: str) -> None:
    repo = Repo(own_place)
    asked = partial(repo.cycle, keep="on-failure", succeeded=True, expect_change=True)
    place, path = asked(partial(repo.shell, script))
    assert place.changed is (script in SOMETHING)
    if script in NOTHING[:-2]:  # ignored files may show what went wrong; the last two have removed it
        assert (place.kept, path.exists()) == ("worktrees of failed tasks are kept", True)
