"""PREPARE: a branch and a worktree of the task's own.

`git worktree add` is not safe beside itself: one reads what another has half written.  So worktrees are
registered one at a time, under a lock in the repository's common directory, and without files; the files are
checked out beside each other.  What cannot be made makes the task fail: it never runs in the user's checkout.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import orjson

from sessionrun.errors import SessionrunError
from sessionrun.git import Git, GitError
from sessionrun.model import Place, Repository
from sessionrun.store import replace_file
from sessionrun.workspaces import CLAIM, Claim, Request, load_claim

LOCK_NAME: Final = "sessionrun.lock"
LOCK_TIMEOUT_S: Final = 600.0
INCLUDE_FILE: Final = ".worktreeinclude"

_RACES: Final = ("commondir", "could not lock config file", ".lock': File exists", "index.lock")
"""What git says when another git (the user's, an agent's) was in its way; trying again helps."""

_RACE_TRIES: Final = 8
_RACE_PAUSE_S: Final = 0.05


def prepare(request: Request, folder: Path) -> Place:
    """Make the worktree; done again after a crash, finish or replace what was begun.

    Raises:
        SessionrunError: it cannot be made; nothing is left but the claim.
    """
    repository = request.repository
    git = Git(Path(repository.top))
    claim = load_claim(folder)
    with register_lock(repository):
        if claim is None or not _is_registered(git, claim):
            claim = _choose_names(git, request)
            replace_file(folder / CLAIM, orjson.dumps(claim), durable=True)
            _register(git, claim)
    path = Path(claim.worktree)
    try:
        Git(path)("reset", "--hard", "--quiet")
        _bring_files(git, request, path)
    except (SessionrunError, OSError):
        with register_lock(repository):
            _take_back(git, claim)
        raise
    return Place(branch=claim.branch, worktree=claim.worktree, base_commit=claim.base_commit)


@contextmanager
def register_lock(repository: Repository) -> Iterator[None]:
    """One process at a time adds, removes or renames worktrees of a repository.

    Raises:
        SessionrunError: another process held it for too long.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(
        Path(repository.common_dir) / LOCK_NAME, timeout=LOCK_TIMEOUT_S, fallback_to_soft=False, poll_interval=0.01
    )
    try:
        with lock:
            yield
    except Timeout as error:
        raise SessionrunError(f"{lock.lock_file} was held for {LOCK_TIMEOUT_S:g} s by another process") from error


def remove_worktree(git: Git, path: Path) -> None:
    """Take a worktree away: first out of the way by a rename, then out of git's books, then off the disk."""
    trash = path.with_name(f".trash-{path.name}-{os.getpid()}")
    if path.exists():
        os.rename(path, trash)
    git.attempt("worktree", "remove", "--force", "--force", "--", str(path))
    delete_tree(trash)


def delete_tree(path: Path) -> None:
    """Delete a directory tree, also one whose directories were made read-only; links are not followed."""
    if not path.exists():
        return
    _open_up(path)
    for root, folders, _ in os.walk(path):
        for name in folders:
            _open_up(Path(root) / name)
    shutil.rmtree(path)


def _open_up(path: Path) -> None:
    """Let us list and empty a directory of ours."""
    if not path.is_symlink() and os.stat(path).st_mode & 0o700 != 0o700:
        os.chmod(path, 0o700)


def _choose_names(git: Git, request: Request) -> Claim:
    """A branch and a directory that do not exist yet; a used name gets -2, -3 and so on."""
    repository = request.repository
    stem = f"{repository.base_branch}-task-{request.task}"
    pattern = f"refs/heads/{stem}*"
    taken = {
        name.removeprefix("refs/heads/")
        for name in git.line("for-each-ref", "--format=%(refname)", pattern).split("\n")
    }
    number = 1
    while True:
        branch = stem if number == 1 else f"{stem}-{number}"
        path = Path(repository.worktree_dir) / branch.replace("/", "-")
        if branch not in taken and not os.path.lexists(path):
            return Claim(branch, str(path), repository.base_commit, list(request.links))
        number += 1


def _register(git: Git, claim: Claim) -> None:
    Path(claim.worktree).parent.mkdir(parents=True, exist_ok=True)
    words = ("worktree", "add", "--quiet", "--no-checkout", "--no-track", "-b", claim.branch)
    for tries in range(_RACE_TRIES):
        try:
            git(*words, "--", claim.worktree, claim.base_commit)
            return
        except GitError as error:
            _take_back(git, claim)
            if tries + 1 == _RACE_TRIES or not any(race in error.stderr for race in _RACES):
                raise
        time.sleep(_RACE_PAUSE_S * (tries + 1))


def _take_back(git: Git, claim: Claim) -> None:
    """Undo a registration that failed; the branch only where it still is where we put it."""
    remove_worktree(git, Path(claim.worktree))
    git.attempt("update-ref", "-d", f"refs/heads/{claim.branch}", claim.base_commit)


def _is_registered(git: Git, claim: Claim) -> bool:
    """Whether an earlier start of this job came as far as the worktree."""
    listed = git.line("worktree", "list", "--porcelain").split("\n")
    return f"worktree {claim.worktree}" in listed and git.commit_of(f"refs/heads/{claim.branch}") is not None


def _bring_files(git: Git, request: Request, path: Path) -> None:
    """Copy what `.worktreeinclude` names and link what the task asks for, out of the user's checkout."""
    top = Path(request.repository.top)
    for name in included_files(git, top):
        target = path / name
        if not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(top / name, target, follow_symlinks=False)
    for link in request.links:
        source, target = top / link, path / link
        if not source.exists():
            raise SessionrunError(f"links: there is no {link} in {top}")
        if os.path.lexists(target):
            raise SessionrunError(f"links: {link} is tracked by git, so the worktree has its own")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)


def included_files(git: Git, top: Path) -> list[str]:
    """Ignored files of the checkout that `.worktreeinclude` (patterns as in gitignore(5)) asks for."""
    if not (top / INCLUDE_FILE).is_file():
        return []
    wanted = git.names("ls-files", "-z", "--others", "--ignored", f"--exclude-from={INCLUDE_FILE}")
    ignored = set(git.names("ls-files", "-z", "--others", "--ignored", "--exclude-standard"))
    return [name for name in wanted if name in ignored and not name.endswith("/")]
