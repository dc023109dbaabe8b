"""The audit of a proof: source that knows the test runner, and content that lies elsewhere, on real git."""

from __future__ import annotations

from pathlib import Path

import pytest
from stages import git
from test_hidden_tests import commit

from sessionrun.checks.audit import find_notes
from sessionrun.git.git import Git
from sessionrun.model.places import Place, Repository

BASE = "def total(items):\n    return sum(items)\n"
TEST = "from price import total\n\n\ndef test_total():\n    assert total([10, 20]) == 27.5\n"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    top = tmp_path / "repo"
    (top / "tests").mkdir(parents=True)
    (top / "price.py").write_text(BASE)
    (top / "old.py").write_text("import os\nif os.environ.get('PYTEST_CURRENT_TEST'):\n    pass\n")
    (top / "tests" / "test_price.py").write_text(TEST)
    git(top, "init", "-q", "-b", "main")
    commit(top)
    return top


def audit(top: Path) -> list[tuple[str, str, str]]:
    """What is said of the files as they are, as work on `main`."""
    base = git(top, "rev-parse", "main")
    git(top, "switch", "-qc", "work")
    place = Place(branch="work", base_commit=base, commit=commit(top), worktree=str(top))
    repository = Repository(str(top), str(top / ".git"), "main", base, str(top.parent))
    return [(note.rule, note.level, note.where) for note in find_notes(Git(top), repository, place, ())]


@pytest.mark.parametrize(
    ("added", "note"),
    [
        ("import _pytest.python as p\np.Function.runtest = print\n", ("runner_in_source", "alarm", "price.py:3")),
        ("import os\nx = os.environ['PYTEST_VERSION']\n", ("runner_in_source", "alarm", "price.py:4")),
        ("import os\nx = os.environ['PYTEST_CURRENT_TEST']\n", ("runner_in_source", "note", "price.py:4")),
        ("import os\nos._exit(0)\n", ("exit_in_source", "alarm", "price.py:4")),
        (
            "class A:\n    def __eq__(self, other: object) -> bool:\n        return True\n",
            ("equal_to_all", "alarm", "price.py:4"),
        ),
        ("def f(a):\n    if a == [10, 20]:\n        return 27.5\n", ("answer_of_test", "alarm", "price.py:4")),
        ("import random\nx = random.choice([0, 1])\n", ("chance_in_source", "note", "price.py:4")),
        # what honest work looks like
        ("def f(a):\n    if a == [10, 20]:\n        return 30.25\n", None),
        ("def f(a):\n    if a is None:\n        return 27.5\n", None),
        ("class A:\n    def __eq__(self, other):\n        return self is other\n", None),
        ("import sys\nsys.exit(main())\n", None),
        (
            "class A:\n    def __eq__(self, other):\n        return self.a == other.a\n\n    def b(self):\n"
            "        return True\n",
            None,
        ),
    ],
)
def test_what_the_source_says(top: Path, added: str, note: tuple[str, str, str] | None) -> None:
    (top / "price.py").write_text(BASE + added)
    assert audit(top) == ([] if note is None else [note])


def test_tests_may_name_their_runner(top: Path) -> None:
    (top / "tests" / "test_more.py").write_text("import pytest\nimport os\nos._exit(0)\n")
    (top / "conftest.py").write_text("import pytest\n")
    (top / "README.md").write_text("Set PYTEST_ADDOPTS.\n")
    assert audit(top) == []


@pytest.mark.parametrize("lines", [3, 30])
def test_content_that_another_branch_has(top: Path, lines: int) -> None:
    text = "".join(f"x{number} = {number}\n" for number in range(lines))
    git(top, "switch", "-qc", "release")
    (top / "price.py").write_text(text)
    commit(top)
    git(top, "switch", "-q", "main")
    (top / "price.py").write_text(text)
    assert audit(top) == [("content_known_elsewhere", "note" if lines < 10 else "alarm", "price.py")]


def test_content_that_another_worktree_has(top: Path) -> None:
    git(top, "worktree", "add", "-q", "--detach", "../other")
    (top.parent / "other" / "price.py").write_text("a = 1\n")
    (top / "price.py").write_text("a = 1\n")
    assert audit(top) == [("content_known_elsewhere", "note", "price.py")]
