"""Parking: everything in a worktree that is not ignored becomes reachable from a ref, by plumbing alone.

A private index, write-tree, commit-tree and update-ref: no index.lock, half-done merge, hook or signing key
stands in the way, and the agent's own index stays as it is.  What cannot be put into a commit is named, and
then the worktree must be kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.model.places import Place
from sessionrun.store.files import open_regular
from sessionrun.workspaces.fence import Fence
from sessionrun.workspaces.git import Git, GitError
from sessionrun.workspaces.inside import find_repositories
from sessionrun.workspaces.proof import find_missing, find_untrue
from sessionrun.workspaces.request import RESCUE_SUFFIX

HUGE_BYTES: Final = 100 * 1024 * 1024
"""A new file larger than this stays out of the repository; its worktree is kept."""


@frozen
class Parked:
    """Where the work is: `commit` on `branch` or on `rescue`; `problems` are what no ref holds."""

    commit: str
    tree: str
    rescue: str | None
    problems: tuple[str, ...]


@frozen
class Brought:
    """What we put into the worktree out of the checkout `top`: it is no work, as long as it is as it was.

    `links` tells where each leads.
    """

    top: Path
    links: Mapping[str, str] = field(default_factory=dict)
    included: frozenset[str] = frozenset()

    def has(self, name: str, path: Path) -> bool:
        """Whether `path`, which is `name` in the worktree, is still what we put there."""
        if name in self.links:
            return path.is_symlink() and os.readlink(path) == self.links[name]
        if name not in self.included or path.is_symlink() or not path.is_file():
            return False
        origin = self.top / name
        return origin.is_file() and origin.read_bytes() == path.read_bytes()


@frozen
class _Head:
    """Where the worktree's HEAD is: its branch's full name ('HEAD' = none), commit and tree."""

    reference: str
    commit: str
    tree: str
    git_dir: Path


def park(
    fence: Fence, git: Git, place: Place, *, brought: Brought, ignore: Sequence[str], message: str, folder: Path
) -> Parked:
    """Commit what lies in the worktree.

    Args:
        fence: of the repository.
        git: in the worktree; on trial, nothing but the answer is of use.
        place: its branch and base commit.
        brought: what of it is ours and no work.
        ignore: arguments for ``git ls-files`` that say what is ignored.
        message: of the commit.
        folder: where the private index may lie.

    Raises:
        GitError: it cannot be read or written; nothing was changed.
    """
    head = _read_head(git, place)
    problems = list(_find_off_branch(head.reference, place))
    index = replace(git, index=folder / "park-index")
    unmerged, gitlinks = _copy_index(index, head)
    names, why = _find_work(index, brought, ignore)
    problems += [*unmerged, *why, *find_repositories(fence, git.directory, head.git_dir, gitlinks)]
    problems += find_untrue(index, _update_index(index, names, gitlinks), gitlinks)
    tree = index.line("write-tree")
    commit = head.commit
    if tree != head.tree:
        parents = [word for parent in _parents(git, head) for word in ("-p", parent)]
        commit = git("commit-tree", tree, *parents, "-F", "-", stdin=message.encode()).decode().strip()
    commit, rescue = _point_a_ref(git, place, head.commit, commit, tidy=not problems)
    problems += find_missing(git, commit, place.base_commit)
    index_path = index.index
    if index_path is not None:
        index_path.unlink(missing_ok=True)
    return Parked(commit, tree, rescue, tuple(problems))


def copy_index(origin: Path, copy: Path) -> None:
    """Copy an index with its time of change, which is part of what it says.

    Git compares times by the second, and looks into a file that changed in the second in which the index was
    written, or later.  By a newer copy it would take a change of that second, of the same size, for none.

    Raises:
        FileNotFoundError: there is no index.
    """
    times = os.stat(origin)
    shutil.copyfile(origin, copy)
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))


def settle_index(git: Git, commit: str) -> None:
    """A worktree that is kept though all is parked: let its own index say so too."""
    git.attempt("read-tree", commit)
    git.attempt("update-index", "-q", "--refresh")


def write_patch(git: Git, base: str, tree: str, patch: Path) -> Mapping[str, int]:
    """Write the diff from the base commit as a patch that `git apply` takes; count what it changes.

    By plumbing, which no setting of the user's (prefixes, submodules as log) turns into something else.
    """
    words = ("diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none")
    fd = open_regular(patch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    counts = {"files": 0, "insertions": 0, "deletions": 0}
    with os.fdopen(fd, "wb") as stream:
        if tree == git.line("rev-parse", f"{base}^{{tree}}"):
            return counts
        git.to_file(stream.fileno(), *words, "-p", "-M", "--binary", "--full-index", base, tree)
    for line in git.names(*words, "--numstat", "--no-renames", "-z", base, tree):
        added, deleted, _ = line.split("\t", 2)
        counts["files"] += 1
        counts["insertions"] += 0 if added == "-" else int(added)
        counts["deletions"] += 0 if deleted == "-" else int(deleted)
    return counts


def _read_head(git: Git, place: Place) -> _Head:
    assert git.git_dir is not None
    done = git.attempt("rev-parse", "HEAD^{commit}", "HEAD^{tree}", "--symbolic-full-name", "HEAD")
    said = os.fsdecode(done.stdout).split("\n")
    if done.returncode == 0:
        return _Head(said[2], said[0], said[1], git.git_dir)
    # a branch without a commit: an agent began a history of its own, or deleted its branch
    base = place.base_commit or ""
    tree = git.line("rev-parse", f"{base}^{{tree}}")
    return _Head(git.line("symbolic-ref", "HEAD"), base, tree, git.git_dir)


def _find_off_branch(reference: str, place: Place) -> list[str]:
    if reference == f"refs/heads/{place.branch}":
        return []
    where = "no branch" if reference == "HEAD" else reference.removeprefix("refs/heads/")
    return [f"HEAD is on {where}, not on {place.branch}"]


def _find_work(index: Git, brought: Brought, ignore: Sequence[str]) -> tuple[list[str], list[str]]:
    """Paths that go into the commit, and why the worktree is kept for those that cannot."""
    names: list[str] = []
    why: list[str] = []
    changed = index.names("ls-files", "-z", "--others", "--modified", "--deleted", *ignore)
    for name in dict.fromkeys(changed):
        path = index.directory / name
        if brought.has(name, path):
            continue
        if name.endswith("/"):
            why.append(f"{name} is a repository of its own")
        elif path.is_file() and not path.is_symlink() and path.stat().st_size > HUGE_BYTES:
            why.append(f"{name} is larger than {HUGE_BYTES // 1024 // 1024} MiB")
        else:
            names.append(name)
    return names, [*why, *_find_broken_repositories(index.directory, names)]


def _find_broken_repositories(top: Path, names: list[str]) -> Iterator[str]:
    """What is called .git and is no repository (any more): git neither names nor commits what is in it."""
    for folder in dict.fromkeys(os.path.dirname(name) for name in names):
        found = top / folder / ".git"
        if folder and not found.parent.is_symlink() and found.is_dir() and any(found.iterdir()):
            yield f"{folder}/.git is no repository, and no commit can hold it"


def _update_index(index: Git, names: list[str], gitlinks: list[str]) -> list[str]:
    """Take what lies there into the index, and out of it what does not; return what was taken in.

    By names and not by pathspecs: git refuses to add even what a pathspec excludes, if it is ignored.
    """
    there: list[str] = []
    gone: list[str] = []
    links: dict[str, bool] = {}
    for name in names:
        path = index.directory / name
        here = os.path.lexists(path) and not _is_behind_link(index.directory, name, links)
        became_folder = path.is_dir() and not path.is_symlink() and name not in gitlinks
        (there if here and not became_folder else gone).append(name)
    # what is gone first: a file may have become a directory, a directory a file or a link
    for listed, words in ((gone, ("--force-remove",)), (there, ("--add", "--remove", "--replace"))):
        if listed:
            content = b"".join(os.fsencode(name) + b"\0" for name in listed)
            index("update-index", *words, "-z", "--stdin", stdin=content)
    return there


def _is_behind_link(top: Path, name: str, known: dict[str, bool]) -> bool:
    """Whether one of the directories of this path has become a symbolic link: then git sees nothing there."""
    folder = os.path.dirname(name)
    if not folder:
        return False
    if folder not in known:
        known[folder] = (top / folder).is_symlink() or _is_behind_link(top, folder, known)
    return known[folder]


def _copy_index(index: Git, head: _Head) -> tuple[list[str], list[str]]:
    """A private index that knows the files' stat data, so that only what changed is read.

    Flags by which an agent may have hidden changes from git are taken off the copy.  Returns what is wrong, and
    the paths of repositories inside the worktree that the index knows.
    """
    assert index.index is not None
    index.index.unlink(missing_ok=True)
    try:
        copy_index(head.git_dir / "index", index.index)
    except FileNotFoundError:
        index("read-tree", head.commit)
    unmerged = False
    hidden: list[str] = []
    gitlinks: list[str] = []
    for entry in index.names("ls-files", "-v", "--stage", "-z"):
        about, _, name = entry.partition("\t")
        tag, mode = about[0], about[2:8]
        unmerged |= tag in "Mm"
        if tag.islower() or tag == "S":
            hidden.append(name)
        if mode == "160000":
            gitlinks.append(name)
    if unmerged:
        index("read-tree", head.commit)
        return ["a merge was left unfinished"], gitlinks
    shown = [name for name in hidden if os.path.lexists(index.directory / name)]
    if shown:
        names = b"\0".join(os.fsencode(name) for name in shown) + b"\0"
        for flag in ("--no-assume-unchanged", "--no-skip-worktree"):
            index("update-index", flag, "-z", "--stdin", stdin=names)
    return [], gitlinks


def _parents(git: Git, head: _Head) -> list[str]:
    """HEAD, and what was being merged into it."""
    try:
        merged = (head.git_dir / "MERGE_HEAD").read_text().split()
    except (OSError, ValueError):
        merged = []
    return list(dict.fromkeys([head.commit, *(one for one in merged if git.commit_of(one) == one)]))


def _point_a_ref(git: Git, place: Place, head: str, commit: str, *, tidy: bool) -> tuple[str, str | None]:
    """Move the task's branch to the commit, or make a rescue branch; return what holds the work now.

    A branch that was deleted under its worktree is made again; one that moved, or is locked, is left alone.
    """
    name = f"refs/heads/{place.branch}"
    tip = git.commit_of(name)
    if tip == commit or (tidy and tip in (head, None) and git.set_ref(name, commit, tip)):
        return commit, None
    return make_rescue(git, place.branch or "", commit, ours=commit != head)


def make_rescue(git: Git, branch: str, commit: str, *, ours: bool) -> tuple[str, str]:
    """A rescue branch at the commit, or the one there is of the same content; return its commit and its name.

    Args:
        git: in the repository.
        branch: the task's branch.
        commit: what is to be reachable.
        ours: the commit was made here and holds nothing but its tree and parents.

    Raises:
        GitError: no such branch can be made.
    """
    number = 1
    while True:
        rescue = f"{branch}{RESCUE_SUFFIX}" + ("" if number == 1 else f"-{number}")
        if git.set_ref(f"refs/heads/{rescue}", commit, None):
            return commit, rescue
        there = git.commit_of(f"refs/heads/{rescue}")
        if there is not None and (there == commit or (ours and _content(git, there) == _content(git, commit))):
            return there, rescue
        number += 1
        if number > 100:
            raise GitError(("update-ref",), 1, f"cannot make a branch like {rescue}")


def _content(git: Git, commit: str) -> str:
    """Tree and parents."""
    return git.line("rev-parse", f"{commit}^{{tree}}", f"{commit}^@")
