"""Why a task failed, in the words of the step that failed: the same in each verb, and all of them in `logs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Command

from sessionrun.cli.facts import section_lines
from sessionrun.client.reading.telling import LINE_BYTES, add_tellings, choose_lines
from sessionrun.doors.mcp import Tools
from sessionrun.store.session import SessionDir

CLAIM = "All tests pass."
PLAN = {
    "prompts": [
        {
            "id": "checked",
            "prompt": f"echo round >> rounds; echo '{CLAIM}'",
            "check": "cat rounds; echo =====; echo; echo 'FAILED test_a: 3 is not 42'; echo 'Error 1' >&2; exit 2",
            "rounds": 2,
        },
        {"id": "set", "prompt": "true", "setup": "echo begins; echo no such package >&2; exit 3"},
        {"id": "worked", "prompt": "echo the server is gone >&2; exit 7"},
        {"id": "fine", "prompt": "true", "check": "echo all is well"},
    ]
}
TOLD = {
    "checked": ("check", ["round", "round", "FAILED test_a: 3 is not 42", "Error 1"]),
    "set": ("setup", ["begins", "no such package"]),
    "worked": ("work", ["the server is gone"]),
}


def words_of(record: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    tellings = {task["id"]: task.get("telling") for task in record["tasks"]}
    return {task: (told["step"], told["lines"]) for task, told in tellings.items() if told}


def test_each_verb_has_the_same_words(sessionrun: Command, tmp_path: Path) -> None:
    session_id = sessionrun.finished(PLAN, "--agent", "shell")
    for verb, *words in (("results",), ("results", "--failed"), ("status", "--brief"), ("explain", *TOLD, "fine")):
        assert words_of(json.loads(sessionrun(verb, session_id, *words, "--json").stdout)) == TOLD, verb
    tools = Tools(sessionrun.results)
    assert words_of(tools.status(session_id)) == TOLD
    assert words_of(tools.results(session_id)) == {task: TOLD[task] for task in ("checked", "set")}
    sessionrun("report", session_id, "-o", str(tmp_path / "page"))
    assert "Check, last lines" in (tmp_path / "page").read_text()


def test_the_whole_of_a_step(sessionrun: Command) -> None:
    session_id = sessionrun.finished(PLAN, "--agent", "shell")
    last = sessionrun("logs", session_id, "checked", "--check").stdout
    first = sessionrun("logs", session_id, "checked", "--check", "--round", "1", "-f").stdout
    assert (first.count("round\n"), last.count("round\n")) == (1, 2)
    assert "=====\n\nFAILED test_a: 3 is not 42\nError 1\n" in first
    shown = sessionrun("logs", session_id, "set", "--setup", "--json").stdout.splitlines()
    assert [json.loads(line)["stream"] for line in shown] == ["stdout", "stderr"]
    nothing = sessionrun("logs", session_id, "set", "--gate")
    assert (nothing.returncode, nothing.stdout) == (0, "") and "no gate" in nothing.stderr
    wrong = sessionrun("logs", session_id, "--round", "1")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_many_failures_share_their_room(sessionrun: Command) -> None:
    session = SessionDir(sessionrun.directory(sessionrun.finished(PLAN, "--agent", "shell")))
    (failed, *_) = (session.load_status() or {})["tasks"]
    for room, lines in ((30, None), (40, ["FAILED test_a: 3 is not 42", "Error 1"]), (10_000, TOLD["checked"][1])):
        (shown,) = add_tellings(session, [failed], room)
        assert (shown.get("telling") and shown["telling"]["lines"]) == lines
    assert all("telling" not in task for task in add_tellings(session, [failed] * 100, 1600))


TRACE = ['  File "a.py", line 3', "    def a(b)", "            ^", "SyntaxError: expected"]


@pytest.mark.parametrize(
    ("printed", "lines"),
    [
        ("", []),
        ("a\n\n  \n====\n - - \nb", ["a", " - -", "b"]),
        ("".join(f"{number}\n" for number in range(20)), [str(number) for number in range(14, 20)]),
        ("\n".join(["Traceback", '  File "/x/z.py", line 1', *TRACE, "", "Ran 1 test", "FAILED", "make: ***"]),
         [*TRACE, "Ran 1 test", "FAILED", "make: ***"]),
        ("\x1b[31mred\x1b[0m\n10 %\r100 %\r\nafter", ["red", "100 %", "after"]),
        ("/w/tree/a.py: in /w/tree/b\n/w/.room-0123456789abcdef/c.py", ["a.py: in b", "c.py"]),
        ("$ make one\nfine\n$ make two\nnot fine", ["not fine"]),
        ("é" * 300, ["é" * ((LINE_BYTES - 3) // 2) + "..."]),
    ],
)  # fmt: skip
def test_which_lines_tell(printed: str, lines: list[str]) -> None:
    assert choose_lines(printed, "/w/tree") == lines


def test_foreign_words_do_not_reach_the_terminal() -> None:
    shown = section_lines("check", ["\x1b]0;title\x07"], "")
    assert all(line.isprintable() for line in shown) and len(shown) == 2
