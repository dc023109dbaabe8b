"""What somebody has who just installed it: a demo, completion, the manual, and the command that adds an extra."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import pytest
from conftest import Command

from sessionrun.client import installation


def test_the_demo_ends_as_it_should_and_what_it_names_works(sessionrun: Command) -> None:
    done = sessionrun("demo", "place")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("$ cd place/project\n$ ")
    named = re.findall(r"^  (\S*sessionrun|git) (.*)$", done.stdout.rpartition("Look around:")[2], re.MULTILINE)
    assert [words.split()[0] for _, words in named] == ["status", "results", "diff", "log", "--worktree"]
    there = Command(sessionrun.cwd / "place" / "project", sessionrun.cwd / "place" / "project" / "results")
    said = [there(*shlex.split(words)).stdout for program, words in named if program != "git"][:3]
    assert "landed" in said[0] and "All tests pass" in said[1] and "+echo hello" in said[2]
    assert [path.name for path in sessionrun.cwd.iterdir()] == ["place"]

    again = sessionrun("demo", "place")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == (
        "sessionrun: error: place/project: File exists; name another directory: sessionrun demo DIR\n"
    )


def test_the_demo_without_git(sessionrun: Command, tmp_path: Path) -> None:
    done = sessionrun("demo", env={"PATH": str(tmp_path)}, real=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "git is not installed" in done.stderr, (
        done.stderr
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_completion(shell: str, sessionrun: Command) -> None:
    script = sessionrun("completion", shell).stdout
    assert "_SESSIONRUN_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "page"), [("", "sessionrun.1"), ("wait", "sessionrun-wait.1"), ("files", "sessionrun-files.5")]
)
def test_the_manual_is_found(words: str, page: str, sessionrun: Command, tmp_path: Path) -> None:
    if not any(file.name == page for file in files("sessionrun") or ()):
        pytest.skip("the package was installed before this page was made")
    man = tmp_path / "man"
    man.write_text("#!/bin/sh\necho shown: $1\n")
    man.chmod(0o700)
    shown = sessionrun("man", *words.split(), env={"PATH": str(tmp_path)}, real=True)
    assert shown.stdout.startswith("shown: /") and shown.stdout.endswith(f"/{page}\n"), shown.stderr
    missing = sessionrun("man", *words.split(), env={"PATH": os.devnull}, real=True)
    assert missing.returncode == 2 and missing.stderr.endswith(f"/{page}\n") and "`man`" in missing.stderr


@pytest.mark.parametrize(
    ("mark", "command"),
    [
        ("uv/archive-v0/abc/CACHEDIR.TAG", "uvx --from 'sessionrun[mcp]' sessionrun mcp"),
        ("uv/tools/sessionrun/uv-receipt.toml", "uv tool install 'sessionrun[mcp]'"),
        ("pipx/venvs/sessionrun/pipx_metadata.json", "pipx install --force 'sessionrun[mcp]'"),
        (".venv/pyvenv.cfg", f"{sys.executable} -m pip install 'sessionrun[mcp]'"),
    ],
)
def test_the_command_that_adds_an_extra(
    mark: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / mark
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.setattr(sys, "prefix", str(file.parent))
    said = str(installation.lack("mcp", "mcp", "mcp")).removeprefix("mcp: mcp is not installed; ")
    found = re.sub(r" @ [^']*'", "'", said)  # of a checkout it says where that is
    assert found == command
    assert (installation.name_command() == "uvx sessionrun") == command.startswith("uvx")
