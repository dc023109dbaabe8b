"""Proof: the check on the work alone, without it, and crosswise; hidden tests; the audit; on real git."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from calls import Calls, needs_calls
from stages import commit_all, git, make_repository_of
from test_cli_worktrees import Finished, Project, finished, project_in, stage

from sessionrun.checks import testing, trial
from sessionrun.checks.audit import find_notes
from sessionrun.checks.crossing import NotApplicable, add_tests, take_source
from sessionrun.checks.prove import find_verdict
from sessionrun.checks.requests import KnownRequest
from sessionrun.checks.runners import (
    Case,
    RanTests,
    Word,
    find_missing,
    find_runners,
    list_test_files,
    match_ids,
)
from sessionrun.checks.running import load_red, run_first
from sessionrun.checks.testing import find_parts, find_set_up, keep_source, list_files
from sessionrun.checks.trial import Ran
from sessionrun.git.git import Git
from sessionrun.model.checks import HiddenTests
from sessionrun.model.places import Place
from sessionrun.store.files import NotRegular
from sessionrun.store.jobfiles import KNOWN

__all__ = ["finished", "stage"]

# --- the verdict ---


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
    without_red = find_verdict(lambda state, time: Ran(True), red=False, repeat=2)
    assert (without_red.verdict, without_red.problem) == ("not_red", None), "there may be nothing to fix"


@pytest.mark.parametrize("unsteady", ["result", "base", "new_tests"])
def test_a_check_that_fails_and_passes_is_flaky(unsteady: str) -> None:
    passing = {"result", "old_tests", *(["base"] if unsteady == "new_tests" else [])}

    def check(state: str, time: int) -> Ran:
        return Ran((state in passing) != (state == unsteady and time == 3))

    assert find_verdict(check, red=True, repeat=3).verdict == "flaky"
    assert find_verdict(check, red=True, repeat=2).verdict == "proved", "twice it failed"


# --- the tests that ran ---


@pytest.mark.parametrize(
    ("output", "runners"),
    [
        ("ok  \texample.com/a\t0.1s\n", {"go"}),
        ("test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured\n", {"cargo"}),
        ("=== 1 failed, 2 passed, 3 skipped, 1 error in 0.12s ===\n4 passed in 0.01s\n", {"pytest"}),
        ("Ran 5 tests in 0.001s\n\nOK (skipped=2)\n", {"unittest"}),
        ("\x1b[2m      Tests \x1b[22m 1 failed | 2 passed | 4 skipped (7)\n", {"vitest"}),
        ("Tests:       1 failed, 1 skipped, 2 passed, 4 total\n", {"jest"}),
        ("# tests 3\n# pass 2\n# fail 1\n", {"node"}),
        ("Tests run: 3, Failures: 1, Errors: 0, Skipped: 1\n", {"surefire"}),
        ("1 passed\nok then\nall tests passed in time\n", set()),
    ],
)
def test_what_runners_print(output: str, runners: set[str]) -> None:
    assert find_runners(output) == runners


@pytest.mark.parametrize(
    ("base", "work", "missing"),
    [
        ({}, {"t::a": "passed"}, None),
        ({"t::a": "failed", "t::b": "skipped"}, {"t::a": "passed"}, None),
        ({"t::a": "failed", "t::b": "passed"}, {"t::b": "passed"}, "1 of 2 tests did not run with the work: t::a"),
        ({"t::a": "failed"}, {"t::a": "skipped"}, "1 of 1 tests did not run with the work: t::a"),
        ({"t::a": "failed"}, {}, "1 of 1 tests did not run with the work: t::a"),
        ({"t::a[1]": "failed"}, {"t::a[one::x]": "passed"}, None),
        (
            {"t::a[1]": "passed", "t::a[2]": "passed"},
            {"t::a[3]": "passed"},
            "1 of 2 tests did not run with the work: t::a[2]",
        ),
    ],
)
def test_what_ran_on_the_base_has_to_run_with_the_work(
    base: dict[str, str], work: dict[str, str], missing: str | None
) -> None:
    before, now = (RanTests(words, frozenset(["pytest"] if words else [])) for words in (base, work))
    assert find_missing(before, now) == missing
    states = {"result": Ran(True), "old_tests": Ran(True, tests=now), "base": Ran(False, tests=before)}
    report = find_verdict(lambda state, time: states[state], red=True, repeat=2)
    assert (report.verdict, report.problem) == (("unproved", missing) if missing else ("proved", None))
    careless = find_verdict(lambda state, time: states[state], red=True, repeat=2, reads_report=False)
    assert careless.verdict == "proved"


# --- a test that has to fail ---

RAN = RanTests({"t::a": "passed"}, frozenset(["pytest"]))
QUIET = RanTests({}, frozenset(["pytest"]))
NAMELESS = RanTests({}, frozenset(["jest"]))


@pytest.mark.parametrize(
    ("tests", "work", "base", "verdict"),
    [
        (RanTests(), None, None, "proved"),  # no runner is known
        (RAN, Ran(True), None, "proved"),  # there was no place for one
        (RAN, Ran(False, canaries={"a": True}), None, "proved"),
        (RAN, Ran(True, canaries={"a": False}), Ran(False, canaries={"a": True}), "unproved"),
        (RAN, Ran(True, canaries={"a": False}), Ran(False, canaries={"a": False}), "proved"),  # such as -k
        (RAN, Ran(True, canaries={"a": True}), None, "unproved"),  # it failed, and the check passes
        (QUIET, Ran(True, canaries={"a": False}), Ran(False, canaries={"a": False}), "unproved"),
        (NAMELESS, Ran(True, canaries={"a": False}), Ran(False, canaries={"a": False}), "proved"),
        (
            RanTests({}, frozenset(["go"])),
            Ran(False, canaries={"a": True, "b": False}),
            Ran(False, canaries={"b": True}),
            "unproved",
        ),
    ],
)
def test_a_planted_test_has_to_fail(tests: RanTests, work: Ran | None, base: Ran | None, verdict: str) -> None:
    def check(state: str, time: int) -> Ran:
        return Ran(state in ("result", "old_tests"), tests=tests)

    def plant(state: str, found: RanTests) -> Ran:
        ran = base if state == "base" else work
        assert ran is not None
        return ran

    assert find_verdict(check, red=True, repeat=2, plant=plant).verdict == verdict


# --- which files are tests ---


def test_what_is_a_test_and_what_is_test_set_up() -> None:
    tests, set_up = testing.compile_patterns(testing.TEST_FILES), testing.compile_patterns(testing.SET_UP)
    for name in ("tests/a.py", "a/tests/b/c", "test_x.py", "a/b/test_x.py", "x_test.go", "web/a.test.tsx"):
        assert tests.match(name), name
    for name in ("latest/x", "src/foo.py", "mytest.py", "contest.py", "src/testing.py"):
        assert not tests.match(name), name
        assert not set_up.match(name), name
    for name in ("conftest.py", "a/conftest.py", "pytest.ini", "x/sitecustomize.py", "a.pth", "jest.config.mjs"):
        assert set_up.match(name), name


PROJECT = '[project]\nname = "%s"\n[tool.pytest.ini_options]\naddopts = "%s"\n[tool.ruff]\nx = 1\n'
RUST = "pub fn a() {}\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() {\n        assert!(%s);\n    }\n}\n"
EXAMPLE = "/// The sum.\n/// ```\n/// assert_eq!(a::f(), %d);\n/// ```\npub fn f() {}\n"
POM = "<project>\n  <dependencies>%s</dependencies>\n  <build>%s</build>\n</project>\n"
NODE = '{"dependencies":{"a":"%s"},"scripts":{"test":"%s"}}'


@pytest.mark.parametrize(
    ("name", "work", "base", "mixed"),
    [
        ("pyproject.toml", PROJECT % ("new", "-k nothing"), "", '[project]\nname = "new"\n[tool.ruff]\nx = 1\n'),
        ("pyproject.toml", PROJECT % ("new", "-k nothing"), PROJECT % ("old", ""), PROJECT % ("new", "")),
        ("setup.cfg", "[a]\n", "[tool:pytest]\nx=1\n[b]\n", "[a]\n[tool:pytest]\nx=1\n"),
        (
            "Cargo.toml",
            "[lib]\ntest = false\n[dependencies]\na = 1\n",
            "[dependencies]\n",
            "[dependencies]\na = 1\n",
        ),
        ("Cargo.toml", "[dependencies]\n[[bin]]\nx = 1\n", "[[bin]]\nx = 2\n", "[dependencies]\n[[bin]]\nx = 2\n"),
        ("src/lib.rs", f"use b;\n{RUST % 'true'}", RUST % "a() == 1", f"use b;\n{RUST % 'a() == 1'}"),
        ("src/lib.rs", "pub fn b() {}\n", RUST % "1 == 1", "pub fn b() {}\n" + (RUST % "1 == 1").split("\n\n")[1]),
        ("src/lib.rs", "fn a() {}\n#[test]\nfn t() { x(); }\nfn b() {}\n", "", "fn a() {}\nfn b() {}\n"),
        ("src/a.rs", EXAMPLE % 30, EXAMPLE % 27, EXAMPLE % 27),
        ("pom.xml", POM % ("new", "skip"), POM % ("old", "test"), POM % ("new", "test")),
        (
            "pom.xml",
            "<project>\n<skipTests>true</skipTests>\n</project>\n",
            "<project/>",
            "<project>\n</project>\n",
        ),
        ("go.mod", "require a v2\nreplace a => ./b\n", "require a v1\n", "require a v2\n"),
    ],
)
def test_parts_of_files_that_are_tests_or_test_set_up(name: str, work: str, base: str, mixed: str) -> None:
    assert exchange(name, work, base) == mixed
    assert exchange(name, work, work) == work


def test_examples_are_tests_if_doctest_is_used() -> None:
    text = 'def f():\n    """The sum.\n\n    >>> f()\n    %d\n    """\n    return %d\n'
    exchange = find_parts("shop/a.py", doctests=True)
    assert exchange is not None and find_parts("shop/a.py") is None
    assert exchange(text % (30, 30), text % (27, 30)) == text % (27, 30)
    read = {"pytest.ini": "addopts = --doctest-modules"}
    assert testing.runs_doctests((), read, read.__getitem__)
    assert testing.runs_doctests(("python -m doctest a.py",), (), str)
    assert not testing.runs_doctests(("pytest",), {"Makefile": ""}, str)


def test_a_file_in_the_place_of_what_was_printed_proves_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "printed")
    with pytest.raises(NotRegular):
        trial._read_from(tmp_path / "printed", 0)


def test_keys_of_a_package() -> None:
    mixed = exchange("a/package.json", NODE % ("2", "true"), NODE % ("1", "vitest"))
    assert json.loads(mixed) == json.loads(NODE % ("2", "vitest"))
    assert exchange("package.json", "{", NODE) == NODE


def exchange(name: str, work: str, base: str) -> str:
    found = find_parts(name)
    assert found is not None
    return found(work, base)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("sh run.sh", {"run.sh"}),
        ("cd sub; A=1 bash -e ./run.sh >/dev/null 2>&1 || exit 1", {"run.sh"}),
        ("python3 -u tools/check.py --all", {"tools/check.py"}),
        ("tools/ci", {"tools/ci"}),
        ("make test", {"Makefile", "inner.sh"}),
        ("pytest -c other.ini", {"other.ini"}),
        # what is judged by something else is no judge
        ("python3 calc.py", set()),
        ("sh run.sh | grep -q good", set()),
        ('test "$(sh run.sh)" = 5', set()),
        ("./tools/ci > out && cmp out good", set()),
        ("grep -q good run.sh", set()),
    ],
)
def test_what_a_check_runs_is_test_set_up(command: str, named: set[str]) -> None:
    texts = dict.fromkeys(("run.sh", "tools/check.py", "tools/ci", "other.ini", "calc.py", "inner.sh", "good"), "")
    texts |= {"Makefile": "test:\n\t@sh inner.sh\n"} if "make" in command else {}
    assert find_set_up([command], ".", texts, (), texts.__getitem__) == named


def test_what_the_work_brings_before_the_test_runner() -> None:
    brought = {"pytest.py", "app/pluggy/__init__.py", ".npmrc", "app/vite.config.ts", "app/pytest.py"}
    brought |= {"src/_pytest/x.py"}
    found = find_set_up((), "app", {"src/_pytest/y.py", "calc.py"}, brought, str)
    assert found == brought - {"src/_pytest/x.py"}, "a project may be a test runner"


# --- hidden tests: ids and JUnit XML ---


def test_how_tests_ended() -> None:
    """One whose failure was expected passed; of a bare name the worst counts."""
    ends: dict[str, Word] = {"good": "passed", "bad": "failed", "off": "skipped", "torn": "error"}
    cases = [Case("tests.test_a", f"test_{name}", word) for name, word in ends.items()]
    cases += [
        Case("tests.test_a", "test_known", "skipped", expected=True),
        Case("t.test_b", "test_good", "failed"),
    ]
    ids = {f"tests/test_a.py::test_{name}": end for name, end in {**ends, "known": "passed"}.items()}
    assert match_ids([*ids, "tests/test_a.py::test_missing"], cases) == ids
    assert match_ids(["test_good", "test_known"], cases) == {"test_good": "failed", "test_known": "passed"}


def test_ids_of_all_kinds_name_their_tests() -> None:
    ids = {
        "test_a.py::TestC::test_b[x::y/z.py]": Case("test_a.TestC", "test_b[x::y/z.py]", "passed"),
        "a/test_a.py::TestC::TestD::test_b": Case("a.test_a.TestC.TestD", "test_b", "failed"),
        "test_b (app.tests.TestC)": Case("app.tests.TestC", "test_b", "skipped"),
    }
    assert match_ids(list(ids), list(ids.values())) == {name: case.word for name, case in ids.items()}


def test_an_id_that_was_cut_at_a_space_stands_for_all_that_begin_so() -> None:
    ends: dict[str, Word] = {"test_a[x y]": "passed", "test_a[x z]": "failed", "test_b[x y]": "passed"}
    cases = [Case("t", name, word) for name, word in ends.items()]
    ids = ("t.py::test_a[x", "t.py::test_b[x", "t.py::test_b[y", "t.py::test_b[x]", "t.py::test_b")
    assert match_ids(ids, cases) == {"t.py::test_a[x": "failed", "t.py::test_b[x": "passed"}


def test_which_files_are_run() -> None:
    of_patch = ["tests/test_p.py", "tests/data.txt", "src/x.py"]
    assert list_test_files(["tests/test_a.py::a", "tests/test_a.py::b"], of_patch) == ["tests/test_a.py"]
    assert list_test_files(["test_bare", "t/x.py::a"], of_patch) == ["t/x.py", "tests/test_p.py"]


CASE = "<testcase classname='tests.test_a' name='test_{}'>{}</testcase>"
ENDS = CASE.format("good", "") + CASE.format("bad", "<failure/>") + CASE.format("off", "<skipped/>")
REPORT = f"<testsuite>{ENDS}<testcase classname='' name='tests.test_b'><error/></testcase></testsuite>"
RED = {
    "tests/test_a.py::test_bad",
    "tests/test_a.py::test_off",
    "tests/test_b.py::test_in_a_file_that_is_not_loaded",
}


@pytest.mark.parametrize(
    ("command", "red"),
    [
        ("exit 4;", None),  # no test could be run
        (":", frozenset()),  # they were, but the command names none
        (f'echo "{REPORT}" > "${{PYTEST_ADDOPTS##*=}}"; exit 1;', frozenset(RED)),
    ],
)
def test_which_tests_were_red_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, red: frozenset[str] | None
) -> None:
    monkeypatch.chdir(tmp_path)
    ids = ("tests/test_a.py::test_good", "tests/test_a.py::test_of_the_patch", *RED)
    request = KnownRequest(HiddenTests("", (), ids, command=command))
    (tmp_path / KNOWN).write_bytes(orjson.dumps(request))
    run_first(None, tmp_path)
    assert load_red(str(tmp_path)) == frozenset(), "none of their files is there"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").touch()
    run_first(None, tmp_path)
    assert load_red(str(tmp_path)) == red
    (tmp_path / "known-red.json").write_text("[[]]")
    assert load_red(str(tmp_path)) == frozenset(), "this record is not ours"


# --- hidden tests: the source in a patch, and the trees that are judged ---


@pytest.fixture
def repository(tmp_path: Path) -> Git:
    top = tmp_path / "repo"
    source = "".join(f"line {number}\n" for number in range(20))
    tests = {"tests/test_a.py": "def test_a(): pass\n", "pyproject.toml": "[project]\nname = 'x'\n"}
    make_repository_of(top, {"src/a.py": source, **tests})
    return Git(top)


def commit(top: Path) -> str:
    commit_all(top)
    return git(top, "rev-parse", "HEAD")


def test_of_a_patch_the_source_is_kept(repository: Git) -> None:
    top = repository.directory
    (top / "tests" / "test_a.py").write_text("def test_a(): assert 0\n")
    (top / "conftest.py").write_text("x = 1\n")
    (top / "ümlaut\n.py").write_text("x = 1\n")
    (top / "empty").touch()
    (top / "blob").write_bytes(b"\0\1\2" * 40)
    (top / "src" / "test_new.py").write_text("diff --git a/tests/x b/tests/x\n")
    (top / "src" / "text.py").write_text("diff --git a/tests/x b/tests/x\n--- a/tests/x\n")
    (top / "src" / "a.py").rename(top / "src" / "b.py")
    git(top, "add", "-A")
    words = ["git", "diff", "--cached", "--binary", "-M"]
    patch = subprocess.run(words, cwd=top, check=True, capture_output=True).stdout
    kept = keep_source(patch)
    assert list_files(kept) == ["blob", "empty", "src/a.py", "src/b.py", "src/text.py", "ümlaut\n.py"]
    assert set(list_files(patch)) - set(list_files(kept)) == {"tests/test_a.py", "conftest.py", "src/test_new.py"}
    git(top, "reset", "-q", "--hard")
    subprocess.run(["git", "apply", "--check", "-"], cwd=top, check=True, input=kept)
    assert keep_source(b"") == b""
    assert list_files(b'diff --git "a/\\x" "b/\\x"\n'), "git writes no such names"


def test_the_trees_that_are_judged(repository: Git, tmp_path: Path) -> None:
    """The work's source, the base's tests, and what the patch brings; also over a file that the work changed."""
    top = repository.directory
    base = git(top, "rev-parse", "HEAD")
    (top / "src" / "a.py").write_text("fixed\n")
    (top / "tests" / "test_a.py").write_text("bent\n")
    (top / "conftest.py").write_text("bent\n")
    (top / "fixture.txt").write_text("of the work\n")
    (top / "pyproject.toml").write_text("[project]\nname = 'y'\n[tool.pytest.ini_options]\naddopts = '-k no'\n")
    work = commit(top)
    git(top, "checkout", "-q", base)
    (top / "tests" / "test_a.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    (top / "fixture.txt").write_text("of the tests\n")
    git(top, "add", "-A")
    patch = git(top, "diff", "--cached") + "\n"
    place = Place(base_commit=base, commit=work)
    source = take_source(repository, place, (), tmp_path)
    commit_id = add_tests(repository, source, base, patch.encode(), tmp_path)

    def show(name: str) -> str:
        return git(top, "show", f"{commit_id}:{name}")

    assert show("src/a.py") == "fixed"
    assert "test_b" in show("tests/test_a.py")
    assert show("fixture.txt") == "of the tests"
    assert show("pyproject.toml") == "[project]\nname = 'y'"
    assert "conftest.py" not in git(top, "ls-tree", "-r", "--name-only", commit_id)
    assert add_tests(repository, source, base, b"", tmp_path) == source
    plain = re.sub("(?m)^(diff|index|new) .*\n", "", patch).encode()
    commit_id = add_tests(repository, source, base, plain, tmp_path)
    assert show("fixture.txt") == "of the tests", "a patch that only names the files is one, too"
    with pytest.raises(NotApplicable, match="does not apply"):
        add_tests(repository, source, base, patch.replace(" def test_a", " def test_z").encode(), tmp_path)
    with pytest.raises(NotApplicable, match="does not apply"):
        add_tests(repository, source, base, b"garbage\n", tmp_path)
    git(top, "reset", "-q", "--hard")
    git(top, "mv", "src/a.py", "src/b.py")
    commit_id = add_tests(repository, source, base, (git(top, "diff", "--cached", "-M") + "\n").encode(), tmp_path)
    assert show("src/b.py").startswith("line 0\n"), "the old name of a rename is as in the base, too"
    again = take_source(repository, replace(place, commit=base), (), tmp_path)
    assert again == base, "without work there is the base alone"


# --- the audit of a proof: source that knows the test runner, and content that lies elsewhere ---

BASE = "def total(items):\n    return sum(items)\n"
TEST = "from price import total\n\n\ndef test_total():\n    assert total([10, 20]) == 27.5\n"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    top = tmp_path / "repo"
    old = "import os\nif os.environ.get('PYTEST_CURRENT_TEST'):\n    pass\n"
    make_repository_of(top, {"price.py": BASE, "old.py": old, "tests/test_price.py": TEST})
    return top


def audit(top: Path) -> list[tuple[str, str, str]]:
    """What is said of the files as they are, as work on `main`."""
    base = git(top, "rev-parse", "main")
    git(top, "switch", "-qc", "work")
    place = Place(branch="work", base_commit=base, commit=commit(top), worktree=str(top))
    return [(note.rule, note.level, note.where) for note in find_notes(Git(top), place, ())]


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
def test_content_that_is_known_elsewhere(top: Path, lines: int) -> None:
    text = "".join(f"x{number} = {number}\n" for number in range(lines))
    git(top, "switch", "-qc", "release")
    (top / "price.py").write_text(text)
    commit(top)
    git(top, "switch", "-q", "main")
    (top / "price.py").write_text(text)
    assert audit(top) == [("content_known_elsewhere", "note" if lines < 10 else "alarm", "price.py")]


def test_names_and_lines_of_all_kinds(top: Path) -> None:
    (top / "tests" / "test_old.py").write_text("\fimport pytest\n")
    commit(top)
    git(top, "branch", "other")
    (top / os.fsdecode(b"\xff\xc2\x85.py")).write_text("import pytest\n")
    (top / "price.py").write_text("x = 1\n")
    assert audit(top) == [("runner_in_source", "alarm", "\\xff\x85.py:1")]


# --- sessions ---

CHECK = "for t in tests/*.sh; do [ -e tests/skip ] || sh conftest.py || sh $t || exit 1; done"
"""Like pytest's, a `conftest.py` above the tests may let all pass."""
FIX = "echo good > src/answer"


def make_repository(top: Path) -> None:
    files = {"src/answer": "bad\n", "tests/answer.sh": "grep -q good src/answer\n", "conftest.py": "false\n"}
    make_repository_of(top, {**files, ".gitignore": "plan-*\n*.log\n"})


@pytest.fixture
def project(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return project_in(own_place, monkeypatch, make_repository)


SECOND = (
    f'if [ "$SESSIONRUN_ROUND" = 1 ]; then echo good > src/x.log; else cp "$SESSIONRUN_FEEDBACK" seen; {FIX}; fi'
)
"""Round 1 fixes it in a file that git ignores; round 2 reads why that does not count."""
EVIL = "git commit -q --allow-empty -m x && git branch evil && git config core.hooksPath /evil && git log -1"
NEW = "echo good > src/new; echo 'grep -q good src/new' > tests/new.sh"
IN_ROOM = 'case "$PWD" in *.room-*) {};; esac'


COUNTED = "cat src/answer >> ../../count; grep -q good src/answer"
"""A check that notes what the base or the work holds."""
TASKS: list[dict[str, Any]] = [
    {"id": "red", "prompt": "echo x > f", "check": "true"},
    {"id": "any", "prompt": "echo x > f", "check": "true", "prove": {"red": False}},
    {"id": "second", "prompt": SECOND, "check": "grep -qr good src", "rounds": 2},
    *({"id": name, "prompt": f"{FIX}; echo {name} > f", "check": COUNTED} for name in "ab"),
    {"id": "loose", "prompt": f"{FIX}; git switch -q --detach", "check": CHECK},
    {"id": "endless", "prompt": FIX, "check": {"commands": IN_ROOM.format("sleep 600"), "timeout": 1}},
    {"id": "reaches", "prompt": FIX, "check": f"{IN_ROOM.format(EVIL)}; grep -q good src/answer"},
    {"id": "weakens", "prompt": "echo true > tests/answer.sh", "check": CHECK},
    {"id": "skips", "prompt": "touch tests/skip", "check": CHECK},
    {"id": "adds", "prompt": f"{FIX}; {NEW}; git add -A; git commit -qm both", "check": CHECK},
]


def verdicts(view: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {task["id"]: (task["outcome"], task["proof"]) for task in view["tasks"]}


def test_what_is_proved_and_what_is_not_and_why(finished: Finished) -> None:
    """Each task's own checkout passes the check; only a clean room tells them apart."""
    ended = finished([{"prove": True, **task} for task in TASKS], make=make_repository)
    session = ended.sessions[0]
    view = ended.status(session)
    assert verdicts(view) == {
        "red": ("failed", "not_red"),
        "any": ("succeeded", "not_red"),
        "second": ("succeeded", "proved"),
        "a": ("succeeded", "proved"),
        "b": ("succeeded", "proved"),
        "loose": ("failed", None),
        "endless": ("failed", "unproved"),
        "reaches": ("succeeded", "proved"),
        "weakens": ("failed", "weakened"),
        "skips": ("failed", "weakened"),
        "adds": ("succeeded", "proved"),
    }
    assert re.search(r"\nproved +5/10\n", ended("status", session, "--by", "agent").stdout)
    (group,) = ended.load("status", session, "--by", "agent")["groups"]
    assert group["proof"] == {"proved": 5, "not_red": 2, "unproved": 1, "weakened": 2}
    assert not list(ended.cwd.parent.glob("repo-worktrees/.room-*"))
    # a program in the room has a git of its own: commits, branches and settings stay there
    assert "evil" not in ended.branches()
    assert "hooksPath" not in (ended.cwd / ".git" / "config").read_text()
    # without walls a task could have changed the machine since another one saw the base fail
    count = (ended.cwd.parent / "count").read_text()
    assert count.count("bad") == 4, "for each task once, and once more because it failed"
    done = ended("doctor", session)
    assert done.returncode == 0, done.stdout
    tasks = {task["id"]: task for task in view["tasks"]}
    assert tasks["red"]["reason_class"] == "not_red"
    assert tasks["weakens"]["reason"].startswith("weakened: with the tests and test set-up of the base")
    assert tasks["weakens"]["branch"], "its work is kept for all that"
    assert "not done after 1 s" in tasks["endless"]["reason"], "its time is that of the check"
    assert tasks["loose"]["reason_class"] == "not_parked", "no commit can hold it"
    assert "HEAD is on no branch" in tasks["loose"]["reason"]
    assert tasks["second"]["round"] == 2
    seen = ended.git("show", f"{tasks['second']['commit']}:seen")
    assert "on the base and the work: fails: exit code 1" in seen, "the agent was told"
    for verb in ("status", "explain", "results"):
        assert re.search(r"\n *proof: proved\n", ended(verb, session, "a").stdout), verb


@pytest.mark.slow
def test_setup_runs_in_each_room_and_is_no_work(project: Project) -> None:
    """What the agent did to the files of setup is not there; what setup left in the worktree is not either."""
    check = "grep -q good built.log && grep -q good src/answer && grep -q set from-setup"
    own = {"setup": ["echo good > built.log; echo set > from-setup"], "check": check, "prove": True}
    plan = [
        {"id": "set-up", "prompt": FIX, **own},
        {"id": "tampers", "prompt": f"{FIX}; echo x >> from-setup", **own},
    ]
    view = project.status(project.finish(plan))
    assert verdicts(view) == {"set-up": ("succeeded", "proved"), "tampers": ("failed", "unproved")}
    assert "does not apply without what setup left" in view["tasks"][1]["reason"]


@needs_calls
@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", ["prove:mkdir:1:after:*.room-*", "prove+:rename:1:kill:*.room-*", "prove:rmdir:1:kill:*.room-*"]
)
def test_a_proof_that_is_killed(project: Project, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """While its room is made, and while it is removed: the next one begins anew, and none is left."""
    calls = Calls(project.cwd.parent / "calls", rule)
    calls.watch(monkeypatch)
    plan = [{"id": "a", "prompt": FIX, "check": "grep -q good src/answer", "prove": True}]
    assert verdicts(project.wait(project.start(plan, "--worktree"))) == {"a": ("succeeded", "proved")}
    assert not list(project.cwd.parent.glob("repo-worktrees/.room-*"))
    assert calls.has_hit() == [True]


@pytest.mark.slow
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
    ]
    session = project.finish(plan)
    view = project.status(session)
    assert verdicts(view) == dict.fromkeys("ab", ("succeeded", "proved"))
    assert project.git("show", f"{view['tasks'][1]['commit']}:shared/tool") == "good"
    assert (project.cwd / "shared" / "tool").read_text() == "good\n"


@pytest.mark.slow
def test_a_proof_counts_tests_and_none_is_a_failure(project: Project) -> None:
    (project.cwd / "conftest.py").write_text("")
    (project.cwd / "test_answer.py").write_text(
        "def test_it():\n    assert open('src/answer').read() == 'good\\n'\ndef test_other():\n    pass\n"
    )
    project.git("add", ".")
    project.git("commit", "-qm", "pytest")
    pytest_ = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q -p no:cacheprovider"
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
    printed = (folder / "stdout").read_text()
    assert "on the base and the work: passes (2 of 2 tests passed.)" in printed
    assert re.search(r"on the base, without the work: fails: .* \(1 of 2 tests passed, 1 failed\.\)", printed)
