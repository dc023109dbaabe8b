"""What people see, word for word: the blocks of the seed, and the rules that all printed lines keep."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from conftest import Command
from shown import check_golden, mask
from terminal import Terminal

from sessionrun.cli.argv import VERBS
from sessionrun.cli.render import escape, escape_line, local_time, short_time, table_lines
from sessionrun.model.wording import clip

UNDER_WAY = {
    "name": "a name that is so long that a table row which shows it whole would not fit in 80 columns",
    "prompts": [
        {"id": "uuid1", "prompt": "echo first; printf second"},
        {"id": "uuid2", "prompt": "sleep 600"},
        {"id": "uuid3", "prompt": "true", "needs": ["uuid2"]},
    ],
}
LOOKS = ("--status ID", "--results ID", "--list", "--overview", "list", "status")


@pytest.mark.parametrize(
    ("name", "env"), [("blocks", {}), ("blocks-c", {"LC_ALL": "C"}), ("blocks-c", {"PYTHONIOENCODING": "ascii"})]
)
def test_what_is_printed_before_a_session_and_while_it_is_under_way(
    sessionrun: Command, name: str, env: dict[str, str]
) -> None:
    """The blocks of the seed, and what verbs say today; in ASCII where the terminal has no more."""
    printed = [sessionrun(*words.split(), env=env) for words in ("list", "list --totals", "--list", "--overview")]
    plan = json.dumps(UNDER_WAY)
    printed += [sessionrun(*words, "--agent", "shell", stdin=plan, env=env) for words in (["--dry-run"], [])]
    session_id = sessionrun.load("list")["sessions"][0]["session_id"]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", session_id)
    states = ["completed", "running", "pending"]
    sessionrun.until(session_id, lambda view: [task["status"] for task in view["tasks"]] == states)
    printed += [sessionrun(*words.replace("ID", session_id[:8]).split(), env=env) for words in LOOKS]
    text = "".join(f"== {' '.join(done.args[3:])}\n{done.stdout}{done.stderr}" for done in printed)
    text = re.sub(r"/\S+/sh PROMPT", "sh PROMPT", text.replace(str(sessionrun.cwd), "/place"))
    assert text.isascii() or name == "blocks"
    check_golden(name, mask(text, session_id))


def test_dates_are_the_c_librarys_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    assert local_time("2025-07-23T15:30:45.123Z") == "Wed Jul 23 15:30:45 2025"
    assert local_time("2025-07-03T05:06:07Z") == "Thu Jul  3 05:06:07 2025"
    assert local_time(None) == short_time(None) == "-"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert local_time("2025-12-31T15:30:45.000Z") == "Thu Jan  1 00:30:45 2026"
    assert short_time("2025-12-31T15:30:45.000Z") == "2026-01-01 00:30:45"
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("crlf\r\nline", "crlf\r\nline"),
        ("over\rwritten", "over\\x0dwritten"),
        ("\x1b[31mred\x9b0m\x7f\x00", "\\x1b[31mred\\x9b0m\\x7f\\x00"),
        ("\u202eevil\u2066\u200f", "\\u202eevil\\u2066\\u200f"),
        ("\u2028\u2029\ufeff\U000e0041", "\\u2028\\u2029\\ufeff\\U000e0041"),
        (b"\xff\x80".decode("utf-8", "surrogateescape"), "\\xff\\x80"),
        ("\ud83d", "\\ud83d"),
        ("\u4f60\u597d \U0001f680 \xe9", "\u4f60\u597d \U0001f680 \xe9"),
    ],
)
def test_foreign_text_is_harmless_on_a_terminal(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_one_line_is_one_line() -> None:
    assert escape_line(" a\n b\tc\x0b\x1b ") == "a b c \\x1b"
    assert clip("short", 8) == "short"
    assert clip("a longer one", 8) == "a lon..."
    assert clip("\u4f60\u597d\u4f60\u597d\u4f60", 8) == "\u4f60\u597d..."


def test_table_cells_cannot_break_the_table() -> None:
    lines = [*table_lines(("A", "B"), [("1\n2", "\x1b[2J"), ("1e3", "001")])]
    assert lines == ["A    B", "1 2  \\x1b[2J", "1e3  001"]


def test_no_line_of_ours_is_wider_than_80_columns(sessionrun: Command) -> None:
    """Ids and outputs are short here; paths are left out."""
    sessionrun.start(UNDER_WAY)
    plan = {
        "name": "\u4f60\u597d" * 30,
        "prompts": [{"id": f"t{n}", "prompt": "true", "timeout": 30} for n in range(12)] + ["exit 3"],
    }
    sessionrun.finished(plan, "--label", "key=" + "v" * 90)
    for words in ("status", "results", "list", "list --totals", "--list", "--overview", "wait", "doctor agents"):
        for line in sessionrun(*words.split()).stdout.splitlines():
            width = sum(2 if char > "\u3000" else 1 for char in line)
            assert width <= 80 or "/" in line, line


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_narrow_and_short(sessionrun: Command, verb: str) -> None:
    done = sessionrun(verb, "--help", env={"COLUMNS": "200"})
    lines = done.stdout.splitlines()
    assert (done.returncode, max(map(len, lines)) <= 80, len(lines) <= 60) == (0, True, True)
    assert lines[0].startswith("sessionrun [run] [OPTIONS] " if verb == "run" else f"Usage: sessionrun {verb} ")


def test_help_of_the_group(sessionrun: Command) -> None:
    plain = sessionrun("--help")
    assert plain.stdout == sessionrun("-h").stdout
    lines = plain.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24


def test_version(sessionrun: Command) -> None:
    from sessionrun import __version__

    assert sessionrun("--version").stdout == sessionrun("-v").stdout == f"sessionrun {__version__}\n"


def test_the_installed_command_is_the_same(sessionrun: Command) -> None:
    program = Path(sys.executable).with_name("sessionrun")
    if not program.exists():
        pytest.skip("the package is not installed beside this interpreter")
    with Terminal([str(program), "--version"], sessionrun.cwd) as terminal:
        assert terminal.finish() == 0
    assert terminal.output.startswith(b"sessionrun ")
