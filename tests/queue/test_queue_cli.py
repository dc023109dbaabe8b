"""The verb `queue`: what it prints, refuses and leaves."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from stages import make_program, make_repository_of
from terminal import Terminal
from test_documents import code_blocks

from sessionrun import api
from sessionrun.queue.claims import find_gone, reclaim
from sessionrun.queue.open import open_queue
from sessionrun.queue.task import Draft, Worker


def run(sessionrun: Command, *words: str, stdin: str | None = None) -> str:
    done = sessionrun("queue", *words, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def read(sessionrun: Command) -> Any:
    return json.loads((sessionrun.cwd / "task_queue.json").read_bytes())


def test_a_queue_from_its_first_task_to_its_last(sessionrun: Command) -> None:
    assert run(sessionrun, "add", "Fix the  login") == "task-1\n"
    words = ("--depends", "task-1", "--group", "release", "--priority", "3", "--body", "-")
    title = "Write about it in the manual, at length and with examples"
    assert run(sessionrun, "add", title, *words, stdin="In full.\n\x1b[2J") == "task-2\n"
    assert run(sessionrun, "add", "Third", "--group", "release") == "task-3\n"
    assert run(sessionrun, "list", "--ready").splitlines()[1:] == [
        "task-1  ready   0         -        Fix the login",
        "task-3  ready   0         release  Third",
    ]
    feed = open_queue(sessionrun.cwd)
    assert feed.claim("task-1", Worker("w1", "a-session")) is not None
    shown = run(sessionrun, "list").splitlines()
    row = ["task-1", "claimed", "(w1", "of", "a-sessio)", "0", "-", "Fix", "the", "login"]
    assert [line.split() for line in shown[:2]] == [["TASK", "STATUS", "PRIORITY", "GROUP", "TITLE"], row]
    assert max(map(len, shown)) <= 80
    assert run(sessionrun, "show", "task-2") == (
        f"task-2: {title}\nStatus: blocked\nPriority: 3\nGroup: release\nDepends on: task-1\nWaits for: task-1\n"
        "\nIn full.\n\\x1b[2J\n"
    )
    assert "Claimed by: w1 of session a-session\n" in run(sessionrun, "show", "task-1")
    assert run(sessionrun, "reopen", "task-1", "--reason", "w1 hangs") == "task-1: open again\n"
    assert run(sessionrun, "edit", "task-2", "--no-depends", "--priority", "-1", "--title", "Short") == (
        "task-2: changed\n"
    )
    assert run(sessionrun, "close", "task-1", "--reason", "done by hand") == "task-1: closed\n"
    assert "Reason: done by hand\n" in run(sessionrun, "show", "task-1")
    assert run(sessionrun, "remove", "task-3") == "task-3: removed\n"
    run(sessionrun, "close", "task-2")
    assert run(sessionrun, "list") == "No task is open.\n"
    expected = [["task-1", "closed"], ["release", "closed"], ["task-2", "closed"]]
    assert [line.split()[:2] for line in run(sessionrun, "list", "--all").splitlines()[1:]] == expected
    assert read(sessionrun)["next_id"] == 4


def test_a_text_can_be_typed_and_a_prompt_is_piped(sessionrun: Command) -> None:
    with Terminal([*sessionrun.argv, "queue", "add", "Fix it", "--body", "-"], sessionrun.cwd) as terminal:
        terminal.type(b"All of it\n\x04")
        assert terminal.finish() == 0, terminal.output
    assert read(sessionrun)["tasks"][0]["description"] == "All of it\n"
    with Terminal([*sessionrun.argv, "queue", "import", "-"], sessionrun.cwd) as terminal:
        terminal.type(b"- Test it\n\x04")
        assert terminal.finish() == 0, terminal.output
    for words in (["-p", "-"], ["-p", "{}", "--each", "-"]):
        with Terminal([*sessionrun.argv, *words, "--agent", "shell"], sessionrun.cwd) as terminal:
            assert terminal.finish() == 2
        assert b"nothing is piped" in terminal.output


def test_the_queue_at_work(sessionrun: Command) -> None:
    top = sessionrun.cwd
    ignored = "results/\ntask_queue.json\ngo\ntemplate\n"
    make_repository_of(top, {".gitignore": ignored, "template": "{body}"})
    assert run(sessionrun, "list") == "No task is open.\n"
    assert run(sessionrun) == f"queue of {top.name}: no task is open\n"
    waits = f"until [ -e {top}/go ]; do sleep 0.05; done; echo x > f"
    for title, body in (
        ("Lands", "echo > a"),
        ("Waits for go", waits),
        ("Does nothing", "true"),
        ("Later", "true"),
    ):
        more = ("--depends", "task-2") if title == "Later" else ()
        run(sessionrun, "add", title, "--body", "-", *more, stdin=body)
    words = ("--agent", "shell", "--prompt-template", "template", "--workers", "3", "--retries", "0", "--once")
    session_id = json.loads(sessionrun("dispatch", *words, "--json").stdout)["session_id"]
    sessionrun.sessions.append(session_id)
    sessionrun.until(session_id, lambda view: view["counts"]["landed"] and view["counts"]["failed"])
    head, today, *rows = run(sessionrun).splitlines()
    assert head == f"queue of {top.name}: 1 at work, 1 ready, 1 waiting for others, 1 needing you"
    assert re.fullmatch(r"today: 1 landed, the last \d+\.\d s ago", today)
    assert [re.split(r" {2,}", row)[:3] for row in rows[:2]] == [
        ["\u25b6 running", "task-2", "Waits for go"],
        ["\u2717 failed", "task-3", "Does nothing"],
    ]
    assert rows[2:] == ["    nothing in its worktree differs from the base commit"]
    (top / "go").touch()
    sessionrun.wait(session_id)


def test_json_of_every_verb(sessionrun: Command) -> None:
    (sessionrun.cwd / "list.md").write_text("- **one** \u2013 of the parser\n- two\n- [x] done\n- one\n")
    added = sessionrun.load("queue", "add", "first", "--priority", "2")
    task = {key: value for key, value in added.items() if key != "schema_version"}
    assert (added["id"], added["ready"], added["priority"], added["depends"]) == ("task-1", True, 2, [])
    listed = sessionrun.load("queue")
    place = str(sessionrun.cwd / "task_queue.json")
    assert listed == {"schema_version": 2, "backend": "file", "place": place, "tasks": [task]}
    assert sessionrun.load("queue", "show", "task-1") == added
    assert sessionrun.load("queue", "edit", "task-1", "--priority", "0") == {**added, "priority": 0}
    imported = sessionrun.load("queue", "import", "list.md", "--group", "g")
    assert [task["title"] for task in imported["added"]] == ["one", "two"]
    assert (imported["added"][0]["body"], imported["known"]) == ("of the parser", ["one"])
    run(sessionrun, "close", "task-2")
    again = sessionrun("queue", "import", "list.md")
    assert (again.stdout, again.stderr) == ("", "0 added, 3 in the queue already\n")
    closed = sessionrun.load("queue", "close", "task-1")
    assert (closed["status"], closed["backend_status"], closed["ready"]) == ("closed", "done", False)
    reopened = sessionrun.load("queue", "reopen", "task-1", "--reason", "why")
    removed = sessionrun.load("queue", "remove", "task-1")
    assert (reopened, removed["reason"]) == (removed, "why")
    assert sessionrun.load("queue", "reopen", "--gone")["tasks"] == []


def test_a_link_in_the_place_of_the_file(sessionrun: Command) -> None:
    place = sessionrun.cwd / "task_queue.json"
    place.symlink_to("elsewhere")
    done = sessionrun("queue", "add", "x")
    assert (done.returncode, done.stderr.count("\n"), os.readlink(place)) == (3, 1, "elsewhere")


def test_what_a_dead_session_had_is_open_again(sessionrun: Command) -> None:
    """A session that lives keeps its tasks, and so does one that is not known here."""
    session_id = sessionrun.start({"prompts": ["sleep 600"]})
    feed = open_queue(sessionrun.cwd)
    feed.create([Draft("of ours"), Draft("of another machine")])
    assert feed.claim("task-1", Worker("w1", session_id))
    assert feed.claim("task-2", Worker("w1", "0" * 8))
    assert run(sessionrun, "reopen", "--gone") == "No worker is gone.\n"
    sessionrun.kill_chain(session_id)
    elsewhere = sessionrun.cwd / "elsewhere"  # no index knows that
    sessionrun.results.rename(elsewhere)
    try:
        assert run(sessionrun, "reopen", "--gone") == "No worker is gone.\n"
        assert run(sessionrun, "reopen", "--gone", "--results-dir", str(elsewhere)) == "task-1: open again\n"
    finally:
        elsewhere.rename(sessionrun.results)  # where its processes are looked for at the end
    assert [task.status for task in feed.load()] == ["open", "claimed"]
    assert feed.show("task-1").reason == "its worker w1 is gone"


def test_a_session_is_gone_only_at_the_second_look(sessionrun: Command) -> None:
    session_id = sessionrun.finished({"prompts": ["true"]})
    locks: list[int] = []

    def revive(pause_s: float) -> None:
        session = api.open_session(sessionrun.results, session_id)
        locks.append(session.hold_lock("root.lock"))

    assert find_gone(session_id, sessionrun.results, sleep=revive) is None
    os.close(locks[0])
    assert find_gone(session_id, sessionrun.results, sleep=lambda pause_s: None) is not None
    assert find_gone(session_id[:8], sessionrun.results, sleep=lambda pause_s: None) is None
    slept: list[float] = []
    feed = open_queue(sessionrun.cwd)
    for task in feed.create([Draft("one"), Draft("two")]):
        assert task is not None
        feed.claim(task.id, Worker(task.id, session_id))
    assert [task.status for task in reclaim(feed, sessionrun.results, sleep=slept.append)] == ["open"] * 2
    assert len(slept) == 1, "each session is looked at once"


# --- the examples `queue` and `gastown` ---

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "gastown" / "qwen-agent.sh"
BEAD = {
    "id": "gt-abc12",
    "title": 'Fix the "login"',
    "description": "It fails with two words.\n",
    "status": "hooked",
}
HOOK = {
    "target": "rig/polecats/nux",
    "role": "polecat",
    "has_work": True,
    "pinned_bead": BEAD,
    "attached_args": "Be brief",
}
PROMPT = (
    'Fix the "login"\n\nIt fails with two words.\n\nBe brief\n\n'
    "Work in the current directory, and commit your work to the branch that is checked out there."
)


@pytest.fixture
def noting(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command in a repository, whose configuration has an agent that notes its prompts."""
    command = Command(own_place / "repo", own_place / "results")
    make_repository_of(command.cwd, {"README": "first\n"})
    notes = f'cat "$1" >>{own_place}/told\npwd >>{own_place}/where\necho more >>README\n. {own_place}/then'
    agent = make_program(own_place / "agent", notes)
    (own_place / "then").write_text("exit 0\n")
    config = own_place / "config" / "sessionrun" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"[agents.noting]\nargv = ['{agent}', '{{prompt_file}}']\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own_place / "config"))
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(command.results))
    monkeypatch.setenv("SESSIONRUN_AGENT", "noting")
    return command


def try_block(noting: Command, block: str) -> list[str]:
    """Run the lines of a page; what the last one printed, by lines."""
    said = ""
    for line in block.splitlines():
        words = shlex.split(line)
        if words[0] == "sessionrun":
            done = noting(*words[1:])
            said = done.stdout
        else:
            done = subprocess.run(["sh", "-c", line], cwd=noting.cwd, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)
    return said.splitlines()


def test_what_can_be_tried_with_a_queue(noting: Command) -> None:
    shown = try_block(noting, code_blocks("examples/queue/README.md", "console")[0])
    assert [line.split()[1] for line in shown] == ["STATUS", *["ready"] * 4]
    assert "Add a cycle time chart" in shown[1] and "Describe it" not in "".join(shown)


@pytest.mark.slow
def test_workers_can_be_tried_with_it(noting: Command) -> None:
    first, second = code_blocks("examples/queue/README.md", "console")
    try_block(noting, first)
    try_block(noting, second)
    assert noting("queue", "list").stdout == "No task is open.\n"
    where = (noting.cwd.parent / "where").read_text().splitlines()
    assert len(where) == 5
    assert {*where} <= {f"{noting.cwd}/worktrees/w{number}" for number in (1, 2)}


# --- the agent of Gas Town ---


class Town:
    """A worker of Gas Town, with a stand-in for `gt` that prints what is on its hook."""

    def __init__(self, noting: Command) -> None:
        self.sessionrun, self.place = noting, noting.cwd.parent
        bin_dir = self.place / "bin"
        gt = f'[ "$*" = "hook --json" ] || exit 9\ncat {self.place}/hook\nexit "$(cat {self.place}/gt-code)"\n'
        ours = f'exec {shlex.quote(sys.executable)} -m sessionrun "$@"\n'
        for name, text in (("gt", gt), ("sessionrun", ours), ("python3", f'exec {sys.executable} "$@"\n')):
            make_program(bin_dir / name, text)
        self.environ = {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}"}
        self.hang(HOOK)

    def hang(self, hook: object, code: int = 0) -> None:
        """What `gt hook --json` prints, and its exit code."""
        (self.place / "hook").write_text(hook if isinstance(hook, str) else json.dumps(hook, indent=2))
        (self.place / "gt-code").write_text(str(code))

    def popen(self) -> subprocess.Popen[str]:
        """Start the script as `gt` does: with words of its own, in the worktree."""
        where: Any = {"cwd": self.sessionrun.cwd, "env": self.environ, "stdin": subprocess.DEVNULL, "text": True}
        pipe = subprocess.PIPE
        return subprocess.Popen([str(SCRIPT), "Run gt prime"], stdout=pipe, stderr=pipe, **where)

    def run(self) -> tuple[int, str, str]:
        """Exit code and outputs."""
        with self.popen() as process:
            out, error = process.communicate(timeout=120)
        return process.returncode, out, error


@pytest.fixture
def town(noting: Command) -> Town:
    return Town(noting)


@pytest.mark.slow
def test_the_bead_on_the_hook_is_the_prompt(town: Town) -> None:
    code, out, error = town.run()
    assert (code, "Traceback" in error) == (0, False), error
    assert (town.place / "told").read_text() == PROMPT
    assert (town.place / "where").read_text() == f"{town.sessionrun.cwd}\n"
    assert BEAD["title"] in out or BEAD["id"] in out
    view = town.sessionrun.status("gt-abc12")
    assert (view["name"], view["agent"], view["tasks"][0]["id"]) == ("gt-abc12", "noting", "gt-abc12")


@pytest.mark.parametrize(
    ("hook", "gt_code", "code", "said"),
    [
        ({**HOOK, "has_work": False, "pinned_bead": None}, 0, 1, "qwen-agent: no work is on the hook\n"),
        ("nothing", 0, 1, "qwen-agent: what gt hook --json printed is not JSON\n"),
        ("", 5, 5, ""),
    ],
)
def test_without_work_nothing_starts(town: Town, hook: object, gt_code: int, code: int, said: str) -> None:
    town.hang(hook, gt_code)
    assert town.run() == (code, "", said)
    assert not town.sessionrun.results.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_terminal_that_is_closed_ends_the_session(town: Town, number: signal.Signals) -> None:
    (town.place / "then").write_text(f"while ! [ -e {town.place}/go ]; do sleep 0.05; done\n")
    with town.popen() as process:
        eventually((town.place / "where").exists)
        process.send_signal(number)
        process.communicate(timeout=120)
    assert process.returncode == 1
    assert town.sessionrun.status("gt-abc12")["tasks"][0]["outcome"] == "cancelled"


def test_a_table_is_laid_out_only_for_people(sessionrun: Command) -> None:
    """Programs poll, and to import what lays it out takes longer than the rest."""
    (sessionrun.cwd / "task_queue.json").write_text('{"tasks": [{"id": "a", "title": "A", "status": "open"}]}')
    for words in (["--json"], []):
        argv = [sys.executable, "-X", "importtime", *sessionrun.argv[1:], "queue", "list", *words]
        done = subprocess.run(argv, cwd=sessionrun.cwd, capture_output=True, text=True, timeout=30)
        assert (done.returncode, "tabulate" in done.stderr) == (0, not words)
