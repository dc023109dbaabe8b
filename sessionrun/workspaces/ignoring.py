"""What git is to ignore in a worktree: the rules as they were when the session was launched.

A ``.gitignore`` is work like any other file, and each worktree has its own.  The two other sources,
``info/exclude`` and the file that ``core.excludesFile`` names, are shared by all worktrees: a task that changed
them would make git overlook new files, its own and those of other tasks, which would then go with their
worktrees.  So they are read once, into the spec, and git is told to use that copy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from sessionrun.model.places import Repository
from sessionrun.store.files import make_directories, open_regular, read_regular, replace_file
from sessionrun.workspaces.git import Git

RULES: Final = "ignore-rules"
"""File in a job's folder: the copy, while git reads it."""


def hide_name(common_dir: Path, name: str) -> None:
    """Let git overlook a file in the top of every worktree, if `info/exclude` can be written."""
    path = common_dir / "info" / "exclude"
    rule = f"/{name}".encode()
    with suppress(OSError):
        make_directories(path.parent)
        present = read_regular(path) if os.path.lexists(path) else b""
        if rule in present.split(b"\n"):
            return
        line = (b"" if not present or present.endswith(b"\n") else b"\n") + rule + b"\n"
        with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), "wb") as stream:
            stream.write(line)


def ignore_words(repository: Repository, folder: Path) -> tuple[str, ...]:
    """Arguments with which ``git ls-files`` ignores by the repository's rules; the rules are put into `folder`.

    Args:
        repository: with its rules.
        folder: the folder of the job that runs git.
    """
    path = folder.absolute() / RULES
    replace_file(path, repository.excludes.encode(), durable=False)
    return ("--exclude-per-directory=.gitignore", f"--exclude-from={path}")


INCLUDE_FILE: Final = ".worktreeinclude"


def included_files(git: Git, top: Path, ignore: Sequence[str]) -> list[str]:
    """Ignored files (by `ignore_words`) of the checkout that `.worktreeinclude` (as gitignore(5)) asks for."""
    if not (top / INCLUDE_FILE).is_file():
        return []
    wanted = git.names("ls-files", "-z", "--others", "--ignored", f"--exclude-from={INCLUDE_FILE}")
    ignored = set(git.names("ls-files", "-z", "--others", "--ignored", *ignore))
    return [name for name in wanted if name in ignored and not name.endswith("/")]
