"""Which session a verb means: the newest of the directory in use, or one by id or name from anywhere."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from conftest import Command

from sessionrun.client.lookup import find_session
from sessionrun.model.errors import SessionNotFound
from sessionrun.store.session import SessionDir

READERS = ("status", "results", "wait", "logs", "cost", "explain", "diff")
ONE = {"prompts": [{"id": "a", "prompt": "echo said"}]}


@pytest.fixture
def away(tmp_path: Path) -> Command:
    """The command in another directory, without sessions."""
    (tmp_path / "away").mkdir()
    return Command(tmp_path / "away", tmp_path / "away" / "results")


def test_a_results_directory_is_named_and_has_to_be_there(sessionrun: Command) -> None:
    elsewhere, plan = str(sessionrun.cwd / "else where"), '{"prompts": ["true"]}'
    done = sessionrun("-q", "--agent", "shell", stdin=plan, env={"SESSIONRUN_RESULTS_DIR": elsewhere})
    session_id = done.stdout.strip()
    assert sessionrun("wait", session_id, "--results-dir", elsewhere).returncode == 0
    named = {"list", "overview", "doctor", "clean"}
    for verb in (*READERS, "list", "overview", "doctor", "cancel", "retry", "hold", "release", "resume"):
        words = [] if verb in named else [session_id]
        done = sessionrun(verb, *words, "--results-dir", "nosuch")
        assert (done.returncode, done.stdout) == (2, ""), verb
        assert done.stderr == "sessionrun: error: --results-dir: there is no directory nosuch\n"
        if verb not in ("logs", "diff"):  # the one prints a line for each line, the other has nothing to show
            done = sessionrun(verb, *words, "--results-dir", elsewhere, "--json")
            assert (done.returncode, done.stderr, json.loads(done.stdout)["schema_version"]) == (0, "", 2), verb
    assert sessionrun("clean", "--worktrees", "--results-dir", "nosuch").returncode == 2
    assert not (sessionrun.cwd / "nosuch").exists() and not sessionrun.results.exists()
    assert sessionrun("-q", "--agent", "shell", "--results-dir", "new", stdin=plan).returncode == 0
    assert sessionrun("wait", "--results-dir", "new").returncode == 0


def test_by_name(sessionrun: Command, away: Command) -> None:
    nightly, weekly = sessionrun.finished(ONE, "--name", "nightly"), sessionrun.finished(ONE, "--name", "weekly")
    for command in (sessionrun, away):
        assert command.load("status", "nightly")["session_id"] == nightly
        assert command("wait", "weekly").returncode == 0
        assert command("cancel", "weekly").stdout == f"weekly ({weekly[:8]}): 1 had ended before\n"
        assert command("resume", "nightly").stdout.startswith(f"nightly ({nightly[:8]}): has ended")
    summary = SessionDir(sessionrun.directory(nightly)).summary_path
    content = summary.read_bytes()
    summary.unlink()
    assert sessionrun.load("status", "nightly")["session_id"] == nightly  # the spec has it too
    summary.write_bytes(content)
    own = away.finished(ONE, "--name", "nightly")
    assert away.load("status", "nightly")["session_id"] == own  # here goes before elsewhere
    removed = sessionrun.load("clean", "weekly", "--state", "completed")["findings"]
    assert [one["session_id"] for one in removed if one["removed"]] == [weekly]


def test_a_whole_id_costs_no_look_at_names(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = sessionrun.finished(ONE, "--name", "nightly")
    elsewhere = sessionrun.cwd / "empty"
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


def test_text_says_which_directory(sessionrun: Command, away: Command) -> None:
    session_id = sessionrun.finished(ONE, "--name", "nightly")
    line = f"Results directory: {sessionrun.results}\n"
    head = rf"nightly \({session_id[:8]}\): ended, 1 task, \d+\.\d s\n1 succeeded\n{re.escape(line)}"
    for verb in ("status", "results", "explain"):
        assert re.match(head, away(verb, session_id).stdout), verb
        assert line not in sessionrun(verb, session_id).stdout
    for command in (away, sessionrun):
        assert command("wait", session_id).stdout == "nightly: 1 of 1 ended: 1 succeeded\n"
    logs = away("logs", session_id)
    assert (logs.stdout, logs.stderr) == ("said\n", line)
    assert sessionrun("logs", session_id).stderr == ""
    heads_of_list, row = away("list", "--all").stdout.splitlines()
    assert "DIRECTORY" in heads_of_list and f"  {sessionrun.results}  " in row
    assert "DIRECTORY" not in sessionrun("list").stdout
