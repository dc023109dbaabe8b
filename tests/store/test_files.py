"""Files of a session that are damaged or planted: believed whole or not at all, and else one error with its place.

First status.json, summary, spec.json and the logs; then the files that tasks can reach.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson
import pytest
from conftest import Command
from faults.damaged import call
from forging import damage, forge
from simulation import make_session
from stages import make_repository_of

from sessionrun.checks.requests import CheckRequest, Verification
from sessionrun.client.reading.view import load_view
from sessionrun.engine.status import project, project_live
from sessionrun.model.checks import Brief, Checked, CheckReport, Counts
from sessionrun.model.errors import JobFileError, SessionrunError, StoreError
from sessionrun.model.kinds import DiffStat
from sessionrun.model.places import Place, Repository
from sessionrun.model.spec import AgentSpec, Export, SessionSpec, TaskSpec
from sessionrun.session.exports import ExportWriter, JobStatus, Shown, settle_exports
from sessionrun.session.history import begin
from sessionrun.session.launch import resume
from sessionrun.session.main import _load
from sessionrun.store import records, seal
from sessionrun.store.files import NotRegular, replace_file
from sessionrun.store.jobfiles import ANSWER, CLAIM, REQUEST, load_answer, load_record, read_tail
from sessionrun.store.locks import hold_lock
from sessionrun.store.logs import read_log
from sessionrun.store.outside import hold_file, open_folder
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.request import Claim, WorkspaceRequest, load_claim, load_place

PLAN = {"prompts": [{"id": "a", "prompt": "echo a"}, {"id": "b", "prompt": "exit 7", "needs": ["a"]}]}


@pytest.fixture
def ended(sessionrun: Command) -> SessionDir:
    return SessionDir(sessionrun.directory(sessionrun.finished(PLAN, "--name", "mine")))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, run in this process: to start Python for each look is dear."""
    return subprocess.CompletedProcess(words, *call(list(words)))


def test_every_wrong_byte_is_seen_and_that_there_is_no_checksum(ended: SessionDir) -> None:
    for path in (ended.status_path, ended.summary_path):
        content = path.read_bytes()
        assert seal.parse_sealed(content) is not None
        for place in range(len(content)):
            for kind in ("flip", "cut"):
                assert seal.parse_sealed(damage(content, kind, place)) is None, place
        record = orjson.loads(content)
        del record["checksum"]
        assert seal.parse_sealed(seal.seal(record)) == record
        assert seal.parse_sealed(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)) is None


def test_the_tasks_of_a_feed_are_not_taken_for_those_of_the_session(ended: SessionDir) -> None:
    record = orjson.loads(ended.status_path.read_bytes())
    del record["checksum"]
    record["feed"] = {"open": True, "tasks": ["q1"], "held": None}
    content = seal.seal(record)
    found = seal.parse_head(content)
    assert found is not None and {**found[0], "tasks": orjson.loads(found[1])} == record
    assert seal.parse_head(damage(content, "flip", 9)) is None


def test_a_file_of_another_version_is_as_if_it_were_absent(
    ended: SessionDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key more or less: the polls, which do not parse, do not print it either."""
    before = run("status", ended.session_id, "--json").stdout
    with monkeypatch.context() as patch:
        patch.setattr(seal, "_OF_KEYS", crc32(" ".join(seal._KEYS[1:]).encode()))
        for path in (ended.status_path, ended.summary_path):
            record = orjson.loads(path.read_bytes())
            record["total"] = 99
            path.write_bytes(seal.seal({key: value for key, value in record.items() if key != "checksum"}))
    assert ended.load_status() is None and ended.load_summary() is None
    assert run("status", ended.session_id, "--json").stdout == before


def change_status(session: SessionDir, old: bytes, new: bytes) -> None:
    """Other words in the first task of status.json, which has its seal."""
    body = seal.find_body(session.status_path.read_bytes())
    assert body is not None and old in bytes(body)
    changed = bytes(body).replace(old, new, 1)
    session.status_path.write_bytes(changed + seal._SEAL % crc32(changed, seal._OF_KEYS))


def test_a_poll_passes_tasks_on_as_they_are(ended: SessionDir) -> None:
    """To parse those of a large session takes longer than all else that a poll does."""
    view = load_view(ended)
    change_status(ended, b'"tasks":[{"num":1,', b'"tasks":[{"num": 1,')
    shown = run("status", ended.session_id, "--json").stdout
    assert '"num": 1,' in shown and json.loads(shown) == {**view, "schema_version": 2}
    assert '"num": 1,' not in run("status", ended.session_id, "a", "--json").stdout


def test_a_poll_parses_what_is_shown_otherwise(ended: SessionDir) -> None:
    change_status(ended, b'"worktree":null', b'"worktree":"/no/such/place"')
    assert json.loads(run("status", ended.session_id, "--json").stdout)["tasks"][0]["worktree"] is None
    odd = Path(os.fsdecode(bytes(ended.path.parent) + b"\xff"))
    ended.path.parent.rename(odd)
    change_status(SessionDir(odd / ended.path.name), b'"worktree":"/no/such/place"', b'"worktree":null')
    done = run("status", ended.session_id, "--json", "--results-dir", str(odd))
    assert (done.returncode, json.loads(done.stdout)["results_dir"]) == (0, str(odd / ended.path.name))


def test_of_a_damaged_journal_and_status_what_is_ahead_counts(ended: SessionDir) -> None:
    """So a session that has ended is known to have, and what cannot be done is told."""
    content = ended.journal_path.read_bytes()
    ended.journal_path.write_bytes(damage(content, "flip", len(content) // 2))
    done = run("cancel", ended.session_id)
    assert (done.returncode, done.stdout) == (0, f"mine ({ended.session_id[:8]}): 2 had ended before\n")
    done = run("retry", ended.session_id, "--failed", "--timeout", "5")
    assert done.returncode == 4 and "is damaged at byte" in done.stderr, done


def change_record(session: SessionDir, change: Callable[[dict[str, Any]], None], place: int) -> None:
    """Change a record of the journal; its checksum is right again."""
    wanted = read_log(session.journal_path).payloads[place]

    def changed(payload: bytes) -> bytes:
        record = json.loads(payload)
        if payload == wanted:
            change(record)
        return orjson.dumps(record)

    forge(session.journal_path, changed)


FORGED: dict[str, tuple[Callable[[dict[str, Any]], None], int]] = {
    "a time that no calendar has": (lambda one: one.update(at=9e15), 2),
    "a time that is a word": (lambda one: one.update(at="now"), 1),
    "a task that is not there": (lambda one: one.update(key="nobody/1/1/work/1"), 2),
    "a key of other words": (lambda one: one.update(key="a/1/1/work"), 2),
    "another type": (lambda one: one.update(key=["a"]), 3),
    "no number": (lambda one: one.pop("seq"), 0),
    "an event that is a list": (lambda one: one.update(ev=[]), 0),
    "an event of a later version": (lambda one: one.update(ev="Landed"), 1),
}


def check_refused(session: SessionDir, path: Path, said: str) -> None:
    """Readers say it in one line; with the caches as good as gone `resume` and a supervisor refuse."""
    for words in (
        ["status"],
        ["results", "--json"],
        ["explain"],
        ["wait"],
        ["resume"],
        ["retry", "--timeout", "0"],
    ):
        done = run(*words[:1], session.session_id, *words[1:])
        told = done.stdout + done.stderr
        assert (done.returncode, told.count("\n")) == (3, 1), told
        assert f"{path.parent.name}/{path.name} is damaged{said}: " in told
    for start in (resume, _load):
        with pytest.raises(StoreError, match="is damaged"):
            start(session)
    assert not session.is_alive()


def test_a_record_that_cannot_be_is_damage(sessionrun: Command, ended: SessionDir) -> None:
    content = ended.journal_path.read_bytes()
    ended.status_path.unlink()
    ended.summary_path.unlink()
    whole = sessionrun.finished({"prompts": ["true"]})
    for change, place in FORGED.values():
        ended.journal_path.write_bytes(content)
        change_record(ended, change, place)
        number = place + 1
        with pytest.raises(StoreError, match=f"journal is damaged at record {number}"):
            load_view(ended)
    check_refused(ended, ended.journal_path, f" at record {number}")
    assert "was it written by a newer version?" in run("status", ended.session_id).stderr
    for words in (["list"], ["overview"], ["cost", "--all"], ["clean", "--older-than", "0s", "--dry-run"]):
        done = run(*words, "--json")
        assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
        assert ended.path.name in done.stderr
    assert [view["session_id"] for view in json.loads(run("list", "--json").stdout)["sessions"]] == [whole]
    told = json.loads(run("doctor", "--json").stdout)
    assert [(one["session_id"], one["check"]) for one in told["findings"] if one["session_id"]] == [
        (ended.session_id, check) for check in ("records", "status", "summary", "interrupted")
    ]


def test_a_spec_of_other_types_is_damage(ended: SessionDir) -> None:
    spec = orjson.loads(ended.spec_path.read_bytes())
    ended.status_path.unlink()
    ended.summary_path.unlink()
    first, second = spec["tasks"]
    for wrong in (
        {**spec, "tasks": [{**first, "retries": "3"}, second]},
        {**spec, "tasks": [{**first, "id": "../x"}, second]},
        {**spec, "tasks": [{**first, "labels": ["x"]}, second]},
        {**spec, "tasks": [{**first, "agent": "gone"}, second]},
        {**spec, "agents": {"shell": {"name": "shell", "argv": "sh"}}},
        {**spec, "created_at": "yesterday"},
        {key: value for key, value in spec.items() if key != "cwd"},
        [spec],
    ):
        ended.spec_path.write_bytes(orjson.dumps(wrong))
        with pytest.raises(StoreError, match=r"spec\.json is damaged: "):
            load_view(ended)
    for content in (b"", b"{", b'{"schema_version": 2}'):
        ended.spec_path.write_bytes(content)
        assert run("status", ended.session_id).returncode in (2, 3)
        with pytest.raises(SessionrunError):
            load_view(ended)
    ended.spec_path.write_bytes(
        orjson.dumps({**spec, "of a later version": 1, "tasks": [{**first, "x": 1}, second]})
    )
    assert load_view(ended)["status"] == "completed"
    ended.spec_path.write_bytes(orjson.dumps(wrong))
    check_refused(ended, ended.spec_path, "")


# --- many tasks: the two big files are made and read some tasks at a time ---


HOSTILE = '}],"tasks":[{"id":"x"},{"id":"y"}'


def spec_of(size: int) -> SessionSpec:
    """Prompts that look like the ends of tasks, and labels of which one is `id`."""
    tasks = [TaskSpec(f"t{n}", (HOSTILE, f"echo {n}"), labels={"id": "a", "b": HOSTILE}) for n in range(size)]
    return replace(make_session(tasks), agents={"shell": AgentSpec("shell", ("/bin/sh",))})


@pytest.mark.parametrize("size", [1, 2, 199, 200, 201, 401])
def test_a_spec_is_read_as_it_was_written(size: int) -> None:
    spec = spec_of(size)
    record = {**orjson.loads(orjson.dumps(spec)), "schema_version": 1}
    for content in (
        orjson.dumps(record),
        orjson.dumps(record, option=orjson.OPT_INDENT_2),  # as a person's editor may leave it
        orjson.dumps(
            {**record, "tasks": [{**task, "later": [{"k": 1}, {"id": "z"}]} for task in record["tasks"]]}
        ),
        orjson.dumps({"tasks": record.pop("tasks"), **record}),
    ):
        assert records.parse_spec(content) == spec


def test_a_wrong_byte_in_a_later_part_is_told() -> None:
    content = orjson.dumps({**orjson.loads(orjson.dumps(spec_of(450))), "schema_version": 1})
    for number in (0, 250, 449):
        name = b'"t%d"' % number
        with pytest.raises(ValueError):
            records.parse_spec(content.replace(name, name[:-1]))
        with pytest.raises(
            ValueError,
            match=rf"tasks\[{number}\]\.id has a value that does not belong there: expected `str` matching",
        ):
            records.parse_spec(content.replace(name, b'"a/b"'))


@pytest.mark.parametrize("size", [0, 1, 200, 401])
def test_a_status_has_the_same_bytes_in_pieces(size: int, tmp_path: Path) -> None:
    state = begin(spec_of(size))
    body = orjson.dumps(project(state))[:-1]
    pieces = list(seal.seal_by_pieces(project_live(state)))
    assert b"".join(pieces)[: len(body)] == body
    assert len(pieces) == 3 + -(-size // seal.TASKS_OF_A_PIECE)
    status = seal.parse_sealed(b"".join(pieces))
    assert status is not None and status == orjson.loads(body + b"}")
    replace_file(tmp_path / "status.json", iter(pieces), durable=False)
    assert (tmp_path / "status.json").read_bytes() == b"".join(pieces)


THREADS = """
import sys, threading
from dataclasses import make_dataclass
from sessionrun.store.codec import build
sys.setswitchinterval(1e-6)
for number in range(40):
    record, value = make_dataclass("Innermost", [("n", int)]), {"n": 1}
    for depth in range(12):
        record, value = make_dataclass(f"At{depth}", [("a", record), ("b", int)]), {"a": value, "b": 1}
    begin, made = threading.Barrier(4), []
    def work():
        begin.wait()
        made.append(build(record, value))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
"""


def test_threads_may_read_the_first_record_of_a_class_at_once() -> None:
    """As those of `serve` and `mcp` do: without a lock the process dies of it."""
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# --- planted: something else in the place of the files of a user in which a session shows itself ---


PRECIOUS = "precious\n"


@pytest.fixture
def victim(own_place: Path) -> Path:
    """A file, alone in a directory, that no session has anything to do with."""
    folder = own_place / "private"
    folder.mkdir()
    (folder / "notes").write_text(PRECIOUS)
    return folder / "notes"


@pytest.fixture
def matrix(own_place: Path) -> Command:
    top = own_place / "repo"
    make_repository_of(top, {".gitignore": "results\nsub\nm.json\n"})
    return Command(top, top / "results")


def launch(matrix: Command, script: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a hostile run and an honest one, one after the other, to the end; what was said, and the status."""
    tasks = [
        {"id": "evil", "name": "Evil", "prompts": [f"cd {shlex.quote(str(matrix.cwd))} && {script}"]},
        {"id": "good", "name": "Good", "prompts": ["echo good > good.txt"]},
    ]
    document = {
        "agents": ["shell"],
        "models": ["m"],
        "worktree_base": "../trees",
        "results_file": "sub/results.json",
        "outputs_dir": "sub/outputs",
        "concurrency": 1,
        "tasks": tasks,
    }
    (matrix.cwd / "m.json").write_text(json.dumps(document))
    done = matrix.to_end("--sync", "m.json")
    assert done.returncode == 0, done.stderr
    (folder,) = matrix.results.glob("session-*")
    return done, matrix.status(folder.name.removeprefix("session-"))


@pytest.mark.slow
def test_what_a_run_plants_is_neither_followed_nor_replaced(matrix: Command, victim: Path) -> None:
    script = (
        f"until ln -s {victim} sub/results.json; do rm -f sub/results.json; done"  # it may be put back between
    )
    done, status = launch(matrix, script)
    assert victim.read_text() == PRECIOUS
    assert os.listdir(victim.parent) == ["notes"]
    assert [task["outcome"] for task in status["tasks"]] == ["succeeded", "succeeded"]
    (problem,) = [one for one in status["view_problems"] if "results.json is not written" in one]
    assert problem in done.stderr
    assert problem in matrix("status").stdout
    log = (Path(status["results_dir"]) / "supervisor.log").read_text()
    assert log.count(problem) == 1
    assert (matrix.cwd / "sub" / "results.json").is_symlink()


@pytest.mark.slow
def test_a_link_that_is_there_at_launch_is_followed_once(matrix: Command, victim: Path) -> None:
    """The user's own link stays one; where a run lets it lead later makes no difference."""
    (matrix.cwd / "sub").mkdir()
    real = matrix.cwd / "real.json"
    (matrix.cwd / "sub" / "results.json").symlink_to(real)
    real.write_text('{"runs": []}')
    _, status = launch(matrix, f"ln -sfn {shlex.quote(str(victim))} sub/results.json")
    assert victim.read_text() == PRECIOUS
    assert status["view_problems"] == []
    assert [run["status"] for run in json.loads(real.read_text())["runs"]] == ["succeeded", "succeeded"]


TASK = {"id": "a", "outcome": None, "status": "pending", "phase": None, "reason": None}


def show(session: Path) -> Shown:
    return Shown(SessionDir(session), make_session([]), {"session_id": "x", "ended_at": None, "tasks": [TASK]})


@pytest.fixture
def jobs(own_place: Path) -> tuple[Path, Export]:
    """A status file of job files, and its view as a launch has settled it."""
    folder = own_place / "jobs"
    folder.mkdir()
    (folder / "a.md").touch()
    path = folder / "_jobstatus.json"
    (export,) = settle_exports([Export("job-status", {"path": str(path), "jobs": {"a": ["a"]}})])
    JobStatus(export).claim(show(own_place / "session-x"))
    assert json.loads(path.read_text())[0]["status"] == "pending_work"
    return path, export


@pytest.mark.parametrize("name", ["_jobstatus.json", "._jobstatus.json.lock"])
@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_a_status_file_or_its_lock_that_is_planted(
    jobs: tuple[Path, Export], victim: Path, name: str, kind: str
) -> None:
    path, export = jobs
    place = path.with_name(name)
    assert sorted(os.listdir(path.parent)) == ["_jobstatus.json", "a.md"]  # no lock stays
    place.unlink(missing_ok=True)
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
    before = path.lstat()
    with pytest.raises((SessionrunError, OSError)):
        JobStatus(export).claim(show(path.parent))
    assert victim.read_text() == PRECIOUS
    assert path.lstat() == before


def test_the_status_file_is_the_project_s(tmp_path: Path) -> None:
    folder, session = tmp_path / "jobs", tmp_path / "session-x"
    folder.mkdir()
    for name in ("a.md", "b.md"):
        (folder / name).touch()
    path, real = folder / "_jobstatus.json", tmp_path / "real.json"
    other = {"id": "b", "status": "pass", "created_at": "then", "more": 1}
    real.write_text(json.dumps([other, {"id": "gone", "status": "fail"}]))
    real.chmod(0o640)
    path.symlink_to(real)
    view, shown = Export("job-status", {"path": str(path), "jobs": {"a": ["a"]}}), show(session)
    JobStatus(view).write(shown, 1)
    begun, *others = json.loads(real.read_text())
    assert (begun["status"], others) == ("pending_work", [other])
    ended = {**TASK, "outcome": "succeeded", "status": "completed"}
    later = replace(show(tmp_path / "session-y"), status={**shown.status, "tasks": [ended]})
    JobStatus(view).write(later, 1)
    assert json.loads(real.read_text())[0]["session"] == "x", "the entry of another session was changed"
    JobStatus(view).claim(later)
    assert [entry["status"] for entry in json.loads(real.read_text())] == ["pass", "pass"]
    JobStatus(view).write(shown, 1)
    assert json.loads(real.read_text())[0]["session"] == "y", "the session that was launched last has the entry"
    assert real.stat().st_mode & 0o777 == 0o640
    with hold_lock(tmp_path / ".real.json.lock"), pytest.raises(SessionrunError, match="was held for 0 s"):
        JobStatus(view).write(shown, 0)


def test_a_lock_that_is_replaced_while_it_is_held_shuts_out_all_the_same(tmp_path: Path) -> None:
    """Who holds a file that is not in its place any more must not be taken for the holder, nor wait for it."""
    path, lock = tmp_path / "file", tmp_path / ".file.lock"
    with hold_file(path, timeout_s=0):
        with pytest.raises(SessionrunError, match=r"\.file\.lock was held for 0 s"), hold_file(path, timeout_s=0):
            pass
        lock.unlink()
        with hold_file(path, timeout_s=0):
            assert lock.exists()


def test_a_directory_on_the_way_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with open_folder(tmp_path / "real" / "sub"):
        pass
    told = pytest.raises(NotRegular, match="'link' is not a directory")
    with told, open_folder(tmp_path / "link" / "sub"):
        pass
    with pytest.raises(NotRegular), open_folder(tmp_path / "link" / "new", make=True):
        pass
    assert os.listdir(tmp_path / "real") == ["sub"]


def cleared(path: Path) -> Path:
    """The place of what was there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return path


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda sub, victim: cleared(sub / "results.json").symlink_to(victim),
    "fifo": lambda sub, victim: os.mkfifo(cleared(sub / "results.json")),
    "directory": lambda sub, victim: cleared(sub / "results.json").mkdir(),
    "words": lambda sub, victim: cleared(sub / "results.json").write_text("mine\n"),
    "link of both": lambda sub, victim: cleared(sub).symlink_to(victim.parent),
    "link of outputs": lambda sub, victim: cleared(next((sub / "outputs").iterdir())).symlink_to(victim.parent),
}


def identify(path: Path) -> tuple[int, ...]:
    """What a file is, without the time when it was read."""
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_planted_after_the_launch_is_said_once_and_left_there(
    matrix: Command, victim: Path, kind: str
) -> None:
    _, status = launch(matrix, "true")
    session = SessionDir(Path(status["results_dir"]))
    first, writer = (ExportWriter(session, session.load_spec()) for _ in range(2))
    assert first.write(status, durable=False) is None
    shown = matrix.cwd / "sub" / "results.json"
    PLANTED[kind](shown.parent, victim)
    before = os.path.lexists(shown) and identify(shown)
    said = writer.write(status, durable=False) or ""
    assert "is not written" in said or kind == "link of outputs"
    assert "outputs does not show all outputs" in said or "of" not in kind
    assert writer.write(status, durable=False) is None
    assert len(writer.problems) == (2 if kind == "link of both" else 1)
    assert kind == "link of outputs" or (os.path.lexists(shown) and identify(shown)) == before
    assert (os.listdir(victim.parent), victim.read_text()) == (["notes"], PRECIOUS)


# --- files of a job: read into a record, or one clear exception ---


COMMIT = "0" * 40
DIFF_STAT: DiffStat = {"files": 1, "insertions": 1, "deletions": 0}
PLACE = Place(branch="main-task-a", worktree="/w/a", base_commit=COMMIT, diff_stat=DIFF_STAT, seat=1)
CLAIMED = Claim("main-task-a", "/w/a", COMMIT, seat=1)
ASKED = WorkspaceRequest(
    Repository("/r", "/r/.git", "main", COMMIT, "/w"),
    "session",
    "a",
    "A",
    links=("x",),
    place=PLACE,
    earlier=PLACE,
    seat=1,
)
CHECK = CheckRequest(
    "/r", "Do it.", brief=Brief(outputs=("a",)), verification=Verification(("a",), "p", True, "text")
)
CHECKED = Checked(Counts(passed=1, total=1), "c" * 40, DIFF_STAT)
REPORT = CheckReport(written={"a.py": 3}, earlier=("b.py",), checked=CHECKED)

FILES: dict[str, tuple[object, str, Callable[[Path], object]]] = {
    "claim": (CLAIMED, CLAIM, load_claim),
    "answer": (PLACE, ANSWER, load_place),
    "request": (ASKED, REQUEST, lambda folder: load_record(folder / REQUEST, WorkspaceRequest)),
    "check": (CHECK, REQUEST, lambda folder: load_record(folder / REQUEST, CheckRequest)),
    "report": (REPORT, ANSWER, partial(load_answer, cls=CheckReport)),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_record_is_read_as_it_was_written(kind: str, tmp_path: Path) -> None:
    record, name, load = FILES[kind]
    (tmp_path / name).write_bytes(orjson.dumps({**orjson.loads(orjson.dumps(record)), "of_a_later_version": 1}))
    assert load(tmp_path) == record


Wrong = bytes | Mapping[str, object] | Callable[[Path], None]
WRONG: tuple[Wrong, ...] = (
    *(b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff{}", b"[" * 5000),
    *(os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)),
)
DAMAGED: list[tuple[str, Wrong, str | None]] = [
    *((kind, wrong, None) for kind in FILES for wrong in WRONG),
    ("claim", {"seat": "x"}, "damaged"),
    ("answer", {"branch": 7}, "damaged"),
    ("request", {"repository": None}, "damaged"),
    ("request", {"links": [7]}, "damaged"),
    ("request", {"earlier": 7}, "damaged"),
    ("check", {"keeps": "yes"}, "damaged"),
    ("check", {"check": []}, "damaged"),
    ("report", {"written": {"a.py": "x"}}, "damaged"),
    ("report", {"checked": {"counts": 7}}, "damaged"),
    *(
        (kind, {field: word}, what)
        for kind in ("claim", "answer")
        for field, word, what in (
            ("worktree", "a/b", "is not an absolute path"),
            ("worktree", "/a\0", "damaged"),
            ("branch", "-D", "is not a branch"),
            ("branch", "", "is not a branch"),
            *((name, "--stdin", "is not a commit") for name in ("base_commit", "setup_commit", "taken_up")),
            ("start", {"name": "-D", "commit": COMMIT}, "is not a branch"),
            ("start", {"name": "main", "commit": "--stdin"}, "is not a commit"),
        )
    ),
]
"""What lies there, or a value of another type, or a word that git would take for something else; what is said."""


@pytest.mark.parametrize(("kind", "wrong", "what"), DAMAGED)
def test_what_does_not_belong_there_is_refused_and_not_waited_for(
    kind: str, wrong: Wrong, what: str | None, tmp_path: Path
) -> None:
    record, name, load = FILES[kind]
    if isinstance(wrong, Mapping):
        wrong = orjson.dumps({**orjson.loads(orjson.dumps(record)), **wrong})
    if isinstance(wrong, bytes):
        (tmp_path / name).write_bytes(wrong)
    else:
        wrong(tmp_path / name)
    with pytest.raises(JobFileError, match=what) as caught:
        load(tmp_path)
    assert caught.value.path == str(tmp_path / name) and "\n" not in str(caught.value)


def test_a_job_that_did_not_come_so_far_left_nothing(tmp_path: Path) -> None:
    assert load_claim(tmp_path) is None
    assert load_place(tmp_path) is None
    assert load_answer(tmp_path, CheckReport) is None
    for kind in ("request", "check"):
        with pytest.raises(JobFileError):
            FILES[kind][2](tmp_path)


def test_the_end_of_what_is_no_file_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stdout")
    assert read_tail(tmp_path / "stdout") == b""
