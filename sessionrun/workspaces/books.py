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

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import GitSettings, Repository
from sessionrun.store.files import no_umask, open_regular, read_regular
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.request import Claim

MARK: Final = "sessionrun"
"""File in a worktree's administrative directory: its owner and, on a second line, its branch."""

_DRAFT: Final = ".sessionrun-draft"
"""Where an entry is made: in the repository, but not among git's worktrees.  Only the holder of the lock makes
it.
"""

_NAME_TRIES: Final = 1000
_UNFIT: Final = re.compile(r"^\.|[^\w.-]|\.\.|\.lock$|\.$")
"""What the name of an administrative directory must not contain: the name is part of the names of refs."""

_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755
"""What a umask of 022 leaves; `core.sharedRepository` adds to it."""

_OF_ONE_CHECKOUT: Final = re.compile(rb"(?im)^\s*(bare|worktree)\b")
"""`core.bare` and `core.worktree` are about the checkout that they stand in, and are not copied."""


def enter_books(repository: Repository, settings: GitSettings, path: Path, claim: Claim) -> Path:
    """Make `path`, an empty directory, the worktree of the claim's branch; under the lock.

    Returns its administrative directory.

    Raises:
        SessionrunError: the repository keeps its refs in a format that this version does not know.
        OSError: the entry cannot be written.
    """
    _check_format(settings)
    common = Path(repository.common_dir)
    draft = common / _DRAFT
    if draft.exists():
        import shutil  # slow to load, and a PREPARE has no time for that

        shutil.rmtree(draft)  # a process was killed here
    shared = _find_shared_rights(settings)
    _make_folder(draft, shared)
    _write(draft / MARK, f"{claim.owner}\n{claim.branch}\n".encode(), shared)
    _write(draft / "commondir", b"../..\n", shared)
    _write(draft / "HEAD", f"ref: refs/heads/{claim.branch}\n".encode(), shared)
    _write(draft / "gitdir", os.fsencode(path / ".git") + b"\n", shared)
    _bring_own_settings(draft, path, repository, settings, shared)
    _make_folder(common / "worktrees", shared)
    name = _UNFIT.sub("-", path.name)
    for number in range(_NAME_TRIES):
        admin = common / "worktrees" / (name + (str(number) if number else ""))
        if os.path.lexists(admin):
            continue
        _write(path / ".git", b"gitdir: " + os.fsencode(admin) + b"\n", shared)
        os.rename(draft, admin)
        return admin
    raise SessionrunError(f"no name like {path.name} is free in {common / 'worktrees'}")


def _check_format(settings: GitSettings) -> None:
    storage = next((value for name, value in settings.config if name == "extensions.refstorage"), None)
    if storage not in (None, "files"):
        raise SessionrunError(f"worktrees need refs in files; this repository keeps them as {storage}")


def _find_shared_rights(settings: GitSettings) -> int:
    """The rights to write that `core.sharedRepository` gives to group and others (git-config(1)); 0 as a rule."""
    values = [value for name, value in settings.config if name == "core.sharedrepository"]
    word = values[-1] if values else "umask"
    if word in ("umask", ""):
        return 0
    if word is None:  # a name without a value is true
        return 0o020
    try:
        number = int(word, 8)
    except ValueError:
        return 0 if word.lower() in ("false", "no", "off") else 0o020
    return 0o020 if number in (1, 2) else number & 0o022


def _make_folder(path: Path, shared: int) -> None:
    """Make a directory if there is none; group and others write in it only if the repository is shared so."""
    with no_umask() as umask:
        path.mkdir((_FOLDER_MODE | shared) & ~(umask & 0o077), exist_ok=True)


def _write(path: Path, content: bytes, shared: int) -> None:
    """Write a new file; group and others write it only if the repository is shared so."""
    fd = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE | shared)
    with os.fdopen(fd, "wb") as stream:
        stream.write(content)


def bring_settings(admin: Path, path: Path, repository: Repository, settings: GitSettings) -> None:
    """Give a worktree that is used again the settings of its own that a new one gets."""
    _bring_own_settings(admin, path, repository, settings, _find_shared_rights(settings))


def _bring_own_settings(
    draft: Path, path: Path, repository: Repository, settings: GitSettings, shared: int
) -> None:
    """Copy what `git worktree add` copies for agents that run git: which files a sparse checkout has."""
    for name in ("config.worktree", "info/sparse-checkout"):
        content = _read(Path(settings.git_dir) / name)
        if content and not _OF_ONE_CHECKOUT.search(content):
            _make_folder((draft / name).parent, shared)
            _write(draft / name, content, shared)
    if b"worktreeconfig" in _read(Path(repository.common_dir, "config")).lower() and _has_checkout(repository):
        # With this extension git believes both also in linked worktrees.  The worktree of a submodule's repository
        # says that it is the submodule then, and `git clean` of a task deletes files of the user.
        place = os.fsencode(path).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        own = _read(draft / "config.worktree") + b'[core]\n\tbare = false\n\tworktree = "%s"\n' % place
        _write(draft / "config.worktree", own, shared)


def _has_checkout(repository: Repository) -> bool:
    """Whether the settings that all worktrees share say where the main one is, and hold in each of them."""
    git = Git(Path(repository.common_dir))
    words = ("config", "--file", str(git.directory / "config"), "--no-includes", "-z", "--get-regexp")
    found = git.names(*words, r"^(core\.(bare|worktree)|extensions\.worktreeconfig)$")
    values = dict(entry.partition("\n")[::2] for entry in found)
    is_on = values.get("extensions.worktreeconfig", "false").lower() not in ("false", "no", "off", "0")
    return is_on and ("core.worktree" in values or values.get("core.bare", "false").lower() != "false")


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError:
        return b""
