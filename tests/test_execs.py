"""What begins without an interpreter (`execs.py`) looks, in /proc, as what a real one began."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from conftest import Command, eventually, rests
from stages import make_repository_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")

GIT = """#!/bin/sh
job=$(tr '\\0' ' ' </proc/$PPID/cmdline | sed -n 's/.*session.job.py \\([a-z]*\\) .*/\\1/p')
place="{place}/$job"
if [ -n "$job" ] && mkdir "$place" 2>/dev/null; then
    cat /proc/$PPID/cmdline >"$place/cmdline"
    cat /proc/$PPID/environ >"$place/environ"
    cat /proc/$PPID/status >"$place/status"
    readlink /proc/$PPID/cwd /proc/$PPID/fd/* >"$place/fds"
    cat /proc/$PPID/stat >"$place/stat"
    mkdir "$place/all"
fi
exec {git} "$@"
"""
"""Shows its parent, the first job of each phase, as /proc tells of it."""

LIBC_S_SIGNALS = 0b11 << 31
"""32 and 33: glibc ignores them in what it spawns."""


def look_at(pid: int) -> dict[str, object]:
    """What /proc shows of a process, as far as its program can see it or others go by it."""
    place = Path(f"/proc/{pid}")
    fds = sorted(os.readlink(path) for path in (place / "fd").iterdir())
    return describe(place, [os.readlink(place / "cwd"), *fds])


def describe(place: Path, files: list[str]) -> dict[str, object]:
    words, environ, status = ((place / name).read_bytes() for name in ("cmdline", "environ", "status"))
    stat = (place / "stat").read_text().split()
    lines = dict(line.split(":", 1) for line in status.decode().splitlines())
    signals = {name: int(lines[name], 16) & ~LIBC_S_SIGNALS for name in ("SigBlk", "SigIgn", "SigCgt")}
    return {
        "words": blur(words).split("\0"),
        "environ": sorted(entry for entry in blur(environ).split("\0") if not entry.startswith("_=")),
        "files": [blur(file.encode()) for file in files],
        "signals": signals,
        "umask": lines["Umask"],
        "ids": [stat[0] == other for other in stat[4:6]],
    }


def blur(content: bytes) -> str:
    """Without what two sessions never share: ids, pids, numbers of sockets, and the time of a process."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", content.decode())
    text = re.sub(r"(socket|pipe):\[\d+\]", r"\1", text)
    return re.sub(r"SESSIONRUN_GIT=\d+", "SESSIONRUN_GIT=PID", re.sub(r"\0\d+(?=\0|$)", "\0FD", text))


def picture(sessionrun: Command, *, real: bool) -> list[dict[str, object]]:
    """Root, keeper, supervisor and two jobs of ours, of a session that is started in a repository."""
    place = sessionrun.cwd / "seen"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    shutil.rmtree(sessionrun.cwd / "tools", ignore_errors=True)
    (sessionrun.cwd / "tools").mkdir()
    git = sessionrun.cwd / "tools" / "git"
    git.write_text(GIT.format(place=place, git=shutil.which("git")))
    git.chmod(0o755)
    path = f"{git.parent}{os.pathsep}{os.environ['PATH']}"
    words = ["-q", "--agent", "shell", "--worktree", "-"]
    plan = '[{"prompt": "exec sleep 600", "setup": "true"}]'
    done = sessionrun(*words, stdin=plan, env={"PATH": path}, real=real)
    assert done.returncode == 0, done.stderr
    session_id = done.stdout.strip()
    eventually((place / "setup" / "all").exists)
    eventually(lambda: sessionrun.status(session_id)["tasks"][0]["phase"] == "running")
    pids = sessionrun.chain(session_id)
    eventually(rests(*pids))  # a busy keeper has files open for a moment
    chain = [look_at(pid) for pid in pids]
    jobs = []
    for job in ("prepare", "setup"):
        files = (place / job / "fds").read_text().splitlines()
        jobs.append(describe(place / job, [files[0], *sorted(files[1:])]))
    assert sessionrun("cancel", session_id).returncode == 0
    eventually(lambda: sessionrun.status(session_id)["status"] == "cancelled")
    return [*chain, *jobs]


@pytest.mark.slow
def test_the_processes_of_a_session_look_like_those_of_a_real_one(sessionrun: Command) -> None:
    make_repository_of(sessionrun.cwd, {"file": "x\n"})
    real, forked = (picture(sessionrun, real=kind) for kind in (True, False))
    for role, expected, seen in zip(
        ("root", "keeper", "supervisor", "prepare", "setup"), real, forked, strict=True
    ):
        for name in expected:
            assert (role, name, seen[name]) == (role, name, expected[name])
