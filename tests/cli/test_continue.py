"""`continue`: a task that has ended goes on with a follow-up; the agents of these sessions note what they got."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from calls import Calls, needs_calls
from stages import make_program
from test_cli_worktrees import Project, project_in

PROGRAM = """\
#!/bin/sh
# a conversation is a file: each run notes what it was told, and a line of work
here=$(dirname "$0") id=talk-1
[ "$1" = --resume ] && { id=$2; shift 2; }
{ echo "$id:"; cat "$1"; echo; } >>"$here/got"
[ -e "$here/fail" ] && { rm "$here/fail"; exit 7; }
echo "$(wc -l <"$here/got")" >>work.txt
[ -d .git ] || [ -f .git ] && git add work.txt && git commit -q -m "$(tail -n 1 "$here/got")"
printf '{"type":"system","subtype":"init","session_id":"%s","model":"m"}\\n' $id
printf '{"type":"result","subtype":"success","is_error":false,"result":"did %s","session_id":"%s"}\\n' \\
    "$(tail -n 1 "$here/got")" $id
"""
"""An agent that knows its conversations, and prints what claude prints."""


class Talking(Project):
    """A repository with the agents `talker`, which has conversations, and `plain`, which has none."""

    @property
    def bin(self) -> Path:
        return self.cwd.parent / "bin"

    def got(self) -> list[str]:
        """What the agent was told, run by run."""
        text = (self.bin / "got").read_text()
        return [words.rstrip("\n") for words in text.split("talk-1:\n")[1:]]

    def go_on(self, *words: str) -> str:
        """`continue`, to the end of the session; what it printed."""
        done = self.to_end("continue", self.sessions[-1], *words)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def task(self) -> dict[str, Any]:
        task = self.load("status", self.sessions[-1])["tasks"][0]
        assert isinstance(task, dict)
        return task


@pytest.fixture
def talking(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Talking:
    made = project_in(own_place, monkeypatch)
    project = Talking(made.cwd, made.results)
    program = make_program(project.bin / "talker", PROGRAM)
    talker = f"argv = ['{program}', '{{continue_args}}', '{{prompt_file}}']\noutput = 'claude'\n"
    resume = "continue_args = ['--resume', '{conversation}']\n"
    plain = f"argv = ['{program}', '{{prompt_file}}']\n"
    (project.cwd / "sessionrun.toml").write_text(f"[agents.talker]\n{talker}{resume}[agents.plain]\n{plain}")
    with (project.cwd / ".git" / "info" / "exclude").open("a") as stream:
        stream.write("sessionrun.toml\n")
    return project


def test_a_follow_up_goes_on_in_the_conversation_and_on_the_branch(talking: Talking) -> None:
    session_id = talking.finish([{"id": "a", "prompt": "make it"}], "--agent", "talker")
    first = talking.task()
    assert talking.go_on("a", "now test it") == f"{session_id[:8]}: task a goes on, attempt 2\n"
    assert talking.got() == ["make it", "now test it"]
    task = talking.task()
    assert (task["outcome"], task["attempt"], task["follow_ups"]) == ("succeeded", 2, 1)
    assert (task["branch"], task["base_commit"]) == (first["branch"], first["base_commit"])
    assert talking.git("log", "--format=%s", "main-task-a").split("\n")[:2] == ["now test it", "make it"]
    assert talking.branches() == ["main", "main-task-a"]
    assert talking("diff", session_id, "a").stdout.count("\n+") == 3, "both lines, and the name of the file"
    assert talking("results", session_id, "--tail", "5").stdout.count("did now test it") == 1
    explained = talking.load("explain", session_id, "a")["tasks"][0]
    assert (explained["follow_up"], len(explained["attempts"])) == ("now test it", 2)
    assert "\nlast follow-up: now test it\n" in talking("explain", session_id, "a").stdout


@pytest.mark.slow
def test_an_agent_without_conversations_is_told_what_was_done(talking: Talking) -> None:
    talking.finish([{"id": "a", "prompt": "make it", "retries": 1}], "--agent", "plain")
    (talking.bin / "fail").touch()
    (talking.cwd / ".more.md").write_text("now\ntest it\n")
    said = talking.go_on("a", "--file", ".more.md", "--json")
    assert "sessionrun: warning: task a: its agent has no conversation to go on with: it is told" in said
    answer = '{"type":"system","subtype":"init","session_id":"talk-1","model":"m"}\n'
    words = talking.got()
    assert words[0] == "make it" and len(words) == 3
    begin, rest = words[1].split(". It ended: succeeded. Your work is here.\n\n")
    assert begin == "make it\n\nYou have worked on this before, in another conversation"
    assert rest.startswith(f"The end of your answer was:\n\n{answer}")
    assert words[1].endswith("\n\nNow you are asked:\n\nnow\ntest it")
    assert "It ended: failed (exit_code: exit code 7). Your work is here." in words[2], "it was tried again"
    assert talking.task()["attempt"] == 3


def test_a_branch_that_cannot_be_taken_up_is_refused_before_anything_starts(talking: Talking) -> None:
    session_id = talking.finish([{"id": "a", "prompt": "make it"}], "--agent", "talker")
    talking.git("switch", "-q", "main-task-a")
    done = talking("continue", session_id, "a", "more")
    where = f"branch main-task-a is checked out in {talking.cwd}: check out another one there"
    assert (done.returncode, done.stderr) == (2, f"sessionrun: error: task 'a' cannot be continued: {where}\n")
    assert talking.task()["attempt"] == 1


@pytest.mark.slow
def test_what_a_follow_up_adds_lands_as_well(talking: Talking) -> None:
    plan = [{"id": "a", "prompt": "make it"}, {"id": "b", "prompt": "true", "agent": "shell"}]
    talking.finish({"land": True, "prompts": plan}, "--agent", "talker")
    landed = talking.task()["landing"]
    assert landed["status"] == "landed"
    talking.go_on("a", "more")
    again = talking.task()["landing"]
    assert again["status"] == "landed" and again["commit"] != landed["commit"]
    assert len((talking.cwd / "work.txt").read_text().splitlines()) == 2
    merges = talking.git("log", "--first-parent", "--format=%s", "main").split("\n")
    assert merges[:2] == ["Merge task a: make it"] * 2
    assert talking.load("status", talking.sessions[-1])["outcome"] == "succeeded"


@needs_calls
@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    ["lock:1", *(f"{kind}:{number}" for kind in ("write", "sync", "send", "rename") for number in (1, 2, 3, 4))],
)
def test_a_follow_up_runs_once_wherever_the_supervisor_dies(talking: Talking, tmp_path: Path, rule: str) -> None:
    """From the request to the end of the attempt."""
    session_id = talking.finish([{"id": "a", "prompt": "make it"}], "--agent", "talker")
    calls = Calls(tmp_path / "calls", f"supervisor:{rule}:kill")
    done = talking("continue", session_id, "a", "more", env=calls.environ())
    assert done.returncode == 0, done.stderr
    talking.until(session_id, lambda view: view["ended_at"] and view["tasks"][0]["attempt"] == 2)
    task = talking.task()
    assert (task["outcome"], task["follow_ups"]) == ("succeeded", 1)
    assert talking.got() == ["make it", "more"]
    assert calls.has_hit() == [True], "it did not die"
    assert json.loads(talking("diff", session_id, "--json").stdout)["tasks"][0]["diff_stat"]["insertions"] == 2
