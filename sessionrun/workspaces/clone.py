"""Repositories that are not the user's: how a git directory is laid out, and what clean rooms and excerpts are.

A clean room is a directory in which one tree of files is checked out, and no more.  Its repository borrows the
objects of the real one, and has copies of those that were made for it and of the tags before its commit.  It
shares nothing else: a program in the room can change no branch, no setting and no other worktree.  Its HEAD is a
commit of that tree, so git works there as usual.

An excerpt is the repository of one task alone: the base, some commits before it and their tags, out of a mirror.
An agent that looks at all commits, or at all objects, finds no later commit in it: objects are not borrowed but
fetched.  It is made under another name, and renamed when it is whole: what has the final name can be trusted, and
a PREPARE that is done again takes it as it is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.model.places import Repository
from sessionrun.store.files import make_directories, read_regular
from sessionrun.store.trees import remove_entry, remove_tree
from sessionrun.workspaces.cache import make_entry, sweep_entry
from sessionrun.workspaces.fence import Fence, word_settings
from sessionrun.workspaces.git import Git, GitError
from sessionrun.workspaces.transport import open_room

BASE: Final = "refs/sessionrun/base"
"""In an excerpt: holds the base, so that no collection takes it away."""

_SETTINGS: Final = (("core.repositoryformatversion", "1"), ("gc.auto", "0"), ("maintenance.auto", "false"))
"""For the git of agents and of people, too: no collection of theirs takes commits away."""

_FSYNC: Final = ("-c", "core.fsync=committed,reference")


def make_repository(
    git_dir: Path,
    head: str,
    settings: Iterable[tuple[str, str | None]] = (),
    *,
    borrow: Iterable[Path] = (),
    refs: bytes = b"",
    shallow: bytes = b"",
) -> None:
    """Make a git directory without objects of its own; what is there of it stays.

    Args:
        git_dir: where.
        head: a commit, or ``ref: `` and the name of a branch.
        settings: beside those of each such repository.
        borrow: directories of objects.
        refs: as they stand in ``packed-refs``.
        shallow: the commits before which there is no history, as they stand in ``shallow``.

    Raises:
        OSError: it cannot be written.
    """
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (git_dir / name).mkdir(parents=True, exist_ok=True)
    files = {
        "config": os.fsencode(word_settings((*_SETTINGS, *settings))),
        "packed-refs": refs,
        "shallow": shallow,
        "objects/info/alternates": b"".join(os.fsencode(path) + b"\n" for path in borrow),
        "HEAD": os.fsencode(f"{head}\n"),
    }
    for name, content in files.items():
        if content:
            (git_dir / name).write_bytes(content)


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


@contextmanager
def open_clean_room(fence: Fence, owner: str, commit: str, objects: Path) -> Iterator[Path]:
    """Make a clean room with the files of a commit; it goes at the end.

    Args:
        fence: of the repository.
        owner: the session and the task.
        commit: what is checked out.
        objects: a directory of objects that may hold the commit and borrows the repository's own; it is copied.

    Raises:
        GitError, OSError: it cannot be made.
    """
    path = room_path(fence.repository, owner)
    remove_clean_room(fence.repository, owner)
    try:
        make_directories(path.parent)
        path.mkdir(mode=0o700)
        _check_out(fence, path, commit, objects)
        yield path
    finally:
        remove_clean_room(fence.repository, owner)


def remove_clean_room(repository: Repository, owner: str) -> None:
    """Remove the clean room that a crash left; links are not followed.

    Raises:
        OSError: it cannot be removed.
    """
    remove_entry(room_path(repository, owner))


def keep_room(fence: Fence, path: Path, commit: str) -> Git:
    """Make a room at `path` that stays, or bring the one that is there to a commit; git in it is returned.

    What git ignores stays, so that a build there need not begin anew.  If the room is damaged, it is made anew.

    Raises:
        GitError, OSError: it cannot be made.
    """
    (fence.common / "info" / "exclude").write_text(fence.repository.excludes, encoding="utf-8")
    make_directories(path, 0o700)
    try:
        return _renew(fence, path, commit)
    except (GitError, OSError):
        remove_tree(path)
        make_directories(path, 0o700)
        return _renew(fence, path, commit)


def _renew(fence: Fence, path: Path, commit: str) -> Git:
    git_dir = path / ".git"
    for entry in git_dir.iterdir() if git_dir.is_dir() else ():
        if entry.name not in ("index", "objects"):  # locks of a killed git, branches of a program there
            remove_entry(entry)
    git = _check_out(fence, path, commit, Path(fence.repository.common_dir, "objects"))
    git("clean", "-ffdq")
    return git


def _check_out(fence: Fence, path: Path, commit: str, objects: Path) -> Git:
    git_dir, real = path / ".git", Path(fence.repository.common_dir)
    if objects != real / "objects":  # walls hide where they are
        import shutil  # slow to load, and a PREPARE has no time for that

        shutil.copytree(objects, git_dir / "objects")
    formats = [pair for pair in fence.settings.config if pair[0].lower() == "extensions.objectformat"]
    words = ("for-each-ref", "--format=%(objectname) %(refname)", f"--merged={commit}", "refs/tags")
    make_repository(
        git_dir,
        commit,
        formats,
        borrow=[real / "objects"],
        refs=replace(fence.main(), trial=objects)(*words),  # by which some projects find their version
        shallow=(real / "shallow").read_bytes() if (real / "shallow").is_file() else b"",
    )
    git: Git = replace(fence.inside(path, git_dir), trial=git_dir / "objects")
    git("read-tree", "-u", "--reset", commit)
    return git


def make_excerpt(
    path: Path,
    mirror: Path,
    commit: str,
    history: int,
    folder: Path | None = None,
    *,
    limit_s: float | None = None,
) -> None:
    """Make an excerpt, unless it is there.

    Args:
        path: where it goes, absolute.
        mirror: from which it is fetched; it is not removed meanwhile.
        commit: the base.
        history: how many commits before the base it has, in each line of them.
        folder: for temporary files; None: the system's.
        limit_s: how long each git command may take (seconds); None: any time.

    Raises:
        SessionrunError, OSError: it cannot be made; nothing is left.
    """
    if path.is_dir():
        return
    make_directories(path.parent)
    with make_entry(path, sync_repository) as draft:
        make_repository(draft, "ref: refs/heads/none", [("core.bare", "true")])
        with (
            open_room(mirror, "", folder, limit_s=limit_s) as source,
            open_room(draft, str(source.git.directory), folder, limit_s=limit_s) as room,
        ):
            room.fetch(f"+{commit}:{BASE}", options=(f"--depth={history + 1}", "--no-tags"))
            _copy_tags(source.git, room.git, commit)
            shallow = room.git.directory / "shallow"
            if shallow.exists():
                (draft / "shallow").write_bytes(shallow.read_bytes())


def drop_excerpt(path: Path) -> None:
    """Remove an excerpt, if it holds no branch and no worktree, and what a crash left of others of its name.

    Raises:
        OSError: it cannot be removed.
    """
    sweep_entry(path)
    if not _is_used(path):
        remove_entry(path)


def _is_used(path: Path) -> bool:
    heads, worktrees, packed = path / "refs" / "heads", path / "worktrees", path / "packed-refs"
    if any(one.is_file() for one in heads.rglob("*")) or (worktrees.is_dir() and os.listdir(worktrees)):
        return True
    return packed.is_file() and b" refs/heads/" in packed.read_bytes()


class _Tag(NamedTuple):
    """A tag: its ref, the commit it points at, and its object, if it has one that may be there."""

    ref: str
    commit: str
    note: str | None


_FORMAT: Final = "%(refname)%00%(objectname)%00%(objecttype)%00%(object)%00%(type)%00%(taggerdate:unix)"


def _copy_tags(source: Git, own: Git, base: str) -> None:
    """Copy the tags of the commits that an excerpt has, for projects that find their version so.

    A tag of a later commit is left out, and a tag of a tag.  A tag object that was made after the base could tell
    of what came later: then the name alone is there, and points at the commit itself.
    """
    commits = set(own.line("rev-list", base).split("\n"))
    made_at = int(own.line("show", "--no-patch", "--format=%ct", base))
    tags = list(_find_tags(source, commits, made_at))
    if not tags:
        return
    notes = [tag.note for tag in tags if tag.note is not None]
    if notes:
        pack = source("pack-objects", "--quiet", "--stdout", stdin="".join(f"{note}\n" for note in notes).encode())
        own(*_FSYNC, "index-pack", "--stdin", stdin=pack)
    refs = "".join(f"create {tag.ref}\0{tag.note or tag.commit}\0" for tag in tags)
    own(*_FSYNC, "update-ref", "-z", "--stdin", stdin=refs.encode("utf-8", "surrogateescape"))


def _find_tags(source: Git, commits: Collection[str], made_at: int) -> Iterator[_Tag]:
    listed = source("for-each-ref", f"--format={_FORMAT}", "refs/tags").decode("utf-8", "surrogateescape")
    for line in filter(None, listed.split("\n")):
        ref, name, kind, inner, inner_kind, tagged_at = line.split("\0")
        if kind == "commit" and name in commits:
            yield _Tag(ref, name, None)
        elif kind == "tag" and inner_kind == "commit" and inner in commits:
            in_time = tagged_at.isdigit() and int(tagged_at) <= made_at
            yield _Tag(ref, inner, name if in_time else None)


def room_path(repository: Repository, owner: str) -> Path:
    """Where the room of a task is, while there is one: beside the worktrees, outside of any repository."""
    from hashlib import sha256

    return Path(repository.worktree_dir, f".room-{sha256(os.fsencode(owner)).hexdigest()[:16]}")


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
