"""Which processes belong to a job: looked up among the real ones."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import eventually

from sessionrun.store.processes import JOB_MARKER, Identity, find_tree, identify, is_alive, scan, start_time
from sessionrun.walls.shell import Shell

MARKER = f"{uuid.uuid4()}/a/1/1/work/1"


@pytest.fixture
def leader() -> Iterator[Identity]:
    """A process of ours that leads a session of its own and has a child."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 600 & echo; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    found = identify(process.pid)
    assert found is not None
    yield found
    os.killpg(process.pid, 9)
    process.communicate()


def test_a_tree_and_who_got_the_pid_of_a_leader_that_ended(leader: Identity) -> None:
    """The latter is no member, neither is its session nor what descends from it."""
    tree = find_tree(scan(), leader, MARKER)
    assert leader in tree and len(tree) == 2
    assert find_tree(scan(), Identity(leader.pid, leader.started - 1), MARKER) == set()


def test_the_marker_makes_a_member() -> None:
    """Of whatever session; the process that looks is none."""
    with subprocess.Popen(["sleep", "60"], env={**os.environ, JOB_MARKER: MARKER}) as process:
        try:
            own = identify(process.pid)
            assert own is not None
            gone = Identity(2**22 + 1, own.started - 1)
            eventually(lambda: find_tree(scan(), gone, MARKER) == {own})  # its environment comes with its exec
            assert find_tree(scan(), gone, "another") == set()
            assert find_tree(scan(), gone, "another", [own, gone]) == {own}
        finally:
            process.kill()


def test_a_zombie_that_nobody_reaps_is_gone() -> None:
    """In a container without an init orphans go to a process that knows nothing of them."""
    with subprocess.Popen(["sleep", "600"], env={JOB_MARKER: MARKER}, start_new_session=True) as process:
        own = identify(process.pid)
        assert own is not None and start_time(process.pid) == own.started
        process.kill()
        eventually(lambda: start_time(process.pid) is None)
        assert start_time(process.pid, zombie=True) == own.started
        assert not is_alive(own) and find_tree(scan(), own, MARKER) == set()


@pytest.mark.parametrize("script", ["trap '' TERM; kill 0", "trap '' TERM; kill -- -$$"])
def test_a_script_that_ends_its_group_ends_as_it_says(tmp_path: Path, script: str) -> None:
    """What runs around it is not in that group."""
    with open(os.devnull, "wb") as output:
        assert Shell(tmp_path, os.environ).run(f"{script}; exit 3", output, None).code == 3


@pytest.mark.parametrize("clear", ["", "env -i"])
def test_a_daemon_of_a_script_ends_with_the_script(tmp_path: Path, clear: str) -> None:
    """It has left the script's session and lost its parent; what runs beside the script is not its."""
    daemon = "sh -c 'echo $$ >pid; exec sleep 600' </dev/null >/dev/null 2>&1"
    script = f"({clear} setsid {daemon} &); until [ -s pid ]; do :; done; exit 3"
    with subprocess.Popen(["sleep", "600"]) as other, open(os.devnull, "wb") as output:
        try:
            ended = Shell(tmp_path, os.environ).run(script, output, None)
            assert ended.code == 3
            assert identify(int((tmp_path / "pid").read_text())) is None
            assert other.poll() is None
        finally:
            other.kill()
