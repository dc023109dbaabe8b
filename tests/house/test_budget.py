"""How much there may be, counted: rooms, tests, pages, files on the commonest ways, modules for a poll."""

from __future__ import annotations

import os
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
from conftest import Command
from stages import make_repository_of

from . import budget
from .test_rooms import NOT_FOR_READERS, belongs

MOST_LINES = 6000
"""No room is larger."""

WAYS_BACK = 8

FOLLOW = """
import os, sys, threading
root, way = os.sep + "sessionrun" + os.sep, os.environ["WAY"].split()
seen, back, ways = {}, 0, 0

def is_loaded_now(frame):
    while frame and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None

def note(frame, event, argument):
    global ways, back
    name = frame.f_code.co_filename.rpartition(root)[2]
    if name == frame.f_code.co_filename or not frame.f_code.co_flags & 0x2 or frame.f_code.co_name.startswith("<"):
        return  # none of ours, the body of a class, or an expression
    at = f"{name}:{frame.f_code.co_name}"
    if event == "return" and at == way[1]:
        ways = 0
    if event == "call" and at == way[0]:
        ways = 1
    if event != "call" or not ways or is_loaded_now(frame):
        return
    if name not in seen:
        seen[name] = len(seen)
        os.write(fd, f"{name}\\n".encode())
    caller = frame.f_back
    while caller and root not in caller.f_code.co_filename:
        caller = caller.f_back
    if caller and seen[name] < seen.get(caller.f_code.co_filename.rpartition(root)[2], -1):
        os.write(fd, b"back\\n")

fd = os.open(os.environ["WAY_SEEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
sys.setprofile(note)
threading.setprofile(note)
"""
"""Notes the files whose functions are entered on a way from one function to another, in the order in which
they are, and each call from one of them back into an earlier one."""


@pytest.mark.check
def test_each_room_and_the_whole_keep_their_budgets() -> None:
    sizes = budget.measure_rooms()
    assert set(sizes) == set(budget.ROOMS)
    assert max(size.lines for size in sizes.values()) <= MOST_LINES
    pairs = {name: (size, budget.ROOMS[name]) for name, size in sizes.items()}
    pairs["all"] = budget.add_up(sizes.values()), budget.PACKAGE_BUDGET
    over = [
        name
        for name, (size, most) in pairs.items()
        if any(count > of for count, of in zip(size, most, strict=True))
    ]
    assert not over, "in modules, lines or lines of code: python -m tests.house.budget prints them"
    assert budget.count_lines(budget.find_tests()) <= budget.TESTS_LINES
    assert budget.count_lines(budget.find_pages()) <= budget.PAGES_LINES


def test_what_counts_as_code(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    lines = ('"""Text."""', "", "import os", "", "# why", "x = (", "    1,", "", "    2,", ")", "", "", "def f():")
    module.write_text("\n".join((*lines, '    """Text."""', "    return 3", "")))
    assert budget.measure([module]) == budget.Size(1, 15, 6)


@pytest.mark.check
@pytest.mark.parametrize(
    ("way", "most"),
    [
        ("client/planning/plan.py:plan client/planning/plan.py:plan", 19),  # an input file becomes a spec
        ("session/supervisor.py:_judge session/supervisor.py:_show", 26),  # an end of a job becomes a status
        ("client/ask.py:cancel store/requests.py:send_request", 13),  # a request is written; 10 at best
        ("session/supervisor.py:_take session/supervisor.py:_carry_out", 14),  # and has its effect
        ("worktrees/worktree.py:prepare worktrees/worktree.py:prepare", 16),  # a worktree is made
        ("worktrees/release.py:release worktrees/release.py:release", 16),  # and its work is on a branch
    ],
)
def test_how_many_files_are_on_a_way(
    way: str, most: int, sessionrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repository_of(sessionrun.cwd, {"file": "1\n"})
    (tmp_path / "sitecustomize.py").write_text(FOLLOW)
    (sessionrun.cwd / "in.json").write_text('{"prompts": ["true", "echo 2 >file"], "agent": "shell"}')
    seen = tmp_path / "seen"
    for name, value in (("PYTHONPATH", os.fspath(tmp_path)), ("WAY", way), ("WAY_SEEN", os.fspath(seen))):
        monkeypatch.setenv(name, value)
    words = ("-q", "--agent", "shell", "-p", "sleep 60") if "_take" in way or "ask" in way else ()
    done = sessionrun(*words or ("--sync", "--worktree" if "worktrees" in way else "--sync", "in.json"), real=True)
    assert done.returncode == 0, done.stderr
    if words:
        session_id = done.stdout.strip()
        assert sessionrun("cancel", session_id, real=True).returncode == 0
        assert sessionrun("wait", session_id, real=True).returncode == 1
    lines = seen.read_text().split()
    found = {line for line in lines if line != "back"}
    assert found and len(found) <= most, (len(found), sorted(found))
    assert "plan.py" not in way or lines.count("back") <= WAYS_BACK


@pytest.mark.check
@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("idle_timeout", "idle_timeout_s", "idle_at"), 12),  # a setting, from its row to its use
        (("worktree_remark",), 5),  # a key of status.json
    ],
)
def test_what_is_named_in_few_files(words: tuple[str, ...], most: int) -> None:
    """As a name in code, or as a key; not in prose."""
    found = []
    for path in budget.PACKAGE.rglob("*.py"):
        with path.open() as file:
            tokens = list(tokenize.generate_tokens(file.readline))
        kinds = (tokenize.NAME, tokenize.STRING)
        if any(token.type in kinds and token.string.strip("\"'") in words for token in tokens):
            found.append(path)
    assert found and len(found) <= most, found


@pytest.mark.parametrize(
    "words", ["status", "status --json", "list --json", "list --totals --json", "wait", "results", "logs"]
)
def test_what_a_poll_really_imports(sessionrun: Command, words: str) -> None:
    """Seen from outside: the one rule of the rooms that users feel."""
    sessionrun.finished({"prompts": ["true"]})
    argv = [sys.executable, "-X", "importtime", *sessionrun.argv[1:], *words.split()]
    done = subprocess.run(argv, cwd=sessionrun.cwd, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sessionrun.store.session" in imported
    assert not {name for name in imported if belongs(name, *NOT_FOR_READERS)}
    assert not imported & {"logging", "socket", "tomllib", "sessionrun.engine.fold", "sessionrun.model.events"}
    assert "msgspec" not in imported or words in ("results", "logs"), "they read files of jobs"
