"""`ingest`: follow-ups that agents wrote become tasks, each line once, whatever is written or killed meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from calls import each_call, forked, needs_calls, run_watched
from conftest import Command, eventually
from queue_contract import find_ready
from stages import git

from sessionrun.client.notices import SessionWarning
from sessionrun.model.asked import SUGGESTIONS
from sessionrun.queue.ingest import LIMIT, MAX_TITLE, make_draft, put_aside, read_line
from sessionrun.queue.open import Ingested, ingest, open_queue
from sessionrun.queue.task import Draft, find_place


@pytest.fixture
def repository(own_place: Path) -> Path:
    """A repository with a commit."""
    git(Path(), "init", "-q", "-b", "main")
    git(Path(), "commit", "-q", "--allow-empty", "-m", "begin")
    return own_place


def titles(*, closed: bool = False) -> list[str]:
    tasks = open_queue().load()
    return [task.title for task in tasks if not task.is_group and (closed or task.status != "closed")]


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
        ("---", None),
        ("```", None),
        ("", None),
    ],
)
def test_a_line_is_a_task(line: str, text: str | None) -> None:
    assert read_line(line) == text


def test_a_long_line_is_title_and_body() -> None:
    draft = make_draft("word " * 100)
    assert len(draft.title) <= MAX_TITLE
    assert draft.title.endswith("...")
    assert draft.body.startswith("word " * 100)
    assert make_draft("short").body == ""


def test_from_the_root_and_the_shelf(repository: Path, sessionrun: Command) -> None:
    git(Path(), "worktree", "add", "-q", "-b", "side", "../side")
    side = repository.parent / "side"
    (repository / SUGGESTIONS).write_text("- Fix the login\n\n---\nKnown\nfix the LOGIN\n")
    open_queue().create([Draft("known")])

    would = sessionrun.load("ingest", "--dry-run")
    assert (would["dry_run"], [task["id"] for task in would["added"]]) == (True, [None])
    assert (repository / SUGGESTIONS).exists()
    assert titles() == ["known"]
    assert not (repository / ".git" / "sessionrun-ingest").exists()

    (side / SUGGESTIONS).write_text("Write the manual")
    put_aside(find_place(side), side / SUGGESTIONS)  # as RELEASE does
    (side / SUGGESTIONS).write_text("Of an agent that still works\n")
    found = sessionrun("ingest", "--group", "next")
    assert found.stdout == "task-2: Fix the login\ntask-3: Write the manual\n"
    assert found.stderr == "2 added, 2 in the queue already\n"
    assert {task.group for task in find_ready(open_queue())} == {None, "next"}
    assert not (repository / SUGGESTIONS).exists() and (side / SUGGESTIONS).exists()
    assert sessionrun("ingest").stderr == "0 added, 0 in the queue already\n"

    for task in find_ready(open_queue()):
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
    assert sorted(added(ingest())) == ["a4", "b1"]
    assert os.listdir(shelf) == ["lock"]


def test_what_an_agent_put_in_the_place_of_the_file(repository: Path, sessionrun: Command) -> None:
    def refuse(why: str) -> None:
        done = sessionrun("ingest")
        assert (done.returncode, done.stdout) == (0, "")
        assert f"{SUGGESTIONS}: {why}; nothing was taken from it" in done.stderr

    (repository.parent / "secret").write_text("secret\n")
    (repository / SUGGESTIONS).symlink_to("../secret")
    refuse("not a regular file")
    (repository / SUGGESTIONS).unlink()
    os.mkfifo(repository / SUGGESTIONS)
    refuse("not a regular file")
    (repository / SUGGESTIONS).unlink()
    (repository / SUGGESTIONS).write_bytes(b"one\n" * (LIMIT // 4 + 1))
    refuse(f"larger than {LIMIT} bytes")
    assert (repository / SUGGESTIONS).stat().st_size > LIMIT


def test_outside_of_a_repository_and_from_files_by_name(own_place: Path, sessionrun: Command) -> None:
    (own_place / SUGGESTIONS).write_text("here\n")
    (own_place / "more.txt").write_bytes(b"more \xff\n")
    assert added(ingest(files=[Path("more.txt")])) == ["more \ufffd"]
    assert added(ingest()) == ["here"]
    assert not (own_place / "more.txt").exists()
    done = sessionrun("ingest", "more.txt")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"sessionrun: error: {own_place / 'more.txt'}: No such file or directory\n"


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
    assert len(set(titles())) == len(titles()) == 50
    eventually(lambda: all(one.poll() is not None for one in both))
