"""Tasks that put something else in the place of the user's files that a session shows itself in."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from simulation import make_session
from stages import make_repository_of

from sessionrun.model.errors import SessionrunError
from sessionrun.model.spec import Export
from sessionrun.session.exports import ExportWriter, JobStatus, Shown, settle_exports
from sessionrun.store.files import NotRegular
from sessionrun.store.outside import hold_file, open_folder
from sessionrun.store.session import SessionDir

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
