"""A repository of a task's own: the base, some commits before it and their tags, out of a mirror; nothing else.

An agent that looks at all commits, or at all objects, finds no later commit in it: objects are not borrowed from
the mirror but fetched.  It is made under a temporary name, and renamed when it is whole: what has the final name
can be trusted, and a PREPARE that is done again takes it as it is.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from sessionrun.store import crashpoint
from sessionrun.store.files import make_directories, sync_directory
from sessionrun.workspaces.excerpt_tags import copy_tags
from sessionrun.workspaces.mirrors import BARE_SETTINGS, sync_repository
from sessionrun.workspaces.registration import remove_entry, remove_tree
from sessionrun.workspaces.transport import open_room

DRAFT: Final = ".draft-"
"""How the name begins that it has before it is whole."""

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
    draft = Path(tempfile.mkdtemp(prefix=f"{DRAFT}{path.name}-", dir=path.parent))
    crashpoint.step()
    try:
        for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
            (draft / name).mkdir(parents=True)
        (draft / "config").write_text(BARE_SETTINGS, encoding="utf-8")
        (draft / "HEAD").write_text("ref: refs/heads/none\n")
        with (
            open_room(mirror, "", folder, limit_s=limit_s) as source,
            open_room(draft, str(source.git.directory), folder, limit_s=limit_s) as room,
        ):
            room.fetch(f"+{commit}:{BASE}", options=(f"--depth={history + 1}", "--no-tags"))
            crashpoint.step()
            copy_tags(source.git, room.git, commit)
            shallow = room.git.directory / "shallow"
            if shallow.exists():
                (draft / "shallow").write_bytes(shallow.read_bytes())
        crashpoint.step()
        sync_repository(draft)
        os.rename(draft, path)
        sync_directory(path.parent)
    except BaseException:
        remove_tree(draft)
        raise


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
