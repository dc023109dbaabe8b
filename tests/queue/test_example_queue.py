"""The examples `queue` and `gastown`: their commands are those that there are, and the agent of Gas Town works."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from manual import load_verb
from stages import lay_out_repository, make_repository_of
from test_documents import code_blocks, help_options, read

from sessionrun.cli.argv import VERBS

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "gastown" / "qwen-agent.sh"
PAGES = ("examples/queue/README.md", "examples/gastown/README.md")
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


def find_commands() -> Iterator[list[str]]:
    """The commands of `sessionrun` on the pages, as words."""
    for page in PAGES:
        text = read(page)
        lines = [*re.findall(r"`(sessionrun [^`]+)`", text), *"".join(code_blocks(page, "console")).splitlines()]
        yield from (shlex.split(line) for line in lines if line.startswith("sessionrun "))


def test_the_commands_on_the_pages_are_those_that_there_are() -> None:
    commands = [*find_commands()]
    assert {words[1] for words in commands} <= set(VERBS)
    for words in commands:
        used = {word for word in words[2:] if re.fullmatch(r"--?[a-z].*", word)}
        if words[1] in VERBS:
            assert used <= help_options(load_verb(words[1]), hidden=True), words


def make_repository(top: Path) -> None:
    make_repository_of(top, {"README": "first\n"})


@pytest.fixture
def sessionrun(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command in a repository, whose configuration has an agent that notes its prompts."""
    command = Command(own_place / "repo", own_place / "results")
    lay_out_repository(make_repository, command.cwd)
    agent = own_place / "agent"
    agent.write_text(
        f'#!/bin/sh\ncat "$1" >>{own_place}/told\npwd >>{own_place}/where\n'
        f"echo more >>README\n. {own_place}/then\n"
    )
    agent.chmod(0o755)
    (own_place / "then").write_text("exit 0\n")
    config = own_place / "config" / "sessionrun" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"[agents.noting]\nargv = ['{agent}', '{{prompt_file}}']\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own_place / "config"))
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(command.results))
    monkeypatch.setenv("SESSIONRUN_AGENT", "noting")
    return command


def try_block(sessionrun: Command, block: str) -> list[str]:
    """Run the lines of a page; what the last one printed, by lines."""
    said = ""
    for line in block.splitlines():
        words = shlex.split(line)
        if words[0] == "sessionrun":
            done = sessionrun(*words[1:])
            said = done.stdout
        else:
            done = subprocess.run(["sh", "-c", line], cwd=sessionrun.cwd, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)
    return said.splitlines()


def test_what_can_be_tried_with_a_queue(sessionrun: Command) -> None:
    shown = try_block(sessionrun, code_blocks("examples/queue/README.md", "console")[0])
    assert [line.split()[1] for line in shown] == ["STATUS", *["ready"] * 4]
    assert "Add a cycle time chart" in shown[1] and "Describe it" not in "".join(shown)


@pytest.mark.slow
def test_workers_can_be_tried_with_it(sessionrun: Command) -> None:
    first, second = code_blocks("examples/queue/README.md", "console")
    try_block(sessionrun, first)
    try_block(sessionrun, second)
    assert sessionrun("queue", "list").stdout == "No task is open.\n"
    where = (sessionrun.cwd.parent / "where").read_text().splitlines()
    assert len(where) == 5
    assert {*where} <= {f"{sessionrun.cwd}/worktrees/w{number}" for number in (1, 2)}


# --- the agent of Gas Town ---


class Town:
    """A worker of Gas Town, with a stand-in for `gt` that prints what is on its hook."""

    def __init__(self, sessionrun: Command) -> None:
        self.sessionrun, self.place = sessionrun, sessionrun.cwd.parent
        bin_dir = self.place / "bin"
        bin_dir.mkdir()
        gt = f'[ "$*" = "hook --json" ] || exit 9\ncat {self.place}/hook\nexit "$(cat {self.place}/gt-code)"\n'
        ours = f'exec {shlex.quote(sys.executable)} -m sessionrun "$@"\n'
        for name, text in (("gt", gt), ("sessionrun", ours), ("python3", f'exec {sys.executable} "$@"\n')):
            (bin_dir / name).write_text(f"#!/bin/sh\n{text}")
            (bin_dir / name).chmod(0o755)
        self.environ = {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}"}
        self.hang(HOOK)

    def hang(self, hook: object, code: int = 0) -> None:
        """What `gt hook --json` prints, and its exit code."""
        (self.place / "hook").write_text(hook if isinstance(hook, str) else json.dumps(hook, indent=2))
        (self.place / "gt-code").write_text(str(code))

    def popen(self) -> subprocess.Popen[str]:
        """Start the script as `gt` does: with words of its own, in the worktree."""
        argv = [str(SCRIPT), "Run gt prime"]
        streams: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
        }
        return subprocess.Popen(argv, cwd=self.sessionrun.cwd, env=self.environ, text=True, **streams)

    def run(self) -> tuple[int, str, str]:
        """Exit code and outputs."""
        with self.popen() as process:
            out, error = process.communicate(timeout=120)
        return process.returncode, out, error


@pytest.fixture
def town(sessionrun: Command) -> Town:
    return Town(sessionrun)


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
def test_the_exit_code_is_that_of_the_session(town: Town) -> None:
    (town.place / "then").write_text("exit 3\n")
    assert town.run()[0] == 1


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
