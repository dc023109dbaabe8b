"""Reaching another repository: the one place where our git may use a network.

All worktrees of a mirror share its directory, so any task can write the ``config``, ``hooks``, ``remotes`` and
``shallow`` in it.  Our git never runs there.  It runs in a room: a private directory with links to the mirror's
objects and refs, and settings of its own.  Beside these only the user's files of settings count, with the
credential helpers and the ssh command that they name.  It asks no person, runs no hook, and reaches what the plan
names only.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.model.errors import RepositoryFailed
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import WORKSPACE_LIMIT_S
from sessionrun.model.upstreams import SCHEMES, is_path
from sessionrun.workspaces.git import Git, GitError

_SETTINGS: Final = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tlogAllRefUpdates = false\n"
_KINDS: Final = ("objects", "refs", "packed-refs")

_WORDS: Final = ("fetch", "--quiet", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance")
_FSYNC: Final = ("-c", "fetch.unpackLimit=1", "-c", "core.fsync=committed,reference")
"""What came is one pack, which git syncs, and the refs are synced, too."""

_NOT_TOLD: Final = ("warning:", "hint:", "and the repository exists", "Please make sure you have")
_GENERAL: Final = "fatal: Could not read from remote repository."
_SHALLOW: Final = "shallow roots are not allowed"
_LOCKED: Final = ("Unable to create", "cannot lock ref", "unable to lock")

_TRIES: Final = 20
_PAUSE_S: Final = 0.25


@frozen
class Room:
    """A private directory for git in the repository at `real`; `repo` is what it may reach."""

    git: Git
    real: Path
    repo: str

    def fetch(self, *refspecs: str, options: tuple[str, ...] = ()) -> None:
        """Fetch from the upstream; what came is durable.  Only a refspec with a plus sign replaces commits.

        Raises:
            RepositoryFailed: with what git says.
        """
        forced = all(refspec.startswith("+") for refspec in refspecs)
        # without this check git takes each update for one that replaces nothing
        check = "--no-show-forced-updates" if forced else "--show-forced-updates"
        self._reach(*_FSYNC, *_WORDS, "--update-head-ok", check, *options, "--", self.repo, *refspecs)

    def list_head(self) -> tuple[str | None, str | None]:
        """The branch that the upstream's HEAD names, and its commit; None where it names none, or has no commit.

        Raises:
            RepositoryFailed: with what git says.
        """
        listed = self._reach("ls-remote", "--symref", "--", self.repo, "HEAD").decode("utf-8", "replace")
        values = [
            value for value, _, name in (line.partition("\t") for line in listed.split("\n")) if name == "HEAD"
        ]
        branches = [value[16:] for value in values if value.startswith("ref: refs/heads/")]
        commits = [value for value in values if not value.startswith("ref: ")]
        return next(iter(branches), None), next(iter(commits), None)

    def _reach(self, *argv: str) -> bytes:
        git = replace(self.git, protocols=("file",) if is_path(self.repo) else SCHEMES)
        for left in reversed(range(_TRIES)):
            try:
                done = git.attempt(*argv)
                errors = done.stderr.decode("utf-8", "replace")
                if done.returncode != 0:
                    raise GitError(argv, done.returncode, errors)
            except GitError as error:
                if error.signal is not None:
                    raise
                if not left or not any(word in error.stderr for word in _LOCKED):
                    raise RepositoryFailed(f"{self.repo} cannot be fetched: {_explain(error)}") from error
                time.sleep(_PAUSE_S)  # an agent's own git has the lock of a ref
                continue
            if _SHALLOW in errors:
                raise RepositoryFailed(f"{self.repo} is a shallow clone: git fetch --unshallow makes it whole")
            return done.stdout
        raise AssertionError("the last try raises")


def _explain(error: GitError) -> str:
    """The lines of git that tell the most, as one."""
    lines = [line.strip() for line in error.stderr.split("\n") if line.strip() not in ("", "remote:")]
    lines = [line for line in lines if not line.startswith(_NOT_TOLD)]
    named = [line for line in lines if line != _GENERAL] or lines
    return "; ".join(dict.fromkeys(named[-3:])) or f"exit code {error.code}"


@contextmanager
def open_room(
    real: Path, repo: str, folder: Path | None = None, *, limit_s: float | None = WORKSPACE_LIMIT_S
) -> Iterator[Room]:
    """Make a private directory for git in a bare repository, for as long as it is needed.

    Args:
        real: the bare repository.
        repo: the URL or path that it may reach.
        folder: in which the room is made; None: the system's for temporary files.
        limit_s: how long each git command may take (seconds); None: as long as it needs.

    Raises:
        OSError: it cannot be made.
    """
    parent = None if folder is None else folder.absolute()
    with tempfile.TemporaryDirectory(prefix=".git-", dir=parent, ignore_cleanup_errors=True) as made:
        room = Path(made)
        for name in _KINDS:
            os.symlink(real / name, room / name)
        (room / "HEAD").write_bytes(b"ref: refs/heads/none\n")
        (room / "config").write_text(_SETTINGS)
        yield Room(Git(room, common=room, git_dir=room, limit_s=limit_s), real, repo)
