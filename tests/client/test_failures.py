"""Why tasks failed as people read it: each reason once, check before agent, in a bounded number of bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import Command
from terminal import Terminal

from sessionrun.cli.failures import digest_lines
from sessionrun.client.reading.view import load_view
from sessionrun.store.session import SessionDir

PLAN = {
    "prompts": [
        {"id": "fine", "prompt": "echo All is well."},
        {
            "id": "check",
            "prompt": "echo thinking; echo All tests pass.; echo deprecated >&2",
            "check": "echo 'FAILED test_a' && sh -c 'exit 2'",
        },
        *({"id": f"a{num}", "prompt": f"echo I am {num}; echo took 0.$$ s >&2; exit 3"} for num in range(3)),
        {"id": "other", "prompt": "echo another >&2; exit 3"},
        {"id": "root", "prompt": "echo no such table >&2; exit 7"},
        {"id": "mid", "prompt": "true", "needs": ["root"]},
        {"id": "end", "prompt": "true", "needs": ["mid"]},
    ]
}
FAILED = """\
1 succeeded, 6 failed, 2 skipped

✗ 3 failed: exit code 3
    a0 a1 a2
  [standard error, last lines]
    took 0.N s

✗ other failed: exit code 3
  [standard error, last lines]
    another

✗ check failed: check failed, exit code 2: echo 'FAILED test_a' && sh -c 'exit
    2'
  [check, last lines]
    FAILED test_a
  [standard error, last lines]
    deprecated
  [the agent said]
    All tests pass.

✗ root failed: exit code 7
  [standard error, last lines]
    no such table
"""


def test_each_reason_stands_once_with_what_tells(sessionrun: Command) -> None:
    session = sessionrun.finished(PLAN, "--agent", "shell")
    head, shown = sessionrun("results", session, "--failed").stdout.split("\n", 1)
    assert head.startswith(f"{session[:8]}: ended, 9 tasks, ")
    assert re.sub(r"took 0\.\d+ s", "took 0.N s", shown) == FAILED


SILENT = {"prompts": [{"id": f"t{code}", "prompt": f"exit {code}"} for code in range(4, 24)]}


@pytest.mark.parametrize("plan", [PLAN, SILENT])
def test_what_failed_is_told_within_any_room(sessionrun: Command, plan: dict[str, Any]) -> None:
    """Each task is shown, or counted among the others."""
    session = SessionDir(sessionrun.directory(sessionrun.finished(plan, "--agent", "shell")))
    view = load_view(session)
    failed = [task for task in view["tasks"] if task["word"] == "failed"]
    whole = set()
    for room in range(250 if plan is SILENT else 380, 1400, 5):
        shown = "\n".join(digest_lines(session, view, failed, room)) + "\n"
        assert len(shown.encode()) <= room
        rest = shown.rpartition("\nand ")[2].split(" more, for ")
        told = sum(1 if line.split()[1] != "3" else 3 for line in shown.split("\n") if line[:1] == "\u2717")
        assert told + (int(rest[0]) if len(rest) > 1 else 0) == len(failed)
        whole.add(len(rest) == 1)
    assert whole == {True, False}


@pytest.mark.parametrize(
    ("codes", "last"),
    [
        (range(1, 41), " other reasons: --failed --all shows them"),
        ([4] * 40, "32 failed: exit code 4, each with other last lines"),
    ],
)
def test_it_is_bounded_where_no_terminal_reads_unless_all_is_wanted(
    sessionrun: Command, codes: Sequence[int], last: str
) -> None:
    lines = "; ".join(f"echo {number}{'x' * 90} >&2" for number in range(6))
    prompts = [f"{lines}; echo {place} >&2; exit {code}" for place, code in enumerate(codes)]
    plan = {"prompts": [{"id": f"t{place}", "prompt": prompt} for place, prompt in enumerate(prompts)]}
    session = sessionrun.finished(plan, "--agent", "shell")
    shown = sessionrun("results", session, "--failed").stdout
    whole = sessionrun("results", session, "--failed", "--all").stdout
    assert len(shown.encode()) <= 3000 and last in shown[-200:]
    assert len(whole) > 15_000 and "--all" not in whole
    with Terminal([*sessionrun.argv, "results", session, "--failed"], sessionrun.cwd) as terminal:
        assert terminal.finish() == 0
    assert len(terminal.output) > 15_000
    for words in (("--all",), ("--failed", "--all", "--max-bytes", "900"), ("--failed", "--max-bytes", "50")):
        refused = sessionrun("results", session, *words)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)


EXPLAINED = {
    "check": """\
✗ failed: check failed, exit code 2: echo 'FAILED test_a' && sh -c 'exit 2'

check, last lines:
  FAILED test_a
standard error, last lines:
  deprecated
the agent said:
  All tests pass.

attempt 1: work N s, check N s failed
next: sessionrun retry ID check
""",
    "end": """\
– skipped because root failed: exit code 7
  root: no such table
way: end needs mid needs root
next: sessionrun retry ID root    # what it held back runs again, too
""",
    "fine": """\
✓ succeeded

the agent said:
  All is well.

attempt 1: work N s
""",
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_the_story_of_a_task(sessionrun: Command, name: str) -> None:
    session = sessionrun.finished(PLAN, "--agent", "shell")
    head, shown = sessionrun("explain", session, name).stdout.split("\n", 1)
    assert re.fullmatch(rf"{name} \(.+\), in {session[:8]}", head)
    assert re.sub(r"\d\.\d s", "N s", shown.replace(session[:8], "ID")) == EXPLAINED[name]
    files = sessionrun("explain", session, name, "--files").stdout
    assert (f"/task-{name}.txt\n" in files) == (name != "end") and f"/task-{name}.txt" not in shown
