"""A repository of a task's own: the base, some commits before it and their tags, out of a mirror; nothing else.

An agent that looks at all commits, or at all objects, finds no later commit in it: objects are not borrowed from
the mirror but fetched.  It is made under a temporary name, and renamed when it is whole: what has the final name
can be trusted, and a PREPARE that is done again takes it as it is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.store.files import make_directories
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.mirrors import DRAFT, draft_repository
from sessionrun.workspaces.registration import remove_entry
from sessionrun.workspaces.transport import open_room

BASE: Final = "refs/sessionrun/base"
"""Holds the base, so that no collection takes it away."""


def make_excerpt(
    path: Path,
    mirror: Path,
    commit: str,
    history: int,
    folder: Path | None = None,
    *,
    limit_s: float | None = None,
) -> None:
    """Make the repository, unless it is there.

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
    with (
        draft_repository(path, "none") as draft,
        open_room(mirror, "", folder, limit_s=limit_s) as source,
        open_room(draft, str(source.git.directory), folder, limit_s=limit_s) as room,
    ):
        room.fetch(f"+{commit}:{BASE}", options=(f"--depth={history + 1}", "--no-tags"))
        copy_tags(source.git, room.git, commit)
        shallow = room.git.directory / "shallow"
        if shallow.exists():
            (draft / "shallow").write_bytes(shallow.read_bytes())


def drop_excerpt(path: Path) -> None:
    """Remove the repository, if it holds no branch and no worktree, and what a crash left of others of its name.

    Raises:
        OSError: it cannot be removed.
    """
    left = [*path.parent.glob(f"{DRAFT}{path.name}-*"), *([] if _is_used(path) else [path])]
    for one in left:
        remove_entry(one)


def _is_used(path: Path) -> bool:
    heads, worktrees, packed = path / "refs" / "heads", path / "worktrees", path / "packed-refs"
    if any(one.is_file() for one in heads.rglob("*")) or (worktrees.is_dir() and os.listdir(worktrees)):
        return True
    return packed.is_file() and b" refs/heads/" in packed.read_bytes()


_FORMAT: Final = "%(refname)%00%(objectname)%00%(objecttype)%00%(object)%00%(type)%00%(taggerdate:unix)"
_FSYNC: Final = ("-c", "core.fsync=committed,reference")


class _Tag(NamedTuple):
    """A tag: its ref, the commit it points at, and its object, if it has one that may be there."""

    ref: str
    commit: str
    note: str | None


def copy_tags(source: Git, own: Git, base: str) -> None:
    """Copy the tags of the commits that `own` has, for projects that find their version so.

    A tag of a later commit is left out, and a tag of a tag.  A tag object that was made after the base could tell
    of what came later: then the name alone is there, and points at the commit itself.

    Args:
        source: in the mirror.
        own: in the task's repository, which holds the base and commits before it.
        base: the commit.

    Raises:
        GitError: git failed.
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
