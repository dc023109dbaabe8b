"""The version of a project that makes it from tags: in reach, out of reach, and told to the build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_excerpt import Upstream, git

from sessionrun.workspaces.environments.request import EnvironmentRequest
from sessionrun.workspaces.environments.version import VARIABLE, Told, find_version, guess_next
from sessionrun.workspaces.excerpt import make_excerpt

SCM = 'requires = ["setuptools", "setuptools_scm[toml]>=6"]'


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        ("v5.4.1", "5.4.2.dev0"),
        ("5.9", "5.10.dev0"),
        ("3", "4.dev0"),
        ("pkg-1.2", "1.3.dev0"),
        ("my-pkg-v1.2.3", "1.2.4.dev0"),
        ("6.0.0rc1", "6.0.0.dev0"),
        ("v4.0.dev", "4.0.dev0"),
        ("1.2+local", "1.3.dev0"),
        ("", None),
        ("nightly", None),
        ("release-2024-01-x", None),
        ("1.2.tar", None),
    ],
)
def test_the_version_after_a_tag(tag: str, version: str | None) -> None:
    assert guess_next(tag) == version


class Checkout:
    """A checkout of a repository of a task's own."""

    def __init__(self, upstream: Upstream, place: Path, commit: str) -> None:
        own, self.top = place / "own.git", place / "checkout"
        make_excerpt(own, upstream.mirror, commit, 0)
        git(own, "worktree", "add", "-q", "--detach", str(self.top), commit)
        top = str(self.top)
        self.request = EnvironmentRequest(
            top, top, str(place / "c"), str(place / "t"), "s/t", commit=commit, mirror=str(upstream.mirror)
        )

    def find(self, described: str = SCM, **environ: str) -> Told:
        return find_version(self.request, self.top, described, environ)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    """It is only read."""
    return Upstream(tmp_path_factory.mktemp("upstream"))


def test_a_tag_out_of_reach_is_told_to_the_build(upstream: Upstream, tmp_path: Path) -> None:
    """The last one before the base (v1), and never a later one; only where the project reads the variable."""
    checkout = Checkout(upstream, tmp_path, upstream.commits[3])
    told = Told("told 2.dev0", {VARIABLE: "2.dev0"})
    assert checkout.find() == told
    assert checkout.find('requires = ["hatch-vcs"]') == told
    assert checkout.find('requires = ["versioneer"]') == Told("")
    assert checkout.find('requires = ["setuptools"]') == Told()
    assert checkout.find(**{VARIABLE: "7"}) == Told(""), "what the user says goes first"
    for mirror in (None, str(tmp_path / "gone")):
        checkout.request = replace(checkout.request, mirror=mirror)
        assert checkout.find() == Told("")


def test_a_tag_in_reach_says_the_version_itself(upstream: Upstream, tmp_path: Path) -> None:
    assert Checkout(upstream, tmp_path, upstream.commits[4]).find() == Told("v2")


def test_without_an_earlier_tag_nothing_is_told(upstream: Upstream, tmp_path: Path) -> None:
    assert Checkout(upstream, tmp_path, upstream.commits[1]).find() == Told("")
