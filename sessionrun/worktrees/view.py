"""The private view of git that a walled task works with.

Inside of walls a view lies in the place of the repository's common directory: copies of refs, settings and the
books of the task's own worktree, an empty store of objects, and the real objects as an alternate that cannot be
written.  All git commands work there and change nothing else.  PREPARE makes the view; `bringing_out` takes
commits from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson

from sessionrun.git.clone import list_alternates
from sessionrun.git.git import Git
from sessionrun.git.private import word_settings
from sessionrun.git.repository import read_author
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Place
from sessionrun.store.files import make_directories, read_regular, replace_file
from sessionrun.store.trees import remove_tree
from sessionrun.walls.argv import BASE_LARGE, BASE_OBJECTS, TMP_FOLDER, VIEW_FOLDER
from sessionrun.worktrees.registration import need_admin, read_head
from sessionrun.worktrees.request import WorkspaceRequest

BROUGHT: Final = "brought-out.json"
"""In the task's folder of walls: a `BroughtOut`."""

_UNSIGNED: Final = (("commit.gpgsign", "false"), ("tag.gpgsign", "false"))
_COPIED: Final = ("HEAD", "config", "config.worktree", "packed-refs", "shallow")
_TREES: Final = ("refs", "reftable", "info")
_NOT_COPIED: Final = frozenset(("modules", "locked"))


@frozen
class BroughtOut:
    """Where a task's git is inside; on record: where it was when the view was made, or commits came out last.

    Attributes:
        refs: what `walls.upload` serves, by the names that it gives.
        left: in one line what stays inside.
    """

    refs: Mapping[str, str]
    left: str = ""


def renew_view(request: WorkspaceRequest, place: Place) -> None:
    """Make the view of a walled task, if the task has walls, from where its worktree is now.

    Raises:
        SessionrunError, OSError: it cannot be made.
    """
    if request.walls is None or place.worktree is None:
        return
    admin = need_admin(request.repository, Path(place.worktree))
    git = Git(Path(request.repository.top), limit_s=request.git_limit_s)
    name = f"refs/heads/{place.branch}"
    own = git.commit_of(name)
    named = read_head(admin)
    head = own if named == f"ref: {name}" else git.commit_of(named)
    refs = {"head": head, "own": own, "attached": head if named == f"ref: {name}" else None}
    state = BroughtOut({name: commit for name, commit in refs.items() if commit is not None})
    make_view(Path(request.walls), Path(request.repository.common_dir), admin, read_author(git), state)


def note_brought(walls: Path, state: BroughtOut) -> None:
    """Write down what is outside."""
    replace_file(walls / BROUGHT, orjson.dumps(state), durable=False)


def make_view(walls: Path, common_dir: Path, admin: Path, author: Mapping[str, str], state: BroughtOut) -> None:
    """Make the view of a worktree anew, from what its repository has now.

    Args:
        walls: the task's folder of walls.
        author: settings by which the user's commits name their author.
        state: where branch and HEAD are.

    Raises:
        OSError: it cannot be made.
    """
    view, draft = walls / VIEW_FOLDER, walls / f".{VIEW_FOLDER}.new"
    make_directories(walls / TMP_FOLDER, 0o700)
    remove_tree(draft)
    make_directories(draft / "objects" / "info", 0o700)
    make_directories(draft / BASE_OBJECTS, 0o700)
    for name in _TREES:
        _copy_tree(common_dir / name, draft / name)
    for name in _COPIED:  # packed-refs after refs: what git packs meanwhile would be in neither
        _copy(common_dir / name, draft / name)
    make_directories(draft / "refs", 0o700)
    _copy_tree(admin, draft / "worktrees" / admin.name)
    alternates = [str(common_dir / BASE_OBJECTS), *list_alternates(common_dir)]
    if (common_dir / "lfs").is_dir():  # Git LFS looks for large files beside the objects of each alternate
        make_directories(draft / BASE_LARGE / "objects", 0o700)
        alternates.append(str(common_dir / BASE_LARGE / "objects"))
    (draft / "objects" / "info" / "alternates").write_text("".join(f"{path}\n" for path in alternates))
    # the keys by which commits would be signed are not inside
    own = (("gc.auto", "0"), ("maintenance.auto", "false"), *_UNSIGNED, *author.items())
    with open(draft / "config", "a", encoding="utf-8") as stream:
        stream.write("\n" + word_settings(own))
    remove_tree(view)
    note_brought(walls, state)
    os.rename(draft, view)


def _copy(origin: Path, copy: Path) -> None:
    """Copy a regular file with its time of change; anything else, and a file that is too large, is left out."""
    try:
        content = read_regular(origin, 1 << 30)
        times = os.stat(origin)
    except OSError:
        return
    make_directories(copy.parent, 0o700)
    with open(copy, "wb") as stream:
        stream.write(content)
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))


def _copy_tree(origin: Path, copy: Path) -> None:
    """Copy the regular files of a directory tree; locks and links are left out."""
    for root, folders, files in os.walk(origin):
        inside = copy / os.path.relpath(root, origin)
        make_directories(inside, 0o700)
        folders[:] = [name for name in folders if name not in _NOT_COPIED]
        for name in files:
            if not name.endswith(".lock") and name not in _NOT_COPIED:
                _copy(Path(root, name), inside / name)
