"""The door of the dispatcher: its configuration, what is checked before a start, and the session that it makes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from stages import git, make_program, make_repository_of

from sessionrun.client.planning.plan import Planned
from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.input.formats import choose_format, load_plan
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan
from sessionrun.input.settings import Options
from sessionrun.queue.dispatch import prepare
from sessionrun.queue.open import open_queue
from sessionrun.queue.sync import fill_frame
from sessionrun.queue.task import QueueTask, Worker


def write(folder: Path, **record: Any) -> Path:
    file = folder / "dispatch_config.json"
    file.write_text(json.dumps(record))
    return file


def load(folder: Path, config: Any = None, given: Any = None, **record: Any) -> Plan:
    source = Source(str(folder / "dispatch_config.json"), json.dumps(record).encode(), str(folder))
    dialect, _ = choose_format(source, None)
    return load_plan(dialect, source, Options(given or {}, config or {}))


def test_paths_in_a_configuration_count_from_it(repo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo.cwd)
    below = repo.cwd / "etc"
    below.mkdir()
    (below / "prompt.txt").write_text("Say: {task}")
    file = write(below, repo_root="..", num_workers=3, prompt_template="prompt.txt")
    planned = plan_input(str(file), {"max_parallel": 2})
    assert isinstance(planned, Planned)
    spec = planned.spec
    assert spec.feed is not None and spec.template is not None
    assert (spec.feed.top, spec.resources, spec.template.prompts) == (str(repo.cwd), {"slot": 2}, ("Say: {task}",))
    planned = plan_input(str(write(below, repo_root="..")), {"agent": "shell"})
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
    plan = load(tmp_path, {} if own is None else {"agent": own}, given, **record)
    assert (plan.agent, plan.tasks[0].model) == wanted


@pytest.mark.parametrize(
    ("frame", "prompt"),
    [
        ("{task}", "T {body}\n\nB"),
        ("{id}: {title}/{body}", "i-1: T {body}/B"),
        ("Go.", "Go.\n\nT {body}\n\nB\n"),
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
    configuration = write(repo.cwd, aider_cmd=str(repo.cwd.parent / "pal"))
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


@pytest.mark.slow
def test_an_agent_that_is_not_ready_is_refused(repo: Command) -> None:
    repo("queue", "add", "One")
    with (repo.cwd / "sessionrun.toml").open("a") as settings:
        settings.write('ready = ["false"]\n')
    assert refuse(repo).startswith("agent 'pal' is not ready: false: exit code 1")
    assert repo("dispatch", "--no-ready", "--sync").returncode == 0


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
    write(repo.cwd, num_workers=2, branch="main")
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
def test_without_landing_the_follow_up_is_named(repo: Command) -> None:
    repo("queue", "add", "One", "--group", "g")
    gates = {"unit": {"cmd": "test -e One", "timeout_secs": 5}}
    (repo.cwd / "mine.json").write_text(json.dumps({"auto_merge_worktrees": False, "gates": gates}))
    done = repo("dispatch", "--config", "mine.json", "--group", "g", "--sync", "--workers", "1")
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
def test_a_claim_of_a_session_that_is_gone_is_taken_back_first(repo: Command) -> None:
    dead = repo.finished([{"id": "other", "prompt": "x"}])
    repo("queue", "add", "One")
    open_queue(repo.cwd).claim("task-1", Worker("task-1", dead))
    elsewhere = repo.cwd / "results" / "elsewhere"  # no index knows that
    elsewhere.mkdir()
    repo.directory(dead).rename(elsewhere / f"session-{dead}")
    done = repo("dispatch", "--sync", "--workers", "1", "--results-dir", str(elsewhere))
    assert done.returncode == 0, done.stderr
    assert "queue: task-1 is open: its worker task-1 is gone\n" in done.stderr
    assert "One" in list_main(repo)


@pytest.mark.slow
def test_a_goal_is_split_and_dispatched(repo: Command) -> None:
    write(repo.cwd, branch="gone")
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
