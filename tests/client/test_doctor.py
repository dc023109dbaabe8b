"""`doctor`: for each check a damage that it finds, what --fix makes of it, and what it must never touch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Command, eventually, slow
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stages import make_program
from test_cli_worktrees import Project, project
from test_leftovers import STRAYS, finish, interrupt, read_stray, reseal

from sessionrun.client.doctor import OWN, check, examine, repair
from sessionrun.client.findings import load_findings
from sessionrun.client.reading.view import load_view
from sessionrun.session import job as own_job
from sessionrun.store.logs import AppendLog
from sessionrun.store.requests import send_request
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.registration import trash_path
from sessionrun.worktrees.request import load_claim

__all__ = ["project"]

PLAN = {"prompts": [{"id": "a", "prompt": "echo fine"}, {"id": "b", "prompt": "exit 3", "check": "true"}]}
Damage = Callable[[SessionDir], None]


@pytest.fixture
def ended(sessionrun: Command) -> SessionDir:
    """A session that ended as it should."""
    return SessionDir(sessionrun.directory(finish(sessionrun, PLAN)))


def found(session: SessionDir) -> list[tuple[str, str]]:
    return [(finding.check, finding.severity) for finding in examine(session, [])]


def append(path: Path, *payloads: bytes) -> None:
    log = AppendLog(path)
    log.append(payloads)
    log.close()


# --- health ---


def test_sound_sessions_and_a_sound_environment_have_no_findings(sessionrun: Command) -> None:
    assert sessionrun("doctor").stdout == "Nothing is wrong; 0 sessions looked at.\n"
    assert not sessionrun.results.exists()
    finish(sessionrun, PLAN)
    running = sessionrun.start({"prompts": ["sleep 600", {"prompt": "sleep 1", "setup": "true", "check": "true"}]})
    sessionrun.until(running, lambda view: view["running"] == 2)
    for words in ((), ("--fix",), (running,)):
        done = sessionrun("doctor", *words)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        number = "1 session" if words == (running,) else "2 sessions"
        assert done.stdout == f"Nothing is wrong; {number} looked at.\n"
    sessionrun.until(running, lambda view: view["completed"] == 1)
    assert sessionrun("doctor").returncode == 0
    told = {"findings": [], "session_count": 2, "remaining": 0}
    assert sessionrun.load("doctor") == {**told, "schema_version": 2}


# --- one damage for each check ---


def _change(name: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(session: SessionDir) -> None:
        path = session.path / name
        path.write_bytes(change(path.read_bytes()))

    return damage


def _end(name: str, more: bytes) -> Damage:
    return _change(name, lambda content: content + more)


def _cut(name: str) -> Damage:
    return _change(name, lambda content: content[:-9])


def _reseal(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Damage:
    """Other content, as a writer of it would have sealed it."""
    return _change(name, lambda content: reseal(change(json.loads(content))))


def _add(name: str, record: bytes) -> Damage:
    return lambda session: append(session.path / name, record)


def _replace(name: str, make: Callable[[Path], object] = lambda path: None) -> Damage:
    """Something else, or nothing, in the place of one of our names."""

    def damage(session: SessionDir) -> None:
        (session.path / name).unlink()
        make(session.path / name)

    return damage


def _link(path: Path) -> None:
    path.symlink_to(path.with_name("spec.json"))


def _leave_request(session: SessionDir) -> None:
    send_request(session, {"kind": "cancel", "tasks": []})


def _fail_all(status: dict[str, Any]) -> dict[str, Any]:
    return {**status, "tasks": [{**task, "outcome": "failed"} for task in status["tasks"]]}


def _forge_seq(session: SessionDir) -> None:
    record = json.loads(session.journal_path.read_bytes().splitlines()[0][9:])
    append(session.journal_path, json.dumps({**record, "seq": 99}).encode())
    for name in ("status.json", "summary"):
        _reseal(name, lambda content: {**content, "seq": 99})(session)


DAMAGES: dict[str, tuple[Damage, list[str], bool]] = {
    # what is done, the checks that find it, whether --fix repairs it
    "spec damaged": (_cut("spec.json"), ["spec"], False),
    "spec of another": (
        _change("spec.json", lambda content: content.replace(b'"session_id":"', b'"session_id":"o')),
        ["spec", "status", "summary"],
        False,
    ),
    "journal damaged": (
        _change("journal", lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:]),
        ["journal"],
        False,
    ),
    "journal torn": (_end("journal", b"0123"), ["journal"], True),
    "journal ends in zeros": (_end("journal", b"\0" * 9 + b"\n"), ["journal"], False),
    "ledger torn": (_end("ledger", b"0123"), ["ledger"], True),
    "ledger damaged": (_change("ledger", lambda content: b"#" + content[1:]), ["ledger"], False),
    "ledger cut": (_change("ledger", lambda content: b""), ["ledger"], False),
    "number doubled": (_forge_seq, ["sequence"], False),
    "unknown event": (_add("journal", b'{"ev":"X","seq":99}'), ["records"], False),
    "unknown process record": (_add("ledger", b"? what"), ["records"], False),
    "status gone": (_replace("status.json"), ["status"], True),
    "status damaged": (_cut("status.json"), ["status"], True),
    "status stale": (_reseal("status.json", lambda status: {**status, "seq": 1}), ["status"], True),
    "status false": (_reseal("status.json", _fail_all), ["status"], True),
    "summary gone": (_replace("summary"), ["summary"], True),
    "logs behind": (
        _change("journal", lambda content: b"".join(content.splitlines(True)[:-1])),
        ["status", "summary", "interrupted"],
        False,
    ),
    "request left": (_leave_request, ["requests"], False),
    "link for a lock": (_replace("lock", _link), ["kinds"], False),
    "FIFO for a lock": (_replace("lock", os.mkfifo), ["kinds"], False),
    "FIFO for an output": (_replace("task-a.txt", os.mkfifo), ["kinds"], False),
    "link for status.json": (_replace("status.json", _link), ["status", "kinds"], True),
    "no FIFO": (_replace("wake", Path.touch), ["kinds"], False),
}


def test_every_check_has_a_test() -> None:
    elsewhere = {"disk", "interrupted", "stopped", "processes", "temporary", "worktrees", "landings"}
    covered = {check for _, checks, _ in DAMAGES.values() for check in checks}
    assert covered | elsewhere == {name for part in (OWN, *load_findings()) for name in part.session_checks}


def copy_of(session: SessionDir, place: Path) -> SessionDir:
    """The same session in another results directory, to be damaged: to start one for each takes long."""
    shutil.copytree(session.path, place / session.path.name, ignore=shutil.ignore_patterns("wake"))
    os.mkfifo(place / session.path.name / "wake", 0o600)
    return SessionDir(place / session.path.name)


TELLING = ("journal torn", "journal damaged", "ledger cut", "status false", "link for a lock")
"""Of the kinds of damage: in logs and in what follows from them, repaired and not."""


@pytest.mark.parametrize("damages", [TELLING, pytest.param(tuple(DAMAGES), marks=pytest.mark.slow)], ids=len)
def test_damage_is_found_and_only_what_is_safe_is_repaired(
    sessionrun: Command, ended: SessionDir, tmp_path: Path, damages: tuple[str, ...]
) -> None:
    for number, damage in enumerate(damages):
        check_damage(sessionrun, copy_of(ended, tmp_path / f"copy-{number}"), damage)


def check_damage(sessionrun: Command, ended: SessionDir, damage: str) -> None:
    do, checks, fixable = DAMAGES[damage]
    doctor = ("doctor", ended.session_id, "--results-dir", str(ended.path.parent))
    before = load_view(ended)
    assert found(ended) == [], damage
    do(ended)
    assert [check for check, _ in found(ended)] == checks, damage
    told = json.loads(sessionrun(*doctor, "--json").stdout)
    assert [record["check"] for record in told["findings"]] == checks, damage
    assert told["remaining"] == len(checks)
    assert all(record["what"] and record["plan"] and record["where"] for record in told["findings"])
    logs = ended.journal_path.read_bytes(), ended.ledger_path.read_bytes()
    done = sessionrun(*doctor, "--fix")
    assert (done.returncode, done.stderr) == (0 if fixable else 1, ""), (damage, done.stdout)
    if fixable:
        assert done.stdout.startswith("fixed: ")
        assert found(ended) == []
        assert load_view(ended) == before
    else:
        assert (ended.journal_path.read_bytes(), ended.ledger_path.read_bytes()) == logs
    again = sessionrun(*doctor, "--fix")
    assert again.returncode == done.returncode, damage
    assert "fixed: " not in again.stdout or not fixable


@pytest.mark.parametrize("name", ["lock", *slow("keeper.lock", "root.lock")])
def test_a_session_that_somebody_holds_is_left_as_it_is(ended: SessionDir, tmp_path: Path, name: str) -> None:
    for damage in [damage for damage, (_, _, fixable) in DAMAGES.items() if fixable]:
        copy = copy_of(ended, tmp_path / damage)
        DAMAGES[damage][0](copy)
        before = snapshot(copy.path)
        fd = copy.hold_lock(name)
        assert repair(copy, []) == [], damage
        os.close(fd)
        assert snapshot(copy.path) == before, damage
        assert repair(copy, []), damage


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    """Modes and contents of what is in a directory, but for the locks."""
    return {
        str(one.relative_to(path)): (one.stat().st_mode, one.read_bytes() if one.is_file() else b"")
        for one in sorted(path.rglob("*"))
        if not one.name.endswith("lock")
    }


def test_a_planted_journal_is_found_and_nothing_made_of_it(ended: SessionDir) -> None:
    ended.journal_path.unlink()
    os.mkfifo(ended.journal_path, 0o600)
    assert found(ended) == [("kinds", "error")]
    assert repair(ended, []) == []


def test_what_a_job_left_is_a_known_record(ended: SessionDir) -> None:
    append(ended.ledger_path, b"B b/1/1/work/1 s 78", b"O b/1/1/work/1", b"A b/1/1/work/1")
    assert found(ended) == []


def test_a_directory_in_which_no_session_began(sessionrun: Command, ended: SessionDir) -> None:
    empty = sessionrun.results / "session-00000000-0000-4000-8000-000000000000"
    empty.mkdir(mode=0o700)
    done = sessionrun("doctor")
    assert done.returncode == 1
    where = f"{empty.relative_to(sessionrun.cwd)}/spec.json"
    assert f"{where}: its launcher was killed before the session began" in done.stdout
    fd = SessionDir(empty).hold_lock("lock")  # it is just being made
    assert sessionrun("doctor").returncode == 0
    os.close(fd)


# --- who lives ---


def test_a_session_that_nobody_runs_and_the_processes_of_its_jobs(sessionrun: Command) -> None:
    """They are named, and not touched; in the end the sum of what was found and repaired."""
    session_id, pid = interrupt(sessionrun, STRAYS)
    away = read_stray(sessionrun)
    told: dict[str, Any] = json.loads(sessionrun("doctor", session_id, "--fix", "--json").stdout)
    (record,) = [one for one in told["findings"] if one["check"] == "processes"]
    assert f"kill -TERM {' '.join(sorted([str(pid), str(away)]))}" in record["plan"]
    assert psutil.pid_exists(pid) and psutil.pid_exists(away)
    os.killpg(pid, signal.SIGKILL)
    os.kill(away, signal.SIGKILL)
    eventually(lambda: "processes" not in sessionrun("doctor", session_id, "--json").stdout)
    dead = SessionDir(sessionrun.directory(session_id))
    repair(dead, [])  # status.json may rightly lag behind the logs
    assert found(dead) == [("interrupted", "warning")]
    _leave_request(dead)
    dead.status_path.unlink()
    assert [check for check, _ in found(dead)] == ["status", "interrupted", "requests"]
    block = sessionrun("doctor", session_id).stdout
    assert f"\n  to go on with it: sessionrun resume {session_id}\n" in block
    assert block.endswith("\n3 findings; 1 session looked at; sessionrun doctor --fix repairs 1.\n")
    told = json.loads(sessionrun("doctor", session_id, "--fix", "--json").stdout)
    states = [(one["check"], one["fixed"], one["fixable"]) for one in told["findings"]]
    assert states == [("status", True, True), ("interrupted", False, False), ("requests", False, False)]
    assert (told["remaining"], told["session_count"]) == (2, 1)


def test_a_process_that_survived_the_end_of_its_job(sessionrun: Command, ended: SessionDir) -> None:
    marker = {**os.environ, "SESSIONRUN_JOB": f"{ended.session_id}/a/1/1/work/1"}
    with subprocess.Popen(["sleep", "60"], env=marker) as child:
        told = json.loads(sessionrun("doctor", ended.session_id, "--json").stdout)
        (record,) = told["findings"]
        assert record["what"] == f"job a/1/1/work/1: it has ended, but process {child.pid} lives"
        assert record["plan"] == f"to stop it: kill -TERM {child.pid}"
        child.kill()


@pytest.mark.parametrize(("kind", "word"), [(b"S", 3), (b"K", 3), (b"K", 4)])
def test_no_process_is_guessed(sessionrun: Command, kind: bytes, word: int) -> None:
    """Another start time, boot or container: the pid means nothing."""
    session_id, pid = interrupt(sessionrun, "exec env -i sleep 600")
    session = SessionDir(sessionrun.directory(session_id))
    eventually(lambda: psutil.Process(pid).name() == "sleep")
    assert "processes" in dict(found(session))
    lines = [line[9:].split() for line in session.ledger_path.read_bytes().splitlines()]
    session.ledger_path.unlink()
    for words in lines:
        if words[0] == kind:
            words[word] = b"1"
    append(session.ledger_path, *(b" ".join(words) for words in lines))
    assert "processes" not in dict(found(session))
    os.kill(pid, signal.SIGKILL)


# --- worktrees ---


def test_a_worktree_that_a_crash_left(project: Project) -> None:
    session = project.start({"prompts": [{"id": "a", "prompt": "echo work > work; sleep 600"}]}, "--worktree")
    view = project.until(session, lambda view: (at := view["tasks"][0])["phase"] == "running" and at["pid"])
    eventually(lambda: list(project.worktree("main-task-a").glob("work")))
    project.kill_chain(session)
    os.killpg(view["tasks"][0]["pid"], signal.SIGKILL)
    project.until(session, lambda view: not view["running"])
    checks = [check for check, _ in found(SessionDir(project.directory(session)))]
    assert "interrupted" in checks
    assert "worktrees" not in checks  # resume, or clean, sees to it


@pytest.mark.slow
def test_a_worktree_that_no_task_has_and_one_that_was_half_removed(project: Project) -> None:
    """As the crash of a PREPARE leaves it whose task got another worktree, and that of a `clean` of it."""
    session = SessionDir(project.directory(project.finish({"prompts": [{"id": "a", "prompt": "true"}]})))
    eventually(lambda: not session.is_alive())
    assert found(session) == []
    (folder,) = (session.path / "jobs" / "a").glob("a1-*-prepare")
    subprocess.run([sys.executable, own_job.__file__, "prepare", folder], check=True)
    claim = load_claim(folder)
    assert claim is not None
    worktree = Path(claim.worktree)
    (finding,) = examine(session, [])
    assert (finding.check, finding.where) == ("worktrees", str(worktree))
    assert finding.what == "a worktree of no task, left by a crash"
    worktree.rename(trash := trash_path(worktree, f"{session.session_id}/a"))
    (half,) = examine(session, [])
    assert (half.where, half.what) == (str(trash), "a worktree whose removal was broken off")
    assert half.plan == f"sessionrun clean --worktrees {session.session_id}"
    assert project("clean", "--worktrees", session.session_id).returncode == 0
    assert found(session) == []
    assert not trash.exists()


def test_a_repository_that_is_gone(project: Project) -> None:
    session = project.finish({"prompts": [{"id": "a", "prompt": "true"}]})
    project.cwd.rename(project.cwd.with_name("moved"))
    (finding,) = examine(SessionDir(project.directory(session)), [])
    assert (finding.check, finding.what) == ("worktrees", "the session's repository is gone")


# --- the environment ---


def environment_findings(results: Path) -> list[tuple[str, str]]:
    return [(finding.check, finding.severity) for finding in check("machine_checks", results)]


def test_the_results_directory(tmp_path: Path) -> None:
    results, refused = tmp_path / "results", [("results", "error")]
    assert environment_findings(results) == []
    results.mkdir()
    for mode, findings in ((0o755, []), (0o777, refused), (0o1777, [])):
        results.chmod(mode)
        assert environment_findings(results) == findings
    results.rmdir()
    results.write_text("")
    assert environment_findings(results) == refused


def test_a_disk_that_is_nearly_full(small_disk: Path) -> None:
    assert environment_findings(small_disk / "results") == [("space", "warning")]


def test_trash_of_a_removal_is_deleted(sessionrun: Command, ended: SessionDir) -> None:
    trash = sessionrun.results / f".trash-{ended.path.name}"
    trash.mkdir()
    (trash / "x").touch()
    assert environment_findings(sessionrun.results) == [("trash", "warning")]
    assert sessionrun("clean", "--worktrees").returncode == 0 and trash.exists(), "it is no worktree"
    done = sessionrun("doctor", "--fix")
    assert done.returncode == 0
    assert done.stdout.count("fixed: ") == 1
    assert environment_findings(sessionrun.results) == []


def test_git_that_is_missing_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", str(folder))
    assert environment_findings(tmp_path) == [("git", "warning")]
    for version, findings in (("2.20.1", [("git", "warning")]), ("2.34.0", [])):
        make_program(folder / "git", f"echo git version {version}")
        assert environment_findings(tmp_path) == findings
    for line in ("git version", "git version banana", "git version 2.x", "", "2.40.1"):
        make_program(folder / "git", f"echo '{line}'")
        (finding,) = check("machine_checks", tmp_path)
        assert (finding.check, finding.what) == ("git", f"git version: it says {line!r}")


# --- any damage ---


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@example(name="spec.json", place=0.75, change=b"\x80")  # in a key
@given(
    name=st.sampled_from(["spec.json", "journal", "ledger", "status.json", "summary"]),
    place=st.floats(0, 1),
    change=st.one_of(st.just(None), st.binary(max_size=20)),
)
def test_no_damage_of_one_file_is_overlooked_or_made_worse(
    ended: SessionDir, tmp_path: Path, name: str, place: float, change: bytes | None
) -> None:
    """Cut at any byte, or overwritten: it is found, a repair leaves the logs' good part as it is, and ends."""
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    session = copy_of(ended, tmp_path / "copy")
    file = session.path / name
    content = file.read_bytes()
    at = int(place * (len(content) - 1))
    damaged = content[:at] if change is None else content[:at] + change + content[at + len(change) :]
    file.write_bytes(damaged)
    before = examine(session, [])
    assert before or _means_the_same(content, damaged)
    repair(session, [])
    after = examine(session, [])
    assert not any(finding.fix for finding in after)
    assert len(after) <= len(before)
    if name in ("status.json", "summary"):
        repaired = any(finding.fix for finding in before)
        assert after == [finding for finding in before if not finding.fix]  # it may claim to be ahead of the logs
        assert file.read_bytes() == (content if repaired else damaged)
    else:
        assert damaged.startswith(file.read_bytes())


def _means_the_same(content: bytes, damaged: bytes) -> bool:
    if content == damaged:
        return True
    try:
        one, other = json.loads(content), json.loads(damaged)
    except ValueError:
        return False
    # a title or a time in the spec may be any other; a key that is spelt differently is one that is not known
    return isinstance(one, dict) and isinstance(other, dict)
