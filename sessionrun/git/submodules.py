"""Submodules: their files in a worktree or a room, out of what the user's checkout has of them.

``git worktree add`` leaves an empty directory in the place of each submodule, and ``git submodule update`` clones
it anew, over a network that a task may not have.  Most of the time the commits are on this machine: git keeps the
repository of a submodule in ``modules`` of its own directory.  So in a worktree each submodule gets a repository
that borrows the objects there.  Nothing else of the borrowed repository counts, because tasks can write it: no
setting, no hook, no filter.  A submodule whose commit is not there stays an empty directory, and the launch says
so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.clone import list_alternates, make_repository, write_settings
from sessionrun.git.git import Git, GitError, split_names
from sessionrun.git.links import is_behind_link
from sessionrun.model.places import Repository
from sessionrun.store.files import is_folder
from sessionrun.store.trees import remove_entry

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


def list_modules(git_dir: Path) -> Iterator[Path]:
    """The repositories of submodules in a git directory, also those inside of others."""
    for root, folders, files in os.walk(git_dir / _MODULES):
        if "HEAD" in files and "objects" in folders:
            folders[:] = [name for name in folders if name == _MODULES]
            yield Path(root)


def list_stores(repository: Repository) -> Iterator[str]:
    """The stores of objects from which submodules borrow; walls have to show them.

    A task without walls can put a link in the place of one, and lead it to what walls hide.
    """
    for place in find_places(repository):
        for module in list_modules(place):
            if not (module / "objects").is_symlink():
                yield str(module / "objects")


def list_borrowed(repository: Repository) -> Iterator[str]:
    """The stores from which those borrow: they can lie anywhere, so what walls hide has to cover them."""
    for place in find_places(repository):
        for module in list_modules(place):
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
            formats = [("extensions.objectformat", "sha256")] if len(commit) == 64 else []
            make_repository(top / ".git", commit, formats, of=store, refs=f"{commit} {FILLED}\n".encode())
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
