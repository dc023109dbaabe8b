"""Why tasks failed, in the words of the step that failed: once for each reason, and the same in each verb."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from shown import check_golden, mask
from terminal import Terminal

from sessionrun.cli.standing import section_lines
from sessionrun.client.reading.telling import LINE_BYTES, add_tellings, choose_lines
from sessionrun.doors.mcp import Tools
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


def test_each_reason_stands_once_with_what_tells_and_each_task_has_its_story(sessionrun: Command) -> None:
    session = sessionrun.finished(PLAN, "--agent", "shell")
    asked = [["results", session, "--failed"], *(["explain", session, name] for name in ("check", "end", "fine"))]
    text = "".join(f"== {words[0]} {words[-1]}\n{sessionrun(*words).stdout}" for words in asked)
    check_golden("failures", mask(text, session))
    for name in ("check", "end", "fine"):
        files = sessionrun("explain", session, name, "--files").stdout
        assert (f"/task-{name}.txt\n" in files) == (name != "end")
        assert f"/task-{name}.txt" not in sessionrun("explain", session, name).stdout


STEPS = {
    "prompts": [
        {
            "id": "checked",
            "prompt": "echo round >> rounds; echo 'All tests pass.'",
            "check": "cat rounds; echo =====; echo; echo 'FAILED test_a: 3 is not 42'; echo 'Error 1' >&2; exit 2",
            "rounds": 2,
        },
        {"id": "set", "prompt": "true", "setup": "echo begins; echo no such package >&2; exit 3"},
        {"id": "unrun", "prompt": "echo done >&2", "check": "echo no such program; exit 127"},
        {"id": "worked", "prompt": "echo the server is gone >&2; exit 7"},
        {"id": "fine", "prompt": "true", "check": "echo all is well"},
    ]
}
TOLD = {
    "checked": ("check", ["round", "round", "FAILED test_a: 3 is not 42", "Error 1"]),
    "set": ("setup", ["begins", "no such package"]),
    "unrun": ("check", ["no such program"]),
    "worked": ("work", ["the server is gone"]),
}


def words_of(record: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    tellings = {task["id"]: task.get("telling") for task in record["tasks"]}
    return {task: (told["step"], told["lines"]) for task, told in tellings.items() if told}


def test_each_verb_has_the_same_words(sessionrun: Command, tmp_path: Path) -> None:
    session_id = sessionrun.finished(STEPS, "--agent", "shell")
    for verb, *words in (("results",), ("results", "--failed"), ("status", "--brief"), ("explain", *TOLD, "fine")):
        assert words_of(json.loads(sessionrun(verb, session_id, *words, "--json").stdout)) == TOLD, verb
    tools = Tools(sessionrun.results)
    assert words_of(tools.status(session_id)) == TOLD
    assert words_of(tools.results(session_id)) == {task: TOLD[task] for task in ("checked", "set", "unrun")}
    sessionrun("report", session_id, "-o", str(tmp_path / "page"))
    assert "Check, last lines" in (tmp_path / "page").read_text()


def test_the_whole_of_a_step(sessionrun: Command) -> None:
    session_id = sessionrun.finished(STEPS, "--agent", "shell")
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
    session = SessionDir(sessionrun.directory(sessionrun.finished(STEPS, "--agent", "shell")))
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
