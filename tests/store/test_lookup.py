"""Which session a verb means: the newest of the directory in use, or one by id or name from anywhere."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from faults.damaged import call

from sessionrun.model.errors import SessionNotFound
from sessionrun.store.lookup import find_session
from sessionrun.store.session import SessionDir

READERS = ("status", "results", "wait", "logs", "cost", "explain", "diff")
ONE = {"prompts": [{"id": "a", "prompt": "echo said"}]}


@dataclass
class Here(Command):
    """The command, run in this process: to start Python for each look is dear."""

    def __call__(
        self, *words: str, stdin: Any = None, env: Any = None, real: bool = False
    ) -> subprocess.CompletedProcess[str]:
        if real or stdin is not None or words[0] == "-q":
            return super().__call__(*words, stdin=stdin, env=env, real=real)
        before = os.getcwd()
        os.chdir(self.cwd)
        try:
            return subprocess.CompletedProcess(words, *call(list(words)))
        finally:
            os.chdir(before)


@pytest.fixture
def here(sessionrun: Command) -> Here:
    return Here(sessionrun.cwd, sessionrun.results)


@pytest.fixture
def away(tmp_path: Path) -> Here:
    """The command in another directory, without sessions."""
    (tmp_path / "away").mkdir()
    return Here(tmp_path / "away", tmp_path / "away" / "results")


def start(here: Here, *words: str) -> str:
    """A session that has ended."""
    session_id = here.start(ONE, *words)
    leave(here, session_id)
    return session_id


def leave(here: Here, session_id: str) -> None:
    """Wait until a session has ended and its processes have left: it cannot be removed before."""
    here.wait(session_id)
    session = SessionDir(here.directory(session_id))
    eventually(lambda: not session.is_alive())


def test_a_results_directory_that_is_not_there(here: Here) -> None:
    session_id = start(here)
    named = {"list", "overview", "doctor", "clean"}
    for verb in (*READERS, "list", "overview", "doctor", "cancel", "retry", "hold", "release", "resume"):
        words = [] if verb in named else [session_id]
        done = here(verb, *words, "--results-dir", "nosuch")
        assert (done.returncode, done.stdout) == (2, ""), verb
        assert done.stderr == "sessionrun: error: --results-dir: there is no directory nosuch\n"
    assert here("clean", "--worktrees", "--results-dir", "nosuch").returncode == 2
    assert not (here.cwd / "nosuch").exists()
    assert here("-q", "--agent", "shell", "--results-dir", "new", stdin='{"prompts": ["true"]}').returncode == 0
    assert here("wait", "--results-dir", "new").returncode == 0


def test_the_default_directory_may_be_missing(away: Here) -> None:
    assert away("list").stdout == "No sessions.\n"
    assert away("overview").returncode == 0
    done = away("status")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no session in results or in your index yet" in done.stderr


def test_by_name(here: Here, away: Here) -> None:
    nightly, weekly = start(here, "--name", "nightly"), start(here, "--name", "weekly")
    for command in (here, away):
        assert command.load("status", "nightly")["session_id"] == nightly
        assert command("wait", "weekly").returncode == 0
        assert command("cancel", "weekly").stdout == f"weekly ({weekly[:8]}): 1 had ended before\n"
        assert command("resume", "nightly").stdout.startswith(f"nightly ({nightly[:8]}): has ended")
    summary = SessionDir(here.directory(nightly)).summary_path
    content = summary.read_bytes()
    summary.unlink()
    assert here.load("status", "nightly")["session_id"] == nightly  # the spec has it too
    summary.write_bytes(content)
    own = start(away, "--name", "nightly")
    assert away.load("status", "nightly")["session_id"] == own  # here goes before elsewhere
    removed = here.load("clean", "weekly", "--state", "completed")["findings"]
    assert [one["session_id"] for one in removed if one["removed"]] == [weekly]


def test_a_whole_id_costs_no_look_at_names(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = start(here, "--name", "nightly")
    elsewhere = here.cwd / "empty"
    for other in ("x", "y"):
        (elsewhere / f"session-{other}").mkdir(parents=True)
        os.mkfifo(elsewhere / f"session-{other}" / "summary")  # to read one is refused
        (elsewhere / f"session-{other}" / "spec.json").mkdir()
    looked: list[str] = []
    monkeypatch.setattr(SessionDir, "load_summary", lambda session: looked.append(session.session_id))
    assert find_session(elsewhere, session_id).session_id == session_id
    assert looked == []
    with pytest.raises(SessionNotFound):
        find_session(elsewhere, "no such name")
    assert set(looked) == {"x", "y", session_id}


def test_text_says_which_directory(here: Here, away: Here) -> None:
    session_id = start(here, "--name", "nightly")
    line = f"Results directory: {here.results}\n"
    heads = {
        "status": rf"nightly \({session_id[:8]}\): ended, 1 task, \d+\.\d s\n1 succeeded\n{re.escape(line)}",
    }
    heads |= dict.fromkeys(("results", "explain"), heads["status"])
    for verb, head in heads.items():
        assert re.match(head, away(verb, session_id).stdout), verb
        assert line not in here(verb, session_id).stdout
    assert (
        away("wait", session_id).stdout
        == here("wait", session_id).stdout
        == "nightly: 1 of 1 ended: 1 succeeded\n"
    )
    logs = away("logs", session_id)
    assert (logs.stdout, logs.stderr) == ("said\n", line)
    assert here("logs", session_id).stderr == ""
    heads_of_list, row = away("list", "--all").stdout.splitlines()
    assert "DIRECTORY" in heads_of_list and f"  {here.results}  " in row
    assert "DIRECTORY" not in here("list").stdout
