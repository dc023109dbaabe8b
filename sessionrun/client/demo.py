"""The demo: a repository and tasks for scripts in the place of agents; two of them say more than they did."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from sessionrun.git.git import Git
from sessionrun.model.errors import InputError

CHECK: Final = 'for f in *.sh; do sh -n "$f" || exit; done'
EXPECTED: Final = {"landed": 2, "failed": 1, "skipped": 1, "changed_nothing": 1}
"""How many tasks end so."""


def make_demo(folder: Path) -> None:
    """Make the repository, with one commit.

    Raises:
        InputError: there is no git; the folder is there, or cannot be made.
    """
    if shutil.which("git") is None:
        raise InputError("the demo works in a git repository, and git is not installed")
    try:
        shutil.copytree(Path(__file__).with_name("demo_project"), folder)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; name another directory: sessionrun demo DIR") from None
    git = Git(folder)
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-q", "-m", "Begin")
