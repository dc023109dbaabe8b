"""`dispatch`: its configuration, what is checked before a start, and real sessions that work through a queue."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from conftest import Command, eventually, kill_sessions, kill_together, slow_seed
from stages import git, make_program, make_repository_of
from storm import Storm
from test_cli_worktrees import Project, project_in

from sessionrun.client.planning.plan import Planned
from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.input.formats import choose_format, load_plan
from sessionrun.input.parse import Source
from sessionrun.input.settings import Options
from sessionrun.queue.dispatch import prepare
from sessionrun.queue.open import open_queue
from sessionrun.queue.sync import fill_frame
from sessionrun.queue.task import Draft, QueueTask
from sessionrun.store.logs import read_log
from sessionrun.store.session import SessionDir

# --- the door ---


def configure(folder: Path, **record: Any) -> Path:
    file = folder / "dispatch_config.json"
    file.write_text(json.dumps(record))
    return file


def test_paths_in_a_configuration_count_from_it(repo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo.cwd)
    below = repo.cwd / "etc"
    below.mkdir()
    (below / "prompt.txt").write_text("Say: {task}")
    file = configure(below, repo_root="..", num_workers=3, prompt_template="prompt.txt")
    planned = plan_input(str(file), {"max_parallel": 2})
    assert isinstance(planned, Planned)
    spec = planned.spec
    assert spec.feed is not None and spec.template is not None
    assert (spec.feed.top, spec.resources, spec.template.prompts) == (str(repo.cwd), {"slot": 2}, ("Say: {task}",))
    planned = plan_input(str(configure(below, repo_root="..")), {"agent": "shell"})
    assert isinstance(planned, Planned) and planned.spec.template is not None
    assert planned.spec.template.prompts == ("{script}\n",), "words around it would be commands"


@pytest.mark.parametrize(
    ("given", "record", "own", "wanted"),
    [
        ({}, {}, None, ("aider", "ollama/qwen2.5-coder:7b")),
        ({}, {}, "codex", ("codex", None)),
        ({}, {"model": "m"}, "codex", ("aider", "m")),
        ({}, {"worker_backend": "claude", "claude_model": "opus", "model": "m"}, None, ("claude", "opus")),
        ({"agent": "claude"}, {"model": "m"}, None, ("claude", None)),
        ({"agent": "codex"}, {}, "codex", ("codex", None)),
        ({"model": "n"}, {"model": "m"}, None, ("aider", "n")),
    ],
)
def test_a_model_counts_for_the_agent_beside_it(
    tmp_path: Path, given: Any, record: Any, own: str | None, wanted: tuple[str | None, str | None]
) -> None:
    source = Source(str(tmp_path / "dispatch_config.json"), json.dumps(record).encode(), str(tmp_path))
    plan = load_plan(choose_format(source, None)[0], source, Options(given, {} if own is None else {"agent": own}))
    assert (plan.agent, plan.tasks[0].model) == wanted


@pytest.mark.parametrize(
    ("frame", "prompt"),
    [
        ("{task}", "T {body}\n\nB"),
        ("{id}: {title}/{body}", "i-1: T {body}/B"),
        ("Go.", "Go.\n\nT {body}\n\nB\n"),
        ("See {id}.", "See i-1.\n\nT {body}\n\nB\n"),
        ("{script}", "B"),
    ],
)
def test_frames(frame: str, prompt: str) -> None:
    assert fill_frame(frame, QueueTask("i-1", "T {body}", "B")) == prompt
    assert fill_frame("{script}", QueueTask("i-1", "T")) == "T"


@pytest.fixture
def repo(sessionrun: Command) -> Command:
    """A repository with a commit, and an agent `pal` that writes a file."""
    top = sessionrun.cwd
    writes = 'read -r title\ndate > "$title"\ncat > told\necho "more $title" >> suggested_tasks.txt'
    script = make_program(top.parent / "pal", writes)
    (top / "sessionrun.toml").write_text(f'agent = "pal"\n[agents.pal]\nargv = ["{script}"]\n')
    make_repository_of(top, {".gitignore": "results/\ntask_queue.json\ntold\n"})
    return sessionrun


def refuse(repo: Command, *words: str) -> str:
    done = repo("dispatch", *words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert not list(repo.results.glob("session-*"))
    return done.stderr.splitlines()[-1].removeprefix("sessionrun: error: ")


def test_without_a_task_nothing_starts(repo: Command) -> None:
    done = repo("dispatch")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "nothing to do: no task is open (sessionrun queue add TITLE)\n"
    expected = {"schema_version": 2, "session_id": None, "total": 0, "open": 0}
    assert json.loads(repo("dispatch", "--json").stdout) == expected
    assert not list(repo.results.glob("session-*"))


def test_what_is_refused_before_anything_starts(repo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_API_BASE", "http://far:1")
    for title in ("One", "Two", "Three"):
        repo("queue", "add", title)
    repo("queue", "edit", "task-2", "--depends", "task-1")
    repo("queue", "close", "task-3")
    assert refuse(repo, "task-2") == "task task-2 waits for task-1; close that first, or name it, too"
    assert refuse(repo, "task-3").startswith("task task-3 is closed; open it again first")
    assert "agent 'aider': 'aider' is not on PATH" in refuse(repo, "--agent", "aider", "--model", "m")
    configuration = configure(repo.cwd, aider_cmd=str(repo.cwd.parent / "pal"))
    lacks = 'echo "$1 $2 of $OLLAMA_HOST: no such model" >&2; exit 1'
    server = make_program(repo.cwd.parent / "bin" / "ollama", lacks)
    monkeypatch.setenv("PATH", str(server.parent), prepend=os.pathsep)
    problem = refuse(repo)
    assert "show qwen2.5-coder:7b of http://far:1: no such model" in problem
    assert problem.endswith("'ollama pull MODEL' fetches a model (--no-ready starts all the same)")
    server.write_text("#!/bin/sh\n")
    monkeypatch.chdir(repo.cwd)
    planned = plan_input(str(configuration), {})
    assert isinstance(planned, Planned)
    found = prepare(planned.spec, results_dir=repo.results, preview=False, ready=True).findings
    assert "model: qwen2.5-coder:7b is there" in found
    configuration.unlink()
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=repo.cwd, check=True)
    assert "which is no branch: say where to land (--land-into BRANCH" in refuse(repo)
    assert not (repo.cwd / "worktrees").exists()


def test_what_a_session_is_made_of(repo: Command) -> None:
    """Options win over the configuration; what is false there is named as a command."""
    repo("queue", "add", "One", "--group", "g")
    (repo.cwd / "prompt.txt").write_text("Do {title}.")
    record = {
        "num_workers": 3,
        "worktree_placement": "sibling",
        "worktree_prefix": "ozon-w",
        "branch": "main",
        "create_bead_on_merge_conflict": False,
        "auto_retry_merge_on_conflict_close": False,
        "max_worker_retries": 1,
        "gates": {"unit": {"cmd": "true", "timeout_secs": 5}},
        "prompt_template": "prompt.txt",
    }
    (repo.cwd / "dispatch_config.json").write_text(json.dumps(record))
    words = ("--workers", "2", "--check", "true", "--timeout", "1m", "--group", "g", "--ingest", "1")
    done = repo("dispatch", *words, "--sync", "--json")
    assert done.returncode == 0, done.stderr
    (folder,) = repo.results.glob("session-*")
    spec = json.loads((folder / "spec.json").read_bytes())
    template, landing, seats, feed = spec["template"], spec["landing"], spec["seats"], spec["feed"]
    assert (spec["tasks"], spec["open_feed"], spec["resources"]) == ([], True, {"slot": 2})
    assert (template["prompts"], template["base"], template["retries"]) == (["Do {title}."], "target", 1)
    assert (template["check"]["commands"], template["timeout_s"]) == (["true"], 60.0)
    assert (landing["target"], landing["gates"], landing["mends"]) == ("refs/heads/main", ["true"], 0)
    assert (seats["placement"], seats["prefix"], seats["directory"]) == ("sibling", "ozon-w", str(repo.cwd.parent))
    assert (feed["group"], feed["ingest"], feed["lands_again"]) == ("g", 1, False)


def test_a_dry_run_changes_nothing(repo: Command) -> None:
    repo("queue", "add", "One")
    (repo.cwd / "list.md").write_text("- One\n- Two\n- Two\n")
    words = ("--workers", "2", "--import", "list.md", "--gate", "true", "--watch", "--dry-run")
    shown = json.loads(repo("dispatch", *words, "--json").stdout)
    assert (shown["max_parallel"], shown["agent"]) == (2, "pal")
    tasks = [(task["id"], task["title"]) for task in shown["tasks"]]
    assert tasks == [("task-1", "One"), ("task-2", "Two")], "what would be imported is shown, too"
    assert shown["land"] == {"target": "main", "gates": ["true"]}
    assert len(repo("queue", "list").stdout.splitlines()) == 2
    repo("queue", "add", "Three", "--group", "g")
    repo("queue", "edit", "g", "--depends", "task-1")
    done = repo("dispatch", "--import", "list.md", "--group", "g", "--dry-run")
    assert "0 of 2 open tasks are ready; 1 would be imported from list.md" in done.stderr, "its group waits"
    assert "lines more (--verbose shows all)" in repo("dispatch", "--dry-run").stdout
    assert "lines more" not in repo("dispatch", "--dry-run", "--verbose").stdout
    (repo.cwd / "list.md").write_text("nothing")
    assert "list.md: has no list entry" in refuse(repo, "--import", "list.md", "--dry-run")
    assert not list(repo.results.glob("session-*"))


@pytest.mark.slow
def test_the_list_of_a_repository_is_worked_off(repo: Command) -> None:
    """Without a queue its list is imported; what succeeds lands, and follow-ups are no work."""
    (repo.cwd / "BEADS_FOR_ANALYSIS.md").write_text("- One\n- Two\n")
    configure(repo.cwd, num_workers=2, branch="main")
    done = repo("dispatch", "--dry-run")
    assert "2 of 2 open tasks are ready; 2 would be imported from " in done.stderr
    assert not (repo.cwd / "task_queue.json").exists()
    done = repo("dispatch", "--sync")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"configuration: {repo.cwd}/dispatch_config.json\n")
    assert f"2 were imported from {repo.cwd}/BEADS_FOR_ANALYSIS.md\n" in done.stderr
    assert list_main(repo) == [".gitignore", "One", "Two", "sessionrun.toml"]
    assert repo("queue", "list").stdout == "No task is open.\n"
    taken = json.loads(repo("ingest", "--json").stdout)
    assert sorted(task["title"] for task in taken["added"]) == ["more One", "more Two"]


@pytest.mark.slow
def test_an_agent_that_is_not_ready_is_refused_and_without_landing_the_follow_up_is_named(repo: Command) -> None:
    repo("queue", "add", "One", "--group", "g")
    with (repo.cwd / "sessionrun.toml").open("a") as settings:
        settings.write('ready = ["false"]\n')
    assert refuse(repo).startswith("agent 'pal' is not ready: false: exit code 1")
    gates = {"unit": {"cmd": "test -e One", "timeout_secs": 5}}
    (repo.cwd / "mine.json").write_text(json.dumps({"auto_merge_worktrees": False, "gates": gates}))
    done = repo("dispatch", "--config", "mine.json", "--group", "g", "--sync", "--workers", "1", "--no-ready")
    assert done.returncode == 0, done.stderr
    (session,) = repo.results.glob("session-*")
    short = session.name.removeprefix("session-")[:8]
    merge = f"merge {short} --gate 'test -e One' --gate-timeout 5"
    assert f"nothing lands by itself: sessionrun {merge}\n" in done.stderr
    assert "One" not in list_main(repo)
    (task,) = repo.status(session.name.removeprefix("session-"))["tasks"]
    how = f"done; its work is on the branch {task['branch']}: sessionrun merge {short}"
    assert f"Reason: {how} (session {short}, task {task['id']})\n" in repo("queue", "show", "task-1").stdout
    assert "gates ran 1 times" in repo(*shlex.split(merge)).stdout
    assert "One" in list_main(repo)


@pytest.mark.slow
def test_a_goal_is_split_and_dispatched(repo: Command) -> None:
    configure(repo.cwd, branch="gone")
    done = repo("split", "Fix it, then test it", "--no-llm", "--dispatch")
    assert done.returncode == 2
    assert "in the queue; to start them: sessionrun queue work --group fix-it-then-test-it\n" in done.stderr
    (repo.cwd / "dispatch_config.json").unlink()
    for name in ("task-1", "task-2"):
        assert repo("queue", "close", name).returncode == 0
    repo("queue", "add", "Other")
    done = repo("split", "Fix it, then test it", "--no-llm", "--dispatch", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert [task["title"] for task in made["tasks"]] == ["Fix it", "test it"]
    view = repo.wait(made["dispatch"]["session_id"])
    assert [task["title"] for task in view["tasks"]] == ["Fix it", "test it"]
    assert [line.split()[0] for line in repo("queue", "list").stdout.splitlines()[1:]] == ["task-3"]


def list_main(repo: Command) -> list[str]:
    return git(repo.cwd, "ls-tree", "--name-only", "main").split()


# --- sessions ---

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
    assert [*project.stand().values()] == ["closed", "open", "closed", "open", "closed", "open"]
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
    journal = map(orjson.loads, read_log(project.directory(session_id) / "journal").payloads)
    assert not [entry["ev"] for entry in journal if entry.get("key", "").startswith(f"{done}/2")], "it was started"


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
    elsewhere = project.results / "elsewhere"  # no index knows that
    elsewhere.mkdir()
    project.directory(dead).rename(elsewhere / f"session-{dead}")
    done = project("dispatch", "--agent", "worker", "--sync", "--results-dir", str(elsewhere))
    assert (done.returncode, "queue: task-2 is open: its worker task-2 is gone\n" in done.stderr) == (0, True)
    assert re.search(r"queue: task-1 is closed: landed as \w+ \(session ", done.stderr)
    (session_id,) = {path.name for path in elsewhere.glob("session-*")} - {f"session-{dead}"}
    tasks = project.load("status", session_id.removeprefix("session-"))["tasks"]
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


def launch(sessionrun: Command) -> str:
    """Dispatch in the background; the id of the session."""
    words = ("--once", "--agent", "storm", "--workers", "14", "--retries", "2", "--gate", "sh gate.sh")
    done = sessionrun("dispatch", *words, "-q")
    assert done.returncode == 0 and re.fullmatch("[0-9a-f-]+\n", done.stdout), done.stderr
    return done.stdout.strip()


def finish(sessionrun: Command, storm: Storm) -> int:
    """Dispatch until every good task is done; return how many sessions that took."""
    for run in range(1, MOST_RUNS + 1):
        land_held(sessionrun)
        sessionrun.until(launch(sessionrun), lambda view: view["ended_at"], timeout_s=1200)
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
    paths = [*sessionrun.results.glob("session-*")]
    eventually(lambda: not any(SessionDir(path).is_alive() for path in paths))
    for path in paths:
        done = sessionrun("clean", path.name.removeprefix("session-"), "--worktrees", "--json")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    storm.judge()
    worktrees = storm.git("worktree", "list", "--porcelain").split("\n\n")
    assert len(worktrees) == 1, worktrees
    assert not any(storm.top.glob("worktrees/*"))


def begin(sessionrun: Command) -> Storm:
    """Make the storm's repository in the test's own directory."""
    top = sessionrun.cwd / "repo"
    storm = Storm.begin(top)
    sessionrun.cwd, sessionrun.results = top, top / "results"
    return storm


@pytest.mark.slow
def test_a_storm_of_sixty_tasks(sessionrun: Command) -> None:
    storm = begin(sessionrun)
    assert finish(sessionrun, storm) == 1
    judge(sessionrun, storm)


@pytest.mark.slow
def test_sixty_tasks_and_ten_kills(sessionrun: Command, say: Callable[[str], None]) -> None:
    seed = slow_seed()
    say(f"storm: SLOW_SEED={seed}")
    chance = random.Random(seed)
    storm = begin(sessionrun)
    session_id, kills = launch(sessionrun), 0
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
        say(f"storm: {finish(sessionrun, storm)} more sessions")
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
    sessionrun.until(session_id, lambda view: time.monotonic() >= moment or view["ended_at"])


def go_on(sessionrun: Command, session_id: str) -> str:
    """Resume the session; if it has ended, begin another one for what is left of the queue."""
    if sessionrun.status(session_id)["ended_at"] is None:
        done = sessionrun("resume", session_id)  # one that lives is left alone
        assert done.returncode == 0 or SessionDir(sessionrun.directory(session_id)).is_alive(), done.stderr
        return session_id
    return launch(sessionrun)
