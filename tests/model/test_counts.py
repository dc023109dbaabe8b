"""Tests are counted in JUnit XML that may be anything, and failures are told the telling part first."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from sessionrun.checks.runners import Case, parse_junit
from sessionrun.checks.running import MAX_BYTES, run_commands, word_counts, word_failure
from sessionrun.engine.task import TaskState
from sessionrun.engine.transitions import keep_round
from sessionrun.model.checks import Checked, Counts
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Check, TaskSpec, Workspace
from sessionrun.session.prompt import find_feedback
from sessionrun.store.session import SessionDir

SUITES = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="9" failures="9" skipped="9" tests="99">
<testcase classname="tests.test_a" name="test_good" time="0.1"/>
<testcase classname="tests.test_a" name="test_bad">
<failure message="assert 1 == 2&#10; +  where 1 = f()">E x</failure></testcase>
<testcase classname="tests.test_a" name="test_both">
<failure message="a b c d"/><error message="broken in teardown"/></testcase>
<testcase classname="" name="tests.test_b"><error message="collection failure">line
E   ImportError: no c
</error></testcase>
<testcase classname="tests.test_a" name="test_skipped"><skipped type="pytest.skip" message="no"/></testcase>
<testcase classname="tests.test_a" name="test_known"><skipped type="pytest.xfail" message="no"/></testcase>
<testcase classname="tests.test_a" name="test_prints"><system-out>x</system-out></testcase>
</testsuite></testsuites>
"""


def test_tests_are_counted_by_what_they_came_to() -> None:
    tests = parse_junit(SUITES.encode())
    assert tests is not None
    assert tests.counts == Counts(passed=2, failed=1, errors=2, skipped=2, total=7)
    assert [case.name for case in tests.cases if case.expected] == ["test_known"]
    assert tests.failed == [
        Case("tests.test_a", "test_bad", "failed", message="assert 1 == 2 + where 1 = f()"),
        Case("tests.test_a", "test_both", "error", message="broken in teardown"),
        Case("", "tests.test_b", "error", message="collection failure: ImportError: no c"),
    ]


LAUGHS = '<!DOCTYPE l [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not xml",
        b"<html><testcase/></html>",
        b"<testsuite><testcase name='\xff\xfe'/></testsuite>",
        b"<?xml version='1.0' encoding='no-such'?><testsuite>\xff</testsuite>",
        (LAUGHS + "]><testsuite><testcase name='&i;'/></testsuite>").encode(),
        b'<!DOCTYPE t SYSTEM "file:///etc/passwd"><testsuite/>',
        b'<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]><testsuite><testcase name="&x;"/></testsuite>',
        b"\0" * 1000,
    ],
    ids=range(9),
)
def test_what_is_no_junit_counts_for_nothing(content: bytes) -> None:
    assert parse_junit(content) is None


def test_of_a_wide_document_nothing_is_kept() -> None:
    tracemalloc.start()
    parse_junit(b"<testsuite>" + b"<a/>x" * 100_000 + b"<testcase>" + b"<a/>x" * 100_000)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_a_deep_or_long_document_is_read() -> None:
    deep = b"<testsuite>" + b"<a>" * 20_000 + b"</a>" * 20_000 + b"<testcase name='x'/></testsuite>"
    found = parse_junit(deep)
    assert found is not None and found.counts.total == 1
    text = b"<testcase name='x'><failure message='m'>" + b"a\n" * 50_000 + b"E   last\n</failure></testcase>"
    many = (
        b"<testsuite>" + b"<testcase name='x'><failure message='m'/></testcase>" * 9_000 + text + b"</testsuite>"
    )
    found = parse_junit(many)
    assert found is not None and found.counts.failed == 9_001


WRITE = "f=${PYTEST_ADDOPTS##*=}; "


@pytest.mark.parametrize(
    "planted", ["mkfifo $f", "ln -s /dev/zero $f", "mkdir -p $f/x", "ln -s $PWD/real.xml $f", "truncate -s 10G $f"]
)
def test_a_hostile_command_is_only_a_command(tmp_path: Path, planted: str) -> None:
    """Its exit code decides, its counts are none."""
    (tmp_path / "real.xml").write_text(SUITES)
    ran = run_commands(Check((f"{WRITE}{planted}",)), str(tmp_path), tmp_path)
    assert (ran.problem, ran.counts) == (None, None)


def test_what_was_planted_before_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    (tmp_path / "junit-1.xml").write_text(SUITES)
    (tmp_path / "junit-2.xml").mkdir()
    good = "<testsuite><testcase name='a'/></testsuite>"
    commands = ('test "${PYTEST_ADDOPTS%% *}" = -x', f'{WRITE}echo "{good}" > $f')
    ran = run_commands(Check(commands), str(tmp_path), tmp_path)
    assert (ran.problem, ran.counts) == (None, Counts(passed=1, total=1))


def test_counts_of_several_commands_add_up_and_none_at_all_is_a_failure(tmp_path: Path) -> None:
    good = f"{WRITE}echo \"<testsuite><testcase name='a'/></testsuite>\" > $f"
    empty = f'{WRITE}echo "<testsuites><testsuite/></testsuites>" > $f'
    assert run_commands(Check((good, good)), str(tmp_path), tmp_path).counts == Counts(passed=2, total=2)
    ran = run_commands(Check((good, empty, "touch never")), str(tmp_path), tmp_path)
    assert ran.problem == f"no test was found by: {empty}"
    assert "No test was found." in ran.feedback
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("commands", "passes"),
    [
        (["cd /; x=1; [ $PWD$x = /1 ]", "true # said"], True),
        (["cd /; x=1", "[ $PWD != / ] && [ -z $x ]"], True),
        (["exit 0", "false"], False),
        (["false && true", "true"], False),
        (["! true", "true"], False),
        (["true", "false"], False),
        (["false\ntrue"], False),
    ],
)
def test_all_commands_of_a_check_must_pass(tmp_path: Path, commands: list[str], passes: bool) -> None:
    assert (run_commands(Check((*commands,)), str(tmp_path), tmp_path).problem is None) is passes


@pytest.mark.parametrize("tag", ["failure", "error"])
def test_exit_code_0_beside_a_report_with_a_failed_test_is_a_failure(tmp_path: Path, tag: str) -> None:
    says = f"<testsuite><testcase name='a'><{tag} message='no'/></testcase><testcase name='b'/></testsuite>"
    command = f'{WRITE}echo "{says}" > $f'
    ran = run_commands(Check((command, "touch never")), str(tmp_path), tmp_path)
    assert ran.problem == f"its report says 1 test failed, but the exit code is 0, of: {command}"
    assert "did not pass, though its exit code is 0" in ran.feedback and "FAILED a: no" in ran.feedback
    assert not (tmp_path / "never").exists()
    tolerated = run_commands(Check((command,), report="ignore"), str(tmp_path), tmp_path)
    assert tolerated.problem is None and tolerated.counts is not None


def test_a_command_that_a_signal_ended_is_said_to_be(tmp_path: Path) -> None:
    ran = run_commands(Check(("kill -9 $$",)), str(tmp_path), tmp_path)
    assert ran.problem == "signal 9 of: kill -9 $$"
    assert ran.feedback.startswith("This command failed with signal 9: kill -9 $$\n")


def test_the_telling_part_comes_first_and_all_of_it_is_bounded() -> None:
    counts = Counts(passed=3, failed=200, total=203)
    failed = [Case("t", f"test_{number}", "failed", message="m" * 400) for number in range(50)]
    output = b"noise\n" * 10_000
    told = word_failure("make test", 2, counts, failed, output, len(output))
    assert len(told.encode()) <= MAX_BYTES
    lines = told.splitlines()
    assert lines[0] == "This command failed with exit code 2: make test"
    assert lines[2] == "3 of 203 tests passed, 200 failed."
    assert lines[3].startswith("FAILED t::test_0: mmm")
    shown = sum(line.startswith("FAILED t::test_") for line in lines)
    assert f"[... {200 - shown} more tests that did not pass]" in lines and 0 < shown < 50
    assert any("bytes left out]" in line for line in lines[-1000:])
    assert told.endswith("noise\n")


def test_short_feedback_has_no_marks() -> None:
    told = word_failure("false", 1, None, (), b"red\n", 4)
    assert told == "This command failed with exit code 1: false\n\nThe end of its output:\n\nred\n"
    assert word_failure("false", 1, None, (), b"", 0).endswith("It printed nothing.\n")
    assert word_counts(Counts(passed=1, errors=1, skipped=2, total=4)) == (
        "1 of 4 tests passed, 1 with an error, 2 skipped."
    )


def made(passed: int | None, lines: int = 1, snapshot: str | None = "c") -> Checked:
    counts = None if passed is None else Counts(passed=passed, failed=1, total=passed + 1)
    return Checked(counts, snapshot, {"files": 1, "insertions": lines, "deletions": 0})


def check_rounds(rounds: list[Checked]) -> TaskState:
    """A task after rounds that came to this, and failed."""
    task = TaskState(TaskSpec("a", ("x",), check=Check(("c",)), rounds=9), 1)
    for checked in rounds:
        keep_round(task, checked, passed=False)
        task.round += 1
    return task


@pytest.mark.parametrize(
    ("rounds", "best", "why"),
    [
        ([made(1), made(3), made(2)], 2, "3 tests passed, and in round 3 2"),
        ([made(1), made(2)], 2, "2 tests passed, and in round 1 1"),
        ([made(2, 9), made(2, 3)], 2, "as many tests passed as in round 1, with a smaller diff"),
        ([made(2, 3), made(2, 9)], 1, "as many tests passed as in round 2, with a smaller diff"),
        ([made(2, 3), made(2, 3)], 2, "as many tests passed as in round 1, with a diff of the same size"),
        ([made(None), made(None, 9)], 2, "the last round; no test is counted"),
        ([made(0), made(None)], 1, "of round 2 no test is counted"),
        ([made(None), made(0)], 2, "of round 1 no test is counted"),
        ([made(1), made(2, snapshot=None)], 1, "the first round that was checked"),
        ([made(2)], 1, "the first round that was checked"),
    ],
)
def test_which_round_is_the_best(rounds: list[Checked], best: int, why: str) -> None:
    task = check_rounds(rounds)
    assert task.best is not None
    assert (task.best.round, task.best.why) == (best, why)


@pytest.mark.parametrize("rounds", [[], [made(9)], [made(None)]], ids=len)
def test_a_round_that_passed_is_the_best(rounds: list[Checked]) -> None:
    """Whatever came before, and also where nothing was counted."""
    task = check_rounds(rounds)
    keep_round(task, None, passed=True)
    assert task.best is not None
    assert (task.best.round, task.best.why) == (len(rounds) + 1, "its check passed")


FAILED = "Your last attempt did not pass its check."
BACK = " The working directory was set back to what it was before your work."


@pytest.mark.parametrize(
    ("printed", "fields", "told"),
    [
        ({"feedback": b"It failed.\n"}, {}, f"{FAILED}\n\nIt failed.\n"),
        ({"feedback": b"It failed.\n"}, {"resets": True}, f"{FAILED}{BACK}\n\nIt failed.\n"),
        ({"stdout": b"red\n", "stderr": b"why\n"}, {}, f"{FAILED} The end of the check's output:\n\nred\nwhy\n"),
        ({}, {}, f"{FAILED}\n"),
        (None, {"resets": True, "overdue": True}, f"Your last attempt was stopped: no result after 90 s.{BACK}\n"),
        (None, {}, ""),
    ],
)
def test_what_a_round_is_told_of_the_one_before(
    tmp_path: Path, printed: dict[str, bytes] | None, fields: dict[str, bool], told: str
) -> None:
    session, key = SessionDir(tmp_path), JobKey("a", 1, 2, "work", 1)
    check = Check(("true",), reset="hard" if "resets" in fields else "keep")
    spec = TaskSpec("a", ("x",), check=check, rounds=2, round_timeout_s=90.0, workspace=Workspace("worktree"))
    folder = session.make_job_path(key._replace(round=1, phase="check")) if printed is not None else tmp_path
    for name, text in (printed or {}).items():
        (folder / name).write_bytes(text)
    path, feedback = find_feedback(session, TaskState(spec, 1, overdue="overdue" in fields), key)
    assert feedback.decode() == told
    assert (path is None) == (not told)
    if "overdue" in fields:
        assert path is not None and path.read_bytes() == feedback
