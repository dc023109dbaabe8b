"""The version of a project that makes it from tags: the tag that decides, and what its build sees of git."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from python_projects import lay_out_project, make_uv, make_wheels
from stages import git as git_of
from stages import make_repository_of
from test_excerpt import Upstream, git, upstream

from sessionrun.git.clone import make_excerpt
from sessionrun.git.repository import find_repository
from sessionrun.worktrees.env_make import make_environment
from sessionrun.worktrees.env_request import EnvironmentRequest, find_target
from sessionrun.worktrees.env_version import find_tag, find_tag_behind, make_build_repository

__all__ = ["upstream"]

SCM = {"pyproject.toml": 'requires = ["setuptools", "setuptools_scm[toml]>=6"]'}


@pytest.mark.parametrize(
    ("base", "history", "knows", "tag", "seen"),
    [
        (3, 0, "mirror", "v1", "v1-0"),
        (3, 0, "node", "v1", "v1-0"),
        (3, 0, "gone", "", None),
        (4, 1, "mirror", "v2", "v2-0"),
        (9, 1, "mirror", "v9", "v9-1"),
        (1, 1, "mirror", "", None),
    ],
)
def test_a_build_sees_the_last_tag_before_its_commit(
    upstream: Upstream, tmp_path: Path, base: int, history: int, knows: str, tag: str, seen: str | None
) -> None:
    """One that is out of reach marks the first commit that is there; a later one never does, nor in the task."""
    top, build, commit = tmp_path / "top", tmp_path / "build", upstream.commits[base]
    make_excerpt(top / ".git", upstream.mirror, commit, history)
    git(top, "config", "core.bare", "false")
    git(top, "checkout", "-q", "--detach", commit)
    before = git(top, "for-each-ref")
    mirror = {"mirror": str(upstream.mirror), "gone": str(tmp_path / "gone"), "node": None}[knows]
    behind = find_tag_behind(str(upstream.mirror), commit) if knows == "node" else None
    target = find_target(str(tmp_path), "s", "t", 1)
    request = EnvironmentRequest(str(top), str(top), target, commit=commit, mirror=mirror, tag=behind)
    assert find_tag(request, top, SCM) == tag
    assert find_tag(request, top, {"pyproject.toml": 'requires = ["setuptools"]'}) is None
    shutil.copytree(top, build, ignore=shutil.ignore_patterns(".git"))
    make_build_repository(request, top, build)
    described = git(build, *["describe", "--tags", "--long", "--dirty", "--always", "--match", "*[0-9]*"])
    assert described == (commit[:7] if seen is None else f"{seen}-g{commit[:7]}")
    assert git(top, "for-each-ref") == before


@pytest.mark.slow
def test_an_installer_works_in_a_repository_of_its_own(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can ask for the version, and changes nothing of the user's."""
    top = lay_out_project(own_place / "top")
    make_repository_of(top, {})
    git_of(top, "tag", "v1")
    make_uv(own_place / "bin", make_wheels(own_place / "wheels"))
    monkeypatch.setenv("PATH", os.pathsep.join((str(own_place / "bin"), os.environ["PATH"])))
    program, seen = own_place / "bin" / "uv", own_place / "seen"
    asks = f"git describe --tags --long --dirty > {seen}; git tag planted; git config planted.key 1"
    program.write_text(program.read_text().replace("exec ", f'[ "$1" != pip ] || {{ {asks}; }}\nexec ', 1))
    repository, _ = find_repository(top, base=None, worktree_dir=own_place / "w", keep="never")
    commit, target = repository.base_commit, find_target(str(own_place / "cache"), "s", "t", 1)
    request = EnvironmentRequest(str(top), str(top), target, repository=repository, commit=commit, copy=False)
    before = git_of(top, "config", "--list"), git_of(top, "for-each-ref")
    assert make_environment(request, own_place).problem is None
    assert seen.read_text() == f"v1-0-g{commit[:7]}\n"
    assert (git_of(top, "config", "--list"), git_of(top, "for-each-ref")) == before
