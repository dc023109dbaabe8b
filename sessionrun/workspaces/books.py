"""Entering a worktree into git's books: its administrative directory, made whole and put in place by one rename.

`git worktree add` would read the settings that all worktrees share, which any task may have changed, and two of
them stand in each other's way.  What it writes is described in gitrepository-layout(5): ``gitdir`` names the
worktree's ``.git``, which names the directory; ``commondir`` leads to what is shared; ``HEAD`` names the branch.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from sessionrun.errors import SessionrunError
from sessionrun.model import GitSettings, Repository
from sessionrun.regular import read_regular
from sessionrun.workspaces import Claim

MARK: Final = "sessionrun"
"""File in a worktree's administrative directory: its owner and, on a second line, its branch."""

_DRAFT: Final = ".sessionrun-draft"
"""What is not whole yet: in the repository, but not among git's worktrees.  Only the holder of the lock makes
it.
"""

_NAME_TRIES: Final = 1000
_UNFIT: Final = re.compile(r"^\.|[^\w.-]|\.\.|\.lock$|\.$")
"""What the name of an administrative directory does not have: it is part of the names of refs."""

_OF_ONE_CHECKOUT: Final = re.compile(rb"(?im)^\s*(bare|worktree)\b")
"""`core.bare` and `core.worktree` are about the checkout that they stand in, and are not copied."""


def enter_books(repository: Repository, settings: GitSettings, path: Path, claim: Claim) -> Path:
    """Make `path`, an empty directory, the worktree of the claim's branch; under the lock.

    Returns its administrative directory.

    Raises:
        SessionrunError: the repository keeps its refs in a way that is not known here.
        OSError: it cannot be written.
    """
    _check_format(settings)
    common = Path(repository.common_dir)
    draft = common / _DRAFT
    if draft.exists():
        import shutil  # slow to load, and a PREPARE has no time for that

        shutil.rmtree(draft)  # a process was killed here
    draft.mkdir()
    (draft / MARK).write_text(f"{claim.owner}\n{claim.branch}\n", encoding="utf-8")
    (draft / "commondir").write_text("../..\n")
    (draft / "HEAD").write_text(f"ref: refs/heads/{claim.branch}\n", encoding="utf-8")
    (draft / "gitdir").write_bytes(os.fsencode(path / ".git") + b"\n")
    _bring_own_settings(draft, Path(settings.git_dir))
    (common / "worktrees").mkdir(exist_ok=True)
    name = _UNFIT.sub("-", path.name)
    for number in range(_NAME_TRIES):
        admin = common / "worktrees" / (name + (str(number) if number else ""))
        if os.path.lexists(admin):
            continue
        (path / ".git").write_bytes(b"gitdir: " + os.fsencode(admin) + b"\n")
        os.rename(draft, admin)
        return admin
    raise SessionrunError(f"no name like {path.name} is free in {common / 'worktrees'}")


def _check_format(settings: GitSettings) -> None:
    storage = next((value for name, value in settings.config if name == "extensions.refstorage"), None)
    if storage not in (None, "files"):
        raise SessionrunError(f"worktrees need refs in files; this repository keeps them as {storage}")


def _bring_own_settings(draft: Path, git_dir: Path) -> None:
    """What `git worktree add` copies for agents that run git: which files a sparse checkout has."""
    for name in ("config.worktree", "info/sparse-checkout"):
        try:
            content = read_regular(git_dir / name)
        except OSError:
            continue
        if not _OF_ONE_CHECKOUT.search(content):
            (draft / name).parent.mkdir(exist_ok=True)
            (draft / name).write_bytes(content)
