"""Mirrors: one bare repository in the cache for each repository that tasks name, shared by all sessions.

A mirror is made under a temporary name, and renamed when it is whole.  So what has the final name can be trusted,
and what a killed process left is never taken for a mirror.  All fetching is done under the mirror's lock.  Mirrors
have the whole history: they are never shallow and never partial, and no collection takes anything away.

A process that uses a mirror holds a shared lock on its directory, so that it is not removed (see `mirror_cache`).
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import orjson

from sessionrun.model.errors import JobFileError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Start
from sessionrun.model.upstreams import Upstream, is_commit, name_readably
from sessionrun.store.files import make_directories, read_regular, replace_file, sync_directory
from sessionrun.store.jobfiles import load_record_if_any
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.registration import hold_lock, remove_tree
from sessionrun.workspaces.request import RepositoryFailed
from sessionrun.workspaces.transport import FETCHED, HEAD, HEADS, PINS, Room, open_room

FOLDER: Final = "mirrors"
"""Directory in the cache."""

MARKER: Final = "sessionrun-mirror.json"
"""File in a mirror, written last: it is whole, and of which repository.  Its time is that of the last use."""

SUFFIX: Final = ".git"
DRAFT: Final = ".draft-"
"""How names begin that a mirror has before it is whole; the holder of its lock sweeps them."""

TRASH: Final = ".trash-"
"""The same of a mirror that is being removed."""

FOREVER_S: Final = -1.0
"""A time limit of the lock that never comes."""

BARE_SETTINGS: Final = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = true
[gc]
\tauto = 0
[maintenance]
\tauto = false
"""
"""For the git of agents and of people: our own never reads it.  No collection of theirs takes commits away."""

_REMOTE: Final = """\
[remote "origin"]
\turl = "{url}"
\tfetch = +refs/heads/*:refs/remotes/origin/*
"""

_ALL: Final = (f"+refs/heads/*:{HEADS}*",)
_OPTIONS: Final = ("--prune", "--tags", "--force")


@frozen
class Marker:
    """What is in `MARKER`."""

    repo: str


def locate_mirror(cache: Path, repo: str) -> Path:
    """Where the mirror of a repository is, in this cache; different repositories have different mirrors.

    Args:
        cache: absolute.
        repo: as in a settled `Upstream`.
    """
    import hashlib

    digest = hashlib.sha256(repo.encode("utf-8", "surrogateescape")).hexdigest()[:20]
    return cache / FOLDER / f"{name_readably(repo)}-{digest}{SUFFIX}"


def lock_path(mirror: Path) -> Path:
    """The lock of a mirror: beside it, for it is there before the mirror."""
    return mirror.with_name(f"{mirror.name.removesuffix(SUFFIX)}.lock")


@contextmanager
def use_mirror(
    upstream: Upstream,
    note: Path,
    folder: Path | None = None,
    *,
    require_cache: bool = False,
    limit_s: float | None = None,
) -> Iterator[Start]:
    """Make sure that the mirror has what a task names, and say where that is; meanwhile the mirror is not removed.

    A ref is looked up once for each session: all tasks that name it begin at the same commit.

    Args:
        upstream: of the task; settled.
        note: the session's file for where the ref stands.
        folder: for temporary files; None: the system's.
        require_cache: fetch nothing.
        limit_s: how long each git command, and the wait for the lock, may take (seconds); None: any time.

    Raises:
        RepositoryFailed: it cannot be fetched, is not in the cache, or has no such ref.
        SessionrunError: another process held the lock for too long.
        OSError: the cache cannot be written.
    """
    mirror = Path(upstream.mirror)
    fd = _share(mirror, upstream.repo)
    try:
        start = None
        if fd is not None:
            with open_room(mirror, upstream.repo, folder, limit_s=limit_s) as room:
                start = _find_noted(room, upstream, note, require_cache=require_cache)
        elif require_cache:
            raise RepositoryFailed(_tell_missing(upstream, "is not in the cache"))
        if start is None:
            _close(fd)
            fd = None
            fd, start = _bring_for_task(upstream, note, folder, limit_s=limit_s)
        os.utime(mirror / MARKER)
        yield start
    finally:
        _close(fd)


@contextmanager
def hold_mirror(upstream: Upstream | None) -> Iterator[None]:
    """Keep a mirror from being removed, if there is one.

    Raises:
        RepositoryFailed: what is there is no mirror.
    """
    fd = None if upstream is None else _share(Path(upstream.mirror), upstream.repo)
    try:
        yield
    finally:
        _close(fd)


def bring(
    mirror: Path,
    repo: str,
    refs: Sequence[str | None],
    folder: Path | None = None,
    *,
    limit_s: float | None = None,
) -> dict[str | None, Start | RepositoryFailed]:
    """Make or renew a mirror so that it has these refs; under its lock.  Says where each is, or why it is not.

    Raises:
        RepositoryFailed: nothing can be fetched.
        OSError: the cache cannot be written.
    """
    _sweep(mirror)
    if not mirror.exists():
        _make(mirror, repo, folder, limit_s=limit_s)
    else:
        check_whole(mirror, repo)
        (mirror / "objects" / "info" / "alternates").unlink(missing_ok=True)  # only a task can have put it there
        with open_room(mirror, repo, folder, limit_s=limit_s) as room:
            if not all(is_commit(ref) and room.git.commit_of(ref or "") for ref in refs):
                _renew(room)
    with open_room(mirror, repo, folder, limit_s=limit_s) as room:
        by_ref = {ref: _bring_ref(room, ref) for ref in dict.fromkeys(refs)}
    os.utime(mirror / MARKER)
    return by_ref


def check_whole(mirror: Path, repo: str) -> None:
    """Refuse a directory that is no mirror of ours, or one of another repository.

    Raises:
        RepositoryFailed: it has worktrees and branches perhaps, so it is left to a person.
    """
    why = describe_fault(mirror, repo)
    if why is not None:
        raise RepositoryFailed(f"{mirror} is no mirror of {repo} ({why}): look at it, then move it away")


def describe_fault(mirror: Path, repo: str) -> str | None:
    """Why a directory is no mirror of this repository, or None."""
    try:
        marker = load_record_if_any(mirror / MARKER, Marker)
    except JobFileError as error:
        return f"{MARKER}: {error.why}"
    if marker is None:
        return f"{MARKER}: there is none"
    return None if marker.repo == repo else f"{MARKER}: it is of {marker.repo}"


def _share(mirror: Path, repo: str) -> int | None:
    """Hold a shared lock on a mirror's directory; None where there is none."""
    while True:
        try:
            fd = os.open(mirror, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(fd), os.stat(mirror)):
                check_whole(mirror, repo)
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # it was removed just before the lock was ours


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


def _bring_for_task(
    upstream: Upstream, note: Path, folder: Path | None, *, limit_s: float | None
) -> tuple[int | None, Start]:
    """Fetch what the task names, unless another task of its session has done so meanwhile."""
    mirror = Path(upstream.mirror)
    make_directories(mirror.parent, 0o700)
    with hold_lock(lock_path(mirror), 0o600, FOREVER_S if limit_s is None else limit_s):
        start = None
        if mirror.exists():
            with open_room(mirror, upstream.repo, folder, limit_s=limit_s) as room:
                start = _find_noted(room, upstream, note, require_cache=False)
        if start is None:
            brought = bring(mirror, upstream.repo, [upstream.ref], folder, limit_s=limit_s)[upstream.ref]
            if isinstance(brought, RepositoryFailed):
                raise brought
            start = brought
            replace_file(note, orjson.dumps(start), durable=False)
        fd = _share(mirror, upstream.repo)
    return fd, start


def _find_noted(room: Room, upstream: Upstream, note: Path, *, require_cache: bool) -> Start | None:
    """Where the task begins, as far as nothing has to be fetched for that; None: it has to.

    Raises:
        RepositoryFailed: nothing may be fetched, and the mirror does not have it.
    """
    start = _load_note(note)
    if start is not None and room.git.commit_of(start.commit) == start.commit:
        return start
    if not (require_cache or is_commit(upstream.ref)):
        return None
    start = resolve_ref(room, upstream.ref)
    if start is None and require_cache:
        raise RepositoryFailed(_tell_missing(upstream, f"has no {upstream.ref or 'HEAD'} in the cache"))
    if start is not None:
        pin(room, start, upstream.ref)
        if require_cache:
            replace_file(note, orjson.dumps(start), durable=False)
    return start


def _load_note(note: Path) -> Start | None:
    """Any task may write there: what is no commit's name is no note."""
    try:
        start = load_record_if_any(note, Start)
    except JobFileError:
        return None
    return start if start is not None and is_commit(start.commit) and start.name.isprintable() else None


def _tell_missing(upstream: Upstream, what: str) -> str:
    return f"{upstream.repo} {what}, and nothing may be fetched (require_cache): fetch it with sessionrun precache"


def _sweep(mirror: Path) -> None:
    """Delete what killed processes left under temporary names; under the lock."""
    for prefix in (DRAFT, TRASH):
        for left in mirror.parent.glob(f"{prefix}{mirror.name}-*"):
            try:
                remove_tree(left)
            except OSError:
                pass  # a git that outlives its job may still write there; the next holder sweeps again


def _make(mirror: Path, repo: str, folder: Path | None, *, limit_s: float | None) -> None:
    url = repo.replace("\\", "\\\\").replace('"', '\\"')
    with draft_repository(mirror, "main", _REMOTE.format(url=url)) as draft:
        with open_room(draft, repo, folder, limit_s=limit_s) as room:
            _renew(room)
            room.git("pack-refs", "--all")
        replace_file(draft / MARKER, orjson.dumps(Marker(repo)), durable=True)


@contextmanager
def draft_repository(path: Path, branch: str, settings: str = "") -> Iterator[Path]:
    """Make a bare repository: fill it under a temporary name; then it is made durable, and renamed.

    Args:
        path: where it goes; nothing is there.
        branch: what its HEAD names.
        settings: more of them.

    Raises:
        OSError: it cannot be made; nothing is left.
    """
    import tempfile

    draft = Path(tempfile.mkdtemp(prefix=f"{DRAFT}{path.name}-", dir=path.parent))
    try:
        for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
            (draft / name).mkdir(parents=True)
        (draft / "config").write_text(BARE_SETTINGS + settings, encoding="utf-8", errors="surrogateescape")
        (draft / "HEAD").write_text(f"ref: refs/heads/{branch}\n")
        yield draft
        _sync_repository(draft)
        os.rename(draft, path)
        sync_directory(path.parent)
    except BaseException:
        remove_tree(draft)
        raise


def _sync_repository(draft: Path) -> None:
    """Make durable what git does not sync: names, and our own files.  Packs it does."""
    for path in (draft / name for name in ("config", "HEAD", "shallow", "packed-refs", "refs/sessionrun/head")):
        if path.exists():
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    for folder, _, _ in os.walk(draft):
        sync_directory(Path(folder))


def _renew(room: Room) -> None:
    """Fetch all branches and tags, and learn what HEAD is.

    Raises:
        RepositoryFailed: that cannot be done.
    """
    branch, commit = room.list_head()
    shallow = room.real / "shallow"
    options: tuple[str, ...] = _OPTIONS
    if os.path.lexists(shallow):  # an agent fetched a part of the history: fetch the rest
        (room.git.directory / "shallow").write_bytes(read_regular(shallow))
        options = (*_OPTIONS, "--unshallow")
    room.fetch(*_ALL, options=options)
    if os.path.lexists(shallow):
        shallow.unlink()
    if branch is None and commit is not None:
        branch = guess_branch(room, commit)
    if branch is not None and room.git.commit_of(HEADS + branch):
        room.git("symbolic-ref", HEAD, HEADS + branch)
    elif branch is None and commit is not None:
        room.fetch(f"+HEAD:{FETCHED}HEAD")
        room.git.attempt("symbolic-ref", "--delete", HEAD)
        room.git("update-ref", "--no-deref", HEAD, commit)


def _bring_ref(room: Room, ref: str | None) -> Start | RepositoryFailed:
    """Where a ref of the upstream is, after a fetch; what is no branch and no tag is fetched by itself."""
    start = resolve_ref(room, ref)
    wanted = None
    if is_commit(ref):
        wanted = f"+{ref}:{PINS}{ref}"
    elif ref is not None and ref.startswith("refs/") and not ref.startswith(("refs/heads/", "refs/tags/")):
        wanted = f"+{ref}:{FETCHED}{ref.removeprefix('refs/')}"
        start = None  # as a branch, it may have moved
    why = ""
    if start is None and wanted is not None:
        try:
            room.fetch(wanted)
            start = resolve_ref(room, ref)
        except RepositoryFailed as error:
            why = f" ({error})"
    if start is None:
        what = "no commit at its HEAD: name a ref" if ref is None else f"no branch, tag or commit {ref}"
        return RepositoryFailed(f"{room.repo} has {what}{why}")
    pin(room, start, ref)
    return start


_ABBREVIATED: Final = re.compile("[0-9a-f]{7,63}")
_USUAL: Final = ("main", "master")


def resolve_ref(room: Room, ref: str | None) -> Start | None:
    """Where a ref is in the mirror; the branches of tasks are none of the upstream's."""
    git = room.git
    if ref is None or ref == "HEAD":
        commit = git.commit_of(HEAD)
        target = git.attempt("symbolic-ref", "--quiet", HEAD).stdout.decode("utf-8", "replace").strip()
        return Start(target.removeprefix(HEADS) or commit[:12], commit) if commit else None
    if is_commit(ref):
        return Start(ref[:12], ref) if git.commit_of(ref) == ref and _has_history(git, ref) else None
    for full, name in _spell(ref):
        commit = git.commit_of(full)
        if commit is not None:
            return Start(name, commit)
    commit = git.commit_of(ref) if _ABBREVIATED.fullmatch(ref) else None
    return Start(commit[:12], commit) if commit and commit.startswith(ref) else None


def _has_history(git: Git, commit: str) -> bool:
    """Whether all that a commit needs is there: an agent, or a fetch that was refused, may have left a part."""
    if git.commit_of(PINS + commit) is not None:
        return True
    words = ("rev-list", "--quiet", "--objects", commit, "--not", "--remotes", "--tags", f"--glob={PINS}*")
    return git.attempt(*words).returncode == 0


def _spell(ref: str) -> Iterator[tuple[str, str]]:
    """What a name may stand for, with the name that branches of tasks begin with: a branch goes before a tag."""
    if ref.startswith("refs/heads/"):
        yield HEADS + ref[11:], ref[11:]
    elif ref.startswith("refs/tags/"):
        yield ref, ref[10:]
    elif ref.startswith("refs/"):
        yield FETCHED + ref[5:], ref[5:]
    else:
        yield HEADS + ref, ref
        yield f"refs/tags/{ref}", ref


def pin(room: Room, start: Start, ref: str | None) -> None:
    """Keep a commit that was asked for by its name, also when no branch has it any more."""
    name = PINS + start.commit
    if ref is not None and start.commit.startswith(ref) and room.git.commit_of(name) is None:
        room.git.set_ref(name, start.commit, None)


def guess_branch(room: Room, commit: str) -> str | None:
    """A bundle, or an old server, tells the commit of HEAD and not its branch."""
    listed = room.git.line("for-each-ref", "--format=%(refname)", f"--points-at={commit}", HEADS).split("\n")
    names = [name.removeprefix(HEADS) for name in listed if name]
    usual = [name for name in _USUAL if name in names]
    return next(iter(usual), names[0] if len(names) == 1 else None)
