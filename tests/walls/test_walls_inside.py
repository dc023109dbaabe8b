"""Programs of ours one after another in the same walls: what one leaves is dead before the next one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from walled import need_walls

from sessionrun.model.asked import Sandbox
from sessionrun.store.processes import scan
from sessionrun.walls.inside import Inside
from sessionrun.walls.programs import find_python, make_walls

LIMIT_S = 60.0
Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    need_walls()
    return tmp_path


@pytest.fixture
def inside(place: Path) -> Inside:
    return Inside(replace(make_walls(Sandbox("strict", "none"), ""), binds=((str(place), str(place)),)), place)


@pytest.fixture
def run(inside: Inside, place: Path) -> Run:
    def call(*argv: str, **more: object) -> subprocess.CompletedProcess[bytes]:
        words = {"environ": {"PATH": os.environ["PATH"]}, "limit_s": LIMIT_S, "cwd": place, **more}
        return inside.run(argv, **words)  # type: ignore[arg-type]

    return call


def find_children() -> set[int]:
    return {*scan().children.get(os.getpid(), ())}


def test_a_program_reads_prints_and_ends_as_anywhere(run: Run, place: Path) -> None:
    environ = {"A": "b", "PATH": os.environ["PATH"]}
    done = run("sh", "-c", "cat; pwd; echo $A >&2; exit 3", stdin=b"in\0put\n", environ=environ)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"in\0put\n{place}\n".encode(), b"b\n")
    with (place / "out").open("w+b") as stream:
        assert run("echo", "to a file", stdout=stream.fileno()).stdout == b""
    assert (place / "out").read_bytes() == b"to a file\n"
    with (place / "out").open("rb") as stream:
        assert run("cat", stdin=stream.fileno()).stdout == b"to a file\n"
    assert run("sh", "-c", "kill -9 $$").returncode == 128 + 9
    assert run("true", cwd=place / "none").returncode == run("not-there").returncode == 127
    assert run("not-there").stderr == b"not-there: No such file or directory\n"
    big = b"x" * 300_000
    assert run("cat", stdin=big).stdout == big


def test_the_walls_are_built_once(run: Run) -> None:
    names = {os.fsdecode(run("readlink", "/proc/self/ns/mnt").stdout) for _ in range(3)}
    assert len(names) == 1


def test_what_a_program_leaves_is_dead_before_the_next_one(run: Run, place: Path) -> None:
    """However it hides: else it could change a file between two looks of ours at it."""
    grow = "while :; do echo x >> grown; done"
    hide = f"setsid sh -c '(trap \"\" TERM; {grow}) & {grow}' &"
    run("sh", "-c", f"for i in 1 2 3; do {hide} done; until [ -s grown ]; do :; done")
    size = (place / "grown").stat().st_size
    names = "for p in 1 2 /proc/[0-9]*; do cat /proc/${p#/proc/}/comm; done"  # a list has 10 before 2
    alive = run("sh", "-c", names).stdout.split()
    assert alive[0] == b"bwrap" and alive[1].startswith(b"python") and {*alive[2:]} <= {*alive[:2], b"sh", b"cat"}
    assert (place / "grown").stat().st_size == size


def test_no_program_inside_reaches_what_asks_for_it(run: Run) -> None:
    done = run("sh", "-c", "readlink /proc/2/fd/*; cat /proc/2/environ; head -c 1 /proc/2/mem; echo done")
    assert done.stdout == b"done\n" and b"Permission denied" in done.stderr


@pytest.mark.parametrize("how", ["its time is up", "it ends what asks for it"])
def test_after_an_end_by_force_others_run(run: Run, place: Path, how: str) -> None:
    if how == "its time is up":
        with pytest.raises(subprocess.TimeoutExpired):
            run("sh", "-c", "echo > begun; sleep 600", limit_s=1.0)
    else:
        assert run("sh", "-c", "kill -9 2; sleep 600").returncode == 128 + 9
    assert run("echo", "next").stdout == b"next\n"


def test_walls_that_ended_meanwhile_are_built_anew(run: Run, inside: Inside) -> None:
    """A thread that has ended takes with it what it started."""
    thread = Thread(target=run, args=("true",))
    thread.start()
    thread.join()
    assert inside._process is not None
    inside._process.wait(LIMIT_S)
    assert run("echo", "next").stdout == b"next\n"


def test_what_bubblewrap_says_is_of_the_program_that_was_asked_for(run: Run) -> None:
    run("sh", "-c", "echo said > /proc/1/fd/2; kill -9 2; sleep 600")
    done = run("false")
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_limit_from_inside_loses_no_output(run: Run) -> None:
    """A program can set limits of its user's processes: then not all files of the next one would come in."""
    script = "import resource; resource.prlimit(2, resource.RLIMIT_NOFILE, (5, 4096))"
    assert run(find_python()[0], "-I", "-c", script).returncode == 0
    assert run("echo", "some").returncode == 1


def test_a_word_with_a_nul_is_refused(run: Run) -> None:
    with pytest.raises(ValueError, match="null byte"):
        run("echo", "a\0b=c")


def test_walls_that_cannot_be_built_say_why(place: Path) -> None:
    broken = replace(make_walls(Sandbox("strict", "none"), ""), binds=((str(place / "none"), str(place)),))
    done = Inside(broken, place).run(["true"], environ={}, limit_s=LIMIT_S, cwd=place)
    assert done.returncode == 1 and b"none: No such file or directory" in done.stderr


def test_they_go_with_what_had_them(place: Path) -> None:
    inside = Inside(make_walls(Sandbox("strict", "none"), ""), place)
    before = find_children()
    inside.run(["true"], environ={}, limit_s=LIMIT_S, cwd=Path("/"))
    assert len(find_children() - before) == 1
    del inside
    assert find_children() == before
