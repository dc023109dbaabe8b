"""Patches in answers: found in all their forms, applied whole and inside the worktree, or refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calls import between, forked, needs_calls, run_watched
from conftest import Command
from stages import commit_all
from test_rounds import by_round, folder_of, only_task, refs
from test_workspaces import Project, make_repository
from test_worktrees import finish

from sessionrun.checks.answers import find_patch
from sessionrun.checks.writing import DoesNotApply, apply_patch
from sessionrun.worktrees.site import open_site

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
GIVEN = "def add(a, b):\n    return a - b\n# end\n"
MENDED = "def add(a, b):\n    return a + b\n# end\n"


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
    ],
)
def test_a_patch_is_found(answer: str, patch: str) -> None:
    assert find_patch(answer) == patch


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I could not do it.",
        "```python\nx = 1\n```",
        "--- a title\n\ntext",
        "<FINAL_DIFF></FINAL_DIFF>",
    ],
)
def test_an_answer_without_a_patch(answer: str) -> None:
    assert find_patch(answer) is None


ODD_LINES = ("<FINAL_DIFF>", "```" + " " * 3000 + "`\n", "``` \n", "--- \n", "\r", "</FINAL_DIFF>")


@pytest.mark.parametrize("line", ODD_LINES)
def test_an_odd_answer_is_read_in_one_pass(line: str) -> None:
    """With a search for each tag or fence to the end, this would take hours."""
    assert find_patch(line * (400_000 // len(line)) + PATCH) is not None


class CalculatingProject(Project):
    """Its repository has a bug."""

    @staticmethod
    def make(top: Path) -> None:
        make_repository(top)
        (top / "calc.py").write_text(GIVEN)
        (top / ".gitignore").write_text("*.log\nlib\n")
        commit_all(top, "a bug")


@pytest.fixture
def project(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(own_place / "results"))
    (Path(os.environ["HOME"]) / ".gitconfig").write_text("[user]\nname = Bob\nemail = bob@example.org\n")
    return CalculatingProject(own_place)


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


def test_a_patch_moves_and_deletes(tree: Tree) -> None:
    (tree.top / "old").mkdir()
    (tree.top / "old" / "calc.py").write_text(GIVEN)
    names = "rename from old/calc.py\nrename to new/calc.py\n"
    moved = f"diff --git a/old/calc.py b/new/calc.py\nsimilarity index 100%\n{names}"
    assert sorted(tree.apply(moved)) == ["new/calc.py", "old/calc.py"]
    assert (tree.top / "new" / "calc.py").read_text() == GIVEN
    assert not (tree.top / "old").exists()


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
    tree = Tree(CalculatingProject(Path(root)))

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
