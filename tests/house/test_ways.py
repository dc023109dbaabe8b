"""How many files one opens to follow the commonest ways through the code, counted."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import sessionrun as package

pytestmark = pytest.mark.check

ROOT = Path(package.__file__).parent

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


def test_an_input_file_becomes_a_spec(own_place: Path) -> None:
    """Files whose functions are entered, and calls from a file that was entered later back into an earlier one."""
    (own_place / "in.json").write_text('{"prompts": ["true"], "agent": "shell"}')
    done = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=True)
    files, back, *names = done.stdout.split()
    assert int(files) <= FILES_TO_A_SPEC, names
    assert int(back) <= WAYS_BACK


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("idle_timeout", "idle_timeout_s", "idle_at"), 12),  # a setting, from its row to its use
        (("worktree_remark",), 5),  # a key of status.json
    ],
)
def test_what_is_named_in_few_files(words: tuple[str, ...], most: int) -> None:
    """As a name in code, or as a key; not in prose."""
    found = [path.relative_to(ROOT) for path in ROOT.rglob("*.py") if _names(path) & {*words}]
    assert found and len(found) <= most, found


def _names(path: Path) -> set[str]:
    content = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(content).readline)
    kept = (token.string.strip("\"'") for token in tokens if token.type in (tokenize.NAME, tokenize.STRING))
    return {os.fspath(word) for word in kept}
