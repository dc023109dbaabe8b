"""A clean room: a directory with a repository of its own, in which one tree of files is checked out, and no more.

It borrows the objects of the real repository, and has copies of those that were made for it and of the tags before
its commit.  It shares nothing else: a program in the room can change no branch, no setting and no other worktree.
Its HEAD is a commit of that tree, so git works there as usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sessionrun.model.places import Repository
from sessionrun.store.files import make_directories
from sessionrun.workspaces.fence import Fence
from sessionrun.workspaces.git import Git, GitError
from sessionrun.workspaces.registration import remove_entry, remove_tree
from sessionrun.workspaces.request import room_path


def remove_room(repository: Repository, owner: str) -> None:
    """Remove the room that a crash left; links are not followed.

    Raises:
        OSError: it cannot be removed.
    """
    remove_entry(room_path(repository, owner))


@contextmanager
def open_room(fence: Fence, owner: str, commit: str, objects: Path) -> Iterator[Path]:
    """Make the room, with the files of a commit; it goes at the end.

    Args:
        fence: of the repository.
        owner: the session and the task.
        commit: what is checked out.
        objects: a directory of objects that may hold the commit and borrows the repository's own; it is copied.

    Raises:
        GitError, OSError: it cannot be made.
    """
    path = room_path(fence.repository, owner)
    remove_room(fence.repository, owner)
    try:
        make_directories(path.parent)
        path.mkdir(mode=0o700)
        _check_out(fence, path, commit, objects)
        yield path
    finally:
        remove_room(fence.repository, owner)


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
    objects = Path(fence.repository.common_dir, "objects")
    git = _check_out(fence, path, commit, objects)
    git("clean", "-ffdq")
    return git


def _check_out(fence: Fence, path: Path, commit: str, objects: Path) -> Git:
    git_dir, real = path / ".git", Path(fence.repository.common_dir)
    (git_dir / "refs" / "heads").mkdir(parents=True, exist_ok=True)
    (git_dir / "objects" / "info").mkdir(parents=True, exist_ok=True)
    if objects != real / "objects":  # walls hide where they are
        import shutil  # slow to load, and a PREPARE has no time for that

        shutil.copytree(objects, git_dir / "objects", dirs_exist_ok=True)
    (git_dir / "objects" / "info" / "alternates").write_text(f"{real / 'objects'}\n", encoding="utf-8")
    (git_dir / "HEAD").write_text(f"{commit}\n", encoding="utf-8")
    git: Git = replace(fence.inside(path, git_dir), trial=git_dir / "objects")
    git("read-tree", "-u", "--reset", commit)
    (git_dir / "config").write_text(_word_config(fence), encoding="utf-8")
    words = ("for-each-ref", "--format=%(objectname) %(refname)", f"--merged={commit}", "refs/tags")
    tags = replace(fence.main(), trial=objects)(*words)  # by which some projects find their version
    (git_dir / "packed-refs").write_bytes(tags)
    if (real / "shallow").is_file():
        (git_dir / "shallow").write_bytes((real / "shallow").read_bytes())
    return git


def _word_config(fence: Fence) -> str:
    """What any git needs to read a repository of this format."""
    settings = {name.lower(): value for name, value in fence.settings.config}
    hashed = settings.get("extensions.objectformat")
    lines = ["[core]", f"\trepositoryformatversion = {1 if hashed else 0}", "\tbare = false"]
    return "\n".join([*lines, *(["[extensions]", f"\tobjectFormat = {hashed}"] if hashed else []), ""])
