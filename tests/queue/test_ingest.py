"""`ingest`: follow-ups that agents wrote become tasks, each line once, whatever is written or killed meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from calls import each_call, forked, needs_calls, run_watched
from conftest import Command
from stages import git, make_program, make_repository_of

from sessionrun.client.notices import SessionWarning
from sessionrun.model.asked import SUGGESTIONS
from sessionrun.queue.ingest import LIMIT, MAX_TITLE, make_draft, put_aside, strip_mark
from sessionrun.queue.open import Ingested, ingest, open_queue
from sessionrun.queue.split import name_group, read_answer, split_by_rule
from sessionrun.queue.task import Draft, QueueTask, find_place


@pytest.fixture
def repository(own_place: Path) -> Path:
    make_repository_of(own_place, {})
    return own_place


def tasks(**wanted: Any) -> list[QueueTask]:
    found = open_queue().load()
    return [task for task in found if all(getattr(task, key) == value for key, value in wanted.items())]


def added(found: Ingested) -> list[str]:
    return [task["title"] for task in found.added]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("Fix the  login ", "Fix the login"),
        ("- Fix it", "Fix it"),
        ("  * [ ] Fix it\r", "Fix it"),
        ("12. Fix it", "Fix it"),
        ("-v is not an option", "-v is not an option"),
        ("3.5 is the version", "3.5 is the version"),
        ("Fix\x1b[2J\0it", "Fix [2J it"),
    ],
)
def test_a_line_is_a_task(line: str, text: str) -> None:
    assert strip_mark(line) == text


def test_a_long_line_is_title_and_body() -> None:
    draft = make_draft("word " * 100)
    assert len(draft.title) <= MAX_TITLE and draft.title.endswith("...")
    assert draft.body.startswith("word " * 100) and make_draft("short").body == ""


def test_from_the_root_and_the_shelf(repository: Path, sessionrun: Command) -> None:
    git(Path(), "worktree", "add", "-q", "-b", "side", "../side")
    side = repository.parent / "side"
    (repository / SUGGESTIONS).write_text("- Fix the login\n\n---\n  * [ ] \nKnown\nfix the LOGIN\n")
    open_queue().create([Draft("known")])
    would = sessionrun.load("ingest", "--dry-run")
    assert (would["dry_run"], [task["id"] for task in would["added"]]) == (True, [None])
    assert (repository / SUGGESTIONS).exists()
    assert [task.title for task in tasks()] == ["known"]
    assert not (repository / ".git" / "sessionrun-ingest").exists()
    (side / SUGGESTIONS).write_text("Write the manual")
    put_aside(find_place(side), side / SUGGESTIONS)  # as RELEASE does
    (side / SUGGESTIONS).write_text("Of an agent that still works\n")
    found = sessionrun("ingest", "--group", "next")
    assert found.stdout == "task-2: Fix the login\ntask-3: Write the manual\n"
    assert found.stderr == "2 added, 2 in the queue already\n"
    assert {task.group for task in tasks(is_ready=True)} == {None, "next"}
    assert not (repository / SUGGESTIONS).exists() and (side / SUGGESTIONS).exists()
    assert sessionrun("ingest").stderr == "0 added, 0 in the queue already\n"
    for task in tasks(is_ready=True):
        open_queue().close(task.id)
    (repository / SUGGESTIONS).write_text("Fix the login\n")  # again: it came back
    shown = sessionrun.load("ingest")
    assert [(task["id"], task["title"]) for task in shown["added"]] == [("task-4", "Fix the login")]
    assert [*shown] == ["schema_version", "dry_run", "added", "known", "kept"]


def test_a_file_that_git_tracks_is_taken_by_its_name_alone(repository: Path) -> None:
    (repository / SUGGESTIONS).write_text("one\n")
    git(Path(), "add", SUGGESTIONS)
    with pytest.warns(SessionWarning, match="git tracks it; it is taken only if it is named"):
        assert added(ingest()) == [] and (repository / SUGGESTIONS).read_text() == "one\n"
    assert added(ingest(files=[Path(SUGGESTIONS)])) == ["one"]


def test_what_is_above_the_limit_waits(repository: Path, sessionrun: Command) -> None:
    shelf = repository / ".git" / "sessionrun-ingest"
    (repository / SUGGESTIONS).write_text("a1\na2\na3\na4")
    (repository / "more").write_text("b1\n")
    done = sessionrun("ingest", "--max", "2", SUGGESTIONS, "more")
    assert done.stdout == "task-1: a1\ntask-2: a2\n"
    assert done.stderr == (
        f"kept 2 lines of {repository / SUGGESTIONS}: --max is 2\n"
        f"kept 1 line of {repository / 'more'}: --max is 2\n"
        "2 added, 0 in the queue already\n"
    )
    assert not (repository / SUGGESTIONS).exists() and not (repository / "more").exists()
    assert added(ingest(maximum=1)) == ["a3"]
    assert ingest(maximum=0).kept == [{"source": str(repository / SUGGESTIONS), "lines": 2}], "of two files"
    assert sorted(added(ingest())) == ["a4", "b1"]
    assert os.listdir(shelf) == ["lock"]


def test_what_an_agent_put_in_the_place_of_the_file(repository: Path, sessionrun: Command) -> None:
    place = repository / SUGGESTIONS
    (repository.parent / "secret").write_text("secret\n")
    for put, why in (
        (lambda: place.symlink_to("../secret"), "not a regular file"),
        (lambda: os.mkfifo(place), "not a regular file"),
        (lambda: place.write_bytes(b"one\n" * (LIMIT // 4 + 1)), f"larger than {LIMIT} bytes"),
    ):
        put()
        done = sessionrun("ingest")
        assert (done.returncode, done.stdout) == (0, "")
        assert f"{SUGGESTIONS}: {why}; nothing was taken from it" in done.stderr
        place.unlink()


def test_outside_of_a_repository_and_from_files_by_name(own_place: Path) -> None:
    (own_place / SUGGESTIONS).write_text("here\n")
    (own_place / "more.txt").write_bytes(b"more \xff\n")
    assert added(ingest(files=[Path("more.txt")])) == ["more \ufffd"]
    assert added(ingest()) == ["here"]
    assert not (own_place / "more.txt").exists()


LINES = {"one", "two", "three", "four", "five"}


def sweep_ingest(closes: str) -> None:
    """Kill who takes lines at each call; what two others do then, also if its tasks were closed, completes it."""
    files, place = [Path(SUGGESTIONS), Path("more.txt")], find_place(Path())

    def begin(environ: Mapping[str, str]) -> None:
        for left in (Path("task_queue.json"), *files):
            left.unlink(missing_ok=True)
        shutil.rmtree(".git/sessionrun-ingest", ignore_errors=True)
        for file, text in zip(files, ("one\ntwo\n", "three\nfour\n"), strict=True):
            file.write_text(text)
        forked(lambda: (put_aside(place, files[1]), ingest(maximum=2), ingest(maximum=2)))(environ)

    for do in ("kill", "half"):
        for at, _ in each_call(begin, Path("../calls"), "ingest", do=do):
            with open(SUGGESTIONS, "a") as stream:
                stream.write("five\n")
            if closes:
                for task in open_queue().load():
                    open_queue().close(task.id)
            for _ in range(2):
                if files[1].exists():
                    put_aside(place, files[1])
                ingest()
            found = sorted(task.title for task in open_queue().load())
            assert found == sorted(LINES), (do, at, found)
        print(at)


@needs_calls
@pytest.mark.slow
@pytest.mark.parametrize("closes", ["closes", ""])
def test_killed_before_each_call_that_changes_a_file(repository: Path, closes: str) -> None:
    """No line is lost, and none comes twice, also if its task was closed before the next call."""
    kills = run_watched(sweep_ingest, closes)
    assert int(kills.split()[0]) > 20


def test_two_at_once_take_each_line_once(repository: Path, sessionrun: Command) -> None:
    (repository / SUGGESTIONS).write_text("".join(f"task {number}\n" for number in range(50)))
    both = [sessionrun.popen("ingest", "--json", stdout=subprocess.PIPE) for _ in range(2)]
    counts = [len(json.loads(one.communicate(timeout=60)[0])["added"]) for one in both]
    assert sum(counts) == 50
    assert len({task.title for task in tasks()}) == len(tasks()) == 50


# --- `split` ---

GOAL = "Fix the login, then describe it in docs/login.md and test it."
PARTS = ["Fix the login", "describe it in docs/login.md", "test it"]
GOOD = "- Fix the redirect in src/login.py\n- Describe the login in docs/login.md\n"
ANSWERED = ["Fix the redirect in src/login.py", "Describe the login in docs/login.md"]


def play(sessionrun: Command, *answers: str) -> None:
    """Let the agent `model` give these answers, one in each session, and keep what it was asked."""
    for number, answer in enumerate(answers):
        (sessionrun.cwd / f"answer-{number}").write_text(answer)
    said = "n=$(ls asked-* 2>/dev/null | wc -l)\ncat > asked-$n\ncat answer-$n || exit 9"
    script = make_program(sessionrun.cwd / "model", said)
    (sessionrun.cwd / "sessionrun.toml").write_text(
        f'[agents.model]\nargv = ["{script}", "{{approve_args}}"]\napprove_args = ["--change-all"]\n'
    )


@pytest.mark.parametrize(
    ("goal", "parts"),
    [
        (GOAL, PARTS),
        ("a1; b2;c3. D4, e5 and f6 then g7", ["a1", "b2", "c3", "D4", "e5", "f6", "g7"]),
        ("say \"a, b and c; d\" and `x; y`, and then 'p, q'", ['say "a, b and c; d"', "`x; y`", "'p, q'"]),
        ("don't stop and don't wait", ["don't stop", "don't wait"]),
        ("Use e.g. tar, i.e. no zip", ["Use e.g. tar", "i.e. no zip"]),
        ("bump 1,000 to 1.5 and end", ["bump 1,000 to 1.5", "end"]),
        ("- one\n- two\n\n3. three", ["one", "two", "three"]),
        ("same and Same and SAME and other", ["same", "other"]),
        ("Sandy then handy", ["Sandy", "handy"]),
        ("; . ,", []),
        ("only this", ["only this"]),
    ],
)
def test_the_rule(goal: str, parts: list[str]) -> None:
    assert split_by_rule(goal, 10) == parts


def test_the_rule_leaves_the_rest_in_the_last_part() -> None:
    assert split_by_rule("a; b; c; d", 2) == ["a", "b; c; d"]


@pytest.mark.parametrize(
    "answer", [GOOD, f"```\n{GOOD}```\n", '1. Fix `a && b` in run.sh\n2) Say "Hi. You!" in hello.py\n']
)
def test_a_good_answer(answer: str) -> None:
    assert len(read_answer(answer, 2)) == 2


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "it has 0 tasks, not 2 to 3"),
        ("Fix a.py\n", "it has 1 task, not 2 to 3"),
        ("Fix a.py\nFix b.py\nFix c.py\nFix d.py\n", "it has 4 tasks, not 2 to 3"),
        ("Fix a.py\nfix  A.py.\n", 'the line "fix A.py." is there twice'),
        (f"Fix a.py\nFix {'b' * 200}\n", "has more than 200 characters"),
        ("Fix a.py\nb.py\n", 'the line "b.py" is not a task'),
        ("Here are the tasks:\nFix a.py\nFix b.py\n", "is talk"),
        ("Fix a.py\nFix b.py\nShall I go on?\n", "is talk"),
        ("I'll fix a.py\nFix b.py\n", "is talk"),
        ("Fix a.py. It is broken.\nFix b.py\n", "is talk"),
        ("$ sed -i s/a/b/ a.py\nFix b.py\n", "is code"),
        ("Fix a.py && rm b.py\nFix b.py\n", "is code"),
        ("git -C . status\nFix b.py\n", "is code"),
    ],
)
def test_a_bad_answer(answer: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_answer(answer, 3)


def test_names_of_groups() -> None:
    assert name_group("Fix the Login!", []) == "fix-the-login"
    assert name_group("Fix the Login!", ["FIX-the-login", "fix-the-login-2"]) == "fix-the-login-3"
    assert name_group("\u4f60", []) == "goal"
    assert len(name_group("long " * 40, [])) <= 30


def test_an_agent_splits_a_goal_and_the_group_closes_with_its_tasks(sessionrun: Command) -> None:
    play(sessionrun, GOOD)
    done = sessionrun("split", GOAL, "--agent", "model", "--max-subtasks", "3")
    group = "fix-the-login-then-describe-it"
    assert done.stdout == f"{group}: {GOAL}\n" + "".join(
        f"  task-{number}: {title}\n" for number, title in enumerate(ANSWERED, 1)
    )
    assert done.stderr.startswith("session: ")
    asked = (sessionrun.cwd / "asked-0").read_text()
    assert f"The goal:\n{GOAL}\n\nAnswer with 2 to 3 lines" in asked
    session = sessionrun.load("status", "split")  # kept like any other
    assert session["session_id"] == done.stderr.split()[1]
    spec = json.loads((sessionrun.directory(session["session_id"]) / "spec.json").read_bytes())
    assert spec["approve"] is False
    feed = open_queue()
    parts = [(task.id, task.body) for task in tasks(is_ready=True, group=group)]
    assert parts == [("task-1", f"Part of: {GOAL}"), ("task-2", f"Part of: {GOAL}")]
    feed.close("task-1")
    assert feed.show(group).status == "open"
    feed.close("task-2")
    assert (feed.show(group).status, feed.show(group).title) == ("closed", GOAL)


@pytest.mark.slow
def test_a_bad_answer_is_asked_for_once_more_then_the_rule(sessionrun: Command) -> None:
    play(sessionrun, "Sure! Here they are:\n", GOOD, "Fix it\n")
    found = sessionrun.load("split", GOAL, "--agent", "model", "--dry-run")
    assert (found["by"], found["titles"], len(found["session_ids"])) == ("agent", ANSWERED, 2)
    assert (found["group"], found["tasks"], tasks()) == (None, [], [])
    assert 'Another answer was refused: the line "Sure! Here they are:" is talk' in (
        (sessionrun.cwd / "asked-1").read_text()
    )
    done = sessionrun("split", GOAL, "--agent", "model", "--json")  # one bad answer, then it fails
    found = json.loads(done.stdout)
    assert (done.returncode, found["by"], found["titles"]) == (0, "rule", PARTS)
    assert "a bad answer: it has 1 task, not 2 to 10" in done.stderr
    assert "a bad answer: the agent failed: exit_code: exit code 9" in done.stderr
    assert "the agent gave no good answer; the goal is split by rule" in done.stderr
    assert [task["id"] for task in found["tasks"]] == ["task-1", "task-2", "task-3"]
    assert {task["group"] for task in found["tasks"]} == {found["group"]["id"]}


def test_without_an_agent_the_rule_splits(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    done = sessionrun("split", GOAL, "--dry-run")
    assert done.stdout == "".join(f"would add: {part}\n" for part in PARTS)
    assert "no agent CLI found on PATH" in done.stderr
    assert done.stderr.rstrip().endswith("; the goal is split by rule")
    assert sessionrun("split", GOAL, "--dry-run", "--no-llm").stderr == ""
    assert not sessionrun.results.exists()


def test_a_task_of_the_queue_becomes_the_group(sessionrun: Command) -> None:
    feed = open_queue()
    feed.create([Draft("Before"), Draft("The login", "- Fix it\n- Test it\n", 3, ("task-1",))])
    done = sessionrun("split", "--bead", "task-2", "--no-llm")
    assert done.stdout == "task-2: The login\n  task-3: Fix it\n  task-4: Test it\n"
    assert [(task.title, task.priority, task.blocked_by) for task in tasks(group="task-2")] == [
        ("Fix it", 3, ("task-1",)),
        ("Test it", 3, ("task-1",)),
    ]
    assert feed.show("task-2").body == "- Fix it\n- Test it\n"
    assert "a group already" in sessionrun("split", "--id", "task-2", "--no-llm").stderr
    for task_id in ("task-1", "task-3", "task-4"):
        feed.close(task_id)
    assert feed.show("task-2").status == "closed"
    assert "it is closed; reopen it first" in sessionrun("split", "--id", "task-2").stderr
