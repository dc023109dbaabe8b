"""What is broken off ends the programs that it has started, and no other child of the same process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest
from conftest import eventually
from stages import make_program

from sessionrun.git.git import Git, GitError
from sessionrun.store.programs import leave_task, run, run_abreast
from sessionrun.store.trees import sync_files

WAITS = "import os, subprocess, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)"
BEGINS = f"""import subprocess, sys
subprocess.run([sys.executable, "-c", {WAITS!r}, sys.argv[1]], start_new_session=True)
"""


class BrokenOff(Exception):
    """What the caller raises."""


@pytest.fixture
def children() -> Iterator[ExitStack]:
    """What ends the children that the caller has of its own."""
    with ExitStack() as stack:
        yield stack


def begin_child(children: ExitStack) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    children.callback(process.wait)
    children.callback(process.kill)
    return process


def wait_in_git(place: Path) -> None:
    """Git begins a program that begins another, in a session of its own."""
    (place.parent / "begins.py").write_text(BEGINS)
    words = f"!{sys.executable} {place.parent / 'begins.py'} {place}"
    Git(place.parent, limit_s=600.0)("-c", f"alias.begin={words}", "begin")


def wait_in_program(place: Path) -> None:
    run([sys.executable, "-c", WAITS, str(place)], environ={}, limit_s=600.0).check_returncode()


@pytest.mark.parametrize("wait", [wait_in_git, wait_in_program])
def test_what_is_broken_off_leaves_the_children_of_its_caller(
    tmp_path: Path, children: ExitStack, wait: Callable[[Path], None]
) -> None:
    """Those from before, and those that another thread begins meanwhile."""
    place = tmp_path / "pid"
    own = [begin_child(children)]
    failed: list[BaseException] = []

    def work() -> None:
        try:
            wait(place)
        except (GitError, subprocess.SubprocessError) as error:
            failed.append(error)

    def begin_another() -> None:
        other = threading.Thread(target=lambda: own.append(begin_child(children)))
        other.start()
        other.join()

    def break_off() -> None:
        begin_another()
        eventually(lambda: place.exists() and place.read_text())
        raise BrokenOff

    with pytest.raises(BrokenOff):
        run_abreast([work, break_off], 2)
    assert len(failed) == 1
    eventually(partial(has_ended, int(place.read_text())))
    assert [child.poll() for child in own] == [None, None]


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("path", [".", "", "bin:", "bin:/usr/bin:/bin"])
def test_no_program_is_found_where_it_begins(tmp_path: Path, path: str) -> None:
    """An empty PATH would mean that directory, too."""
    for folder in (tmp_path, tmp_path / "bin"):
        make_program(folder / "true", "echo planted")
    assert run(["true"], cwd=tmp_path, environ=leave_task({"PATH": path}), limit_s=None).stdout == b""


def test_files_are_synced_where_there_is_no_program_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sync_files(tmp_path)
