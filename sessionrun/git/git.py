"""Runs git and returns what it printed.  No policy: what to run, and what a failure means, is decided elsewhere.

Of all that a task may have written, our git reads only the files of its worktree: it runs in a private common
directory with the settings of the launch (see `git.private`), in an environment of its own, and each command
has a time limit.  Before a session has settings, at its launch, git reads the user's own.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.store import programs
from sessionrun.store.processes import JOB_MARKER

MINIMUM: Final = (2, 34)
"""Oldest git that is tried (Ubuntu 22.04).  Since 2.33 a worktree can be locked for a reason when it is added."""

_CLOSED: Final = "warning: could not open directory '"
"""What git says where it overlooks what is in a directory, and succeeds."""

READER_LIMIT_S: Final = 30.0
"""How long one git command of a verb that reads may take (seconds)."""

OVERRIDES: Final[Mapping[str, tuple[str, str]]] = {
    # what git would run
    "core.hooksPath": ("/dev/null", "hooks are programs"),
    "core.fsmonitor": ("false", "a monitor of the file system is a program, or asks one"),
    "core.alternateRefsCommand": ("", "a program that lists refs of another repository"),
    "diff.external": ("", "a program that shows differences"),
    "commit.gpgSign": ("false", "gpg is a program, and may ask for a password"),
    "gpg.program": ("false", "the same, whatever asks for a signature"),
    "gpg.ssh.program": ("false", "the same"),
    "gpg.x509.program": ("false", "the same"),
    "maintenance.auto": ("false", "a collection in the background outlives our command"),
    "protocol.allow": ("never", "no transport: nothing of ours is to reach another repository"),
    "submodule.recurse": ("false", "a submodule has settings of its own, which a task may write"),
    # what git would believe
    "core.trustctime": ("true", "a file that changed is seen by all that tells, whatever an agent has set"),
    "core.checkStat": ("default", "the same"),
    "core.untrackedCache": ("false", "a cache in the index may be out of date, or made up"),
    "core.splitIndex": ("false", "an index in two files cannot be copied"),
    # what git waits for
    "reftable.lockTimeout": ("10000", "all refs of a table have one lock, and each task's git takes it (ms)"),
}
"""Settings of every git command of ours, each with its reason; they win over all files.

What reaches another machine (ssh, proxies, credential helpers) stays out of this table.  Only the git that
fetches for a mirror has a transport (see `git.clone`), by the user's own settings.  A filter of the
user's, such as Git LFS, needs them as they were at the launch.  Aliases and includes are never in the settings of
a session, see `git.private`.
"""

ENVIRONMENT: Final[Mapping[str, tuple[str, str]]] = {
    "LC_ALL": ("C", "messages are compared with English ones"),
    "GIT_ALLOW_PROTOCOL": ("", "no transport is allowed, whatever `protocol.*.allow` says"),
    "GIT_NO_LAZY_FETCH": ("1", "a missing object is an error, and fetches nothing (git 2.44 and newer)"),
    "GIT_NO_REPLACE_OBJECTS": ("1", "refs/replace/ can show another content than a commit has"),
    "GIT_ATTR_NOSYSTEM": ("1", "the system's attributes are among those of the launch"),
    "GIT_TERMINAL_PROMPT": ("0", "no person is there to answer"),
    "GIT_ASKPASS": ("false", "the same"),
    "SSH_ASKPASS": ("false", "the same"),
    "GIT_EDITOR": ("false", "an editor waits for a person"),
    "GIT_SEQUENCE_EDITOR": ("false", "the same"),
    "GIT_PAGER": ("cat", "a pager waits for a person"),
    "GIT_OPTIONAL_LOCKS": ("0", "reading must not stand in the way of an agent's git"),
    "GIT_AUTHOR_NAME": ("sessionrun", "our commits are not the user's"),
    "GIT_AUTHOR_EMAIL": ("sessionrun@localhost", "the same"),
    "GIT_COMMITTER_NAME": ("sessionrun", "the same"),
    "GIT_COMMITTER_EMAIL": ("sessionrun@localhost", "the same"),
}
"""Variables of every git command of ours, each with its reason."""

_NO_FILES: Final = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull}
"""Git reads no settings from other files than that of its private common directory."""

_KEPT: Final = frozenset(
    ("GIT_EXEC_PATH", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL", "GIT_LFS_SKIP_SMUDGE")
)
"""The caller's `GIT_*` variables that say where programs and settings are, not which repository is meant."""

_OF_TRANSPORT: Final = (
    *("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_PROXY_COMMAND"),
    *("GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_CERT", "GIT_SSL_KEY", "GIT_SSL_NO_VERIFY"),
)
"""The caller's variables that say how another machine is reached; only for git that may reach one."""

CANNOT_RUN: Final = 127
"""The `code` of a `GitError` if there is no git, or the directory is gone."""

MARKER: Final = "SESSIONRUN_GIT"
"""Environment variable of all our git commands: the pid of the process that runs them."""

_TABLE_IS_LOCKED: Final = "cannot lock references"

_INSIDE: Final = ("PATH", "LC_ALL", MARKER, JOB_MARKER)
"""What git inside of walls has of the variables, beside git's: the filters that it runs may be a task's."""


class GitError(SessionrunError):
    """A git command failed; the message ends with the last line of its standard error."""

    def __init__(self, argv: Sequence[str], code: int, stderr: str) -> None:
        lines = [line for line in stderr.split("\n") if line.strip()]
        named = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
        reason = named[-1] if named else f"exit code {code}"
        if _TABLE_IS_LOCKED in reason:  # all refs of a table have one lock, which says not whose it is
            reason += (
                ": another git is at work, or was killed: then rm reftable/tables.list.lock in its git directory"
            )
        super().__init__(f"git {argv[0]}: {reason}")
        self.stderr = stderr
        self.code = code
        self.signal = -code if code < 0 else None


@frozen
class Git:
    """Git in one directory; `index` names another index file than the worktree's own.

    With `trial`, a directory of objects, new objects go there and refs stay where they are.  With `common`,
    a private common directory, git reads the settings there and no others; `git_dir` is then the administrative
    directory of the worktree, and `directory` its top.  No command takes longer than `limit_s` (seconds; None: any
    time).  With `protocols` git may reach other repositories by these, and the user's settings count, too.  With
    `walls`, which start a program as `programs.run` does, it runs inside of them.
    """

    directory: Path
    index: Path | None = None
    trial: Path | None = None
    common: Path | None = None
    git_dir: Path | None = None
    limit_s: float | None = READER_LIMIT_S
    protocols: tuple[str, ...] = ()
    walls: Callable[..., subprocess.CompletedProcess[bytes]] | None = None

    @property
    def admin(self) -> Path:
        """The git directory that it was given."""
        assert self.git_dir is not None
        return self.git_dir

    def __call__(
        self,
        *argv: str,
        stdin: bytes | int | None = None,
        stdout: int = subprocess.PIPE,
        codes: Sequence[int] = (0,),
    ) -> bytes:
        """Run git and return its standard output, if its exit code is one of `codes`; else raise `GitError`.

        What is of any size goes by files: `stdin` and `stdout` may be descriptors.
        """
        return check(argv, self.attempt(*argv, stdin=stdin, stdout=stdout), codes)

    def line(self, *argv: str) -> str:
        """The line that git prints; paths are spelled as in the file system."""
        return os.fsdecode(self(*argv).rstrip(b"\n"))

    def attempt(
        self, *argv: str, stdin: bytes | int | None = None, stdout: int = subprocess.PIPE
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git, whatever its exit code; it is an error if there is no git, or the time was up."""
        settings = [word for name, (value, _) in OVERRIDES.items() for word in ("-c", f"{name}={value}")]
        try:
            return (self.walls or programs.run)(
                ["git", *settings, *argv],
                cwd=self.directory,
                environ=self.environ(),
                limit_s=self.limit_s,
                stdin=stdin,
                stdout=stdout,
            )
        except subprocess.TimeoutExpired:
            raise GitError(argv, 124, f"fatal: not done after {self.limit_s:g} s, and stopped") from None
        except OSError as error:
            raise GitError(argv, CANNOT_RUN, f"cannot run git in {self.directory}: {error.strerror}") from error
        except ValueError as error:  # a NUL character: a name of a damaged spec
            raise GitError(argv, CANNOT_RUN, f"cannot run git: {error}") from None

    def names(self, *argv: str, stdin: bytes | None = None) -> list[str]:
        """The NUL-separated names that git prints (with ``-z``)."""
        return split_names(self(*argv, stdin=stdin))

    def list_files(self, *words: str) -> tuple[list[str], list[str]]:
        """What ``git ls-files`` prints, and the directories that it cannot open: it only warns of these."""
        argv = ("ls-files", "-z", *words)
        done = self.attempt(*argv)
        listed, errors = check(argv, done), done.stderr.decode("utf-8", "replace")
        closed = [line.removeprefix(_CLOSED).rpartition("/': ") for line in errors.split("\n") if _CLOSED in line]
        return split_names(listed), [f"{folder}/ cannot be read: {why}" for folder, _, why in closed]

    def list_refs(self, *words: str) -> dict[str, str]:
        """The refs that ``git for-each-ref`` finds by these words, by their full names: what each leads to."""
        lines = self.line("for-each-ref", "--format=%(refname) %(objectname)", *words).split("\n")
        return dict(line.split(" ") for line in lines if line)

    def list_branches(self, stem: str = "") -> dict[str, str]:
        """The branches whose names begin so, each with its commit; without a stem all."""
        refs = self.list_refs(f"refs/heads/{stem}*" if stem else "refs/heads")
        return {name.removeprefix("refs/heads/"): commit for name, commit in refs.items()}

    def commit_of(self, name: str) -> str | None:
        """The commit that a name stands for, or None."""
        done = self.attempt("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def set_ref(self, name: str, new: str, old: str | None) -> bool:
        """Move a ref from `old` to `new`, or make it if `old` is None; False: it is not at `old`, or is locked.

        Raises:
            GitError: the lock of a table is held for long, and so no other name can be had, either.
        """
        argv = ("update-ref", name, new, old or "0" * len(new))
        done = self.attempt(*argv)
        if _TABLE_IS_LOCKED in done.stderr.decode("utf-8", "replace"):
            check(argv, done)
        return done.returncode == 0

    def commit_tree(self, tree: str, parents: Iterable[str], message: str) -> str:
        """Make a commit of now."""
        words = [word for parent in parents for word in ("-p", parent)]
        text = message.encode("utf-8", "surrogateescape")
        return self("commit-tree", tree, *words, "-F", "-", stdin=text).decode().strip()

    def settle_index(self, commit: str) -> None:
        """Bring the index of a worktree up to date with the commit that holds all that lies there."""
        self.attempt("read-tree", commit)
        self.attempt("update-index", "-q", "--refresh")

    def with_index(self, path: Path) -> Git:
        """The same git with an index file that only this job uses: what is there is of a git that was killed."""
        for left in (path, path.with_name(f"{path.name}.lock")):
            left.unlink(missing_ok=True)
        return replace(self, index=path)

    def on_trial(self, objects: Path, common_dir: Path) -> Git:
        """The same git, with new objects in the directory `objects`, which is made if it is not there."""
        (objects / "info").mkdir(parents=True, exist_ok=True)
        (objects / "info" / "alternates").write_bytes(os.fsencode(common_dir / "objects") + b"\n")
        return replace(self, trial=objects)

    def environ(self) -> dict[str, str]:
        environ = git_environ(os.environ)
        if self.protocols:
            environ |= {name: os.environ[name] for name in _OF_TRANSPORT if name in os.environ}
            environ["GIT_ALLOW_PROTOCOL"] = ":".join(self.protocols)
        if self.common is not None:
            environ |= {} if self.protocols else _NO_FILES
            environ["GIT_COMMON_DIR"] = str(self.common)
            environ["GIT_DIR"] = str(self.git_dir or self.common)
            environ["GIT_WORK_TREE"] = str(self.directory)
        if self.index is not None:
            environ["GIT_INDEX_FILE"] = str(self.index)
        if self.trial is not None:
            environ["GIT_OBJECT_DIRECTORY"] = str(self.trial)
        if self.walls is not None:
            kept = {name: environ[name] for name in environ if name in _INSIDE or name.startswith("GIT_")}
            environ = {**kept, "HOME": "/tmp"}
        return environ


def git_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of our git commands, without the variables that name a repository.

    In a task's job the programs of its environment do not count, see `leave_task`.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("GIT_") or name in _KEPT}
    ours = {name: value for name, (value, _) in ENVIRONMENT.items()}
    return {**programs.leave_task(kept), **ours, MARKER: str(os.getpid())}


def check(argv: Sequence[str], done: subprocess.CompletedProcess[bytes], codes: Sequence[int] = (0,)) -> bytes:
    """What git printed, if its exit code is one of `codes`; else it is raised as a `GitError`."""
    if done.returncode not in codes:
        raise GitError(argv, done.returncode, done.stderr.decode("utf-8", "replace"))
    return done.stdout


def split_names(output: bytes) -> list[str]:
    """The names that git prints with ``-z``."""
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


def version(directory: Path) -> tuple[int, ...]:
    """Git's version; a `GitError` if there is no git, or its answer is not one."""
    answer = Git(directory).line("version")
    found = re.match(r"git version ([0-9]+)\.([0-9]+)", answer)
    if found is None:
        raise GitError(("version",), 0, f"it says {answer!r:.80}")
    return int(found[1]), int(found[2])
