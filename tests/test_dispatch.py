"""`dispatch`: real sessions that work through the queue of a repository."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import eventually, is_gone, kill_sessions, slow_seed
from test_cli_worktrees import Project, project_in

from sessionrun import client
from sessionrun.queue.task import QueueTask
from sessionrun.store.session import SessionDir

WORKER = """\
[agents.worker]
argv = ["sh", "-c", 'read -r line; eval "$line"']
"""
"""An agent for which the title of a task is a script; the frame around it goes unread."""

GONE = "while ! [ -e {} ]; do sleep 0.02; done; "


class Dispatcher(Project):
    """The command in a repository with a queue."""

    def add(self, *titles: str, **fields: Any) -> list[str]:
        made = client.open_queue(self.cwd).create([client.Draft(title, **fields) for title in titles])
        return [task.id for task in made if task is not None]

    def dispatch(self, *words: str, code: int = 0) -> str:
        """Dispatch in the background; the id of the session."""
        done = self("dispatch", "--agent", "worker", "--retries", "0", "-q", *words)
        assert done.returncode == code, (done.stdout, done.stderr)
        self.sessions.append(done.stdout.split("\n")[0])
        return self.sessions[-1]

    def tasks(self) -> dict[str, QueueTask]:
        return {task.id: task for task in client.open_queue(self.cwd).load()}

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
def project(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
    made = project_in(own_place, monkeypatch)
    (made.cwd / "sessionrun.toml").write_text(WORKER)
    (made.cwd / ".git" / "info" / "exclude").write_text("sessionrun.toml\ntask_queue.json\n*.json\n")
    project = Dispatcher(made.cwd, made.results)
    yield project
    kill_sessions(project.results)


def write(name: str) -> str:
    """A task that adds a file."""
    return f"echo {name} > {name}.txt; git add {name}.txt; git commit -q -m {name}"


def test_what_can_be_done_is_done_and_lands(project: Dispatcher) -> None:
    """One fails and stays open; what depends on it is not begun; git shows nothing of all that."""
    project.add(write("one"), "echo half > half.txt; exit 7", write("three"))
    project.add(write("never"), depends=("task-2",))
    last = project.add("cat one.txt > two.txt; echo 'Test it' >> suggested_tasks.txt", depends=("task-1",))
    done = project("dispatch", "--agent", "worker", "--retries", "1", "--once", "--sync", "--workers", "2")
    assert done.returncode == 1, done.stderr
    assert project.stand() == {
        "task-1": "closed",
        "task-2": "open",
        "task-3": "closed",
        "task-4": "open",
        "task-5": "closed",
    }
    (session_id,) = [path.name.removeprefix("session-") for path in project.results.glob("session-*")]
    tasks = project.tasks()
    why = f"not done by session {session_id[:8]}, task task-2: exit_code: exit code 7"
    assert tasks["task-2"].reason == why
    landed = project.git("rev-parse", "--short=12", "main")
    assert str(tasks[last[0]].reason) == f"landed as {landed} (session {session_id[:8]}, task task-5)"
    assert (project.cwd / "two.txt").read_text() == "one\n"  # it began where the branch was by then
    assert project.git("status", "--porcelain") == ""
    assert sorted(path.name for path in (project.cwd / "worktrees").iterdir()) == [".gitignore", "w1", "w2"]
    status = project.load("status", session_id)
    assert [task["id"] for task in status["tasks"]][:2] == ["task-1", "task-2"]
    assert {task["id"]: task["attempt"] for task in status["tasks"]}["task-2"] == 2
    assert project.load("ingest")["added"][0]["title"] == "Test it"


def test_a_watching_session_takes_what_comes_and_drops_what_goes(project: Dispatcher) -> None:
    session_id = project.dispatch("--watch", "--workers", "2")
    (first,) = project.add(write("one"))
    project.until_queue(lambda tasks: tasks[first].status == "closed")
    (failing,) = project.add("[ -e ../../go ] && " + write("two"))
    project.until_queue(lambda tasks: tasks[failing].reason)
    assert project.stand()[failing] == "open"  # and is not begun again by itself
    (waiting,) = project.add(GONE.format("../../never") + write("three"))
    project.until_queue(lambda tasks: tasks[waiting].claim)
    shown = project("queue", "list").stdout
    assert f"claimed ({waiting} of {session_id[:8]})" in shown
    project("queue", "close", waiting)  # a person has done it
    project.until(session_id, lambda view: [one for one in view["tasks"] if one["outcome"] == "cancelled"])
    (project.cwd / "go").touch()
    assert project("queue", "reopen", failing).returncode == 0
    project.until_queue(lambda tasks: tasks[failing].status == "closed")
    assert project.load("status", session_id)["tasks"][-1]["id"] == f"{failing}-2"
    (last,) = project.add(GONE.format("../../never") + write("four"))
    project.until_queue(lambda tasks: tasks[last].claim)
    project("cancel", session_id)
    project.wait(session_id)
    assert project.tasks()[last].claim is None
    assert sorted(project.merged()) == sorted([project.tasks()[first].title, project.tasks()[failing].title])


def test_kill_9_of_all_in_the_middle(project: Dispatcher) -> None:
    """What landed is not done again, what is under way goes on, and nothing stays claimed."""
    names = project.add(write("one"), GONE.format("../../go") + write("two"), write("three"))
    session_id = project.dispatch("--workers", "1")
    project.until_queue(lambda tasks: tasks[names[1]].claim)
    project.kill_chain(session_id)
    (project.cwd / "go").touch()
    assert project("resume", session_id).returncode == 0
    project.end(session_id)
    assert set(project.stand().values()) == {"closed"}
    assert project.merged() == sorted(task.title for task in project.tasks().values())


def test_another_session_settles_what_a_dead_one_has_claimed(project: Dispatcher) -> None:
    names = project.add(write("one"), GONE.format("../../go") + write("two"))
    dead = project.dispatch("--workers", "2")
    project.until_queue(lambda tasks: tasks[names[0]].status == "closed" and tasks[names[1]].claim)
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


def test_what_a_person_has_mended_lands_when_its_task_is_closed(project: Dispatcher) -> None:
    """Work that conflicts leaves its task open; closed without a mend, the task stays closed."""
    session_id = project.dispatch("--watch", "--workers", "2")
    both = [f"{GONE.format(f'../../{name}')}echo {name} > README; git commit -q -a -m {name}" for name in "ab"]
    first = project.add(both[0], both[1])
    project.until_queue(lambda tasks: all(tasks[name].claim for name in first))
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


def test_follow_ups_come_in_by_themselves_up_to_a_number(project: Dispatcher) -> None:
    lines = "printf 'touch %s.txt\\n' one two three >> suggested_tasks.txt"
    project.add(lines)
    done = project("dispatch", "--agent", "worker", "--ingest", "2", "--sync", "-q")
    assert done.returncode == 0, done.stderr
    tasks = project.tasks()
    assert {task.title: task.status for task in tasks.values()} == {
        lines: "closed",
        "touch one.txt": "closed",
        "touch two.txt": "closed",
    }
    assert project.load("ingest", "--dry-run")["added"][0]["title"] == "touch three.txt"


@pytest.mark.slow
def test_random_kills(project: Dispatcher, say: Callable[[str], None]) -> None:
    """The whole chain is killed again and again, at any moment; each task lands once."""
    seed = slow_seed()
    say(f"seed of the kills: {seed}")
    chance = random.Random(seed)
    total = 40
    project.add(*(f"sleep 0.{number % 6}; {write(f'n{number}')}" for number in range(total)))
    session_id = project.dispatch("--workers", "4", "--retries", "30")
    session = SessionDir(project.directory(session_id))
    kills = 0
    while True:
        moment = chance.uniform(0.0, 0.9)
        eventually(lambda: session.is_alive() or project.load("status", session_id)["ended_at"])
        if _ends_within(project, session_id, moment):
            break
        chain = _find_chain(project, session_id)
        _kill(chain if chance.random() < 0.7 else chance.sample(chain, min(1, len(chain))))
        kills += 1
        project("resume", session_id)
    project.end(session_id)
    say(f"{kills} kills")
    assert kills
    assert set(project.stand().values()) == {"closed"}
    assert project.merged() == sorted(task.title for task in project.tasks().values())
    say(f"{len(project.load('status', session_id)['tasks'])} tasks for {total} of the queue")


def _ends_within(project: Dispatcher, session_id: str, seconds: float) -> bool:
    done = project("wait", session_id, "--timeout", f"{seconds:.2f}s")
    return done.returncode in (0, 1)


def _find_chain(project: Dispatcher, session_id: str) -> list[psutil.Process]:
    """The root, the keeper and the supervisor, as far as they live."""
    place, found = str(project.directory(session_id)), []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if place in process.cmdline() and "SESSIONRUN_JOB" not in process.environ():
                found.append(process)
    return found


def _kill(processes: list[psutil.Process]) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            with suppress(psutil.Error):
                process.send_signal(number)
    for process in processes:
        eventually(partial(is_gone, process))
