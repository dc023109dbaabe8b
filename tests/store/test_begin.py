"""How sessions begin, and what is left at the edges: modes, the first status.json, launchers that are killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from calls import Calls, needs_calls
from conftest import Command

from sessionrun.model.events import RequestReceived
from sessionrun.store.requests import MAX_FAULTS, MAX_SPOKEN_BYTES, Spoken, spell_request
from sessionrun.store.session import SessionDir


@pytest.mark.parametrize("umask", [0, 0o777])
def test_any_umask_will_do(sessionrun: Command, own_place: Path, umask: int) -> None:
    plan = own_place / "plan.json"
    plan.write_text('[{"id": "a", "prompt": "umask"}]')
    old = os.umask(umask)
    try:
        done = sessionrun("--sync", "-q", "--agent", "shell", "--results-dir", "deep/results", str(plan))
    finally:
        os.umask(old)
    assert done.returncode == 0, done.stderr
    results = own_place / "deep" / "results"
    (session,) = results.glob("session-*")
    assert (session / "task-a.txt").read_text() == f"{umask:04o}\n"
    for path in (own_place / "deep", results):
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if umask == 0 else 0o700)
    for path in (session, *session.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) in (0o600, 0o700), path
    index = own_place.parent / "home" / "state" / "sessionrun" / "sessions"
    assert stat.S_IMODE(index.stat().st_mode) == 0o600
    assert stat.S_IMODE(index.parent.stat().st_mode) == 0o700


@needs_calls
def test_a_launch_whose_daemon_dies_leaves_nothing(sessionrun: Command, own_place: Path) -> None:
    env = Calls(own_place / "calls", "daemon:create:1:kill").environ()
    done = sessionrun("--agent", "shell", "--results-dir", "a/b", stdin='["true"]', env=env)
    assert done.returncode == 3
    assert not (own_place / "a").exists()


def test_an_index_that_cannot_be_written_is_a_warning_beside_the_id(sessionrun: Command) -> None:
    done = sessionrun("-q", "--agent", "shell", stdin='["true"]', env={"XDG_STATE_HOME": "/dev/null"})
    session_id = done.stdout.strip()
    assert done.returncode == 0
    assert done.stderr == (
        f"sessionrun: warning: session {session_id} was started, but is not in your index (/dev/null/sessionrun/"
        f"sessions: File exists); from other directories use --results-dir {sessionrun.results}\n"
    )
    assert sessionrun.wait(session_id)["outcome"] == "succeeded"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without an entry in passwd")
def test_a_user_without_a_home_has_directories_that_cannot_be_there() -> None:
    code = (
        "import os, platformdirs, sessionrun.store.session; from sessionrun.store import index\n"
        "os.environ.clear(); os.setuid(54321)\n"
        "print([os.path.exists(index.user_directory(kind)) for kind in ('state', 'cache', 'config')])\n"
        "print(index.sessions(), index.limits_path().exists())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[False, False, False]\n[] False\n", "")


@needs_calls
@pytest.mark.slow
def test_processes_that_are_slow_to_come_up_are_no_failed_start(sessionrun: Command) -> None:
    env = Calls(sessionrun.cwd / "calls", "keeper:any:1:stop").environ()
    done = sessionrun("-q", "--agent", "shell", stdin='["true"]', env=env)
    session_id = done.stdout.strip()
    assert (done.returncode, "is slow to come up" in done.stderr) == (0, True)
    for process in psutil.process_iter(["cmdline"]):  # None: of a zombie
        if f"session-{session_id}" in " ".join(process.info["cmdline"] or ()):
            process.send_signal(signal.SIGCONT)
    assert sessionrun.wait(session_id)["outcome"] == "succeeded"


@needs_calls
def test_the_first_status_is_there_before_the_id(sessionrun: Command) -> None:
    """A root that dies at its first step: nobody but the launcher has written anything."""
    env = Calls(sessionrun.cwd / "calls", "supervisor:any:1:kill").environ()
    done = sessionrun("-q", "--agent", "shell", stdin='["true", "sleep 0.1"]', env=env)
    session_id = done.stdout.strip()
    first = SessionDir(sessionrun.directory(session_id)).load_status()
    assert first is not None
    last = sessionrun.wait(session_id)
    assert first["total"] == 2
    assert set(last) - set(first) == {"results_dir", "stopped", "disk_full", "no_contact"}
    assert (first["status"], first["started_at"] <= last["started_at"]) == ("running", True)
    assert first["seq"] < last["seq"]


def test_requests_are_found_among_rubbish() -> None:
    request_id, line = spell_request({"kind": "cancel", "tasks": ["a"], "now": True})
    spoken = Spoken()
    assert spoken.hear(b"..\xff{\x00" + b"x" * (2 * MAX_SPOKEN_BYTES)) == ([], [])
    assert spoken.hear(b'["kind"' + line[:9]) == ([], [])
    requests, _ = spoken.hear(line[9:] + b"...")
    assert requests == [RequestReceived(request_id, "cancel", ("a",), True)]
    assert spoken.hear(b"..." + line)[0] == requests
    bad = [b'{"request_id": "../../x", "kind": "cancel"}', b"{", b'{"request_id": 1}', b"{" + b"[" * 3000]
    found, faults = spoken.hear(b"\n" + b"\n".join(bad * 10) + b"\n")
    assert (found, len(faults)) == ([], MAX_FAULTS)
