"""Runs git and tells what it said.  No policy: what to run, and what a failure means, others decide.

Our git is on its own: no hooks, no prompts, no pager, no signing, the C locale, its own identity, and none of
the ``GIT_*`` variables by which a caller's git would redirect it (a hook's environment names another index).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sessionrun.errors import SessionrunError

MINIMUM: Final = (2, 31)
"""Oldest git whose worktree and plumbing commands do what is needed here."""

_SETTINGS: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "commit.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
    "submodule.recurse=false",
    "core.trustctime=true",  # what has changed is seen by all that tells, whatever an agent has set
    "core.checkStat=default",
)
_IDENTITY: Final = {
    "GIT_AUTHOR_NAME": "sessionrun",
    "GIT_AUTHOR_EMAIL": "sessionrun@localhost",
    "GIT_COMMITTER_NAME": "sessionrun",
    "GIT_COMMITTER_EMAIL": "sessionrun@localhost",
}
_QUIET: Final = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"}
_KEPT: Final = frozenset(
    (
        "GIT_SSL_CAINFO",
        "GIT_SSL_CAPATH",
        "GIT_EXEC_PATH",
        "GIT_CONFIG_NOSYSTEM",
        "GIT_CONFIG_SYSTEM",
        "GIT_CONFIG_GLOBAL",
        "GIT_LFS_SKIP_SMUDGE",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
    )
)
"""`GIT_*` variables that say where things are and how to get them, not which repository is meant."""


class GitError(SessionrunError):
    """A git command failed; the message has its last words."""

    def __init__(self, argv: Sequence[str], code: int, stderr: str) -> None:
        said = [line for line in stderr.split("\n") if line.strip()]
        named = [line for line in said if line.startswith(("fatal: ", "error: "))] or said
        super().__init__(f"git {argv[0]}: {named[-1] if named else f'exit code {code}'}")
        self.stderr = stderr
        self.code = code


@dataclass(frozen=True, slots=True)
class Git:
    """Git in one directory; `index` names another index file than the worktree's own.

    With `trial`, a directory of objects, all that is made goes there and refs stay where they are.
    """

    directory: Path
    index: Path | None = None
    trial: Path | None = None

    def __call__(self, *argv: str, stdin: bytes | None = None, codes: Sequence[int] = (0,)) -> bytes:
        """Run git and return its standard output.

        Raises:
            GitError: its exit code is none of `codes`.
        """
        done = self.attempt(*argv, stdin=stdin)
        if done.returncode not in codes:
            raise GitError(argv, done.returncode, done.stderr.decode("utf-8", "replace"))
        return done.stdout

    def line(self, *argv: str) -> str:
        """The one line that git prints; paths come back as the file system spells them."""
        return os.fsdecode(self(*argv).rstrip(b"\n"))

    def to_file(self, fd: int, *argv: str) -> None:
        """Run git with its standard output into a file, of any size.

        Raises:
            GitError: it failed.
        """
        done = self._run(argv, stdin=None, stdout=fd)
        if done.returncode != 0:
            raise GitError(argv, done.returncode, done.stderr.decode("utf-8", "replace"))

    def attempt(self, *argv: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run git, whatever its exit code.

        Raises:
            GitError: there is no git, or the directory is gone.
        """
        return self._run(argv, stdin=stdin, stdout=subprocess.PIPE)

    def names(self, *argv: str) -> list[str]:
        """The NUL-separated names that git prints (with ``-z``)."""
        return [os.fsdecode(name) for name in self(*argv).split(b"\0") if name]

    def commit_of(self, name: str) -> str | None:
        """The commit that a name stands for, or None."""
        done = self.attempt("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def set_ref(self, name: str, new: str, old: str | None) -> bool:
        """Move a ref from one commit to another, or make it (None); False: it is not there, or is locked."""
        if self.trial is not None:
            return self.commit_of(name) == old
        return self.attempt("update-ref", name, new, old or "0" * len(new)).returncode == 0

    def on_trial(self, objects: Path, common_dir: Path) -> Git:
        """The same, with `objects`, a new directory, for what it makes."""
        (objects / "info").mkdir(parents=True)
        (objects / "info" / "alternates").write_bytes(os.fsencode(common_dir / "objects") + b"\n")
        return replace(self, trial=objects)

    def _run(self, argv: Sequence[str], *, stdin: bytes | None, stdout: int) -> subprocess.CompletedProcess[bytes]:
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        environ = git_environ(os.environ)
        if self.index is not None:
            environ["GIT_INDEX_FILE"] = str(self.index)
        if self.trial is not None:
            environ["GIT_OBJECT_DIRECTORY"] = str(self.trial)
        source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        try:
            return subprocess.run(
                ["git", *settings, *argv],
                cwd=self.directory,
                env=environ,
                stdout=stdout,
                stderr=subprocess.PIPE,
                check=False,
                **source,
            )
        except OSError as error:
            raise GitError(argv, 127, f"cannot run git in {self.directory}: {error.strerror}") from error


def git_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of our own git commands."""
    kept = {name: value for name, value in environ.items() if not name.startswith("GIT_") or name in _KEPT}
    return {**kept, **_QUIET, **_IDENTITY}


def version(directory: Path) -> tuple[int, ...]:
    """Git's version.

    Raises:
        GitError: there is no git, or it says something else.
    """
    said = Git(directory).line("version")
    words = said.split()
    parts = words[2].split(".")[:2] if len(words) > 2 else []
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise GitError(("version",), 0, f"it says {said!r:.80}")
    return tuple(map(int, parts))
