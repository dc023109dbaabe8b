"""What mistakes about sessions and places say; what needs no session is a row of test_refusals."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Final

from conftest import Command

RUN: Final = " (see: sessionrun run --help)"


def test_a_mistake_about_a_session(sessionrun: Command) -> None:
    session_id = sessionrun.finished(["true", {"id": "b", "prompt": "true"}])
    known = sessionrun.status(session_id)["tasks"][0]["id"]
    folder = sessionrun.cwd / "results" / f"session-{session_id}"
    other = session_id[:-4] + "0000"
    for words, says in (
        (("status", "last", "bb"), f"no task 'bb' in session {session_id}; it has: {known}, b"),
        (
            ("results", "last", f"{known}x"),
            f"no task '{known}x' in session {session_id} (did you mean \"{known}\"?); it has: {known}, b",
        ),
        (("diff", "last"), f"session {session_id} has no worktrees; start one with --worktree"),
        (("merge", "last"), f"session {session_id} has no worktrees of this repository: nothing can land"),
        (
            ("set", "last", "--max-parallel", "3"),
            f"session {session_id} has ended, and nothing of it runs any more",
        ),
    ):
        assert told(sessionrun, *words) == (2, says)
    shutil.copytree(folder, folder.with_name(f"session-{other}"), ignore=shutil.ignore_patterns("wake"))
    ids = ", ".join(sorted((session_id, other)))
    assert told(sessionrun, "status", session_id[:8]) == (
        2,
        f"'{session_id[:8]}' matches 2 sessions ({ids}): give more of the id",
    )
    unbegun = f"{'0' * 8}-0000-4000-8000-{'0' * 12}"  # its launcher was killed
    folder.with_name(f"session-{unbegun}").mkdir()
    for word in (unbegun, unbegun[:8]):
        missing = f"no session '{word}' in results or elsewhere; `sessionrun list --all` shows all"
        assert told(sessionrun, "status", word) == (2, missing)
    shutil.rmtree(folder)
    assert told(sessionrun, "status", session_id) == (
        2,
        f"no session '{session_id}' in results or elsewhere (did you mean \"{other}\"?); "
        "`sessionrun list --all` shows all",
    )


def test_a_mistake_about_a_place(sessionrun: Command) -> None:
    place = sessionrun.cwd
    (place / "tasks.json").write_text('["true"]')
    code, says = told(sessionrun, "--agent", "shell", "--results-dir", "tasks.json/x", "tasks.json")
    assert code == 3 and re.fullmatch(
        rf"cannot create {place}/tasks.json/x/session-[0-9a-f-]+: Not a directory; "
        "--results-dir names another directory",
        says,
    )
    assert told(sessionrun, "Write tests") == (
        2,
        "Write tests: no such file or verb; for a prompt: sessionrun -p 'Write tests'",
    )
    assert told(sessionrun, "--agent", "shell", "--results-dir", "tasks.json", "tasks.json") == (
        2,
        f"Invalid value for '--results-dir': Directory 'tasks.json' is a file{RUN}",
    )


def test_a_page_and_a_verb_need_a_directory_that_is_there(sessionrun: Command) -> None:
    sessionrun.finished(["true"])
    says = f"gone/x.html: there is no directory {sessionrun.cwd}/gone; make it, or name another file"
    assert told(sessionrun, "report", "last", "-o", "gone/x.html") == (2, says)
    program = f"mkdir gone && cd gone && rmdir ../gone && exec {' '.join(sessionrun.argv)} list"
    done = subprocess.run(["sh", "-c", program], cwd=sessionrun.cwd, capture_output=True, text=True)
    assert done.stderr == "sessionrun: error: the current directory was deleted; cd to another one\n"
    assert done.returncode == 2


def told(sessionrun: Command, *words: str) -> tuple[int, str]:
    """The exit code of a command, and its error without the name of the program."""
    done = sessionrun(*words)
    assert done.stdout == ""
    line = done.stderr.splitlines()[-1]
    assert line.startswith("sessionrun: error: ")
    return done.returncode, line.removeprefix("sessionrun: error: ")
