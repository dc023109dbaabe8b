"""What begins without an interpreter (`execs.py`) looks, in /proc, as what a real one began."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import psutil
import pytest
from conftest import Command, eventually, rests

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")

LIBC_S_SIGNALS = 0b11 << 31
"""32 and 33: glibc ignores them in what it spawns."""


def look_at(pid: int) -> dict[str, object]:
    """What /proc shows of a process, as far as its program can see it or others go by it."""
    place = Path(f"/proc/{pid}")
    words, environ, status = ((place / name).read_text() for name in ("cmdline", "environ", "status"))
    files = [os.readlink(place / "cwd"), *sorted(os.readlink(path) for path in (place / "fd").iterdir())]
    stat = (place / "stat").read_text().split()
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "words": blur(words).split("\0"),
        "environ": sorted(entry for entry in blur(environ).split("\0") if not entry.startswith("_=")),
        "files": [*map(blur, files)],
        "signals": {name: int(lines[name], 16) & ~LIBC_S_SIGNALS for name in ("SigBlk", "SigIgn", "SigCgt")},
        "umask": lines["Umask"],
        "ids": [stat[0] == other for other in stat[4:6]],
    }


def blur(text: str) -> str:
    """Without what two sessions never share: ids, pids, numbers of sockets, and the time of a process."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"(socket|pipe):\[\d+\]", r"\1", text)
    return re.sub(r"SESSIONRUN_GIT=\d+", "SESSIONRUN_GIT=PID", re.sub(r"\0\d+(?=\0|$)", "\0FD", text))


def picture(sessionrun: Command, *, real: bool) -> dict[str, dict[str, object]]:
    """Root, keeper, supervisor and a job of ours, of a session whose check lasts."""
    plan = '[{"prompt": "true", "check": "exec sleep 600"}]'
    done = sessionrun("-q", "--agent", "shell", "-", stdin=plan, real=real)
    assert done.returncode == 0, done.stderr
    session_id = done.stdout.strip()
    root, keeper, supervisor = sessionrun.chain(session_id)

    def find_checks() -> list[int]:
        others = [one for one in psutil.Process(keeper).children() if one.pid != supervisor]
        try:
            return [one.pid for one in others if any("sleep" in child.cmdline() for child in one.children())]
        except psutil.NoSuchProcess:  # a job before the check has just ended
            return []

    (check,) = eventually(find_checks)
    eventually(rests(root, keeper, supervisor, check))  # a busy keeper has files open for a moment
    pids = {"root": root, "keeper": keeper, "supervisor": supervisor, "check": check}
    seen = {role: look_at(pid) for role, pid in pids.items()}
    assert sessionrun("cancel", session_id).returncode == 0
    assert sessionrun.wait(session_id)["status"] == "cancelled"
    return seen


@pytest.mark.slow
def test_the_processes_of_a_session_look_like_those_of_a_real_one(sessionrun: Command) -> None:
    real, forked = (picture(sessionrun, real=kind) for kind in (True, False))
    for role, expected in real.items():
        for name in expected:
            assert (role, name, forked[role][name]) == (role, name, expected[name])
