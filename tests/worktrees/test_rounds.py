"""Rounds of work and check: the agent is told what failed, the best round is kept, and nothing is lost.

Patches in answers are found in all their forms, applied whole and inside of the worktree, or refused.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from calls import between, forked, needs_calls, run_watched
from conftest import Command, eventually
from stages import commit_all, git, make_program
from test_execs import LIBC_S_SIGNALS
from test_workspaces import Project, make_repository
from test_worktrees import by_id, finish, start, wait

from sessionrun.checks.answers import find_patch
from sessionrun.checks.writing import DoesNotApply, apply_patch
from sessionrun.git.git import GitError
from sessionrun.model.places import Place
from sessionrun.worktrees.release import release
from sessionrun.worktrees.request import WorkRequest, WorkspaceRequest
from sessionrun.worktrees.rounds import DONE, keep_round, take_back
from sessionrun.worktrees.site import open_site

PYTEST = f"{shlex.quote(sys.executable)} -m pytest -q -p no:cacheprovider"

GIVEN = "def add(a, b):\n    return a - b\n# end\n"
MENDED = "def add(a, b):\n    return a + b\n# end\n"

AGENT = """\
import pathlib, sys

prompt = sys.stdin.read()
log = pathlib.Path({log!r})
with log.open("a") as stream:
    stream.write(prompt + "\\0")
if "FAILED test_sum::test_add: assert -1 == 3" in prompt:
    pathlib.Path("calc.py").write_text("def add(a, b):\\n    return a + b\\n")
print("done")
"""


class CountingProject(Project):
    """Its repository has a module with a bug, a test that shows it, and ignored names."""

    @staticmethod
    def make(top: Path) -> None:
        make_repository(top)
        (top / ".gitignore").write_text("venv/\n__pycache__/\nshared\n*.log\nlib\n")
        (top / "calc.py").write_text(GIVEN)
        tests = "def test_add():\n    assert add(1, 2) == 3\n\n\ndef test_same():\n    pass\n"
        (top / "test_sum.py").write_text(f"from calc import add\n\n\n{tests}")
        commit_all(top, "a bug")


@pytest.fixture
def project(own_place: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(own_place / "results"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # a source of the same size and second counts as the old
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # what is installed beside it takes long to load
    (Path(os.environ["HOME"]) / ".gitconfig").write_text("[user]\nname = Bob\nemail = bob@example.org\n")
    return CountingProject(own_place)


def junit(passed: int, failed: int) -> str:
    """A command that leaves such results where pytest is told to leave them, and fails if any test did."""
    cases = "<testcase name='p'/>" * passed + "<testcase name='f'><failure message='no'/></testcase>" * failed
    return f'echo "<testsuite>{cases}</testsuite>" > "${{PYTEST_ADDOPTS##*=}}"; exit {int(failed > 0)};'


def by_round(*commands: str) -> str:
    """A script that does another thing in each round."""
    cases = " ".join(f"{number}) {command} ;;" for number, command in enumerate(commands, 1))
    return f"case $SESSIONRUN_ROUND in {cases} esac"


def refs(project: Project) -> str:
    return project.run("for-each-ref", "--format=%(refname)", "refs/sessionrun/")


def only_task(view: dict[str, Any]) -> dict[str, Any]:
    (task,) = view["tasks"]
    assert isinstance(task, dict)
    return task


def folder_of(sessionrun: Command, task: str) -> Path:
    return sessionrun.directory(sessionrun.sessions[-1]) / "jobs" / task


@pytest.mark.slow
def test_an_agent_that_sees_the_failure_mends_it(sessionrun: Command, project: Project) -> None:
    """With the real pytest: round 1 is red, its failure is in the prompt of round 2, which is green."""
    log = project.root / "prompts-seen"
    (project.root / "agent.py").write_text(AGENT.format(log=str(log)))
    argv = json.dumps([sys.executable, str(project.root / "agent.py")])
    (project.top / "sessionrun.toml").write_text(f"[agents.seer]\nargv = {argv}\n")
    check = {"commands": ["true", PYTEST], "rounds": 3}
    task = only_task(finish(sessionrun, project, [{"prompt": "mend add", "agent": "seer", "check": check}]))

    assert (task["outcome"], task["round"]) == ("succeeded", 2)
    assert task["check"]["counts"] == {"passed": 2, "failed": 0, "errors": 0, "skipped": 0, "total": 2}
    assert (task["check"]["passed"], task["check"]["rounds"], task["check"]["best_round"]) == (True, 3, 2)
    first, second = log.read_text().split("\0")[:2]
    assert first == "mend add"
    head = "mend add\n\nYour last attempt did not pass its check.\n\nThis command failed with exit code 1: "
    assert second.startswith(head)
    assert "\n\n1 of 2 tests passed, 1 failed.\nFAILED test_sum::test_add: assert -1 == 3" in second
    assert second.index("FAILED test_sum") < second.index("The end of its output:")
    assert project.show(task["commit"], "calc.py") == b"def add(a, b):\n    return a + b\n"
    assert refs(project) == ""


def test_the_best_round_is_kept(sessionrun: Command, project: Project) -> None:
    """Round 2 is the best, round 3 makes it worse and commits it: round 2's work is what comes out."""
    work = by_round("echo 1 > new.txt", "echo 2 > new.txt", "echo 3 > new.txt; git add -A; git commit -qm three")
    check = {"commands": by_round(junit(1, 2), junit(2, 1), junit(0, 3)), "rounds": 3}
    task = only_task(finish(sessionrun, project, [{"id": "a", "prompt": work, "check": check}]))

    assert (task["outcome"], task["reason_class"], task["round"]) == ("failed", "check_failed", 3)
    assert task["check"]["best_round"] == 2
    assert task["check"]["best_reason"] == "2 tests passed, and in round 3 0"
    assert task["check"]["best_counts"] == {"passed": 2, "failed": 1, "errors": 0, "skipped": 0, "total": 3}
    assert task["check"]["counts"]["passed"] == 0
    said = sessionrun("results", sessionrun.sessions[-1]).stdout
    assert "\n  Tests: 0 of 3 passed, 3 failed\n" in said
    assert "\n  Kept: the work of round 2 (2 of 3 passed, 1 failed): 2 tests passed, and in round 3 0\n" in said
    assert project.show(task["commit"], "new.txt") == b"2\n"
    assert project.run("log", "--format=%s", f"main..{task['branch']}") == "Work of task a"
    assert (task["worktree"], task["rescue_branch"], refs(project)) == (None, None, "")
    folder = folder_of(sessionrun, "a")
    for number in (1, 2, 3):
        assert f"+{number}" in (folder / f"a1-r{number}-check" / "round.patch").read_text().splitlines()
    assert "+3" in (folder / "a1-replaced.patch").read_text().splitlines()


@pytest.mark.slow
def test_a_hard_reset_spares_what_git_ignores_and_what_was_brought(sessionrun: Command, project: Project) -> None:
    """Round 2 finds the files as they were, but its environment, the links and the copies."""
    (project.top / "shared").mkdir()
    (project.top / ".worktreeinclude").write_text("venv/pip.conf\n")
    (project.top / "venv").mkdir()
    (project.top / "venv" / "pip.conf").write_text("ours\n")
    name = f"deep/{'dir/' * 30}new.txt"
    first = (
        f"mkdir -p venv/bin $(dirname {name}); echo tool > venv/bin/tool; echo x > {name};"
        "echo y >> calc.py; git checkout -q -b other; git add calc.py; git commit -qm more;"
        "echo z >> a.txt; git update-index --skip-worktree a.txt"
    )
    second = "{ ls -A . venv venv/bin; git status -b -s; } > " + str(project.root / "seen")
    signals = f"; grep SigIgn /proc/self/status > {project.root}/signals-$SESSIONRUN_ROUND || true"
    check = {"commands": "echo red; false", "rounds": 2, "reset": "hard"}
    plan = [{"id": "a", "prompt": by_round(first, second) + signals, "links": ["shared"], "check": check}]
    task = only_task(finish(sessionrun, project, plan))
    seen = (project.root / "seen").read_text()
    names = seen.split()
    assert {"shared", "tool", "pip.conf", "a.txt"} <= set(names)
    assert project.show("main", "a.txt") == (project.top / "a.txt").read_bytes()
    assert "deep" not in names and " M " not in seen and "D " not in seen
    assert "## main-task-a\n" in seen
    assert (task["branch"], task["worktree"]) == (None, None), "nothing was left to be kept"
    told = (folder_of(sessionrun, "a") / "a1-r1-check" / "feedback").read_text()
    head = "What you had changed, and what is taken back:"
    stat = "".join(f" {changed:{len(name)}} | 1 +\n" for changed in ("a.txt", "calc.py", name))
    assert f"\n{head}\n\n{stat} 3 files changed" in told
    prompt = (folder_of(sessionrun, "a") / "a1-r2-work" / "prompt").read_text()
    assert prompt.startswith("case ")  # a script stays a script
    assert task["check"]["best_round"] == 2
    if sys.platform.startswith("linux"):
        words = [(project.root / f"signals-{number}").read_text().split()[1] for number in (1, 2)]
        ignored = [int(word, 16) & ~LIBC_S_SIGNALS for word in words]
        assert ignored[0] == ignored[1], "an agent that our program became is like any other"


@pytest.mark.slow
def test_a_round_whose_time_is_up_is_taken_back_and_kept_and_the_next_one_is_told(
    sessionrun: Command, project: Project
) -> None:
    work = by_round("echo half > half.txt; sleep 60", "test ! -e half.txt; cp $SESSIONRUN_FEEDBACK told.txt")
    check = {"commands": "test -e told.txt", "rounds": 2, "reset": "hard"}
    plan = [{"id": "a", "prompt": work, "round_timeout": 5, "check": check}]
    told = project.show(only_task(finish(sessionrun, project, plan))["commit"], "told.txt")
    assert told.startswith(b"Your last attempt was stopped: no result after 5 s.")
    assert "+half" in (folder_of(sessionrun, "a") / "a1-r1-work" / "round.patch").read_text()


NOT_RUN = {
    "none": ("true", "no-such-program-at-all -q", "exit code 127 (not found) of: no-such-program-at-all -q"),
    "gone": ("true", "./venv/bin/tool", "exit code 127 (not found) of: ./venv/bin/tool"),
    "plain": ("true", "./calc.py", "exit code 126 (not executable) of: ./calc.py"),
    "taken": ("rm -f calc.py", "./calc.py", None),
    "made": ("echo exit 0 > new.sh", "./new.sh", None),
}
"""What a task does, its check, and why that cannot be run, unless the agent can mend it."""


def test_no_agent_is_paid_again_for_a_check_that_cannot_be_run(sessionrun: Command, project: Project) -> None:
    """But where the work has made or taken away the program, the agent can mend that."""
    plan = [
        {
            "id": name,
            "prompt": f"echo x >> {project.root}/paid-{name}; {work}",
            "check": {"commands": check, "rounds": 2},
            "retries": 1 if why else 0,
        }
        for name, (work, check, why) in NOT_RUN.items()
    ]
    tasks = by_id(finish(sessionrun, project, plan))
    for name, (_, _, why) in NOT_RUN.items():
        paid = (project.root / f"paid-{name}").read_text().count("x")
        assert (paid, tasks[name]["reason_class"]) == ((1, "check_not_run") if why else (2, "check_failed")), name
        assert why is None or f"it could not be run: {why}" in tasks[name]["reason"]


UNKNOWN = (
    {"check": "cd src && no-such-program"},
    {"check": "no-such-program", "setup": "install it"},
    {"check": "no-such-program", "env": {"PATH": "/opt/bin:/bin"}},
    {"check": "./no-such-program"},
    {"check": "git diff --quiet"},
)
"""What something may install before, and what only the shell can find."""


def test_checks_and_gates_without_their_program_are_told_before_an_agent_is_paid(
    sessionrun: Command, project: Project
) -> None:
    sessionrun.cwd = project.top
    plan = [{"prompt": "true", **task} for task in ({"check": "no-such-program -q"}, *UNKNOWN)]
    gate = ("--worktree", "--land", "--gate", "no-such-program", "-p", "true")
    for what, words in (("check 'no-such-program -q'", ()), ("gate 'no-such-program'", gate)):
        done = sessionrun("--dry-run", "--agent", "shell", *words, stdin="" if words else json.dumps(plan))
        lacking = re.findall(r"the (.*) will fail: the program '.*' is not found", done.stderr)
        assert (done.returncode, lacking) == (0, [what]), done.stderr


# --- done again: what is kept, taken back and put back survives a kill at each step ---


def mess_up(path: Path) -> None:
    """Commits of the agent's own, on another branch, with changes of all kinds, and what git ignores."""
    git(path, "checkout", "-q", "-B", "elsewhere")
    (path / "calc.py").write_text("mine\n")
    git(path, "commit", "-qam", "mine")
    (path / "a.txt").unlink()
    (path / "new" / "deep").mkdir(parents=True, exist_ok=True)
    (path / "new" / "deep" / "file.txt").write_text("new\n")
    (path / "venv").mkdir(exist_ok=True)
    (path / "venv" / "tool").write_text("tool\n")
    admin = Path(git(path, "rev-parse", "--absolute-git-dir"))
    (admin / "index.lock").touch()


def sweep_set_back(root: str) -> None:
    Path(root).mkdir()
    project = CountingProject(Path(root))
    request, place = project.prepare()
    path, first = Path(place.worktree or ""), project.folder()
    loop = replace(request, place=place, round="a1-round-1")
    asked = WorkRequest(loop, ("true",), str(first), str(project.folder()))

    def begin(environ: Mapping[str, str]) -> None:
        (first / DONE).unlink(missing_ok=True)
        mess_up(path)
        forked(lambda: take_back(asked, first))(environ)

    for at, _ in between(begin, project.root / "calls", "work"):
        take_back(asked, first)
        assert git(path, "status", "--porcelain", "--branch") == f"## {place.branch}", at
        assert git(path, "rev-parse", "HEAD") == place.base_commit, at
        left = [one for one in (path / "new").rglob("*") if one.is_file()]  # git sees no empty directory
        assert (path / "venv" / "tool").exists() and not left, at
        assert "+mine" in Path(asked.before, "round.patch").read_text().splitlines(), at
    (path / "calc.py").write_text("of this round\n")
    take_back(asked, first)
    assert (path / "calc.py").read_text() == "of this round\n", "it is done once in a round"


@needs_calls
@pytest.mark.slow
def test_a_worktree_that_is_half_set_back_is_set_back(project: Project) -> None:
    run_watched(sweep_set_back, project.root / "swept")


def prepare_rounds(project: Project, task: str) -> tuple[WorkspaceRequest, Place]:
    """A worktree whose first round was the best, and whose second one has commits of its own."""
    request, place = project.prepare(task)
    path = Path(place.worktree or "")
    (path / "calc.py").write_text("good\n")
    (path / "only-good.txt").write_text("good\n")
    request = replace(request, place=place, round="a1-round-1")
    kept = keep_round(request, project.folder())
    assert keep_round(request, project.folder()).tree == kept.tree, "done again, it is the same"
    (path / "calc.py").write_text("bad\n")
    git(path, "add", "-A")
    git(path, "commit", "-qm", "bad")
    (path / "only-bad.txt").write_text("bad\n")
    folder = project.root / "p" / task
    return replace(request, best=kept.commit, replaced=str(folder / "a1-replaced.patch")), place


def sweep_put_back(root: str) -> None:
    Path(root).mkdir()
    project = CountingProject(Path(root))

    numbers = itertools.count()

    def begin(environ: Mapping[str, str]) -> tuple[WorkspaceRequest, Place]:
        request, place = prepare_rounds(project, f"t{next(numbers)}")
        forked(partial(release, request, project.folder()))(environ)
        return request, place

    for at, (request, place) in between(begin, project.root / "calls", "release"):
        released = release(request, project.folder())
        assert released.commit is not None and released.worktree is None, at
        assert project.show(released.commit, "calc.py") == b"good\n", at
        kept = {name for name in project.files(released.commit) if name.startswith("only-")}
        subjects = project.run("log", "--format=%s", f"{place.base_commit}..{released.commit}").splitlines()
        assert (kept, subjects) == ({"only-good.txt"}, [f"Work of task {request.task}"]), at
        assert "+bad" in Path(request.replaced).read_text().splitlines(), at
        assert refs(project) == "", at


@needs_calls
@pytest.mark.slow
def test_the_best_round_is_put_back_whatever_is_killed(project: Project) -> None:
    run_watched(sweep_put_back, project.root / "swept")


def test_what_no_commit_can_hold_is_not_replaced(project: Project) -> None:
    request, place = prepare_rounds(project, "t")
    inner = Path(place.worktree or "") / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "file").write_text("x")
    git(inner, "-c", "user.name=a", "-c", "user.email=a", "add", "file")
    released = release(request, project.folder())
    assert released.remark is not None and released.kept is not None
    assert released.remark.startswith("the best round's work is not put back: ")
    assert released.commit is not None
    assert project.show(released.commit, "calc.py") == b"bad\n"


@pytest.mark.slow
@pytest.mark.parametrize("reset", ["keep", "hard"])
def test_rounds_go_on_whatever_is_killed(
    sessionrun: Command, project: Project, monkeypatch: pytest.MonkeyPatch, reset: str
) -> None:
    """Supervisors and keepers die all the time; each round works once, and the best one is kept."""
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(sessionrun.results))
    worked = project.root / "worked"
    work = f"echo $SESSIONRUN_ROUND >> {worked}; echo $SESSIONRUN_ROUND >> new.txt; sleep 0.3"
    check = {"commands": by_round(junit(1, 2), junit(2, 1), junit(0, 3), junit(1, 2)), "rounds": 4, "reset": reset}
    session = start(sessionrun, project, [{"id": "a", "prompt": work, "check": check}], "--worktree")

    def find_epoch() -> int:
        view = sessionrun.status(session)
        return -1 if view["ended_at"] else int(view["epoch"])

    def has_changed(before: int) -> bool:
        return find_epoch() not in (before, 0)

    for number in range(12):
        before = find_epoch()
        if before < 0:
            break
        try:
            victims = sessionrun.chain(session)[1:] if number % 3 == 2 else (sessionrun.supervisor(session),)
            os.kill(victims[0], signal.SIGKILL)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue  # it has ended, or another one is just being started
        eventually(partial(has_changed, before))
    task = only_task(wait(sessionrun, session))
    assert worked.read_text().split() == ["1", "2", "3", "4"]
    assert (task["outcome"], task["check"]["best_round"]) == ("failed", 2)
    kept = project.show(task["commit"], "new.txt")
    assert kept == (b"2\n" if reset == "hard" else b"1\n2\n")
    assert refs(project) == ""


# --- answers that are patches ---

PATCH = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,3 +1,3 @@
 def add(a, b):
-    return a - b
+    return a + b
 # end
"""
PLAIN = PATCH.split("\n", 1)[1]


@pytest.mark.parametrize(
    ("answer", "patch"),
    [
        (PATCH, PATCH),
        (f"I changed it:\n\n{PATCH}\nThat is all.\n", PATCH),
        (f"<FINAL_DIFF>\n{PATCH}</FINAL_DIFF>", PATCH),
        (f"<FINAL_DIFF>no</FINAL_DIFF> or better <FINAL_DIFF>\n```diff\n{PATCH}```\n</FINAL_DIFF>", PATCH),
        (f"```diff\nno\n```\n<FINAL_DIFF>{PATCH}</FINAL_DIFF>", PATCH),
        (f"```python\nx = 1\n```\nand\n```diff\n{PATCH}```\nDone.", PATCH),
        (f"```\n{PATCH}```\n", PATCH),
        (f"```text\n{PLAIN}```\n", PLAIN),
        (f"~~~patch\n{PATCH}~~~\n", PATCH),
        (f"```diff\n{PATCH}", PATCH),
        (f"```diff\n{PATCH}```\n```diff\n{PLAIN}```\n", PATCH + PLAIN),
        (f"```text\nas in\n{PLAIN}```\n```Diff x\n{PATCH}```\n", PATCH),
        (f"```diff\n{PATCH.rstrip()}\n```", PATCH),
        (PATCH.rstrip("\n"), PATCH),
        (f"```diff\r\n{PATCH}```\r\n".replace("\n", "\r\n").replace("\r\r", "\r"), PATCH.replace("\n", "\r\n")),
        (f"\n\nPatch follows\n{PLAIN}", PLAIN),
        ("", None),
        ("I could not do it.", None),
        ("```python\nx = 1\n```", None),
        ("--- a title\n\ntext", None),
        ("<FINAL_DIFF></FINAL_DIFF>", None),
    ],
)
def test_a_patch_is_found_where_there_is_one(answer: str, patch: str | None) -> None:
    assert find_patch(answer) == patch


ODD_LINES = ("<FINAL_DIFF>", "```" + " " * 3000 + "`\n", "``` \n", "--- \n", "\r", "</FINAL_DIFF>")


@pytest.mark.parametrize("line", ODD_LINES)
def test_an_odd_answer_is_read_in_one_pass(line: str) -> None:
    """With a search for each tag or fence to the end, this would take hours."""
    assert find_patch(line * (400_000 // len(line)) + PATCH) is not None


class Tree:
    """A worktree of the project, to which patches are applied."""

    def __init__(self, project: Project) -> None:
        (project.top / "lib").mkdir()
        request, place = project.prepare(links=("lib",))
        self.project, self.request = project, replace(request, place=place)
        self.top = Path(place.worktree or "")
        self.folder = project.folder()

    def apply(self, patch: str, below: str = ".") -> list[str]:
        with open_site(self.request, self.folder) as site:
            return apply_patch(site, patch, below, self.folder / "applied.json")

    def refuse(self, patch: str) -> str:
        before = self.files()
        with pytest.raises(DoesNotApply) as caught:
            self.apply(patch)
        assert self.files() == before
        assert not (self.folder / "applied.json").exists()
        return str(caught.value)

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.top.rglob("*") if path.is_file() and ".git" not in path.parts)
        return {str(path.relative_to(self.top)): path.read_bytes() for path in found}


BINARY = f"""\
diff --git a/b b/b
new file mode 100644
index {"0" * 40}..f76dd238ade08917e6712764a16a22005a50573d
GIT binary patch
literal 1
IcmZPo000310RR91

literal 0
HcmV?d00001

"""


@pytest.fixture
def tree(project: Project) -> Tree:
    return Tree(project)


def new_file(name: str, text: str = "x") -> str:
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n"
    return f"{head}@@ -0,0 +1 @@\n+{text}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "patch",
    [
        PATCH,
        PATCH.replace("\n", "\r\n"),
        PATCH.replace("    return", "\u00a0\u00a0\u00a0 return"),
        PATCH.replace("@@ -1,3 +1,3 @@", "@@ -1,9 +1,7 @@"),
        PATCH.rstrip("\n") + "\n",
        PLAIN.replace("a/calc", "calc").replace("b/calc", "calc"),
    ],
    ids=["as it is", "Windows", "no-break spaces", "wrong counts", "end", "no prefixes"],
)
def test_a_patch_is_applied(tree: Tree, patch: str) -> None:
    assert tree.apply(patch) == ["calc.py"]
    assert (tree.top / "calc.py").read_text() == MENDED
    assert tree.apply(patch) == ["calc.py"], "done again, it is the same"
    assert (tree.top / "calc.py").read_text() == MENDED


def test_a_patch_counts_from_the_directory_of_the_task(tree: Tree) -> None:
    inner = PATCH.replace("calc.py", "inner.txt")
    (tree.top / "sub").mkdir(exist_ok=True)
    (tree.top / "sub" / "inner.txt").write_text(GIVEN)
    assert tree.apply(inner, "sub") == ["sub/inner.txt"]


def test_a_patch_reaches_what_a_sparse_checkout_leaves_out(project: Project) -> None:
    project.run("sparse-checkout", "set", "--no-cone", "/sub/")
    tree = Tree(project)
    assert not (tree.top / "calc.py").exists()
    assert tree.apply(PATCH) == ["calc.py"]
    assert (tree.top / "calc.py").read_text() == MENDED


def test_a_patch_moves_and_deletes(tree: Tree) -> None:
    (tree.top / "old").mkdir()
    (tree.top / "old" / "calc.py").write_text(GIVEN)
    names = "rename from old/calc.py\nrename to new/calc.py\n"
    moved = f"diff --git a/old/calc.py b/new/calc.py\nsimilarity index 100%\n{names}"
    assert sorted(tree.apply(moved)) == ["new/calc.py", "old/calc.py"]
    assert (tree.top / "new" / "calc.py").read_text() == GIVEN
    assert not (tree.top / "old").exists()


GONE: Final = """\
diff --git a/in/gone b/in/gone
deleted file mode 100644
--- a/in/gone
+++ /dev/null
@@ -1 +0,0 @@
-gone
"""


def test_a_file_that_git_cannot_delete_is_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git only warns of it."""
    (tree.top / "in").mkdir()
    (tree.top / "in" / "gone").write_text("gone\n")
    (tree.top / "in").chmod(0o555)
    with monkeypatch.context() as obeying:
        if os.geteuid() == 0:
            plain = f'exec setpriv --bounding-set -dac_override {shutil.which("git")} "$@"\n'
            program = make_program(tree.project.root / "bin" / "git", plain)
            obeying.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        with pytest.raises(GitError, match="in/gone cannot be deleted"):
            tree.apply(GONE)
    (tree.top / "in").chmod(0o755)
    assert tree.apply(GONE) == ["in/gone"]
    assert not (tree.top / "in").exists()


def test_a_patch_that_makes_a_directory_of_a_file_can_be_done_again(tree: Tree) -> None:
    (tree.top / "in").mkdir()
    (tree.top / "in" / "gone").write_text("gone\n")
    for _ in "12":
        assert tree.apply(GONE + new_file("in/gone/new")) == ["in/gone", "in/gone/new"]
    assert (tree.top / "in" / "gone" / "new").read_text() == "x\n"


def test_a_patch_that_applies_to_the_base_alone_takes_the_place_of_the_work(tree: Tree) -> None:
    (tree.top / "calc.py").write_text(GIVEN.replace("a - b", "a * b"))
    (tree.top / "more.txt").write_text("more\n")
    tree.apply(PATCH)
    assert (tree.top / "calc.py").read_text() == MENDED
    assert not (tree.top / "more.txt").exists()
    assert "+    return a * b" in (tree.folder / "before.patch").read_text()


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (PATCH.replace("a - b", "a / b"), "patch failed: calc.py:1"),
        (PATCH + PATCH.replace("calc.py", "none.py"), "none.py: does not exist in index"),
        (new_file("../out.txt"), "invalid path"),
        pytest.param(new_file(".git/hooks/post-commit"), "invalid path", marks=pytest.mark.slow),
        pytest.param(new_file("sub/.git/config"), "invalid path", marks=pytest.mark.slow),
        (new_file("lib/x.py"), "is ignored by git|beyond a symbolic link"),
        (new_file("out/x.py"), "beyond a symbolic link"),
        (new_file("x.log"), "x.log is ignored by git"),
        (new_file("link").replace("100644", "120000"), "it changes a symbolic link or a submodule"),
        (BINARY, "it holds binary content"),
        (BINARY.replace("GIT", "\u200bGIT"), "it holds binary content"),
        pytest.param("diff --git a/x b/x\n", "No valid patches|no changes|without header", marks=pytest.mark.slow),
        (PATCH.replace("a - b\n+    return a + b", "a - b\n+    return a - b"), "it changes nothing"),
        pytest.param(
            "--- /dev/null\n+++ /etc/passwd\n@@ -0,0 +1 @@\n+x\n", "invalid path", marks=pytest.mark.slow
        ),
    ],
)
def test_a_patch_is_refused_whole(tree: Tree, patch: str, why: str) -> None:
    (tree.top / "out").symlink_to(tree.project.root)
    assert re.search(why, tree.refuse(patch))


def sweep_patch(root: str) -> None:
    """Kill who applies a patch at each call; done again, the files are what they would have been."""
    tree = Tree(CountingProject(Path(root)))

    def begin(environ: Mapping[str, str]) -> None:
        (tree.top / "calc.py").write_text(GIVEN)
        (tree.folder / "applied.json").unlink(missing_ok=True)
        forked(lambda: tree.apply(PATCH))(environ)

    kills = 0
    for at, _ in between(begin, tree.project.root / "calls", "patch"):
        kills += 1
        tree.apply(PATCH)
        assert (tree.top / "calc.py").read_text() == MENDED, at
    print(kills)


@needs_calls
@pytest.mark.slow
def test_a_patch_that_is_killed_half_way_is_finished(own_place: Path) -> None:
    assert int(run_watched(sweep_patch, own_place)) > 5


def answer_with(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND\n"


def test_an_answer_is_applied_before_the_check(sessionrun: Command, project: Project) -> None:
    """Round 1 answers nothing, round 2 what does not apply, round 3 the patch; each is told what was wrong."""
    bad = PATCH.replace("a - b", "a / b")
    work = by_round("echo nothing", answer_with(f"```diff\n{bad}```"), answer_with(PATCH))
    check = {"commands": "grep -q 'a + b' calc.py", "rounds": 3}
    view = finish(sessionrun, project, [{"id": "a", "prompt": work, "answer": "patch", "check": check}])
    task = only_task(view)
    assert (task["outcome"], task["round"]) == ("succeeded", 3)
    assert project.show(task["commit"], "calc.py").decode() == MENDED
    folder = folder_of(sessionrun, "a")
    assert (folder / "a1-r1-check" / "feedback").read_text().startswith("Your answer holds no patch.")
    told = (folder / "a1-r2-check" / "feedback").read_text()
    assert "git says:\n\nerror: patch failed: calc.py:1\n" in told
    assert refs(project) == ""


@pytest.mark.slow
def test_an_answer_that_is_no_patch_fails_its_task(sessionrun: Command, project: Project) -> None:
    answers = {
        "sorry": "no_patch: the answer holds no patch",
        PATCH.replace("a - b", "a / b"): "bad_patch: the patch does not apply: error: ",
        "diff --git a/x b/x\nGIT binary patch\n": "bad_patch: the patch does not apply: it holds binary",
    }
    plan = [{"prompt": answer_with(answer), "answer": "patch"} for answer in answers]
    view = finish(sessionrun, project, plan)
    for task, reason in zip(view["tasks"], answers.values(), strict=True):
        assert (task["outcome"], task["reason_class"]) == ("failed", reason.partition(":")[0])
        assert task["reason"].startswith(reason)
        assert task["check"]["passed"] is False


@pytest.mark.slow
def test_an_agent_that_only_answers_is_taken_at_its_word(sessionrun: Command, project: Project) -> None:
    """In a worktree with a check its answer is a patch, unless the plan says that it is a text."""
    (project.root / "answer").write_text(PATCH)
    argv = json.dumps(["cat", str(project.root / "answer")])
    (project.top / "sessionrun.toml").write_text(f"[agents.sage]\nargv = {argv}\nedits = false\n")
    common: dict[str, Any] = {"agent": "sage", "prompt": "mend it", "check": "grep -q 'a + b' calc.py"}
    view = finish(sessionrun, project, [{**common, "id": "a"}, {**common, "id": "b", "answer": "text"}])
    assert [task["outcome"] for task in view["tasks"]] == ["succeeded", "failed"]
