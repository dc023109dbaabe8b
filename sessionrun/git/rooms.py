"""Files of a commit in a directory of ours: clean rooms, where proofs and gates run, and submodules.

A clean room is a directory in which one tree of files is checked out, and no more.  Its repository borrows the
objects of the real one, and has copies of those that were made for it and of the tags before its commit.  It
shares nothing else: a program in the room can change no branch, no setting and no other worktree.  Its HEAD is a
commit of that tree, so git works there as usual.

``git worktree add`` leaves an empty directory in the place of each submodule, and ``git submodule update`` clones
it anew, over a network that a task may not have.  Most of the time the commits are on this machine: git keeps the
repository of a submodule in ``modules`` of its own directory.  So in a worktree, or a room, each submodule gets a
repository that borrows the objects there.  Nothing else of the borrowed repository counts, because tasks can write
it: no setting, no hook, no filter.  A submodule whose commit is not there stays an empty directory, and the launch
says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from sessionrun.git.clone import list_alternates, list_tags, make_repository, write_settings
from sessionrun.git.git import Git, GitError, split_names
from sessionrun.git.private import Fence
from sessionrun.model.places import Repository, list_formats
from sessionrun.store.files import is_folder, make_directories
from sessionrun.store.trees import remove_entry, remove_tree


def room_path(repository: Repository, owner: str) -> Path:
    """Where the room of a task is, while there is one: beside the worktrees, outside of any repository."""
    from hashlib import sha256

    return Path(repository.worktree_dir, f".room-{sha256(os.fsencode(owner)).hexdigest()[:16]}")


@contextmanager
def open_clean_room(fence: Fence, owner: str, commit: str, objects: Path) -> Iterator[Path]:
    """Make a clean room with the files of a commit; it goes at the end.

    Args:
        objects: a directory of objects that may hold the commit and borrows the repository's own; it is copied.
    """
    path = room_path(fence.repository, owner)
    remove_entry(path)
    try:
        make_directories(path.parent)
        path.mkdir(mode=0o700)
        _check_out(fence, path, commit, objects)
        yield path
    finally:
        remove_entry(path)


def keep_room(fence: Fence, path: Path, commit: str) -> Git:
    """Make a room at `path` that stays, or bring the one that is there to a commit; git in it is returned.

    What git ignores stays, so that a build there need not begin anew.  If the room is damaged, it is made anew.
    """
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
    make_repository(
        git_dir, commit, formats, of=real, refs=list_tags(replace(fence.main(), trial=objects), commit)
    )
    git: Git = replace(fence.inside(path, git_dir), trial=git_dir / "objects")
    git("read-tree", "-u", "--reset", commit)
    fill_submodules(git, find_places(fence.repository))
    return git


# --- submodules ---

_LIST: Final = ".gitmodules"
_MODULES: Final = "modules"
_PATHS: Final = ("-z", "--get-regexp", r"^submodule\..*\.path$")

FILLED: Final = "refs/remotes/origin/sessionrun"
"""In the repository of a filled submodule: the commit that it began with, which is no work of the task."""

MARK: Final = "sessionrun-filled"
"""File in the repository of a filled submodule: it is ours, and not a clone that a task has put there."""

_WORK: Final = ("HEAD", "index", "objects", "refs", "packed-refs", "shallow", "logs", MARK)
"""What of such a repository is work, and no settings."""


def find_places(repository: Repository) -> list[Path]:
    """The git directories that may have repositories of submodules: a linked checkout has its own."""
    places = [repository.common_dir, *([repository.settings.git_dir] if repository.settings is not None else [])]
    return [Path(place) for place in dict.fromkeys(places) if place]


def list_modules(*git_dirs: Path) -> Iterator[Path]:
    """The repositories of submodules in git directories, also those inside of others."""
    for root, folders, files in chain.from_iterable(os.walk(git_dir / _MODULES) for git_dir in git_dirs):
        if "HEAD" in files and "objects" in folders:
            folders[:] = [name for name in folders if name == _MODULES]
            yield Path(root)


def list_stores(repository: Repository) -> Iterator[str]:
    """The stores of objects from which submodules borrow; walls have to show them.

    A task without walls can put a link in the place of one, and lead it to what walls hide.
    """
    stores = (module / "objects" for module in list_modules(*find_places(repository)))
    return (str(store) for store in stores if not store.is_symlink())


def list_borrowed(repository: Repository) -> Iterator[str]:
    """The stores from which those borrow: they can lie anywhere, so what walls hide has to cover them."""
    for module in list_modules(*find_places(repository)):
        yield from filter(os.path.isdir, list_alternates(module))


def find_empty(repository: Repository) -> list[str]:
    """The submodules of the base commit that stay empty, because the checkout does not have their commit."""
    empty = []
    for name, path, commit in _list_submodules(Git(Path(repository.top)), repository.base_commit):
        stores = [place / _MODULES / name for place in find_places(repository)]
        if not any(_has(Git(store, common=store, git_dir=store), commit) for store in stores):
            empty.append(path)
    return empty


def _has(git: Git, commit: str) -> bool:
    """Whether all files of the commit are there: a partial clone may lack some."""
    words = ("rev-list", "--objects", "--no-walk", "--quiet", f"{commit}^{{commit}}", "--")
    return git.directory.is_dir() and git.attempt(*words).returncode == 0


def fill_submodules(git: Git, places: Sequence[Path]) -> None:
    """Fill the submodules of HEAD whose commits are there; the others stay empty.

    Args:
        git: where the files of HEAD lie, and no process of a task runs now.
        places: git directories that have repositories of submodules.
    """
    if not os.path.lexists(git.directory / _LIST):
        return
    for name, path, commit in _list_submodules(git, "HEAD"):
        top = git.directory / path
        if is_behind_link(git.directory, path) or not os.path.lexists(top):  # it is not there in a sparse checkout
            continue
        remove_entry(top)
        top.mkdir()
        own = replace(git, directory=top, common=top / ".git", git_dir=top / ".git", index=None, trial=None)
        for store in (place / _MODULES / name for place in places if (place / _MODULES / name).is_dir()):
            make_repository(
                top / ".git", commit, list_formats(commit), of=store, refs=f"{commit} {FILLED}\n".encode()
            )
            if _has(own, commit):
                (top / ".git" / MARK).touch()
                own("read-tree", "-u", "--reset", commit)
                fill_submodules(own, [store])
                break
            remove_entry(top / ".git")


def clear_settings(top: Path, formats: Iterable[tuple[str, str | None]]) -> None:
    """Take settings, hooks and the like out of the filled submodules in `top`: a person's git would obey them.

    Args:
        top: a worktree in which no process of a task runs any more.
        formats: the settings by which git understands the repositories.
    """
    for root, folders, _ in os.walk(top):
        git_dir = Path(root, ".git")
        if is_folder(git_dir) and os.path.lexists(git_dir / MARK):
            for entry in git_dir.iterdir():
                if entry.name not in _WORK:
                    remove_entry(entry)
            write_settings(git_dir, formats)
        folders[:] = [name for name in folders if name != ".git"]


def _list_submodules(git: Git, commit: str) -> Iterator[tuple[str, str, str]]:
    """Name, path and commit of each submodule, as the commit has them; a name that leads out is none."""
    listed = git.attempt("config", f"--blob={commit}:{_LIST}", *_PATHS).stdout
    named = {path: key for key, _, path in (line.partition("\n") for line in split_names(listed))}
    if not named:
        return
    try:
        entries = git.names("--literal-pathspecs", "ls-tree", "-z", "--full-tree", commit, "--", *named)
    except GitError:
        return  # a path that is none
    for about, _, path in (entry.partition("\t") for entry in entries):
        kind, _, oid = about.split(" ")
        name = named.get(path, "").removeprefix("submodule.").removesuffix(".path")
        if kind == "160000" and not {"", ".", "..", ".git"} & {*name.split("/"), *path.split("/")}:
            yield name, path, oid


def is_behind_link(top: Path, name: str, known: dict[str, bool] | None = None) -> bool:
    """Whether a directory on the way to a file is a symbolic link: git sees nothing there.

    `known` remembers the directories of a list of names.
    """
    folder = os.path.dirname(name)
    if not folder:
        return False
    known = {} if known is None else known
    if folder not in known:
        known[folder] = (top / folder).is_symlink() or is_behind_link(top, folder, known)
    return known[folder]
