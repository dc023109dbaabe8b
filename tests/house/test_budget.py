"""How much there may be, counted: rooms, tests, pages, files on the commonest ways, modules for a poll."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
from conftest import Command

from . import budget
from .test_rooms import NOT_FOR_READERS, belongs

FILES_TO_A_SPEC = 20
WAYS_BACK = 8

WALK = """
import os, sys
import sessionrun
from sessionrun.client.planning.plan import plan
root, seen, back = os.path.dirname(sessionrun.__file__) + os.sep, {}, 0

def note(frame, event, argument):
    global back
    name = frame.f_code.co_filename
    if event != "call" or not name.startswith(root) or frame.f_code.co_name.startswith("<"):
        return
    if not frame.f_code.co_flags & 0x2:
        return  # the body of a class
    seen.setdefault(name, len(seen))
    caller = frame.f_back
    while caller and not caller.f_code.co_filename.startswith(root):
        caller = caller.f_back
    if caller and seen[name] < seen.get(caller.f_code.co_filename, -1):
        back += 1

sys.setprofile(note)
plan("in.json", {})
sys.setprofile(None)
print(len(seen), back, *seen)
"""


@pytest.mark.check
def test_each_room_and_the_whole_keep_their_budgets() -> None:
    sizes = budget.measure_rooms()
    assert set(sizes) == set(budget.ROOMS)
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
def test_an_input_file_becomes_a_spec(own_place: Path) -> None:
    """Files whose functions are entered, and calls from a file that was entered later back into an earlier one."""
    (own_place / "in.json").write_text('{"prompts": ["true"], "agent": "shell"}')
    done = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=True)
    files, back, *names = done.stdout.split()
    assert int(files) <= FILES_TO_A_SPEC, names
    assert int(back) <= WAYS_BACK


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
    found = [path for path in budget.PACKAGE.rglob("*.py") if _names(path) & {*words}]
    assert found and len(found) <= most, found


def _names(path: Path) -> set[str]:
    content = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(content).readline)
    kept = (token.string.strip("\"'") for token in tokens if token.type in (tokenize.NAME, tokenize.STRING))
    return {os.fspath(word) for word in kept}


@pytest.mark.parametrize(
    "words", ["status", "status --json", "list --json", "list --totals --json", "results", "logs", "wait"]
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
