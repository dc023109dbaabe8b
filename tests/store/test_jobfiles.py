"""What lies in the folder of a job may be anything: it is read into a record, or it is one clear exception."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import orjson
import pytest

from sessionrun.checks.requests import CheckRequest, Verification
from sessionrun.model.checks import Brief, Checked, CheckReport, Counts
from sessionrun.model.errors import JobFileError
from sessionrun.model.kinds import DiffStat
from sessionrun.model.places import Place, Repository
from sessionrun.store.jobfiles import ANSWER, CLAIM, REQUEST, load_answer, load_request, read_tail
from sessionrun.worktrees.request import Claim, WorkspaceRequest, load_claim, load_place

COMMIT = "0" * 40
DIFF_STAT: DiffStat = {"files": 1, "insertions": 1, "deletions": 0}
PLACE = Place(branch="main-task-a", worktree="/w/a", base_commit=COMMIT, diff_stat=DIFF_STAT, seat=1)
CLAIMED = Claim("main-task-a", "/w/a", COMMIT, seat=1)
ASKED = WorkspaceRequest(
    Repository("/r", "/r/.git", "main", COMMIT, "/w"),
    "session",
    "a",
    "A",
    links=("x",),
    place=PLACE,
    earlier=PLACE,
    seat=1,
)
CHECK = CheckRequest(
    "/r", "Do it.", brief=Brief(outputs=("a",)), verification=Verification(("a",), "p", True, "text")
)
CHECKED = Checked(Counts(passed=1, total=1), "c" * 40, DIFF_STAT)
REPORT = CheckReport(written={"a.py": 3}, earlier=("b.py",), checked=CHECKED)

FILES: dict[str, tuple[object, str, Callable[[Path], object]]] = {
    "claim": (CLAIMED, CLAIM, load_claim),
    "answer": (PLACE, ANSWER, load_place),
    "request": (ASKED, REQUEST, lambda folder: load_request(folder, WorkspaceRequest)),
    "check": (CHECK, REQUEST, lambda folder: load_request(folder, CheckRequest)),
    "report": (REPORT, ANSWER, partial(load_answer, cls=CheckReport)),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_record_is_read_as_it_was_written(kind: str, tmp_path: Path) -> None:
    record, name, load = FILES[kind]
    (tmp_path / name).write_bytes(orjson.dumps({**orjson.loads(orjson.dumps(record)), "of_a_later_version": 1}))
    assert load(tmp_path) == record


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff{}", b"[" * 5000])
def test_what_is_no_object_is_refused(kind: str, content: bytes, tmp_path: Path) -> None:
    _, name, load = FILES[kind]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(JobFileError) as caught:
        load(tmp_path)
    assert caught.value.path == str(tmp_path / name)
    assert "\n" not in str(caught.value)


DAMAGED: list[tuple[str, Mapping[str, object], str]] = [
    ("claim", {"seat": "x"}, "damaged"),
    ("answer", {"branch": 7}, "damaged"),
    ("request", {"repository": None}, "damaged"),
    ("request", {"links": [7]}, "damaged"),
    ("request", {"earlier": 7}, "damaged"),
    ("check", {"keeps": "yes"}, "damaged"),
    ("check", {"check": []}, "damaged"),
    ("report", {"written": {"a.py": "x"}}, "damaged"),
    ("report", {"checked": {"counts": 7}}, "damaged"),
    *(
        (kind, {field: word}, what)
        for kind in ("claim", "answer")
        for field, word, what in (
            ("worktree", "a/b", "is not an absolute path"),
            ("worktree", "/a\0", "damaged"),
            ("branch", "-D", "is not a branch"),
            ("branch", "", "is not a branch"),
            *((name, "--stdin", "is not a commit") for name in ("base_commit", "setup_commit", "taken_up")),
            ("start", {"name": "-D", "commit": COMMIT}, "is not a branch"),
            ("start", {"name": "main", "commit": "--stdin"}, "is not a commit"),
        )
    ),
]
"""A value of another type, or a word that git would take for something else; and what is said of it."""


@pytest.mark.parametrize(("kind", "change", "what"), DAMAGED)
def test_a_value_that_does_not_belong_there_is_refused(
    kind: str, change: Mapping[str, object], what: str, tmp_path: Path
) -> None:
    record, name, load = FILES[kind]
    (tmp_path / name).write_bytes(orjson.dumps({**orjson.loads(orjson.dumps(record)), **change}))
    with pytest.raises(JobFileError, match=what):
        load(tmp_path)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("plant", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_refused_and_not_waited_for(
    kind: str, plant: Callable[[Path], None], tmp_path: Path
) -> None:
    _, name, load = FILES[kind]
    plant(tmp_path / name)
    with pytest.raises(JobFileError):
        load(tmp_path)


def test_a_job_that_did_not_come_so_far_left_nothing(tmp_path: Path) -> None:
    assert load_claim(tmp_path) is None
    assert load_place(tmp_path) is None
    assert load_answer(tmp_path, CheckReport) is None
    for kind in ("request", "check"):
        with pytest.raises(JobFileError):
            FILES[kind][2](tmp_path)


def test_the_end_of_what_is_no_file_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stdout")
    assert read_tail(tmp_path / "stdout") == b""
