"""Tags in a repository of a task's own: those that point at its commits, for projects that find their version so.

A tag of a later commit is left out, and a tag of a tag.  A tag object that was made after the base could tell of
what came later: then the name alone is there, and points at the commit itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from sessionrun.workspaces.git import Git

_FORMAT: Final = "%(refname)%00%(objectname)%00%(objecttype)%00%(object)%00%(type)%00%(taggerdate:unix)"
_FSYNC: Final = ("-c", "core.fsync=committed,reference")


class _Tag(NamedTuple):
    """A tag: its ref, the commit it points at, and its object, if it has one that may be there."""

    ref: str
    commit: str
    note: str | None


def copy_tags(source: Git, own: Git, base: str) -> None:
    """Copy the tags of the commits that `own` has.

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
