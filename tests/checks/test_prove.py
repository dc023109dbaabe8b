"""Proof: the check on the work alone, without it, and crosswise; on real git, with real checks."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from calls import Calls, needs_calls
from stages import make_repository_of
from test_cli_worktrees import Finished, Project, finished, project_in, stage

from sessionrun.checks import testing
from sessionrun.checks.prove import find_verdict
from sessionrun.checks.runners import RanTests, find_missing, find_runners
from sessionrun.checks.testing import Rules, find_parts, find_set_up
from sessionrun.checks.trial import Ran

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
    assert testing.runs_doctests(Rules(), read, read.__getitem__)
    assert testing.runs_doctests(Rules(commands=("python -m doctest a.py",)), (), str)
    assert not testing.runs_doctests(Rules(commands=("pytest",)), {"Makefile": ""}, str)


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
    assert find_set_up(Rules(commands=(command,)), texts, (), texts.__getitem__) == named


def test_what_the_work_brings_before_the_test_runner() -> None:
    brought = {"pytest.py", "app/pluggy/__init__.py", ".npmrc", "app/vite.config.ts", "app/pytest.py"}
    brought |= {"src/_pytest/x.py"}
    found = find_set_up(Rules(directory="app"), {"src/_pytest/y.py", "calc.py"}, brought, str)
    assert found == brought - {"src/_pytest/x.py"}, "a project may be a test runner"


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


@pytest.fixture
def ended(finished: Finished) -> Project:
    """All of TASKS have ended, in `sessions[0]`."""
    return finished([{"prove": True, **task} for task in TASKS], make=make_repository)


def verdicts(view: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {task["id"]: (task["outcome"], task["proof"]) for task in view["tasks"]}


def test_what_is_proved_and_what_is_not(ended: Project) -> None:
    """Each task's own checkout passes the check; only a clean room tells them apart."""
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


def test_each_verdict_says_why(ended: Project) -> None:
    session = ended.sessions[0]
    tasks = {task["id"]: task for task in ended.status(session)["tasks"]}
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
