"""`dispatch`: real sessions that work through the queue of a repository."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from conftest import Command, eventually, kill_sessions, kill_together, slow_seed
from storm import SAMPLE, WHOLE, Storm
from test_cli_worktrees import Project, project_in

from sessionrun.queue.open import open_queue
from sessionrun.queue.task import Draft, QueueTask
from sessionrun.store.logs import read_log
from sessionrun.store.session import SessionDir


def events_of(project: Project, session_id: str) -> list[dict[str, Any]]:
    path = project.directory(session_id) / "journal"
    return [orjson.loads(payload) for payload in read_log(path).payloads]


WORKER = """\
[agents.worker]
argv = ["sh", "-c", 'read -r line; eval "$line"']
"""
"""An agent for which the title of a task is a script; the frame around it goes unread."""

GONE = "while ! [ -e {} ]; do sleep 0.02; done; "


class Dispatcher(Project):
    """The command in a repository with a queue."""

    def add(self, *titles: str, **fields: Any) -> list[str]:
        made = open_queue(self.cwd).create([Draft(title, **fields) for title in titles])
        return [task.id for task in made if task is not None]

    def dispatch(self, *words: str, code: int = 0) -> str:
        """Dispatch in the background; the id of the session."""
        done = self("dispatch", "--agent", "worker", "--retries", "0", "-q", *words)
        assert done.returncode == code, (done.stdout, done.stderr)
        self.sessions.append(done.stdout.split("\n")[0])
        return self.sessions[-1]

    def tasks(self) -> dict[str, QueueTask]:
        return {task.id: task for task in open_queue(self.cwd).load()}

    def stand(self) -> dict[str, str]:
        return {name: task.status for name, task in self.tasks().items()}

    def until_queue(self, condition: Callable[[dict[str, QueueTask]], Any]) -> None:
        eventually(lambda: condition(self.tasks()))

    def merged(self) -> list[str]:
        """The titles whose work is in the branch, each as often as it came there."""
        found = self.git("log", "--format=%s", "--grep=^Merge task", "main").split("\n")
        return sorted(line.partition(": ")[2] for line in found if line)

    def end(self, session_id: str) -> None:
        """Wait for the end, and for that of the processes."""
        self.wait(session_id)
        session = SessionDir(self.directory(session_id))
        eventually(lambda: not session.is_alive())


@pytest.fixture
def project(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Dispatcher:
    made = project_in(own_place, monkeypatch)
    (made.cwd / "sessionrun.toml").write_text(WORKER)
    (made.cwd / ".git" / "info" / "exclude").write_text("sessionrun.toml\ntask_queue.json\n*.json\n")
    return Dispatcher(made.cwd, made.results)


def write(name: str) -> str:
    """A task that adds a file."""
    return f"echo {name} > {name}.txt; git add {name}.txt; git commit -q -m {name}"


def test_what_can_be_done_is_done_and_lands(project: Dispatcher) -> None:
    """What fails or changes nothing stays open; what depends on it is not begun; git shows nothing of all that."""
    project.add(write("one"), "echo half > half.txt; exit 7", write("three"))
    project.add(write("never"), depends=("task-2",))
    last = project.add("cat one.txt > two.txt; echo 'Test it' >> suggested_tasks.txt", depends=("task-1",))
    project.add("echo I could not")
    done = project("dispatch", "--agent", "worker", "--retries", "1", "--once", "--sync", "--workers", "2")
    assert done.returncode == 1, done.stderr
    assert project.stand() == {
        "task-1": "closed",
        "task-2": "open",
        "task-3": "closed",
        "task-4": "open",
        "task-5": "closed",
        "task-6": "open",
    }
    (session_id,) = [path.name.removeprefix("session-") for path in project.results.glob("session-*")]
    tasks = project.tasks()
    why = f"not done by session {session_id[:8]}, task task-2: exit_code: exit code 7"
    assert tasks["task-2"].reason == why and "task task-6: no_change: " in str(tasks["task-6"].reason)
    landed = project.git("rev-parse", "--short=12", "main")
    assert str(tasks[last[0]].reason) == f"landed as {landed} (session {session_id[:8]}, task task-5)"
    assert (project.cwd / "two.txt").read_text() == "one\n"  # it began where the branch was by then
    assert project.git("status", "--porcelain") == ""
    assert "suggested_tasks.txt" not in project.git("ls-tree", "--name-only", "main")
    assert sorted(path.name for path in (project.cwd / "worktrees").iterdir()) == [".gitignore", "w1", "w2"]
    for verb in ("status", "explain"):
        assert project(verb, session_id).stdout.count("\nQueue: ") == 1, verb
    status = project.load("status", session_id)
    assert [task["id"] for task in status["tasks"]][:2] == ["task-1", "task-2"]
    assert {task["id"]: task["attempt"] for task in status["tasks"]}["task-2"] == 2
    assert not [*project.cwd.glob("worktrees/*/suggested_tasks.txt")], "the next task's agent writes there"
    assert project.load("ingest")["added"][0]["title"] == "Test it"


@pytest.mark.slow
def test_what_is_tried_again_needs_its_claim_first(project: Dispatcher) -> None:
    """`retry` of a task whose task of the queue is done does nothing; of one that is open it is claimed again."""
    titles = [f"[ -e ../../go ] && {write(name)}" for name in ("one", "two")]
    done, opened = project.add(*titles)
    session_id = project.dispatch("--watch", "--workers", "2")
    project.until_queue(lambda tasks: tasks[done].reason and tasks[opened].reason)
    project("queue", "close", done)
    (project.cwd / "go").touch()
    assert project("retry", session_id).returncode == 0
    project.until_queue(lambda tasks: tasks[opened].status == "closed")
    view = project.until(session_id, lambda view: view["tasks"][0]["outcome"] == "cancelled" and view)
    assert project.merged() == [titles[1]]
    assert [task["id"] for task in view["tasks"]] == [done, opened]
    events = [
        entry["ev"] for entry in events_of(project, session_id) if entry.get("key", "").startswith(f"{done}/2")
    ]
    assert events == []  # nothing of it was started


@pytest.mark.slow
def test_another_session_settles_what_a_dead_one_has_claimed(project: Dispatcher) -> None:
    names = project.add(write("one"), GONE.format("../../go") + write("two"))
    dead = project.dispatch("--workers", "2")
    project.until_queue(lambda tasks: tasks[names[0]].status == "closed" and tasks[names[1]].worker)
    project.kill_chain(dead)
    queue = project.cwd / "task_queue.json"
    record = json.loads(queue.read_text())
    claim = {"worker": names[0], "session": dead, "at": None}
    record["tasks"][0] |= {"status": "in_progress", "claim": claim}  # as if it was killed before it could say so
    queue.write_text(json.dumps(record))
    (project.cwd / "go").touch()
    session_id = project.dispatch("--watch", "--workers", "2")
    project.until_queue(lambda tasks: all(task.status == "closed" for task in tasks.values()))
    tasks = project.load("status", session_id)["tasks"]
    assert [task["id"] for task in tasks] == [names[1]]  # what landed is not done again
    assert len(project.merged()) == 2


@pytest.mark.slow
def test_what_a_person_has_mended_lands_when_its_task_is_closed(project: Dispatcher) -> None:
    """Work that conflicts leaves its task open; closed without a mend, the task stays closed."""
    session_id = project.dispatch("--watch", "--workers", "2", "--mends", "0")
    both = [f"{GONE.format(f'../../{name}')}echo {name} > README; git commit -q -a -m {name}" for name in "ab"]
    first = project.add(both[0], both[1])
    project.until_queue(lambda tasks: all(tasks[name].worker for name in first))
    (project.cwd / "a").touch()
    project.until_queue(lambda tasks: tasks[first[0]].status == "closed")
    (project.cwd / "b").touch()
    project.until_queue(lambda tasks: tasks[first[1]].reason)
    bounced = project.tasks()[first[1]]
    assert bounced.status == "open"
    assert f"mend it on the branch main-task-{first[1]}, then: sessionrun merge" in str(bounced.reason)
    place = project.cwd.parent / "mending"
    project.git("worktree", "add", "-q", str(place), f"main-task-{first[1]}")
    project.git("merge", "-q", "-X", "ours", "main", cwd=place)
    project("queue", "close", first[1])
    project.until(session_id, lambda view: view["tasks"][1]["landing"]["status"] == "landed")
    assert (project.cwd / "README").read_text() == "b\n"
    assert project.stand() == {first[0]: "closed", first[1]: "closed"}


@pytest.mark.slow
def test_what_can_only_be_held_is_another_exit_code(project: Dispatcher) -> None:
    """The user's own change is in the way of the work; and a session that is held does not end."""
    (project.cwd / "README").write_text("the user's\n")
    project.add("echo more >> README; git commit -q -a -m more")
    done = project("dispatch", "--agent", "worker", "--once", "--sync", "-q")
    assert done.returncode == 75, done.stderr
    task = project.tasks()["task-1"]
    assert project("queue", "reopen", "--gone").stdout == "No worker is gone.\n"
    assert (task.status, task.worker is None) == ("claimed", False), "it must not be done again"
    (project.cwd / "README").write_text("first\n")
    (session_id,) = [path.name.removeprefix("session-") for path in project.results.glob("session-*")]
    assert project("retry", session_id, "task-1").returncode == 0
    project.until_queue(lambda tasks: tasks["task-1"].status == "closed")
    assert (project.cwd / "README").read_text() == "first\nmore\n"


@pytest.mark.slow
def test_ctrl_c_ends_all_workers_and_gives_their_tasks_back(project: Dispatcher) -> None:
    names = project.add(GONE.format("../../never") + "true", GONE.format("../../never") + "true")
    following = project.popen("dispatch", "--agent", "worker", "--sync", stdout=subprocess.PIPE)
    project.until_queue(lambda tasks: all(tasks[name].worker for name in names))
    (session_id,) = [path.name.removeprefix("session-") for path in project.results.glob("session-*")]
    project.until(session_id, lambda view: view["running"] == 2)
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=60)
    assert following.returncode == 130
    assert {task.status for task in project.tasks().values()} == {"open"}
    assert [task.worker for task in project.tasks().values()] == [None, None]
    assert project.load("status", session_id)["status"] == "cancelled"


# --- many tasks of all kinds at once; then under kills ---

MOST_RUNS = 12
"""How often the dispatcher is begun again, at most: a kill may cost a task its attempts."""


def launch(sessionrun: Command, workers: int) -> str:
    """Dispatch in the background; the id of the session."""
    words = ("--once", "--agent", "storm", "--workers", str(workers), "--retries", "2", "--gate", "sh gate.sh")
    done = sessionrun("dispatch", *words, "-q")
    assert done.returncode == 0 and re.fullmatch("[0-9a-f-]+\n", done.stdout), done.stderr
    return done.stdout.strip()


def finish(sessionrun: Command, storm: Storm, workers: int) -> int:
    """Dispatch until every good task is done; return how many sessions that took."""
    for run in range(1, MOST_RUNS + 1):
        land_held(sessionrun)
        sessionrun.until(launch(sessionrun, workers), lambda view: view["ended_at"], timeout_s=1200)
        if not storm.left():
            return run
    raise AssertionError(f"after {MOST_RUNS} sessions these are left: {storm.left()}")


def land_held(sessionrun: Command) -> None:
    """Work that is held after too many kills is landed by a retry of its session, not done again."""
    for path in sessionrun.results.glob("session-*"):
        session_id = path.name.removeprefix("session-")
        landings = [task["landing"] or {} for task in sessionrun.status(session_id)["tasks"]]
        if any(landing.get("status") == "held" for landing in landings):
            done = sessionrun("retry", session_id)
            assert done.returncode == 0, done.stderr
            sessionrun.until(session_id, lambda view: view["ended_at"], timeout_s=600)


def judge(sessionrun: Command, storm: Storm) -> None:
    """What must be true, and then nothing is left of any worktree."""
    for path in sessionrun.results.glob("session-*"):
        session_id = path.name.removeprefix("session-")
        eventually(partial(is_over, sessionrun, session_id))
        done = sessionrun("clean", session_id, "--worktrees", "--json")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    storm.judge()
    worktrees = storm.git("worktree", "list", "--porcelain").split("\n\n")
    assert len(worktrees) == 1, worktrees
    assert not any(storm.top.glob("worktrees/*"))


def is_over(sessionrun: Command, session_id: str) -> bool:
    """Whether no process of the session lives."""
    return not SessionDir(sessionrun.directory(session_id)).is_alive()


def begin(sessionrun: Command, shares: Mapping[str, int]) -> Storm:
    """Make the storm's repository in the test's own directory."""
    top = sessionrun.cwd / "repo"
    storm = Storm.begin(top, dict(shares))
    sessionrun.cwd, sessionrun.results = top, top / "results"
    return storm


@pytest.mark.slow
@pytest.mark.parametrize(("shares", "workers"), [(SAMPLE, 4), (WHOLE, 14)], ids=["small", "sixty tasks"])
def test_a_storm(shares: Mapping[str, int], workers: int, sessionrun: Command) -> None:
    storm = begin(sessionrun, shares)
    assert finish(sessionrun, storm, workers) == 1
    judge(sessionrun, storm)


@pytest.mark.slow
def test_sixty_tasks_and_ten_kills(sessionrun: Command, say: Callable[[str], None]) -> None:
    seed = slow_seed()
    say(f"storm: SLOW_SEED={seed}")
    chance = random.Random(seed)
    storm = begin(sessionrun, WHOLE)
    session_id, kills = launch(sessionrun, 14), 0
    while kills < 10 and storm.left():
        await_some(chance.uniform(0.0, 2.0), session_id, sessionrun)
        kill_some(chance, sessionrun, session_id)
        kills += 1
        for lock in (storm.top / ".git").rglob("*.lock"):
            os.utime(lock, (0, 0))  # as if the crash had been a while ago
        session_id = go_on(sessionrun, session_id)
    say(f"storm: {kills} kills")
    sessionrun.until(session_id, lambda view: view["ended_at"], timeout_s=1200)
    if storm.left():
        say(f"storm: {finish(sessionrun, storm, 14)} more sessions")
    judge(sessionrun, storm)


def kill_some(chance: random.Random, sessionrun: Command, session_id: str) -> None:
    """Kill all with the agents, or root, keeper and supervisor alone, or one of these three."""
    chain = find_chain(sessionrun.directory(session_id))
    how = chance.choice(("all", "chain", "one"))
    if how == "all" or not chain:
        kill_sessions(sessionrun.results)
        return
    kill_together(chain if how == "chain" else [chance.choice(chain)])


def find_chain(folder: Path) -> list[psutil.Process]:
    """The root, the keeper and the supervisor of a session, as far as they live."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(folder) in process.cmdline() and "SESSIONRUN_JOB" not in process.environ():
                found.append(process)
    return found


def await_some(seconds: float, session_id: str, sessionrun: Command) -> None:
    """Let the session go on for so long, or until it ends."""
    moment = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= moment or sessionrun.status(session_id)["ended_at"])


def go_on(sessionrun: Command, session_id: str) -> str:
    """Resume the session; if it has ended, begin another one for what is left of the queue."""
    if sessionrun.status(session_id)["ended_at"] is None:
        done = sessionrun("resume", session_id)  # one that lives is left alone
        assert done.returncode == 0 or SessionDir(sessionrun.directory(session_id)).is_alive(), done.stderr
        return session_id
    return launch(sessionrun, 14)
