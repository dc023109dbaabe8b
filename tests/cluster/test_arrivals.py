"""Files and ends that come back from nodes: each file is whole, and no end waits for one that cannot be had."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sessionrun.cluster.arrivals import ALL, Arrivals
from sessionrun.cluster.ends import Head, Opened
from sessionrun.cluster.messages import Message
from sessionrun.store.session import SessionDir

JOB = "s/t/1/1/work/1"
OWN = "jobs/t/a1-r1-work/raw"
SHARED = "jobs/t/agent/state.json"


class Home:
    """A session's machine, without a carrier that carries."""

    def __init__(self, place: Path) -> None:
        self.session = SessionDir(place / "session-s")
        self.session.path.mkdir()
        self.said: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Begin another life of the supervisor."""
        self.head = Head("s", 1, {JOB: Opened("n", "e")})
        self.arrivals = Arrivals(self.session, self.head, lambda line: self.said.append(str(line)))

    def take(self, *chunks: Message, **files: int) -> list[Message]:
        left = {NAMES[name]: size for name, size in files.items()}
        end = {"job": JOB, "kind": "exit", "wait_status": 0, "files": left}
        heard = self.keep(*chunks, ends=[end] if files else ())
        return [about for kind, about in heard if kind == "end"]

    def keep(self, *chunks: Message, ends: Iterable[Message]) -> list[tuple[str, Message]]:
        return self.arrivals.keep({"begun": (), "dead": (), "out": chunks, "ends": ends})

    @property
    def wrote(self) -> Mapping[str, int]:
        """What the node hears next."""
        return {name: size for _, name, size in self.head.make_call(0.0)["wrote"]}

    def read(self, name: str) -> bytes:
        return (self.session.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> Path:
        path = self.session.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


NAMES = {"own": OWN, "shared": SHARED}


def chunk(name: str, at: int, content: bytes) -> Message:
    return {"job": JOB, "name": name, "at": at, "content": base64.b64encode(content).decode()}


@pytest.fixture
def home(own_place: Path) -> Home:
    return Home(own_place)


def test_a_file_comes_in_parts_and_its_end_waits_for_all(home: Home) -> None:
    assert home.take(chunk(OWN, 0, b"one ")) == []
    assert home.take(chunk(OWN, 8, b"three"), own=13) == [], "what comes too early is left out"
    assert home.wrote == {OWN: 4}
    assert home.take(chunk(OWN, 0, b"one ")) == [] and home.wrote == {OWN: 4}
    assert len(home.take(chunk(OWN, 4, b"two three"))) == 1
    assert home.read(OWN) == b"one two three"


@pytest.mark.parametrize("old", [b"", b"new", b"NEW", b"something much longer", b"new content and more"])
@pytest.mark.parametrize("new", [b"", b"new", b"new content"])
def test_an_older_file_in_a_shared_folder_counts_for_nothing(home: Home, old: bytes, new: bytes) -> None:
    home.write(SHARED, old)
    if new:
        assert home.take(shared=len(new)) == []
        assert home.wrote == {SHARED: 0}
    parts = [chunk(SHARED, at, new[at : at + 4]) for at in range(0, len(new), 4)]
    ends = [end for part in parts for end in home.take(part)] or home.take(shared=len(new))
    assert len(ends) == 1 and home.read(SHARED) == new


def test_what_a_supervisor_forgot_of_a_shared_file_comes_again(home: Home) -> None:
    home.take(chunk(SHARED, 0, b"half "))
    home.begin()
    assert home.take(shared=9) == [] and home.wrote == {SHARED: 0}
    assert home.take(chunk(SHARED, 0, b"half ")) == []
    assert len(home.take(chunk(SHARED, 5, b"done"))) == 1 and home.read(SHARED) == b"half done"


def test_what_a_power_failure_took_comes_again(home: Home) -> None:
    home.take(chunk(OWN, 0, b"all of it"))
    assert home.wrote == {OWN: 9}
    os.truncate(home.session.path / OWN, 3)
    home.begin()
    assert home.take(own=9) == []
    assert home.wrote == {OWN: 3}, "less than the node was told"
    assert len(home.take(chunk(OWN, 3, b" of it"))) == 1 and home.read(OWN) == b"all of it"


@pytest.mark.parametrize("way", ["folder", "link", "file for a folder", "too long"])
def test_no_end_waits_for_a_file_that_cannot_be_here(home: Home, way: str) -> None:
    name = f"{SHARED}/inner" if way == "file for a folder" else SHARED
    if way == "folder":
        home.write(f"{SHARED}/inner", b"x")
    if way == "link":
        home.write(SHARED, b"").unlink()
        (home.session.path / SHARED).symlink_to("/etc/passwd")
    if way == "file for a folder":
        home.write(SHARED, b"x")
    if way == "too long":
        name = f"jobs/t/{'x' * 300}"
    end = {"job": JOB, "kind": "exit", "wait_status": 0, "files": {name: 3, OWN: 2}}
    heard = home.keep(chunk(name, 0, b"abc"), chunk(OWN, 0, b"ok"), ends=[end])
    assert [kind for kind, _ in heard] == ["end"]
    assert home.wrote == {name: ALL, OWN: 2}
    assert len(home.said) == 1 and "does not come home" in home.said[0]


@pytest.mark.parametrize("damage", [{"content": "%"}, {"at": "x"}, {"content": None}])
def test_a_damaged_chunk_ends_nothing(home: Home, damage: Mapping[str, Any]) -> None:
    home.take({**chunk(OWN, 0, b"abc"), **damage}, chunk("task-t.txt", 0, b"fine"))
    assert home.read("task-t.txt") == b"fine"
    assert home.wrote == {OWN: ALL, "task-t.txt": 4} and "cannot be read" in home.said[0]


@pytest.mark.parametrize("name", ["../x", "jobs/u/x", "jobs/t/../../x", "task-u.txt", "status.json", "jobs/t//x"])
def test_nothing_is_written_where_a_task_has_no_business(home: Home, name: str) -> None:
    home.take(chunk(name, 0, b"evil"))
    assert [path for path in home.session.path.parent.rglob("*") if path.is_file()] == []
    assert home.wrote == {name: ALL}
