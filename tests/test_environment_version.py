"""The version of a project that makes it from tags: in reach, out of reach, and told to the build."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from python_projects import lay_out_project, make_uv, make_wheels
from test_excerpt import Upstream, git, upstream

from sessionrun.git.clone import make_excerpt
from sessionrun.worktrees.env_make import make_environment
from sessionrun.worktrees.env_request import EnvironmentRequest
from sessionrun.worktrees.env_version import (
    VARIABLE,
    Told,
    find_tag_behind,
    find_version,
    guess_next,
    name_variable,
)

__all__ = ["upstream"]

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
            top, top, str(place / "c"), str(place / "t"), commit=commit, mirror=str(upstream.mirror)
        )

    def find(self, described: str = SCM, *, setup: str = "", settings: str = "", **environ: str) -> Told:
        texts = {"pyproject.toml": described, "setup.py": setup, "setup.cfg": settings}
        return find_version(self.request, self.top, texts, environ)


def test_a_tag_out_of_reach_is_told_to_the_build(upstream: Upstream, tmp_path: Path) -> None:
    """The last one before the base (v1), and never a later one; only where the project reads the variable."""
    checkout = Checkout(upstream, tmp_path, upstream.commits[3])
    told = Told("told 2.dev0", {VARIABLE: "2.dev0"})
    assert checkout.find() == told
    assert checkout.find('requires = ["hatch-vcs"]') == told
    assert checkout.find('requires = ["versioneer"]') == Told("")
    assert checkout.find('requires = ["setuptools"]') == Told()
    assert checkout.find(**{VARIABLE: "7"}) == Told(""), "what the user says goes first"
    tag = find_tag_behind(str(upstream.mirror), upstream.commits[3])
    checkout.request = replace(checkout.request, mirror=None, tag=tag)  # as on a node
    assert checkout.find() == told
    checkout.request = replace(checkout.request, tag=None)
    for mirror in (None, str(tmp_path / "gone")):
        checkout.request = replace(checkout.request, mirror=mirror)
        assert checkout.find() == Told("")


def test_a_tag_in_reach_says_the_version_itself(upstream: Upstream, tmp_path: Path) -> None:
    assert Checkout(upstream, tmp_path, upstream.commits[4]).find() == Told("v2")


def test_without_an_earlier_tag_nothing_is_told(upstream: Upstream, tmp_path: Path) -> None:
    assert Checkout(upstream, tmp_path, upstream.commits[1]).find() == Told("")


@pytest.mark.parametrize(
    ("name", "spelled"),
    [("demo", "DEMO"), ("My.Package", "MY_PACKAGE"), ("a-b_c.d", "A_B_C_D"), ("a-_.b", "A_B")],
)
def test_the_variable_of_one_project(name: str, spelled: str) -> None:
    assert name_variable(name) == f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{spelled}"


BUILD = f"[build-system]\n{SCM}\n"
NAMED = f'{BUILD}[project]\nname = "my-demo"\n'
METADATA = "[metadata]\nname = my.demo\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({"described": NAMED}, True),
        ({"described": NAMED, "settings": "[metadata]\nname = other\n"}, True),
        ({"described": BUILD, "settings": METADATA}, True),
        ({"described": "", "settings": f"{METADATA}[options]\nsetup_requires = setuptools_scm\n"}, True),
        ({"described": BUILD, "setup": "setup(name='my-demo', use_scm_version=True)"}, False),
        ({"described": BUILD, "settings": "[metadata]\nname = attr: demo.NAME\n"}, False),
        ({"described": BUILD, "settings": "no settings"}, False),
        ({"described": f"{BUILD}[project]\nname = 3\n"}, False),
        ({"described": NAMED, "setup": "setup(version=setuptools_scm.get_version())"}, False),
        ({"described": NAMED.replace(">=6", "<5")}, False),
        ({"described": NAMED.replace("setuptools_scm[toml]>=6", "hatch-vcs")}, False),
    ],
)
def test_only_the_project_itself_is_told_if_its_name_is_known(
    upstream: Upstream, tmp_path: Path, texts: dict[str, str], named: bool
) -> None:
    checkout, variable = Checkout(upstream, tmp_path, upstream.commits[3]), name_variable("my-demo")
    by_name = Told("told 2.dev0 by name", {variable: "2.dev0"})
    assert checkout.find(**texts) == (by_name if named else Told("told 2.dev0", {VARIABLE: "2.dev0"}))
    own = variable if named else VARIABLE
    assert checkout.find(**texts, **{own: "7"}) == Told(""), "what the user says goes first"


@pytest.mark.slow
def test_the_installer_gets_the_variable_of_the_project_alone(
    upstream: Upstream, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each dependency that it builds from source would get the version of the project."""
    checkout = Checkout(upstream, own_place, upstream.commits[3])
    lay_out_project(checkout.top)
    (checkout.top / "setup.cfg").write_text("[options]\nsetup_requires = setuptools_scm\n")
    make_uv(own_place / "bin", make_wheels(own_place / "wheels"))
    monkeypatch.setenv("PATH", os.pathsep.join((str(own_place / "bin"), os.environ["PATH"])))
    program, seen = own_place / "bin" / "uv", own_place / "seen"
    program.write_text(program.read_text().replace("exec ", f'[ "$1" = venv ] || env > {seen}\nexec ', 1))
    assert make_environment(replace(checkout.request, copy=False), own_place).problem is None
    told = [line for line in seen.read_text().splitlines() if line.startswith(VARIABLE)]
    assert told == [f"{VARIABLE}_FOR_DEMO=2.dev0"]
