"""Mirrors: one bare repository in the cache for each repository that tasks name, shared by all sessions.

A mirror is an entry of the cache (see `store.trees`): what has the final name can be trusted, and all fetching is
done under its lock.  Mirrors have the whole history: they are never shallow and never partial, and no collection
takes anything away.  A mirror stays while a process uses it, while a worktree of it is registered, and while a
branch of a task in it holds work that is nowhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.clone import Room, make_repository, open_room, sync_repository, write_settings
from sessionrun.git.git import Git
from sessionrun.model.errors import RepositoryFailed, name_some
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Start, Upstream, is_commit, is_path, list_formats, name_readably
from sessionrun.store import trees
from sessionrun.store.files import read_regular
from sessionrun.store.jobfiles import load_usable, write_record
from sessionrun.store.space import Cached

FOLDER: Final = "mirrors"

MARKER: Final = "sessionrun-mirror.json"
"""File in a mirror, written last: it is whole, and of which repository.  Its time is that of the last use."""

SUFFIX: Final = ".git"

HEADS: Final = "refs/remotes/origin/"
"""Where a mirror has the branches of its upstream: ``refs/heads/`` is for the branches of tasks."""

HEAD: Final = "refs/sessionrun/head"
"""The upstream's HEAD: a symbolic ref to one of `HEADS`, or a commit."""

PINS: Final = "refs/sessionrun/pins/"
"""Commits that were fetched by their names: no branch may have them any more."""

FETCHED: Final = "refs/sessionrun/fetched/"
"""Refs of an upstream that are no branches and no tags, such as ``refs/pull/3/head``."""

_SETTINGS: Final = (("core.bare", "true"), ("remote.origin.fetch", f"+refs/heads/*:{HEADS}*"))

_ABBREVIATED: Final = re.compile("[0-9a-f]{7,63}")


@frozen
class Marker:
    """What is in `MARKER`."""

    repo: str


def locate_mirror(cache: Path, repo: str) -> Path:
    """Where the mirror of a repository is, in this cache; `repo` is as in a settled `Upstream`."""
    import hashlib

    digest = hashlib.sha256(repo.encode("utf-8", "surrogateescape")).hexdigest()[:20]
    return cache / FOLDER / f"{name_readably(repo)}-{digest}{SUFFIX}"


def check_whole(mirror: Path, repo: str) -> None:
    """Refuse a directory that is no mirror of this repository: it may hold work, so it is left to a person."""
    marker = load_usable(mirror / MARKER, Marker)
    if marker is None or marker.repo != repo:
        why = "there is none that can be read" if marker is None else f"it is of {marker.repo}"
        raise RepositoryFailed(f"{mirror} is no mirror of {repo} ({MARKER}: {why}): look at it, then move it away")


@contextmanager
def hold_mirror(upstream: Upstream) -> Iterator[bool]:
    """Keep a mirror from being removed; whether there is one.  RepositoryFailed: what is there is none."""
    fd = trees.share_entry(Path(upstream.mirror))
    try:
        if fd is not None:
            check_whole(Path(upstream.mirror), upstream.repo)
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)


@contextmanager
def use_mirror(
    upstream: Upstream,
    note: Path | None,
    folder: Path | None = None,
    *,
    require_cache: bool = False,
    limit_s: float | None = None,
) -> Iterator[Start]:
    """Make sure that the mirror has what a task names, and say where that is; meanwhile the mirror is not removed.

    A ref is looked up once for each session: all tasks that name it begin at the same commit.

    Args:
        note: the session's file for where the ref stands; None: there is no session yet.
        folder: for temporary files; None: the system's.
        require_cache: fetch nothing.
        limit_s: how long each git command, and the wait for the lock, may take (seconds); None: any time.

    Raises:
        RepositoryFailed: it cannot be fetched, is not in the cache, or has no such ref.
        SessionrunError: another process held the lock for too long.
    """
    mirror = Path(upstream.mirror)

    def find_known() -> Start | None:
        """Where the task begins, as far as nothing has to be fetched for that: a branch may have moved."""
        with open_room(mirror, upstream.repo, folder, limit_s=limit_s) as room:
            start = load_usable(note, Start) if note is not None else None
            # any task may write there: what is no commit's name is no note
            is_usable = start is not None and is_commit(start.commit) and start.name.isprintable()
            if start is not None and is_usable and room.git.commit_of(start.commit) == start.commit:
                return start
            return resolve_ref(room.git, upstream.ref) if require_cache or is_commit(upstream.ref) else None

    with ExitStack() as held:
        is_there = held.enter_context(hold_mirror(upstream))
        start = find_known() if is_there else None
        if start is None and require_cache:
            what = f"has no {upstream.ref or 'HEAD'} in the cache" if is_there else "is not in the cache"
            hint = "nothing may be fetched (require_cache): fetch it with sessionrun precache"
            raise RepositoryFailed(f"{upstream.repo} {what}, and {hint}")
        if start is None:
            with trees.hold_entry(mirror, limit_s):
                # another task of the session may have fetched it meanwhile
                start = find_known() if mirror.exists() else None
                start = start or _fetch(upstream, folder, limit_s)
                if note is not None:
                    write_record(note, start)
                held.enter_context(hold_mirror(upstream))
        elif require_cache and note is not None:
            write_record(note, start)
        with suppress(OSError):  # of a cache that may only be read
            os.utime(mirror / MARKER)  # its last use, for `clean --cache`
        yield start


def _fetch(upstream: Upstream, folder: Path | None, limit_s: float | None) -> Start:
    """Make or renew a mirror so that it has the ref that a task names, and say where that is; under its lock."""
    mirror, repo, ref = Path(upstream.mirror), upstream.repo, upstream.ref
    trees.sweep_entry(mirror)
    is_new = not mirror.exists()
    if is_new:
        with trees.make_entry(mirror, sync_repository) as draft:
            settings = (*_SETTINGS, ("remote.origin.url", repo))
            make_repository(draft, "ref: refs/heads/main", settings)
            with open_room(draft, repo, folder, limit_s=limit_s) as room:
                head = room.list_head()
            write_settings(draft, (*settings, *list_formats(head[1])))
            with open_room(draft, repo, folder, limit_s=limit_s) as room:
                _renew(room, head)
                room.git("pack-refs", "--all")
            write_record(draft / MARKER, Marker(repo))
    check_whole(mirror, repo)
    (mirror / "objects" / "info" / "alternates").unlink(missing_ok=True)  # only a task can have put it there
    with open_room(mirror, repo, folder, limit_s=limit_s) as room:
        if not (is_new or (ref is not None and is_commit(ref) and room.git.commit_of(ref))):
            _renew(room, room.list_head())
        return _fetch_ref(room, ref)


def _renew(room: Room, head: tuple[str | None, str | None]) -> None:
    """Fetch all branches and tags, and note what HEAD is; `head` is as of `Room.list_head`."""
    branch, commit = head
    shallow, options = room.real / "shallow", ["--prune", "--tags", "--force"]
    if os.path.lexists(shallow):  # an agent fetched a part of the history: fetch the rest
        (room.git.directory / "shallow").write_bytes(read_regular(shallow))
        options.append("--unshallow")
    room.fetch(f"+refs/heads/*:{HEADS}*", options=tuple(options))
    shallow.unlink(missing_ok=True)
    if branch is None and commit is not None:  # a bundle, or an old server, tells the commit of HEAD alone
        names = [name.removeprefix(HEADS) for name in room.git.list_refs(f"--points-at={commit}", HEADS)]
        usual = [name for name in ("main", "master") if name in names]
        branch = next(iter(usual), names[0] if len(names) == 1 else None)
    if branch is not None and room.git.commit_of(HEADS + branch):
        room.git("symbolic-ref", HEAD, HEADS + branch)
    elif branch is None and commit is not None:
        room.fetch(f"+HEAD:{FETCHED}HEAD")
        room.git.attempt("symbolic-ref", "--delete", HEAD)
        room.git("update-ref", "--no-deref", HEAD, commit)


def _fetch_ref(room: Room, ref: str | None) -> Start:
    """Where a ref of the upstream is, after a fetch; what is no branch and no tag is fetched by itself."""
    start, wanted, why = resolve_ref(room.git, ref), None, ""
    if is_commit(ref):
        wanted = f"+{ref}:{PINS}{ref}"
    elif ref is not None and ref.startswith("refs/") and not ref.startswith(("refs/heads/", "refs/tags/")):
        wanted = f"+{ref}:{FETCHED}{ref.removeprefix('refs/')}"
        start = None  # as a branch, it may have moved
    if start is None and wanted is not None:
        try:
            room.fetch(wanted)
            start = resolve_ref(room.git, ref)
        except RepositoryFailed as error:
            why = f" ({error})"
    if start is None:
        what = "no commit at its HEAD: name a ref" if ref is None else f"no branch, tag or commit {ref}"
        raise RepositoryFailed(f"{room.repo} has {what}{why}")
    return start


def resolve_ref(git: Git, ref: str | None) -> Start | None:
    """Where a ref is in the mirror of this git; the branches of tasks are none of the upstream's."""
    if ref is None or ref == "HEAD":
        commit = git.commit_of(HEAD)
        target = git.attempt("symbolic-ref", "--quiet", HEAD).stdout.decode("utf-8", "replace").strip()
        return Start(target.removeprefix(HEADS) or commit[:12], commit) if commit else None
    if is_commit(ref):
        if git.commit_of(ref) != ref:
            return None
        # an agent, or a fetch that was refused, may have left a part of what it needs; what is pinned is whole
        words = ("rev-list", "--quiet", "--objects", ref, "--not", "--remotes", "--tags", f"--glob={PINS}*")
        is_whole = git.commit_of(PINS + ref) is not None or git.attempt(*words).returncode == 0
        return Start(ref[:12], ref) if is_whole else None
    for full, name in _spell(ref):
        commit = git.commit_of(full)
        if commit is not None:
            return Start(name, commit)
    commit = git.commit_of(ref) if _ABBREVIATED.fullmatch(ref) else None
    return Start(commit[:12], commit) if commit and commit.startswith(ref) else None


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


def iterate_mirrors(cache: Path) -> Iterator[Cached]:
    """The mirrors of a cache, by name, and what killed processes left of others."""
    for mirror in trees.iterate_entries(cache / FOLDER, lambda name: name.endswith(SUFFIX), MARKER):
        marker = load_usable(mirror.path / MARKER, Marker)
        yield replace(mirror, repo=marker.repo if marker else None)


def remove_mirror(mirror: Cached, *, dry_run: bool = False) -> str | None:
    """Remove a mirror; why it stays, or None."""
    return trees.remove_unused(mirror.path, dry_run=dry_run, find_obstacle=lambda: _find_obstacle(mirror))


def _find_obstacle(mirror: Cached) -> str | None:
    if mirror.repo is None:
        return f"its {MARKER} cannot be read: look at it"
    books = mirror.path / "worktrees"
    worktrees = sorted(os.listdir(books)) if books.is_dir() else []
    if worktrees:
        return f"it has worktrees: {name_some(worktrees, 3)} (sessionrun clean --worktrees)"
    unmerged = {}
    with open_room(mirror.path, "") as room:
        for name, commit in room.git.list_branches().items():
            fetched = ("--remotes", "--tags", "--glob=refs/sessionrun/*")
            done = room.git.attempt("rev-list", "--max-count=1", commit, "--not", *fetched)
            if done.returncode != 0 or done.stdout:
                unmerged[name] = commit
    home = _list_branches_at_home(mirror.repo) if unmerged else {}
    branches = sorted(name for name, commit in unmerged.items() if home.get(name) != commit)
    return f"branches of tasks in it hold work: {name_some(branches, 3)}" if branches else None


def _list_branches_at_home(repo: str) -> Mapping[str, str]:
    """The branches of a local repository, to which those of tasks are brought; none if it is no such."""
    for common in (Path(repo, ".git"), Path(repo)):
        if is_path(repo) and (common / "objects").is_dir():
            with open_room(common, "") as room:
                return room.git.list_branches()
    return {}
