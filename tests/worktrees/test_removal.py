"""`clean` by id, age, state and number: what goes, what never does, and two of them at once."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from test_cli_worktrees import Project, project

from sessionrun.client.clean import find_candidates, find_trash, remove_sessions
from sessionrun.store import index
from sessionrun.store.seal import SEAL_KEY, seal
from sessionrun.store.session import SessionDir

__all__ = ["project"]


STRAYS = "setsid sh -c 'echo $$ >away; exec sleep 600' & exec env -i sleep 600"
"""A task of two processes: one in a group of its own, with its job's marker, and one in its group, without."""


def read_stray(sessionrun: Command) -> int:
    """The pid of the process of `STRAYS` that left the group."""
    away = sessionrun.cwd / "away"
    return int(eventually(lambda: away.exists() and away.read_text()))


def finish(sessionrun: Command, plan: object = None) -> str:
    return sessionrun.finished(plan or {"prompts": ["true"]})


def interrupt(sessionrun: Command, prompt: str = "sleep 600") -> tuple[str, int]:
    """A session whose processes but the task were killed, and the pid of its task."""
    session_id = sessionrun.start({"prompts": [prompt]})
    view = sessionrun.until(session_id, lambda view: view["tasks"][0]["pid"])
    sessionrun.kill_chain(session_id)
    return session_id, int(view["tasks"][0]["pid"])


def reseal(record: dict[str, Any]) -> bytes:
    """The bytes of status.json or summary, as their writer would have made them."""
    return seal({key: value for key, value in record.items() if key != SEAL_KEY})


def make_older(sessionrun: Command, session_id: str, ended_at: str) -> None:
    """Move a session's end into the past, for all readers."""
    for name in ("status.json", "summary"):
        path = sessionrun.directory(session_id) / name
        record = json.loads(path.read_bytes())
        path.write_bytes(reseal({**record, "ended_at": ended_at}))


def left(sessionrun: Command) -> set[str]:
    return {path.name.removeprefix("session-") for path in sessionrun.results.glob("session-*")}


# --- what goes ---


def test_by_id_with_a_dry_run_first(sessionrun: Command) -> None:
    session_id, other = finish(sessionrun), finish(sessionrun)
    path = sessionrun.directory(session_id)
    assert sessionrun("clean", session_id, "--dry-run").stdout == (
        f"would remove session {path}: completed, nothing needs it\n"
    )
    assert left(sessionrun) == {session_id, other}
    (record,) = sessionrun.load("clean", session_id[:8])["findings"]
    assert (record["name"], record["removed"], record["would_remove"]) == (str(path), True, None)
    assert sorted(os.listdir(sessionrun.results)) == [".gitignore", f"session-{other}"]
    assert sessionrun("status", session_id).returncode == 2


def test_by_age_and_number(sessionrun: Command) -> None:
    ids = [finish(sessionrun) for _ in range(4)]
    ids.insert(1, cancelled := sessionrun.start({"prompts": ["sleep 600"]}))
    sessionrun("cancel", cancelled)
    eventually(lambda: not SessionDir(sessionrun.directory(cancelled)).is_alive())
    for number, session_id in enumerate(ids[:4]):
        make_older(sessionrun, session_id, f"2020-01-0{number + 1}T00:00:00.000Z")

    def clean(*words: str) -> list[str]:
        return [one["session_id"] for one in sessionrun.load("clean", *words)["findings"]]

    assert clean("--older-than", "1d", "--dry-run") == ids[:4]
    assert clean("--older-than", "1d", "--keep", "2", "--dry-run") == ids[:3]
    assert clean("--state", "completed", "--older-than", "1d", "--keep", "2", "--dry-run") == [ids[0], ids[2]]
    assert clean("--state", "cancelled", "--keep", "1") == []
    assert clean("--state", "cancelled", "--older-than", "1d") == [cancelled]
    assert clean("--older-than", "1d", "--keep", "2") == [ids[0], ids[2]]
    assert left(sessionrun) == set(ids[3:])
    assert clean("--keep", "1") == [ids[3]]
    assert sessionrun("clean", "--keep", "1").stdout == "Nothing to clean.\n"


def test_what_lies_in_a_session_may_be_odd(sessionrun: Command, tmp_path: Path) -> None:
    """Links are removed as links, and what cannot be listed is opened up."""
    session_id = finish(sessionrun)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    path = sessionrun.directory(session_id)
    (path / "jobs").mkdir(exist_ok=True)
    (path / "jobs" / "link").symlink_to(precious)
    os.mkfifo(path / "jobs" / "fifo")
    (path / "jobs" / "closed").mkdir(mode=0o000)
    assert sessionrun.load("clean", session_id)["findings"][0]["removed"]
    assert (precious / "file").read_text() == "mine"
    assert left(sessionrun) == set()


# --- what stays ---


def test_a_running_session_stays(sessionrun: Command) -> None:
    session_id = sessionrun.start({"prompts": ["sleep 600"]})
    assert sessionrun.load("clean", session_id)["findings"][0]["why"] == "it is running"
    assert (
        sessionrun("clean", "--older-than", "0", "--state", "interrupted,completed").stdout
        == "Nothing to clean.\n"
    )
    assert sessionrun("clean", "--worktrees").stdout == "Nothing to clean.\n"
    said = sessionrun("clean", "--worktrees", session_id).stdout
    assert said == f"kept session {sessionrun.directory(session_id)}: it is running\n"
    assert sessionrun.status(session_id)["status"] == "running"


@pytest.mark.parametrize("name", ["lock", "keeper.lock", "root.lock"])
def test_an_ended_session_of_which_a_process_lives_stays(sessionrun: Command, name: str) -> None:
    session_id = finish(sessionrun)
    fd = SessionDir(sessionrun.directory(session_id)).hold_lock(name)
    for words in (["--dry-run"], []):
        (record,) = sessionrun.load("clean", session_id, *words)["findings"]
        assert (record["removed"], record["why"].startswith("a process of it lives")) == (False, True)
    os.close(fd)
    assert sessionrun.load("clean", session_id)["findings"][0]["removed"]


def test_an_interrupted_session_stays_unless_it_is_meant(sessionrun: Command) -> None:
    """A process without the marker is known by the ledger, one that left its group by its marker."""
    session_id, pid = interrupt(sessionrun, STRAYS)
    away = read_stray(sessionrun)
    assert sessionrun("clean", "--older-than", "0").stdout == "Nothing to clean.\n"
    why = sessionrun.load("clean", session_id)["findings"][0]["why"]
    assert why == "it is interrupted; --state interrupted removes it too"
    why = sessionrun.load("clean", session_id, "--state", "interrupted")["findings"][0]["why"]
    assert why == f"processes of its jobs still live: {', '.join(sorted([str(pid), str(away)]))}"
    os.killpg(pid, signal.SIGKILL)
    os.kill(away, signal.SIGKILL)
    sessionrun.until(session_id, lambda view: not view["running"])
    assert sessionrun.load("clean", session_id, "--state", "interrupted")["findings"][0]["removed"]


def test_a_session_that_went_on_meanwhile_stays(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = finish(sessionrun)
    session = SessionDir(sessionrun.directory(session_id))
    found = find_candidates([session])
    with session.journal_path.open("ab") as stream:
        stream.write(b"x")
    (removal,) = remove_sessions(found, worktrees=False, dry_run=False)
    assert (removal.removed, removal.why) == (False, "it went on just now")

    def fail(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", "from", None, "to")

    monkeypatch.setattr(os, "rename", fail)
    (removal,) = remove_sessions(find_candidates([session]), worktrees=False, dry_run=False)
    assert (removal.removed, removal.why) == (False, "it cannot be removed: Operation not permitted")


def test_a_directory_behind_a_link_stays(sessionrun: Command, tmp_path: Path) -> None:
    session_id = finish(sessionrun)
    path = sessionrun.directory(session_id)
    real = tmp_path / path.name
    path.rename(real)
    path.symlink_to(real)
    index.remember(path)
    assert sessionrun.load("clean", session_id)["findings"][0]["why"] == "it is not a directory of yours"
    assert (real / "spec.json").exists()


def test_a_session_that_cannot_be_read_stays(sessionrun: Command) -> None:
    session_id = finish(sessionrun)
    (sessionrun.directory(session_id) / "spec.json").write_text("{")
    done = sessionrun("clean", "--older-than", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "spec.json is damaged" in done.stdout
    assert left(sessionrun) == {session_id}


# --- worktrees ---


@pytest.mark.slow
def test_a_session_whose_claims_are_needed_stays(project: Project) -> None:
    session = project.finish(
        {"prompts": [{"id": "a", "prompt": "echo work > work"}, {"id": "b", "prompt": "true"}]}
    )
    eventually(lambda: not SessionDir(project.directory(session)).is_alive())
    (record,) = project.load("clean", session)["findings"]
    assert not record["removed"]
    assert "main-task-a" in record["why"]
    project.git("branch", "main-task-b")  # as a version before this one left it
    words = ("clean", session, "--worktrees", "--older-than", "0")
    records = project.load(*words)["findings"]
    assert (records[-1]["what"], records[-1]["removed"]) == ("session", False)
    assert "main-task-a" in records[-1]["why"]
    assert "main-task-b" not in records[-1]["why"]
    assert project.branches() == ["main", "main-task-a"]
    project.git("merge", "-q", "main-task-a")
    (record,) = project.load("clean", session)["findings"]
    assert (record["removed"], "main-task-a" in record["why"]) == (False, True), "it is merged, and not empty"
    records = project.load(*words)["findings"]
    assert [(one["what"], one["removed"]) for one in records] == [("branch", True), ("session", True)]
    assert project.branches() == ["main"]
    assert left(project) == set()


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--keep", "0"), ("--worktrees",), ("--keep", "0", "--worktrees")])
def test_a_dry_run_lists_what_a_real_run_removes(project: Project, words: tuple[str, ...]) -> None:
    plan = {"prompts": [{"id": "a", "prompt": "echo work > work"}, {"id": "b", "prompt": "true"}]}
    sessions = [project.finish(plan) for _ in range(2)]
    sessions.append(project.finish({"prompts": [{"id": "b", "prompt": "true"}]}))
    eventually(lambda: not any(SessionDir(project.directory(session)).is_alive() for session in sessions))
    project.git("branch", "main-task-b")  # as a version before this one left it; each session may have claimed it
    project.git("merge", "-q", "main-task-a")
    for name in (f".trash-session-{uuid.uuid4()}", f"session-{uuid.uuid4()}"):
        (project.results / name).mkdir()
    (project.results / name / "root.lock").touch()  # a launcher was killed here
    before = project.branches()
    foreseen = project.load("clean", *words, "--dry-run")["findings"]
    assert project.branches() == before and not any(record["removed"] for record in foreseen)
    done = project.load("clean", *words)["findings"]
    listed = [(record["what"], record["name"]) for record in foreseen if record["would_remove"]]
    assert sorted(listed) == sorted((record["what"], record["name"]) for record in done if record["removed"])
    assert len(set(listed)) == len(listed) and ("branch", "main-task-b") in listed
    gone = set(before) - set(project.branches())
    assert gone == {name for what, name in listed if what == "branch"}
    assert [path.name for path in project.results.iterdir() if str(path) in {name for _, name in listed}] == []


@pytest.mark.slow
def test_a_session_whose_repository_is_gone_goes(project: Project) -> None:
    session = project.finish({"prompts": [{"id": "a", "prompt": "echo work > work"}]})
    eventually(lambda: not SessionDir(project.directory(session)).is_alive())
    project.git("rev-parse", "main-task-a")
    project.cwd.rename(project.cwd.with_name("moved"))
    done = subprocess.run(
        [*project.argv, "clean", session], cwd=project.cwd.parent, capture_output=True, text=True
    )
    assert (done.returncode, left(project)) == (0, set()), done.stderr


# --- crashes, and others at the same ---


def test_trash_of_a_removal_that_was_broken_off_is_swept(sessionrun: Command) -> None:
    session_id = finish(sessionrun)
    trash = sessionrun.results / f".trash-session-{uuid.uuid4()}"
    trash.mkdir()
    (trash / "journal").write_text("")
    for name in (".trash-other", ".trash-session-x", f"trash-session-{uuid.uuid4()}"):
        (sessionrun.results / name).mkdir()
    (sessionrun.results / f".trash-session-{uuid.uuid4()}").symlink_to(sessionrun.directory(session_id))
    assert find_trash(sessionrun.results) == [trash]
    foreseen = sessionrun("clean", "--keep", "9", "--dry-run").stdout
    assert foreseen == f"would remove trash {trash}: its removal was broken off\n"
    assert trash.exists()
    assert sessionrun("clean", "--keep", "9").stdout == foreseen.replace("would remove", "removed")
    assert not trash.exists()
    assert len(os.listdir(sessionrun.results)) == 6
    assert left(sessionrun) == {session_id}


def test_two_at_once(sessionrun: Command) -> None:
    ids = {
        finish(sessionrun, {"prompts": [{"id": f"t{n}", "prompt": "true"} for n in range(5)]}) for _ in range(6)
    }
    words = ("clean", "--older-than", "0", "--json")
    both = [sessionrun.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    removed: list[dict[str, Any]] = []
    for one in both:
        stdout, stderr = one.communicate(timeout=60)
        assert (one.returncode, stderr) == (0, b"")
        # what one of them is about to delete, another one may take for trash, and help
        removed += [one for one in json.loads(stdout)["findings"] if one["removed"] and one["what"] == "session"]
    assert sorted(record["session_id"] for record in removed) == sorted(ids)
    assert not sessionrun.results.exists(), "nothing of ours stays in the user's directory"
    assert index.sessions() == []
