"""Repositories that are not the user's: how they are laid out, excerpts, reaching others, and their large files.

An excerpt is the repository of one task alone: the base, some commits before it and their tags, out of a mirror.
An agent that looks at all commits, or at all objects, finds no later commit in it: objects are not borrowed but
fetched.  It is made under another name, and renamed when it is whole: what has the final name can be trusted, and
a PREPARE that is done again takes it as it is.

This is the one place where our git may use a network.  All worktrees of a mirror share its directory, so any task
can write the ``config``, ``hooks``, ``remotes`` and ``shallow`` in it.  Our git never runs there.  It runs in a
room: a private directory with links to the mirror's objects and refs, and settings of its own.  Beside these only
the user's files of settings count, with the credential helpers and the ssh command that they name.  It asks no
person, runs no hook, and reaches what the plan names only.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.git import Git, GitError, split_names
from sessionrun.git.private import word_settings
from sessionrun.model.errors import RepositoryFailed
from sessionrun.model.frozen import frozen
from sessionrun.model.places import SCHEMES, WORKSPACE_LIMIT_S, is_path, list_formats
from sessionrun.store.files import list_folders, make_directories, open_regular, read_regular
from sessionrun.store.trees import make_entry, remove_entry, sweep_entry

_ROOM_SETTINGS: Final = (
    ("core.repositoryformatversion", "1"),
    ("core.bare", "true"),
    ("core.logAllRefUpdates", "false"),
)
_KINDS: Final = ("objects", "refs", "packed-refs")
_FORMAT_KEYS: Final = r"^extensions\.(refstorage|objectformat)$"
"""How a repository keeps its refs, and names its objects: git understands it by these alone."""

_WORDS: Final = ("fetch", "--quiet", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance")
_FETCH_FSYNC: Final = ("-c", "fetch.unpackLimit=1", "-c", "core.fsync=committed,reference")
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
        """Fetch from the upstream; what came is durable.  Only a refspec with a plus sign replaces commits."""
        forced = all(refspec.startswith("+") for refspec in refspecs)
        # without this check git takes each update for one that replaces nothing
        check = "--no-show-forced-updates" if forced else "--show-forced-updates"
        self._reach(*_FETCH_FSYNC, *_WORDS, "--update-head-ok", check, *options, "--", self.repo, *refspecs)

    def list_head(self) -> tuple[str | None, str | None]:
        """The branch that the upstream's HEAD names, and its commit; None where there is none."""
        listed = self._reach("ls-remote", "--symref", "--", self.repo, "HEAD").decode("utf-8", "replace")
        branch = re.search(r"^ref: refs/heads/(.+)\tHEAD$", listed, re.MULTILINE)
        commit = re.search(r"^([0-9a-f]+)\tHEAD$", listed, re.MULTILINE)
        return branch and branch[1], commit and commit[1]

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
        repo: the URL or path that it may reach.
        folder: in which the room is made; None: the system's for temporary files.
    """
    parent = None if folder is None else folder.absolute()
    with tempfile.TemporaryDirectory(prefix=".git-", dir=parent, ignore_cleanup_errors=True) as made:
        room = Path(made)
        for name in (*_KINDS, *(["reftable"] if (real / "reftable").is_dir() else [])):
            os.symlink(real / name, room / name)
        (room / "HEAD").write_bytes(b"ref: refs/heads/none\n")
        words = ("config", "--file", str(real / "config"), "--no-includes", "-z", "--get-regexp", _FORMAT_KEYS)
        pairs = (pair.partition("\n") for pair in split_names(Git(room).attempt(*words).stdout))
        formats = [(key, value) for key, _, value in pairs]
        (room / "config").write_text(word_settings((*_ROOM_SETTINGS, *formats)))
        yield Room(Git(room, common=room, git_dir=room, limit_s=limit_s), real, repo)


BASE: Final = "refs/sessionrun/base"
"""In an excerpt: holds the base, so that no collection takes it away."""

_SETTINGS: Final = (("core.repositoryformatversion", "1"), ("gc.auto", "0"), ("maintenance.auto", "false"))
"""For the git of agents and of people, too: no collection of theirs takes commits away."""


def make_repository(
    git_dir: Path,
    head: str,
    settings: Iterable[tuple[str, str | None]] = (),
    *,
    of: Path | None = None,
    refs: bytes = b"",
) -> None:
    """Make a git directory without objects of its own; what is there of it stays.

    Args:
        head: a commit, or ``ref: `` and the name of a branch.
        settings: beside those of each such repository.
        of: the git directory whose objects it borrows, and those that are borrowed there, and where history ends.
        refs: as they stand in ``packed-refs``.
    """
    shallow = of / "shallow" if of is not None else None
    # all stores by name: walls may hide where those of `of` are
    stores = () if of is None else (str(of / "objects"), *list_alternates(of))
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (git_dir / name).mkdir(parents=True, exist_ok=True)
    files = {
        "packed-refs": refs,
        "shallow": read_regular(shallow) if shallow is not None and shallow.exists() else b"",
        "objects/info/alternates": b"".join(os.fsencode(path) + b"\n" for path in stores),
        "HEAD": os.fsencode(f"{head}\n"),
    }
    for name, content in files.items():
        if content:
            (git_dir / name).write_bytes(content)
    write_settings(git_dir, settings)


def write_settings(git_dir: Path, settings: Iterable[tuple[str, str | None]]) -> None:
    """Let these be the settings of a repository that is not the user's, beside those that each of them has."""
    (git_dir / "config").write_bytes(os.fsencode(word_settings((*_SETTINGS, *settings))))


def list_tags(git: Git, commit: str) -> bytes:
    """The tags before a commit, by which some projects find their version, as of `make_repository`."""
    return git("for-each-ref", "--format=%(objectname) %(refname)", f"--merged={commit}", "refs/tags")


def sync_repository(git_dir: Path) -> None:
    """Make durable what git does not sync: names, and files of ours.  Packs it does."""
    for folder, _, names in os.walk(git_dir):
        inside = os.path.relpath(folder, git_dir).split(os.sep)
        for name in (".", *(names if inside[0] != "objects" else ())):
            fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def make_excerpt(
    path: Path,
    mirror: Path,
    commit: str,
    history: int,
    folder: Path | None = None,
    *,
    limit_s: float | None = None,
) -> None:
    """Make an excerpt, unless it is there; on an error nothing is left.

    Args:
        path: where it goes, absolute.
        mirror: from which it is fetched; it is not removed meanwhile.
        commit: the base.
        history: how many commits before the base it has, in each line of them.
        folder: for temporary files; None: the system's.
    """
    if path.is_dir():
        return
    make_directories(path.parent)
    with make_entry(path, sync_repository) as draft:
        make_repository(draft, "ref: refs/heads/none", [("core.bare", "true"), *list_formats(commit)])
        with (
            open_room(mirror, "", folder, limit_s=limit_s) as source,
            open_room(draft, str(source.git.directory), folder, limit_s=limit_s) as room,
        ):
            room.fetch(f"+{commit}:{BASE}", options=(f"--depth={history + 1}", "--no-tags"))
            if tags := list(_find_tags(source.git, room.git, commit)):
                room.fetch(*tags, options=("--no-tags",))
            shallow = room.git.directory / "shallow"
            if shallow.exists():
                (draft / "shallow").write_bytes(shallow.read_bytes())


def drop_excerpt(path: Path) -> None:
    """Remove an excerpt, if it holds no branch and no worktree, and what a crash left of others of its name."""
    sweep_entry(path)
    heads, worktrees, packed = path / "refs" / "heads", path / "worktrees", path / "packed-refs"
    has_branch = any(one.is_file() for one in heads.rglob("*"))
    has_branch = has_branch or (packed.is_file() and b" refs/heads/" in packed.read_bytes())
    if not has_branch and not (worktrees.is_dir() and os.listdir(worktrees)):
        remove_entry(path)


_FORMAT: Final = "%(refname)%00%(objectname)%00%(objecttype)%00%(object)%00%(type)%00%(taggerdate:unix)"


def _find_tags(source: Git, own: Git, base: str) -> Iterator[str]:
    """What is to be fetched of tags, by which projects find their version: those of the commits of an excerpt.

    A tag of a later commit is left out, and a tag of a tag.  A tag object that was made after the base could tell
    of what came later: then the name alone is there, and points at the commit itself.
    """
    commits = set(own.line("rev-list", base).split("\n"))
    made_at = int(own.line("show", "--no-patch", "--format=%ct", base))
    for line in filter(None, source.line("for-each-ref", f"--format={_FORMAT}", "refs/tags").split("\n")):
        ref, name, kind, inner, inner_kind, tagged_at = line.split("\0")
        if kind == "commit" and name in commits:
            yield f"+{name}:{ref}"
        elif kind == "tag" and inner_kind == "commit" and inner in commits:
            in_time = tagged_at.isdigit() and int(tagged_at) <= made_at
            yield f"+{name if in_time else inner}:{ref}"


def list_alternates(common_dir: Path) -> Iterator[str]:
    """The stores of objects, as absolute paths, from which the repository borrows, and from which those do."""
    left, seen = [common_dir / "objects"], set()
    while left:
        objects = left.pop()
        try:
            content = read_regular(objects / "info" / "alternates", 1 << 20).decode("utf-8", "surrogateescape")
        except OSError:
            continue
        for line in content.splitlines():
            path = os.path.normpath(objects / line)
            if line and not line.startswith("#") and path not in seen:
                seen.add(path)
                left.append(Path(path))
                yield path


# --- large files, which Git LFS keeps beside the objects ---

_LARGE: Final = Path("lfs", "objects")
"""In a common directory: files by the first two, the next two and all digits of their names."""

_LARGE_DRAFTS: Final = Path("lfs", "tmp")
"""In a common directory: where Git LFS has files that are not whole, and deletes what was left there."""

_LARGE_NAME: Final = re.compile("[0-9a-f]{64}")
_CHUNK: Final = 1 << 20


def take_large_files(git_dir: Path, common_dir: Path) -> None:
    """Copy the large files that a task has stored in its git directory into the repository's store, if it has one.

    The task owns the directory that they lie in.  So one counts only if it is a regular file whose name is the
    SHA-256 of its content; then it is of no matter where it comes from.
    """
    top = git_dir / _LARGE
    if not (common_dir / _LARGE.parent).is_dir() or top.parent.is_symlink() or top.is_symlink():
        return
    # Git LFS puts them there; `list_folders` follows no link
    for folder in (top / outer / inner for outer in list_folders(top) for inner in list_folders(top / outer)):
        for name in filter(_LARGE_NAME.fullmatch, os.listdir(folder)):
            own = common_dir / _LARGE / name[:2] / name[2:4] / name
            if stat.S_ISREG((folder / name).lstat().st_mode) and not own.exists():
                make_directories(own.parent, 0o777)
                make_directories(common_dir / _LARGE_DRAFTS, 0o777)
                _copy_large(folder / name, own, common_dir / _LARGE_DRAFTS / f"{name}-{os.getpid()}")


def _copy_large(origin: Path, copy: Path, draft: Path) -> None:
    """Copy a file whose name says its content; another one is left out."""
    import hashlib  # few tasks need it

    digest = hashlib.sha256()
    try:
        with open(open_regular(origin), "rb") as source, open(draft, "wb") as sink:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())
        if digest.hexdigest() == copy.name:
            os.rename(draft, copy)
    finally:
        draft.unlink(missing_ok=True)
