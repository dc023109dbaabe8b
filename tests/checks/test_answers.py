"""Answers of agents that do not edit: what they mean, and that they are written whole, inside, or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest
from calls import each_call, forked, needs_calls, run_watched

from sessionrun.checks.answers import Unclear, apply_edits, read_edits, read_files
from sessionrun.checks.requests import CheckRequest
from sessionrun.checks.writing import apply_answer, finish_answer
from sessionrun.model.checks import Brief, CheckReport
from sessionrun.session import job as own_job
from sessionrun.session.prompt import BriefProblem, check_brief, load_shown, word_answer
from sessionrun.store.jobfiles import ANSWER, REQUEST, load_answer

ONE = ("a.py",)
BLOCK = "~~~worksplit:"


def write(brief: Brief, directory: str, answer: str) -> dict[str, int]:
    return apply_answer(brief, directory, answer, Path(directory).parent / "record")


@pytest.mark.parametrize(
    ("answer", "files"),
    [
        ("X = 1", {"a.py": "X = 1\n"}),
        ("Here:\n```python\nX = 1\n```\nDone.", {"a.py": "X = 1\n"}),
        ("```md\n# T\n```sh\nls\n```\nend\n```", {"a.py": "# T\n```sh\nls\n```\nend\n"}),
        ("````\n```\nx\n```\n````", {"a.py": "```\nx\n```\n"}),
        ("~~~worksplit\nX = 1\n~~~worksplit\n", {"a.py": "X = 1\n"}),
        ("~~~worksplit:b/c.py\nX = 1\n~~~worksplit", {"b/c.py": "X = 1\n"}),
        (
            "~~~worksplit: b.py\n1\n~~~worksplit\ntext\n~~~worksplit:c.py\n2\n~~~worksplit",
            {"b.py": "1\n", "c.py": "2\n"},
        ),
        ("~~~worksplit:b.py\n1\n~~~worksplit:c.py\n2\n~~~worksplit", {"b.py": "1\n", "c.py": "2\n"}),
        ("~~~worksplit:b.py\n```py\n1\n```\n~~~worksplit", {"b.py": "1\n"}),
        ("<think>~~~worksplit:x\n</think>\r\nX = 1\r\n", {"a.py": "X = 1\n"}),
        ("Thinking...\nhm\n...done thinking.\n\nX = 1", {"a.py": "X = 1\n"}),
        ("~~~worksplit:`./b//c.py`\n1\n~~~worksplit", {"b/c.py": "1\n"}),
    ],
)
def test_whole_files(answer: str, files: dict[str, str]) -> None:
    assert read_files(answer, ONE) == files


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "has no content for a.py"),
        ("```\n```", "has no content for a.py"),
        ("```\n1\n```\n```\n2\n```", "2 blocks without a path where 1 are wanted"),
        ("```py\nX = 1\n", "breaks off"),
        ("~~~worksplit:b.py\nX = 1\n", "breaks off: the block of b.py"),
        ("~~~worksplit:b.py\n1\n~~~worksplit\n~~~worksplit:b.py\n2\n~~~worksplit", "b.py comes twice"),
        ("~~~worksplit:b.py\n1\n~~~worksplit\n~~~worksplit\n2\n~~~worksplit", "1 blocks without a path"),
        ("~~~worksplit:b.py\n1\n~~~worksplit:./b.py\n2\n~~~worksplit", "b.py comes twice"),
    ],
)
def test_what_is_not_clear_is_not_guessed(answer: str, problem: str) -> None:
    with pytest.raises(Unclear, match=problem):
        read_files(answer, ONE)


TEXT = "one\n  two\nthree\n  two\n"
ONE_EDIT = "FIND:\n{}\nREPLACE:\n{}\nEND"


@pytest.mark.parametrize(
    ("answer", "text", "edited"),
    [
        ("FIND:\none\nREPLACE:\nONE\nEND", TEXT, "ONE\n  two\nthree\n  two\n"),
        ("FILE: a.py\nFIND:\nthree\n  two\nREPLACE:\nEND\n", TEXT, "one\n  two\n"),
        ("FIND (near line 4):\n  two\nREPLACE:\n2\nEND", TEXT, "one\n  two\nthree\n2\n"),
        ("FIND:\none\nREPLACE:\ntwo\nEND\nFIND:\ntwo\nREPLACE:\nx\nEND", TEXT, "x\n  two\nthree\n  two\n"),
        ("<<<<<<< SEARCH\nthree\n=======\nTHREE\n>>>>>>> REPLACE", TEXT, "one\n  two\nTHREE\n  two\n"),
        # a heading is no divider
        ("<<<<<<< SEARCH\nT\n=====\n=======\nU\n=====\n>>>>>>> REPLACE", "T\n=====\n", "U\n=====\n"),
        # line ends and a byte order mark stay
        (ONE_EDIT.format("x", "y"), "a\nx", "a\ny"),
        (ONE_EDIT.format("b\nc", "1\n2\n3"), "a\r\nb\r\nc\r\nd\r\n", "a\r\n1\r\n2\r\n3\r\nd\r\n"),
        (ONE_EDIT.format("b", "1\n2"), "a\r\nb", "a\r\n1\r\n2"),
        (ONE_EDIT.format("b", "1\n2"), "a\r\nb\nc\r\n", "a\r\n1\n2\nc\r\n"),
        (ONE_EDIT.format("a", "A"), "\ufeffa\nb\n", "\ufeffA\nb\n"),
    ],
)
def test_edits(answer: str, text: str, edited: str) -> None:
    assert apply_edits(read_edits(answer, ONE), {"a.py": text}) == {"a.py": edited}


@pytest.mark.parametrize(
    ("answer", "text", "problem"),
    [
        ("Sure, done.", TEXT, "has no edits"),
        ("FIND:\none\nREPLACE:\nx\n", TEXT, "no line END"),
        ("FIND:\n  two\nREPLACE:\nx\nEND", TEXT, "is 2 times in a.py"),
        ("FIND:\ntwo\nREPLACE:\nx\nEND", TEXT, "is not in a.py; it begins 'two'"),
        ("FIND:\nREPLACE:\nx\nEND", TEXT, "nothing stands below FIND"),
        ("FIND (near line 3):\n  two\nREPLACE:\nx\nEND", TEXT, "is 2 times in a.py"),
        ("FIND:\none\nREPLACE:\nx\nFIND:\nthree\nREPLACE:\ny\nEND", TEXT, "a line 'FIND:' is where none belongs"),
        ("FIND:\none\nREPLACE:\nBEGIN\nEND\nEND", TEXT, "a line 'END' is where none belongs"),
        ("<<<<<<< SEARCH\none\n=======\n1\n=======\n2\n>>>>>>> REPLACE", TEXT, "a line '=======' is where"),
        # whole lines alone are found, and all of them
        (ONE_EDIT.format("x", "y"), "a\nax", "is not in"),
        (ONE_EDIT.format("x", "y"), "x\nx", "is 2 times"),
        (ONE_EDIT.format("x", "y"), "x\r\nx", "is 2 times"),
        (ONE_EDIT.format("x\nx", "y"), "x\nx\nx\n", "is 2 times"),
    ],
)
def test_edits_that_cannot_be_made(answer: str, text: str, problem: str) -> None:
    with pytest.raises(Unclear, match=problem):
        apply_edits(read_edits(answer, ONE), {"a.py": text})


def test_an_edit_without_a_file_is_refused_where_there_are_several() -> None:
    with pytest.raises(Unclear, match="before any FILE"):
        read_edits("FIND:\na\nREPLACE:\nb\nEND", ("a", "b"))


@pytest.mark.parametrize(
    ("brief", "answer", "problem"),
    [
        (Brief(outputs=ONE, max_output_lines=2), "1\n2\n3\n", "has 3 lines, and at most 2"),
        (Brief(mode="split", outputs=("a.py", "b.py")), "~~~worksplit:a.py\n1\n~~~worksplit", "no b.py"),
        (Brief(outputs=ONE), "~~~worksplit:b.py\n1\n~~~worksplit", "the answer has no a.py, but b.py"),
        (Brief(outputs=ONE), f"{BLOCK}a.py\n1\n{BLOCK}link\n2\n~~~worksplit", "a.py and link are the same file"),
        (Brief(outputs=("deep/a.py",), create_directories=False), "1", "there is no directory deep"),
        (Brief(outputs=("x/_a",), protected=("x/_*",)), "1", "must not be written"),
        (Brief(outputs=("new/a.py",)), f"{BLOCK}new/a.py\n1\n{BLOCK}new/a.py/b\n2\n~~~worksplit", "irectory"),
        (Brief(outputs=ONE), f"{BLOCK}a.py\n1\n{BLOCK}a.py/b\n2\n~~~worksplit", "irectory"),
    ],
)
def test_nothing_is_left_of_an_answer_that_is_refused(
    own_place: Path, brief: Brief, answer: str, problem: str
) -> None:
    (own_place / "a.py").write_text("old\n")
    (own_place / "a.py").chmod(0o755)
    (own_place / "link").symlink_to("a.py")
    with pytest.raises((BriefProblem, Unclear, OSError), match=re.escape(problem)):
        write(brief, str(own_place), answer)
    assert (sorted(os.listdir(own_place)), (own_place / "a.py").read_text()) == (["a.py", "link"], "old\n")
    assert write(Brief(outputs=ONE), str(own_place), "new") == {"a.py": 1}
    assert (own_place / "a.py").stat().st_mode & 0o777 == 0o755


TWO = Brief(mode="edit", targets=("a.py", "b.py"))
EDITS = "FILE: a.py\nFIND:\na\nREPLACE:\na\na\nEND\nFILE: b.py\nFIND:\nb\nREPLACE:\nb\nb\nEND\n"


def sweep_writer(place: str) -> None:
    """Kill who writes edits of two files at each call, and do it again as its record says."""
    top, record, written = Path(place), Path(place).parent / "record", []

    def begin(environ: Mapping[str, str]) -> None:
        record.unlink(missing_ok=True)
        for name in "ab":
            (top / f"{name}.py").write_text(f"{name}\n")
        forked(lambda: apply_answer(TWO, place, EDITS, record))(environ)

    for at, _ in each_call(begin, top.parent / "calls", "answer"):
        written.append(record.exists())
        if record.exists():
            finish_answer(place, record)
        else:
            apply_answer(TWO, place, EDITS, record)
        assert [(top / f"{name}.py").read_text() for name in "ab"] == ["a\na\n", "b\nb\n"], at
        assert sorted(os.listdir(place)) == ["a.py", "b.py"], at
    assert sorted(written) == written and written.count(False) > 5 and written.count(True) == 2, written


@needs_calls
def test_an_answer_is_written_once_and_whole_whenever_its_writer_is_killed(own_place: Path) -> None:
    run_watched(sweep_writer, own_place)


def test_a_link_that_takes_the_place_of_a_directory_leads_nowhere(own_place: Path) -> None:
    outside = own_place.parent / "outside"
    outside.mkdir()
    (outside / "new").write_text("x")
    (own_place / "src").symlink_to(outside)
    record = own_place.parent / "record"
    record.write_bytes(orjson.dumps({"lines": {"src/a": 1}, "moves": [["src", "new", "a"]]}))
    with pytest.raises(OSError, match="src"):
        finish_answer(str(own_place), record)
    assert os.listdir(outside) == ["new"]


def run_check(folder: Path, **request: object) -> str | None:
    folder.mkdir(exist_ok=True)
    (folder / REQUEST).write_bytes(orjson.dumps(CheckRequest(prompt="Do it.", **request)))  # type: ignore[arg-type]
    code = own_job.run("check", str(folder))
    report = load_answer(folder, CheckReport)
    assert report is not None
    assert (folder / ANSWER).exists()
    assert code == (1 if report.problem else 0)
    return report.problem


def test_an_agent_that_edits_has_to_write_what_it_was_asked_for(own_place: Path) -> None:
    folder, brief = own_place.parent / "check", Brief(outputs=("a.py", "b.py"))
    assert run_check(folder, directory=str(own_place), brief=brief) == "a.py, b.py: not written"
    (own_place / "b.py").write_text("1\n")
    assert run_check(folder, directory=str(own_place), brief=brief) is None


def test_an_answer_that_is_too_large_is_named_so(own_place: Path) -> None:
    answer = own_place.parent / "answer"
    answer.touch()
    os.truncate(answer, 100 << 20)
    given = {"directory": str(own_place), "brief": Brief(outputs=ONE), "answer": str(answer)}
    problem = run_check(own_place.parent / "check", applied=str(own_place.parent / "record"), **given)
    assert problem == "the answer is larger than 16 MiB"


def test_links_inside_may_be_used_and_links_out_may_not(tmp_path: Path) -> None:
    project, outside = tmp_path / "p", tmp_path / "o"
    (project / "real").mkdir(parents=True)
    outside.mkdir()
    (project / "in").symlink_to("real")
    (project / "out").symlink_to(outside)
    (project / "file").symlink_to(outside / "f")
    assert write(Brief(outputs=("in/a",)), str(project), "1") == {"in/a": 1}
    assert (project / "real" / "a").read_text() == "1\n"
    for path in ("out/a", "file"):
        with pytest.raises(BriefProblem, match="leads out of the project"):
            write(Brief(outputs=(path,)), str(project), "1")
    with pytest.raises(BriefProblem, match="leads out of the project"):
        check_brief(Brief(context=("out/a",)), str(project), frozenset())


def test_room_is_filled_with_what_fits(tmp_path: Path) -> None:
    for name, lines in (("a", 1), ("b", 9), ("c", 1), ("d", 1)):
        (tmp_path / name).write_text("x\n" * lines)
    both = Brief(context=("a", "c"), targets=("c",))
    twice = load_shown(both, str(tmp_path), [], again=False)
    assert [(file.path, file.role) for file in twice] == [("a", "context"), ("c", "target")]
    brief = Brief(context=("a",), outputs=("o",), room=2, max_context_lines=5)
    shown = load_shown(brief, str(tmp_path), ["a", "gone", "b", "c", "d", "a"], again=False)
    assert [(file.path, file.role) for file in shown] == [("a", "context"), ("c", "changed"), ("d", "changed")]
    text = word_answer(brief, "Do it.", shown)
    assert text.index("## a") < text.index("## c") < text.index("Do it.") < text.index("# What to write\n\no")
