"""Parking: everything in a worktree that is not ignored becomes reachable from a ref, by plumbing alone.

A private index, write-tree, commit-tree and update-ref: no index.lock, half-done merge, hook or signing key
stands in the way, and the agent's own index stays as it is.  If something cannot be committed, it is named, and
then the worktree must be kept.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.model.places import Place
from sessionrun.store.files import is_folder, open_regular
from sessionrun.workspaces.commits import commit_tree
from sessionrun.workspaces.fence import Fence
from sessionrun.workspaces.git import Git, GitError
from sessionrun.workspaces.inside import find_repositories
from sessionrun.workspaces.links import is_behind_link
from sessionrun.workspaces.proof import find_missing, find_untrue, is_readable
from sessionrun.workspaces.registration import find_lost_admins, load_owner
from sessionrun.workspaces.request import RESCUE_SUFFIX, WorkspaceRequest

_PRUNED_TRIES: Final = 3
"""How often a commit is tried in all that git refuses to make."""

_FATAL: Final = 128
"""Git's exit code when it gives up (git(1)); a command that was stopped or killed has another."""

HUGE_BYTES: Final = 100 * 1024 * 1024
"""A new file larger than this stays out of the repository; its worktree is kept."""


@frozen
class Parked:
    """Where the work is: `commit` on `branch` or on `rescue`; `problems` name the work that no ref holds."""

    commit: str
    tree: str
    rescue: str | None
    problems: tuple[str, ...]


@frozen
class Brought:
    """What we put into the worktree out of the checkout `top`: unchanged, it does not count as work.

    `links` says where each leads; what lies under a name of `own` never counts.
    """

    top: Path
    links: Mapping[str, str] = field(default_factory=dict)
    included: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()

    def has(self, name: str, path: Path) -> bool:
        """Whether `path`, which is `name` in the worktree, is still what we put there."""
        if name in self.own:
            return os.path.lexists(path)
        if name in self.links:
            return path.is_symlink() and os.readlink(path) == self.links[name]
        if name not in self.included or path.is_symlink() or not path.is_file():
            return False
        origin = self.top / name
        return origin.is_file() and origin.read_bytes() == path.read_bytes()


@frozen
class Site:
    """A worktree with work in it.

    Attributes:
        fence: of its repository.
        git: in the worktree.
        request: whose it is; its place names branch and base commit.
        brought: what of it is ours and no work.
        ignore: arguments for ``git ls-files`` that say what is ignored.
        folder: the job's, for a private index.
    """

    fence: Fence
    git: Git
    request: WorkspaceRequest
    brought: Brought
    ignore: Sequence[str]
    folder: Path

    @property
    def place(self) -> Place:
        """What PREPARE made."""
        assert self.request.place is not None
        return self.request.place


@frozen
class Head:
    """Where the worktree's HEAD is: the full name of its branch ('HEAD' = no branch), commit and tree."""

    reference: str
    commit: str
    tree: str
    git_dir: Path


@frozen
class Written:
    """All that lies in a worktree as the object `tree`; `problems` are what it cannot hold."""

    head: Head
    tree: str
    problems: tuple[str, ...]


def park(site: Site, message: str, inside: str | None = None) -> Parked:
    """Commit what lies in the worktree.

    Args:
        site: the worktree.
        message: of the commit.
        inside: why commits of the task are not outside of its walls; the branch stays free for them.

    Raises:
        GitError: the work cannot be read or committed; nothing was changed.
    """
    head, commit, tree, problems = _make_commit(site, message)
    tidy = not (inside or problems)
    commit, rescue = _point_a_ref(site.git, site.place, head.commit, commit, tidy=tidy)
    problems = [*filter(None, [inside]), *problems, *find_missing(site.git, commit, site.place.base_commit)]
    return Parked(commit, tree, rescue, tuple(problems))


def commit_setup(site: Site, message: str) -> str | None:
    """Commit what lies in a worktree after SETUP to its branch, and let its own index say so.

    What cannot be in a commit stays as it is, for RELEASE to name; so does everything if setup left the branch.

    Returns:
        Where the work begins; None: there is nothing that git does not ignore.

    Raises:
        GitError: it cannot be read or written, or the branch is locked; nothing was changed.
    """
    head, commit, _, _ = _make_commit(site, message)
    name = f"refs/heads/{site.place.branch}"
    if head.reference != name or commit == site.place.base_commit:
        return None
    if commit != head.commit and not site.git.set_ref(name, commit, head.commit):
        raise GitError(("update-ref",), 1, f"cannot move the branch {site.place.branch}")
    settle_index(site.git, commit)  # also if an earlier start was killed before it came to this
    return commit


def _make_commit(site: Site, message: str) -> tuple[Head, str, str, list[str]]:
    """A commit, and its tree, of all that can be in one, above HEAD; HEAD, and what is wrong.  No ref moves.

    Another task may run ``git gc --prune=now``, which deletes objects that nothing refers to yet: then all is made
    again.
    """
    left = _PRUNED_TRIES
    while True:
        try:
            written = write_worktree(site)
            head, commit = written.head, written.head.commit
            if written.tree != head.tree:
                commit = commit_tree(site.git, written.tree, _parents(site.git, head), message)
            return head, commit, written.tree, list(written.problems)
        except GitError as error:
            left -= 1
            if not left or error.code != _FATAL:
                raise


def write_worktree(site: Site) -> Written:
    """Write what lies in the worktree as a tree; no ref, index or file of it changes.

    Raises:
        GitError: it cannot be read or written.
    """
    git = site.git
    head = _read_head(git, site.place)
    problems = list(_find_off_branch(head.reference, site.place))
    index_path = site.folder / "park-index"
    index = git.with_index(index_path)
    unmerged, gitlinks = _copy_index(index, head)
    names, why = _find_work(index, site.brought, site.ignore)
    problems += [*unmerged, *why, *find_repositories(site.fence, git.directory, head.git_dir, gitlinks)]
    problems += find_untrue(index, _update_index(index, names, gitlinks), gitlinks)
    tree = index.line("write-tree")
    index_path.unlink(missing_ok=True)
    return Written(head, tree, tuple(problems))


def copy_index(origin: Path, copy: Path) -> None:
    """Copy an index with its time of change, which is part of what it says.

    Git compares times by the second, and looks into a file that changed in the second in which the index was
    written, or later.  With a newer copy it would overlook a change of that second that keeps the size.

    Raises:
        FileNotFoundError: there is no index.
    """
    times = os.stat(origin)
    shutil.copyfile(origin, copy)
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))


def settle_index(git: Git, commit: str) -> None:
    """Bring the index of a worktree that is kept up to date with the commit that holds all its work."""
    git.attempt("read-tree", commit)
    git.attempt("update-index", "-q", "--refresh")


def write_patch(git: Git, base: str, tree: str, patch: Path) -> Mapping[str, int]:
    """Write the diff from the base commit as a patch that `git apply` takes; count what it changes.

    It uses plumbing, because settings of the user (prefixes, submodules as log) do not change its output.
    """
    words = ("diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none")
    fd = open_regular(patch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    counts = {"files": 0, "insertions": 0, "deletions": 0}
    with os.fdopen(fd, "wb") as stream:
        if tree == git.line("rev-parse", f"{base}^{{tree}}"):
            return counts
        git(*words, "-p", "-M", "--binary", "--full-index", base, tree, stdout=stream.fileno())
    for line in git.names(*words, "--numstat", "--no-renames", "-z", base, tree):
        added, deleted, _ = line.split("\t", 2)
        counts["files"] += 1
        counts["insertions"] += 0 if added == "-" else int(added)
        counts["deletions"] += 0 if deleted == "-" else int(deleted)
    return counts


def _read_head(git: Git, place: Place) -> Head:
    assert git.git_dir is not None
    done = git.attempt("rev-parse", "HEAD^{commit}", "HEAD^{tree}", "--symbolic-full-name", "HEAD")
    lines = os.fsdecode(done.stdout).split("\n")
    if done.returncode == 0:
        return Head(lines[2], lines[0], lines[1], git.git_dir)
    # a branch without a commit: an agent began a history of its own, or deleted its branch
    base = place.base_commit or ""
    tree = git.line("rev-parse", f"{base}^{{tree}}")
    return Head(git.line("symbolic-ref", "HEAD"), base, tree, git.git_dir)


def _find_off_branch(reference: str, place: Place) -> list[str]:
    if reference == f"refs/heads/{place.branch}":
        return []
    where = "no branch" if reference == "HEAD" else reference.removeprefix("refs/heads/")
    return [f"HEAD is on {where}, not on {place.branch}"]


def _find_work(index: Git, brought: Brought, ignore: Sequence[str]) -> tuple[list[str], list[str]]:
    """Paths that go into the commit, and why the worktree is kept for those that cannot."""
    names: list[str] = []
    changed, why = index.list_files("--others", "--modified", "--deleted", *ignore)
    for name in dict.fromkeys(changed):
        path = index.directory / name
        if not is_readable(path):
            why.append(f"{name} cannot be read")
            continue
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
    """A line for each directory .git that is not a repository (any more): git overlooks what is in it."""
    for folder in dict.fromkeys(os.path.dirname(name) for name in names):
        git_dir = top / folder / ".git"
        if folder and not git_dir.parent.is_symlink() and git_dir.is_dir() and any(git_dir.iterdir()):
            yield f"{folder}/.git is not a repository, and no commit can hold it"


def _update_index(index: Git, names: list[str], gitlinks: list[str]) -> list[str]:
    """Add files that exist to the index, and remove those that do not; return what was added.

    It uses names, not pathspecs: git refuses an ignored path even if a pathspec excludes it.
    """
    there: list[str] = []
    gone: list[str] = []
    links: dict[str, bool] = {}
    for name in names:
        path = index.directory / name
        here = os.path.lexists(path) and not is_behind_link(index.directory, name, links)
        became_folder = is_folder(path) and name not in gitlinks
        (there if here and not became_folder else gone).append(name)
    # removals first: a file may have become a directory, a directory a file or a link
    for listed, words in ((gone, ("--force-remove",)), (there, ("--add", "--remove", "--replace"))):
        if listed:
            content = b"".join(os.fsencode(name) + b"\0" for name in listed)
            index("update-index", *words, "-z", "--stdin", stdin=content)
    return there


def _copy_index(index: Git, head: Head) -> tuple[list[str], list[str]]:
    """A private index that knows the files' stat data, so that only what changed is read.

    The copy loses flags by which an agent may have hidden changes from git.  Returns what is wrong, and
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


def _parents(git: Git, head: Head) -> list[str]:
    """HEAD, and the commits of an unfinished merge into it."""
    try:
        merged = (head.git_dir / "MERGE_HEAD").read_text().split()
    except (OSError, ValueError):
        merged = []
    return list(dict.fromkeys([head.commit, *(commit for commit in merged if git.commit_of(commit) == commit)]))


def _point_a_ref(git: Git, place: Place, head: str, commit: str, *, tidy: bool) -> tuple[str, str | None]:
    """Move the task's branch to the commit, or make a rescue branch; return what holds the work now.

    A branch that was deleted under its worktree is made again; a branch that moved, or is locked, stays as it is.
    """
    name = f"refs/heads/{place.branch}"
    tip = git.commit_of(name)
    if tip == commit or (tidy and tip in (head, None) and git.set_ref(name, commit, tip)):
        return commit, None
    return make_rescue(git, place.branch or "", commit, ours=commit != head)


def make_rescue(git: Git, branch: str, commit: str, *, ours: bool) -> tuple[str, str]:
    """Make a rescue branch at the commit, or find one with the same content; return its commit and name.

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


def rescue_lost_head(request: WorkspaceRequest, main: Git, path: Path) -> None:
    """Make a rescue branch for each commit that only the HEAD of a worktree holds whose directory is gone.

    Raises:
        SessionrunError: no branch can be made.
    """
    place = request.place
    for admin in find_lost_admins(request.repository, path):
        if place is None or place.branch is None or load_owner(admin) != request.owner or path.exists():
            continue
        commit = replace(main, git_dir=admin).commit_of("HEAD")
        if commit is not None and not main.line("for-each-ref", "--count=1", "--contains", commit):
            make_rescue(main, place.branch, commit, ours=False)


def find_rescues(main: Git, branch: str) -> list[str]:
    """The rescue branches of a task branch, oldest first."""
    stem = f"refs/heads/{branch}{RESCUE_SUFFIX}"
    listed = main.line("for-each-ref", "--format=%(refname)", f"{stem}*").split("\n")
    names = [name for name in listed if re.fullmatch(r"(-[0-9]+)?", name.removeprefix(stem)) and name]
    return [name.removeprefix("refs/heads/") for name in sorted(names, key=lambda name: (len(name), name))]
