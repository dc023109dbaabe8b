"""Answers of agents that do not edit: what they mean, and that they are written whole, inside, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessionrun.answers.reading import Unclear, apply_edits, read_edits, read_files
from sessionrun.answers.writing import apply_answer
from sessionrun.brief import Brief
from sessionrun.briefing import BriefProblem, check_brief, load_shown, word_answer

ONE = ("a.py",)


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
    ],
)
def test_what_is_not_clear_is_not_guessed(answer: str, problem: str) -> None:
    with pytest.raises(Unclear, match=problem):
        read_files(answer, ONE)


TEXT = "one\n  two\nthree\n  two\n"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("FIND:\none\nREPLACE:\nONE\nEND", "ONE\n  two\nthree\n  two\n"),
        ("FILE: a.py\nFIND:\nthree\n  two\nREPLACE:\nEND\n", "one\n  two\n"),
        ("FIND (near line 4):\n  two\nREPLACE:\n2\nEND", "one\n  two\nthree\n2\n"),
        ("FIND:\none\nREPLACE:\ntwo\nEND\nFIND:\ntwo\nREPLACE:\nx\nEND", "x\n  two\nthree\n  two\n"),
        ("<<<<<<< SEARCH\nthree\n=======\nTHREE\n>>>>>>> REPLACE", "one\n  two\nTHREE\n  two\n"),
    ],
)
def test_edits(answer: str, text: str) -> None:
    assert apply_edits(read_edits(answer, ONE), {"a.py": TEXT}) == {"a.py": text}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("Sure, done.", "has no edits"),
        ("FIND:\none\nREPLACE:\nx\n", "no line END"),
        ("FIND:\n  two\nREPLACE:\nx\nEND", "is 2 times in a.py"),
        ("FIND:\ntwo\nREPLACE:\nx\nEND", "is not in a.py; it begins 'two'"),
        ("FIND:\nREPLACE:\nx\nEND", "nothing stands below FIND"),
    ],
)
def test_edits_that_cannot_be_made(answer: str, problem: str) -> None:
    with pytest.raises(Unclear, match=problem):
        apply_edits(read_edits(answer, ONE), {"a.py": TEXT})


def test_an_edit_without_a_file_is_refused_where_there_are_several() -> None:
    with pytest.raises(Unclear, match="before any FILE"):
        read_edits("FIND:\na\nREPLACE:\nb\nEND", ("a", "b"))


def test_a_failed_write_undoes_all_others(own_place: Path) -> None:
    (own_place / "a.py").write_text("old\n")
    (own_place / "a.py").chmod(0o755)
    answer = "~~~worksplit:a.py\nnew\n~~~worksplit\n~~~worksplit:b.py/c.py\nnew\n~~~worksplit\n"
    (own_place / "b.py").write_text("a file, no directory\n")
    with pytest.raises((OSError, BriefProblem)):
        apply_answer(Brief(outputs=ONE), str(own_place), answer)
    assert (own_place / "a.py").read_text() == "old\n"
    assert sorted(os.listdir(own_place)) == ["a.py", "b.py"]
    assert apply_answer(Brief(outputs=ONE), str(own_place), "new") == {"a.py": 1}
    assert (own_place / "a.py").stat().st_mode & 0o777 == 0o755


def test_limits_and_modes_of_writing(own_place: Path) -> None:
    with pytest.raises(Unclear, match="has 3 lines, and at most 2"):
        apply_answer(Brief(outputs=ONE, max_output_lines=2), str(own_place), "1\n2\n3\n")
    with pytest.raises(Unclear, match=r"the answer has no b\.py"):
        split = Brief(mode="split", outputs=("a.py", "b.py"))
        apply_answer(split, str(own_place), "~~~worksplit:a.py\n1\n~~~worksplit")
    with pytest.raises(BriefProblem, match="there is no directory deep"):
        apply_answer(Brief(outputs=("deep/a.py",), create_directories=False), str(own_place), "1")
    with pytest.raises(BriefProblem, match="must not be written"):
        apply_answer(Brief(outputs=("x/_a",), protected=("x/_*",)), str(own_place), "1")
    assert os.listdir(own_place) == []


def test_links_inside_may_be_used_and_links_out_may_not(tmp_path: Path) -> None:
    project, outside = tmp_path / "p", tmp_path / "o"
    (project / "real").mkdir(parents=True)
    outside.mkdir()
    (project / "in").symlink_to("real")
    (project / "out").symlink_to(outside)
    (project / "file").symlink_to(outside / "f")
    assert apply_answer(Brief(outputs=("in/a",)), str(project), "1") == {"in/a": 1}
    assert (project / "real" / "a").read_text() == "1\n"
    for path in ("out/a", "file"):
        with pytest.raises(BriefProblem, match="leads out of the project"):
            apply_answer(Brief(outputs=(path,)), str(project), "1")
    with pytest.raises(BriefProblem, match="leads out of the project"):
        check_brief(Brief(context=("out/a",)), str(project), frozenset())


def test_room_is_filled_with_what_fits(tmp_path: Path) -> None:
    for name, lines in (("a", 1), ("b", 9), ("c", 1), ("d", 1)):
        (tmp_path / name).write_text("x\n" * lines)
    brief = Brief(context=("a",), outputs=("o",), room=2, max_context_lines=5)
    shown = load_shown(brief, str(tmp_path), ["a", "gone", "b", "c", "d", "a"], again=False)
    assert [(file.path, file.role) for file in shown] == [("a", "context"), ("c", "changed"), ("d", "changed")]
    text = word_answer(brief, "Do it.", shown)
    assert text.index("## a") < text.index("## c") < text.index("Do it.") < text.index("# What to write\n\no")
