"""Links of worktrees to what lies outside of the repository: they come along, and are never work."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import Command
from test_workspaces import Project

from sessionrun.git.links import describe_problem, find_name
from sessionrun.store.files import expand_path


@pytest.mark.slow
def test_links_out_of_the_repository_are_never_work(
    own_place: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what parking nor what the agent's own git commits holds them; what they lead to stays."""
    project = Project(own_place)
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(own_place / "results"))
    home = Path(os.environ["HOME"])
    (home / ".gitconfig").write_text("[user]\nname = Bob\nemail = bob@example.org\n")
    for folder in (own_place / "far" / ".shared", home / "notes", project.top.parent / "beside it"):
        folder.mkdir(parents=True)
        (folder / "f").write_text("there")
    links = [str(own_place / "far" / ".shared"), "~/notes", "../beside it"]
    prompt = "cat .shared/f notes/f 'beside it/f' && echo more > notes/g && echo work > new &&"
    tasks = [
        {"id": "parks", "prompt": f"{prompt} true", "links": links},
        {"id": "commits", "prompt": f"{prompt} git add -A && git commit -qm all", "links": links},
        {"id": "idle", "prompt": "true", "links": links},
    ]
    file = own_place / "plan.json"
    file.write_text(json.dumps({"prompts": tasks}))
    sessionrun.cwd = project.top
    done = sessionrun("run", "--sync", "--json", "--agent", "shell", "--worktree", str(file))
    shown = json.loads(done.stdout)
    sessionrun.sessions.append(shown["session_id"])
    found = {task["id"]: task for task in shown["tasks"]}
    assert [task["reason"] for task in found.values()] == [None, None, None]
    for name in ("parks", "commits"):
        assert found[name]["diff_stat"] == {"files": 1, "insertions": 1, "deletions": 0}
        changed = project.run("diff", "--name-only", "main", found[name]["branch"])
        assert changed == "new"
        assert found[name]["worktree"] is None
    assert found["idle"]["branch"] is None
    assert (home / "notes" / "g").read_text() == "more\n"
    assert (own_place / "far" / ".shared" / "f").exists()
    status = subprocess.run(["git", "status", "--porcelain"], cwd=project.top, capture_output=True, text=True)
    assert status.stdout == ""


@pytest.mark.parametrize(
    ("link", "target", "name"),
    [
        ("node_modules/", "/r/top/node_modules", "node_modules"),
        ("a/../b/c", "/r/top/b/c", "b/c"),
        ("../x", "/r/x", "x"),
        ("/r/top/inner/y", "/r/top/inner/y", "inner/y"),
        ("/r/topmost", "/r/topmost", "topmost"),
        ("~/z", "/home/u/z", "z"),
    ],
)
def test_where_links_stand_and_lead(monkeypatch: pytest.MonkeyPatch, link: str, target: str, name: str) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert (expand_path("/r/top", link), find_name("/r/top", link)) == (target, name)


def test_links_that_no_worktree_can_have(own_place: Path) -> None:
    top = str(own_place / "top")
    Path(top, ".git").mkdir(parents=True)
    for link in (".", "..", "/", ".git", "../top", "../../.git", top, str(own_place)):
        assert describe_problem(top, [link], link) is not None, link
