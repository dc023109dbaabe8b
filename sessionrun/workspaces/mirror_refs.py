"""Which commit a ref of an upstream is in its mirror.  Nothing is fetched here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sessionrun.model.places import Start
from sessionrun.model.upstreams import is_commit
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.transport import FETCHED, HEAD, HEADS, PINS, Room

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
