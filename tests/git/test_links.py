"""Links of worktrees to what lies outside of the repository: they come along, and are never work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Command
from test_workspaces import Project
from test_worktrees import by_id, finish, project

from sessionrun.git.links import describe_problem, find_name
from sessionrun.store.files import expand_path

__all__ = ["project"]


@pytest.mark.slow
def test_links_out_of_the_repository_are_never_work(
    own_place: Path, sessionrun: Command, project: Project
) -> None:
    """Neither what parking nor what the agent's own git commits holds them; what they lead to stays."""
    home = Path(os.environ["HOME"])
    for folder in (own_place / "far" / ".shared", home / "notes", project.top.parent / "beside it"):
        folder.mkdir(parents=True)
        (folder / "f").write_text("there")
    links = [str(own_place / "far" / ".shared"), "~/notes", "../beside it"]
    prompt = "cat .shared/f notes/f 'beside it/f' && echo more > notes/g && echo work > new &&"
    plan = [
        {"id": "parks", "prompt": f"{prompt} true", "links": links},
        {"id": "commits", "prompt": f"{prompt} git add -A && git commit -qm all", "links": links},
        {"id": "idle", "prompt": "true", "links": links},
    ]
    found = by_id(finish(sessionrun, project, plan))
    assert [task["reason"] for task in found.values()] == [None, None, None]
    for name in ("parks", "commits"):
        assert found[name]["diff_stat"] == {"files": 1, "insertions": 1, "deletions": 0}
        assert project.run("diff", "--name-only", "main", found[name]["branch"]) == "new"
        assert found[name]["worktree"] is None
    assert found["idle"]["branch"] is None
    assert (home / "notes" / "g").read_text() == "more\n"
    assert (own_place / "far" / ".shared" / "f").exists()
    assert project.run("status", "--porcelain") == ""


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
