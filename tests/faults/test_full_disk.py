"""A real full disk, while supervisor, keeper or nobody dies: what has ended is recorded once there is room."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import mount_disk

from sessionrun.reserve import NAME

from .campaign import has_ended
from .chain import Role, find_chain, kill_role
from .oracle import examine
from .place import make_place, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")

END_S = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room."""
    yield from mount_disk(tmp_path / "disk", "1m")


def fill(disk: Path) -> None:
    """Leave no room at all."""
    with (disk / "filler").open("ab", buffering=0) as stream:
        for size in (4096, 1):
            try:
                while stream.write(b"x" * size):
                    pass
            except OSError:
                continue


@pytest.mark.parametrize("reserve", [True, False], ids=["reserve", "no reserve"])
@pytest.mark.parametrize("victim", [None, "supervisor", "keeper"])
def test_outcomes_are_recorded_once_there_is_room(
    disk: Path, tmp_path: Path, victim: Role | None, reserve: bool
) -> None:
    with make_place(disk) as place:
        executed, go = tmp_path / "executed", tmp_path / "go"
        gate = f"echo \"$SESSIONRUN_JOB\" >> '{executed}'; while ! [ -e '{go}' ]; do sleep 0.05; done"
        prompts = [{"id": f"t{number}", "prompt": f"{gate}; exit {number}"} for number in range(4)]
        prompts.append({"id": "t5", "prompt": f"{gate}; exit 5"})
        session = place.start({"prompts": prompts}, "--max-parallel", "4")
        assert wait_until(lambda: (status := session.load_status()) and status["running"] == 4, END_S)
        before = session.status_path.read_bytes()
        assert len(jobs_of(session.path)) == 4
        if not reserve:
            (session.path / NAME).unlink(missing_ok=True)
        fill(disk)
        if victim is not None:
            old = find_chain(session.path)[victim]
            assert kill_role(session.path, victim)
            assert wait_until(lambda: find_chain(session.path)[victim] not in ([], old), END_S)
        fill(disk)  # the reserve too
        go.touch()
        assert wait_until(lambda: not jobs_of(session.path), END_S)
        fill(disk)
        status = session.load_status()
        assert status is not None
        assert status["ended_at"] is None
        assert reserve or victim is None or session.status_path.read_bytes() == before
        (disk / "filler").unlink()
        assert wait_until(lambda: has_ended(session), END_S)
        figures = examine(session, executed)
        assert figures.is_good, figures.wrong
        assert figures.lost == figures.unsure == 0


def jobs_of(session: Path) -> list[str]:
    """The jobs of a session that still wait: each a shell that leads a session of its own.

    What such a shell has forked to become its next `sleep` looks like it, but leads nothing.
    """
    return [
        name
        for name in os.listdir("/proc")
        if name.isdigit() and str(session).encode() in _read(f"/proc/{name}/cmdline") and _is_job(name)
    ]


def _is_job(name: str) -> bool:
    is_shell = _read(f"/proc/{name}/comm").strip() in (b"sh", b"dash", b"bash")
    try:
        return is_shell and os.getsid(int(name)) == int(name)
    except ProcessLookupError:
        return False


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
