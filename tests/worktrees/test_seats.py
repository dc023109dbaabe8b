"""Worktrees that stay: which one a task gets, what it finds there, and what may never be lost in one."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import slow
from simulation import Scripted, make_session
from stages import put_first
from test_cli_worktrees import Project as Cli
from test_cli_worktrees import project_in
from test_workspaces import Project

from sessionrun.model.errors import SessionrunError
from sessionrun.model.events import JobFinished, JobLost, JobStarted
from sessionrun.model.keys import JobKey
from sessionrun.model.places import TASK_FILE, Place, Seats
from sessionrun.model.spec import TaskSpec, Workspace
from sessionrun.worktrees.release import release
from sessionrun.worktrees.request import WorkspaceRequest

# --- which one the engine chooses ---


class Engine(Scripted):
    """A session of tasks in worktrees that stay; what its jobs find is as the test says."""

    ahead_s = 1e6

    def __init__(self, count: int, width: int, **more: Any) -> None:
        tasks = [TaskSpec(f"t{num}", ("x",), workspace=Workspace("worktree"), **more) for num in range(count)]
        spec = make_session(tasks, resources={"slot": width})
        super().__init__(replace(spec, seats=Seats("/repo/worktrees")))
        self.running: dict[str, JobKey] = {}

    def begins(self, key: JobKey) -> None:
        self.record(JobStarted(key, 1, 1, 1))
        self.running[key.task] = key

    def finish(self, task: str, seat: int | None = None, verdict: Literal["passed", "failed"] = "passed") -> str:
        """The job of this task ends; its phase."""
        key, place = self.running.pop(task), None
        if key.phase in ("prepare", "release") and verdict == "passed":
            path = f"/repo/worktrees/w{seat}" if key.phase == "prepare" else None
            place = Place("b", path, "base", commit="tip", seat=seat)
        why = None if verdict == "passed" else "exit_code"
        self.record(JobFinished(key, verdict, why, why, place=place))
        self.go_on()
        return key.phase

    def seats(self) -> dict[str, int]:
        return {name: task.seat for name, task in self.state.tasks.items() if task.seat is not None}


def test_a_seat_that_prepare_found_taken_is_not_counted_and_that_which_it_took_is() -> None:
    engine = Engine(3, 3)
    engine.go_on()
    assert engine.seats() == {"t0": 1, "t1": 2, "t2": 3}
    engine.finish("t0", 2)  # 1 is another session's, and this task was before t1
    assert engine.seats() == {"t0": 2, "t1": 2, "t2": 3}
    engine.finish("t1", 4)
    assert (engine.seats(), engine.state.seats) == ({"t0": 2, "t1": 4, "t2": 3}, {2: "t0", 4: "t1", 3: "t2"})
    assert engine.finish("t1") == "work" and engine.seats()["t1"] == 4, "it is held until RELEASE is over"


def test_a_prepare_that_is_done_again_goes_to_the_same_seat_and_a_retry_chooses_anew() -> None:
    engine = Engine(2, 2, retries=1)
    engine.go_on()
    engine.record(JobLost(engine.running.pop("t1"), "lost", "gone"))
    engine.go_on()
    assert (engine.seats(), engine.running["t1"].start) == ({"t0": 1, "t1": 2}, 2)
    engine.finish("t1", 2)
    assert engine.finish("t1", verdict="failed") == "work"
    [engine.finish("t0", 1) for _ in range(3)]
    engine.finish("t1", 2)
    assert (engine.seats(), engine.state.tasks["t1"].attempt) == ({"t1": 1}, 2)


# --- what PREPARE and RELEASE make of one ---


class Seated(Project):
    """Tasks of one or more sessions in the same worktrees."""

    @property
    def place(self) -> Path:
        return self.top / "worktrees"

    def begin(self, task: str, session: str = "s1", seat: int = 1, **more: Any) -> tuple[WorkspaceRequest, Path]:
        """The request for RELEASE, and where the task works."""
        seats = Seats(str(self.place))
        words = {"session_id": session, "seats": seats, "seat": seat, "prompt": f"do {task}", **more}
        return self.begin_work(task, **words)

    def end(self, request: WorkspaceRequest) -> Place:
        return release(request, self.folder())


@pytest.fixture
def seated(own_place: Path) -> Seated:
    return Seated(own_place)


@pytest.mark.slow
def test_the_next_task_finds_what_git_ignores_and_nothing_else(seated: Seated) -> None:
    (seated.top / ".gitignore").write_text("*.o\n")
    seated.run("add", ".gitignore")
    seated.run("commit", "-q", "-m", "ignore")
    request, path = seated.begin("one")
    names = {entry.name for entry in path.iterdir()}
    # what tasks leave: work, caches, locks, settings, flags, files that only their rules ignore
    (path / ".gitignore").write_text("*.o\nout/\n")
    (path / "a.o").write_text("cache")
    (path / "out" / "deep").mkdir(parents=True)
    (path / "out" / "deep" / "x").write_text("ignored by this task alone")
    (path / "new").write_text("work")
    os.chmod(path / "out" / "deep", 0o500)
    tracked = next(name for name in sorted(names - {".git", ".gitignore", TASK_FILE}) if (path / name).is_file())
    (path / tracked).unlink()
    seated.run("update-index", "--assume-unchanged", ".gitignore", cwd=path)
    admin = seated.top / ".git/worktrees/w1"
    (admin / "index.lock").touch()
    (admin / "config.worktree").write_text("[core]\nhooksPath = /evil\n")
    done = seated.end(request)
    assert (done.kept, done.worktree, done.seat, done.branch) == (None, None, 1, "main-task-one")
    assert {"new", ".gitignore"} <= seated.files("main-task-one") and tracked not in seated.files("main-task-one")
    assert seated.run("rev-parse", "--abbrev-ref", "HEAD", cwd=path) == "HEAD"
    seated.run("branch", "-m", "main-task-one", "taken")
    again, same = seated.begin("two")
    assert (same, again.place and again.place.seat) == (path, 1)
    assert {entry.name for entry in path.iterdir()} == {*names, "a.o"}
    assert (path / TASK_FILE).read_text() == "do two\n"
    assert not (admin / "index.lock").exists() and not (admin / "config.worktree").exists()
    assert seated.run("status", "--porcelain", cwd=path) == ""
    assert seated.run("status", "--porcelain") == ""
    (path / "two").write_text("2")
    assert seated.end(again).diff_stat == {"files": 1, "insertions": 1, "deletions": 0}


COMMIT = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m mine"


@pytest.mark.parametrize(
    "touch", ["echo mine > README", *slow("echo mine > mine"), COMMIT, *slow("git checkout -q -b mine")]
)
def test_a_seat_in_which_a_user_worked_since_is_left_alone(seated: Seated, touch: str) -> None:
    request, path = seated.begin("one")
    seated.end(request)
    seated.shell(touch, path)
    before = {entry.name: entry.read_bytes() for entry in path.iterdir() if entry.is_file()}
    _, other = seated.begin("two")
    assert other.name == "w2"
    assert {entry.name: entry.read_bytes() for entry in path.iterdir() if entry.is_file()} == before


def test_what_the_users_rules_ignore_is_no_work_in_a_free_seat(seated: Seated) -> None:
    (seated.top / ".git" / "info" / "exclude").write_text("*.o\n")
    request, path = seated.begin("one")
    (path / "a.o").write_text("cache")
    seated.end(request)
    assert seated.begin("two")[1] == path and (path / "a.o").exists()


def test_a_directory_that_no_seat_needs_takes_no_branch(seated: Seated) -> None:
    request, _ = seated.begin("one")
    Path(request.repository.worktree_dir, "main-task-two").mkdir(parents=True)
    assert seated.begin("two", seat=2)[0].made.branch == "main-task-two"


def test_what_is_not_ours_is_never_touched(seated: Seated) -> None:
    """A directory, a file, a link, a worktree of the user's, and the seat of a session that died."""
    (seated.place / "w1").mkdir(parents=True)
    (seated.place / "w1" / "mine").write_text("mine")
    (seated.place / "w2").write_text("mine")
    (seated.place / "w3").symlink_to(seated.root)
    seated.run("worktree", "add", "-q", "--detach", str(seated.place / "w4"))
    _, dead = seated.begin("one", session="dead")
    (dead / "unsaved").write_text("work")
    request, path = seated.begin("two")
    assert (dead.name, path.name) == ("w5", "w6")
    assert seated.end(request).seat == 6
    assert (dead / "unsaved").read_text() == "work"
    assert (seated.place / "w1" / "mine").read_text() == "mine"
    assert (seated.place / "w3").is_symlink() and (seated.place / "w4" / ".git").is_file()


def test_work_that_no_commit_holds_keeps_its_seat(seated: Seated) -> None:
    request, path = seated.begin("one")
    seated.run("init", "-q", "inner", cwd=path)
    (path / "inner" / "f").write_text("x")
    done = seated.end(request)
    assert (done.worktree, done.kept) == (str(path), "inner/ is a repository of its own")
    assert seated.begin("two")[1].name == "w2"


def test_a_seat_whose_directory_was_deleted_is_made_again(seated: Seated) -> None:
    request, path = seated.begin("one")
    seated.end(request)
    os.rename(path, seated.root / "away")
    _, again = seated.begin("two")
    assert again == path
    assert seated.run("worktree", "list").count(str(path)) == 1


@pytest.mark.parametrize("goes", [True, False])
def test_a_seat_in_which_no_task_can_begin_is_made_anew(
    seated: Seated, monkeypatch: pytest.MonkeyPatch, goes: bool
) -> None:
    """Also if it cannot be deleted: a container may have made it as root."""
    request, path = seated.begin("one")
    (path / "x.log").write_text("cache")
    seated.end(request)

    def refuse(path: Path) -> None:
        if path.exists():
            raise PermissionError(path)

    if not goes:
        monkeypatch.setattr("sessionrun.worktrees.registration.remove_tree", refuse)
    once = f'case "$*" in *"read-tree --reset"*) mkdir {seated.root}/once 2>/dev/null && exit 128;; esac'
    put_first(seated.root, monkeypatch, once)
    again, same = seated.begin("two")
    assert same == path and (path / TASK_FILE).exists() and not (path / "x.log").exists()
    assert seated.run("branch", "--format=%(refname:short)") == "main\nmain-task-two"
    assert (seated.end(again).kept, seated.run("worktree", "list").count("/w1 ")) == (None, 1)
    left = [(trash / "x.log").exists() for trash in seated.place.glob(".trash-*")]
    assert left == ([] if goes else [True])


def test_a_prepare_that_fails_leaves_no_branch_and_its_seat_is_made_anew(seated: Seated) -> None:
    seated.end(seated.begin("one")[0])
    (seated.top / "a-link").write_text("there when it is looked for")
    with pytest.raises(SessionrunError, match="links"):
        seated.begin("two", links=("nowhere",))
    assert seated.run("branch", "--list", "main-task-two") == ""
    third, path = seated.begin("three", links=("a-link",))
    assert path.name == "w1" and (path / "a-link").is_symlink()
    seated.end(third)
    assert not (path / "a-link").is_symlink()


def test_a_file_of_that_name_that_the_repository_has_is_the_users(seated: Seated) -> None:
    (seated.top / TASK_FILE).write_text("mine\n")
    seated.run("add", "-f", TASK_FILE)
    seated.run("commit", "-q", "-m", "mine")
    request, path = seated.begin("one")
    assert (path / TASK_FILE).read_text() == "mine\n"
    (path / TASK_FILE).write_text("changed\n")
    seated.end(request)
    assert seated.show("main-task-one", TASK_FILE) == b"changed\n"


@pytest.mark.parametrize("how", ["git add -f .current_task.txt", "rm .current_task.txt; mkdir .current_task.txt"])
def test_the_file_of_the_task_is_no_work(seated: Seated, how: str) -> None:
    request, path = seated.begin("one")
    os.system(f"cd {path} && {how} && echo x > work")
    assert seated.end(request).kept is None
    assert TASK_FILE not in seated.files("main-task-one")
    assert (seated.begin("two")[1] / TASK_FILE).read_text() == "do two\n"


BY_ITS_TASK = (
    "rm -rf {0}",
    "mv {0} {0}-moved",
    "rm {0}/.git",
    "echo > {0}/.git",
    "rm -rf {0}/../../.git/worktrees",
)
WHILE_FREE = ("printf broken > index", "rm index", "rm -rf logs HEAD.lock; touch HEAD.lock")


@pytest.mark.slow
@pytest.mark.parametrize("how", [*BY_ITS_TASK, *WHILE_FREE])
def test_a_seat_that_was_broken_breaks_no_other(seated: Seated, how: str) -> None:
    """By its task, or its books while it was free."""
    request, path = seated.begin("one")
    (path / "work").write_text("work")
    if how in BY_ITS_TASK:
        os.system(how.format(path))
    with suppress(SessionrunError):
        seated.end(request)
    if how in WHILE_FREE:
        os.system(f"cd {seated.top}/.git/worktrees/w1 && {how}")
    again, other = seated.begin("two")
    assert (other / TASK_FILE).read_text() == "do two\n" and not (other / "work").exists()
    assert seated.run("status", "--porcelain", cwd=other) == ""
    (other / "two").write_text("2")
    done = seated.end(again)
    assert (done.kept, "two" in seated.files("main-task-two")) == (None, True)


# --- sessions ---


@pytest.fixture
def cli(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return project_in(own_place, monkeypatch)


def test_three_tasks_take_turns_in_two_worktrees(cli: Cli) -> None:
    """Also behind one that failed: its work is on its branch."""
    prompt = "cat .current_task.txt > x.log; echo {0} >> cache.log; cp cache.log {0}; git status --porcelain"
    plan = [{"id": name, "prompt": prompt.format(name)} for name in ("one", "two", "three")]
    plan[1]["prompt"] += "; exit 3"
    stay = {"stay": "sibling", "prefix": "desk"}
    session_id = cli.finish({"worktrees": stay, "max_parallel": 2, "prompts": plan})
    seats = [task["seat"] for task in cli.load("status", session_id)["tasks"]]
    assert (sorted(seats[:2]), seats[2] in (1, 2)) == ([1, 2], True)
    assert sorted(path.name for path in cli.cwd.parent.glob("desk*")) == ["desk1", "desk2"]
    assert cli.branches() == ["main", "main-task-one", "main-task-three", "main-task-two"]
    before = plan[seats.index(seats[2])]["id"]
    assert cli.git("show", "main-task-three:three") == f"{before}\nthree"
    assert cli.git("status", "--porcelain") == ""
    said = (cli.directory(session_id) / "task-three.txt").read_text()
    assert said == "?? three\n"


@pytest.mark.slow
def test_clean_takes_away_what_no_session_needs(cli: Cli) -> None:
    plan = {"worktrees": "inside", "prompts": [{"id": name, "prompt": f"echo {name} > {name}"} for name in "ab"]}
    cli.finish(plan)
    (cli.cwd / "worktrees" / "w2" / "mine").write_text("mine")
    dry = cli.load("clean", "--worktrees", "--dry-run")["findings"]
    found = {Path(record["name"]).name: record["would_remove"] for record in dry if record["what"] == "worktree"}
    assert found == {"w1": True, "w2": False}
    cli("clean", "--worktrees")
    assert sorted(path.name for path in (cli.cwd / "worktrees").iterdir()) == [".gitignore", "w2"]
    (cli.cwd / "worktrees" / "w2" / "mine").unlink()
    cli("clean", "--worktrees")
    assert not (cli.cwd / "worktrees").exists()
    assert cli.git("worktree", "list").count("\n") == 0


def test_what_is_brought_deletes_nothing_behind_a_link_of_the_task_before(own_place: Path) -> None:
    project = Project(own_place)
    (project.top / ".gitignore").write_text("conf\n")
    (project.top / ".worktreeinclude").write_text("conf/local.env\n")
    project.shell("git add -A; git commit -qm rules; mkdir conf; echo ours > conf/local.env", project.top)
    victim = project.root / "outside/local.env"
    victim.parent.mkdir()
    victim.write_text("theirs\n")
    seats, script = Seats(str(project.root / "seats")), f"rm -r conf; ln -s {victim.parent} conf"
    place, _ = project.cycle(lambda path: project.shell(script, path), seats=seats, seat=1)
    assert place.kept is None
    _, again = project.begin_work("u", seats=seats, seat=1)
    assert victim.read_text() == "theirs\n" and (again / "conf/local.env").read_text() == "ours\n"
