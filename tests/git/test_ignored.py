"""What git ignores is settled at launch: no task can make it overlook the work of another, or its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from conftest import Command, eventually, kill_sessions
from test_workspaces import Project
from test_worktrees import by_id, finish, project, start

from sessionrun.git.git import Git
from sessionrun.git.private import read_settings
from sessionrun.git.repository import ignore_words

__all__ = ["project"]

POISON = {
    "info": 'echo "*" >> "$(git rev-parse --git-common-dir)/info/exclude"',
    "config": 'echo "*.txt" > "$HOME/rules"; git config core.excludesFile "$HOME/rules"',
    "users file": 'mkdir -p "$XDG_CONFIG_HOME/git"; echo "*" > "$XDG_CONFIG_HOME/git/ignore"',
}
POISON["all at once"] = "; ".join(POISON.values())
"""If one of the three is believed, the files of all tasks are missing."""

each_poison = pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how == "all at once" else pytest.mark.slow) for how in POISON]
)


@each_poison
def test_what_a_task_makes_git_ignore_is_committed_all_the_same(
    sessionrun: Command, project: Project, how: str
) -> None:
    """For the task itself, one that runs at the same time, one that starts later, and another attempt."""
    poisoned = project.root / "poisoned"
    plan = [
        {"id": "bad", "prompt": f"{POISON[how]}; echo bad > bad.txt; touch {poisoned}"},
        {"id": "beside", "prompt": f"echo beside > beside.txt; until [ -e {poisoned} ]; do sleep 0.2; done"},
        {"id": "later", "prompt": "echo later > later.txt", "needs": ["bad"]},
        {"id": "again", "prompt": "[ $SESSIONRUN_ATTEMPT = 2 ] && echo again > again.txt", "retries": 1},
    ]
    tasks = by_id(finish(sessionrun, project, plan))
    for name, task in tasks.items():
        assert task["outcome"] == "succeeded", task["reason"]
        assert project.show(task["branch"], f"{name}.txt") == f"{name}\n".encode()
        assert task["diff_stat"]["files"] == 1


@pytest.mark.slow
@each_poison
def test_clean_keeps_to_what_was_ignored_at_launch(sessionrun: Command, project: Project, how: str) -> None:
    ready = project.root / "ready"
    prompt = f"{POISON[how]}; echo work > work.txt; echo no > no.log; touch {ready}; exec sleep 600"
    session_id = start(sessionrun, project, [{"id": "t", "prompt": prompt}], "--worktree")
    eventually(ready.exists)
    eventually(lambda: "+work" in sessionrun("diff", session_id).stdout)  # status.json lags
    kill_sessions(sessionrun.results)
    assert "+work" in sessionrun("diff", session_id).stdout
    removed = sessionrun.load("clean", session_id, "--worktrees")["findings"]
    assert [finding["removed"] for finding in removed] == [True, False]
    assert project.files("main-task-t") - project.files("main") == {"work.txt"}


def test_rules_of_the_user_still_count(project: Project) -> None:
    (project.top / ".git/info/exclude").write_text("*.tmp\n!kept.tmp\n")
    (project.root / "rules").write_bytes(b"\xef\xbb\xbf*.bak\nkept.tmp\n!caf\xe9\n# comment\n")
    project.run("config", "core.excludesFile", str(project.root / "rules"))
    names = ("a.tmp", "kept.tmp", "b.bak", "c")
    place, _ = project.cycle(lambda path: [(path / name).write_text(name) for name in names])
    assert project.files(place.commit or "") - project.files("main") == {"kept.tmp", "c"}


def test_the_users_file_is_found_where_git_finds_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(os.environ["HOME"])
    for folder, text in ((home / ".config", "home"), (home / "config", "xdg")):
        (folder / "git").mkdir(parents=True)
        (folder / "git" / "ignore").write_text(text)
    common = project.top / ".git"
    shutil.rmtree(common / "info")
    assert read_settings(project.top, common, common)[0] == "xdg\n"
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    assert read_settings(project.top, common, common)[0] == "home\n"
    (home / "mine").write_text("mine")
    project.run("config", "--global", "core.excludesFile", "~/mine")
    assert read_settings(project.top, common, common)[0] == "mine\n"
    project.run("config", "core.excludesFile", "")
    assert read_settings(project.top, common, common)[0] == "\n"


def test_the_copy_ignores_what_git_ignores(project: Project) -> None:
    """One list out of two files must not change which rule has the last word."""
    (project.root / "rules").write_text("*.o\n!keep.o\n/build/\n\\#odd\nsub/*.c\nspace\\ \n")
    project.run("config", "core.excludesFile", str(project.root / "rules"))
    (project.top / ".git/info/exclude").write_text("!sub/b.c\n*.x\r\nkeep.o\n")
    (project.top / "sub/.gitignore").write_text("!a.x\n")
    for name in ("a.o", "keep.o", "build/z", "#odd", "sub/a.c", "sub/b.c", "sub/a.x", "b.x", "space ", "plain"):
        (project.top / name).parent.mkdir(exist_ok=True)
        (project.top / name).write_text("")
    words = ignore_words(project.repository(), project.folder())
    git = Git(project.top)
    listed = git.names("ls-files", "-z", "--others", *words)
    assert listed == git.names("ls-files", "-z", "--others", "--exclude-standard")
    assert {"sub/b.c", "sub/a.x", "plain"} <= set(listed) and "keep.o" not in listed


def test_a_file_that_came_along_is_known_again_when_the_rules_were_changed(project: Project) -> None:
    exclude = project.top / ".git/info/exclude"
    exclude.write_text("secret\n")
    (project.top / ".worktreeinclude").write_text("secret\n*.log\n")
    (project.top / "secret").write_text("secret")
    (project.top / "env.log").write_text("env")

    def work(path: Path) -> None:
        assert (path / "secret").exists() and (path / "env.log").exists()
        exclude.unlink()
        (path / ".gitignore").unlink()

    place, _ = project.cycle(work)
    assert project.files(place.commit or "") == {"a.txt", "sub/b.txt"}
