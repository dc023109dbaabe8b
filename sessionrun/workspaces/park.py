"""Parking: everything in a worktree that is not ignored becomes reachable from a ref, by plumbing alone.

A private index, write-tree, commit-tree and update-ref: no index.lock, half-done merge, hook or signing key
stands in the way, and the agent's own index stays as it is.  What cannot be put into a commit is named, and
then the worktree must be kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sessionrun.git import Git, GitError
from sessionrun.model import Place

HUGE_BYTES: Final = 100 * 1024 * 1024
"""A new file larger than this stays out of the repository; its worktree is kept."""

RESCUE_SUFFIX: Final = "-rescue"


@dataclass(frozen=True, slots=True)
class Parked:
    """Where the work is: `commit` on `branch` or on `rescue`; `problems` are what no ref holds."""

    commit: str
    tree: str
    rescue: str | None
    problems: tuple[str, ...]


def park(git: Git, place: Place, *, links: tuple[str, ...], message: str, folder: Path) -> Parked:
    """Commit what lies in the worktree.

    Args:
        git: in the worktree.
        place: its branch and base commit.
        links: paths that we linked into it; they are no work.
        message: of the commit.
        folder: where the private index may lie.

    Raises:
        GitError: it cannot be read or written; nothing was changed.
    """
    head = git.commit_of("HEAD") or place.base_commit or ""
    reference = git.attempt("symbolic-ref", "--quiet", "HEAD").stdout.decode().strip()
    problems = list(_find_off_branch(reference, place))
    index = Git(git.directory, folder / "park-index")
    problems += _copy_index(git, index, head)
    names, why = _find_work(index, links)
    problems += [*why, *_dirty_submodules(git)]
    # Names and not pathspecs: git refuses to add even what a pathspec excludes, if it is ignored.
    listed = b"".join(os.fsencode(name) + b"\0" for name in names)
    index("update-index", "--add", "--remove", "--replace", "-z", "--stdin", stdin=listed)
    tree = index.line("write-tree")
    commit = head
    if tree != git.line("rev-parse", f"{head}^{{tree}}"):
        parents = [word for parent in _parents(git, head) for word in ("-p", parent)]
        commit = git.line("commit-tree", tree, *parents, "-m", message)
    rescue = _point_a_ref(git, place, head, commit, tidy=not problems)
    index_path = index.index
    if index_path is not None:
        index_path.unlink(missing_ok=True)
    return Parked(commit, tree, rescue, tuple(problems))


def settle_index(git: Git, commit: str) -> None:
    """A worktree that is kept though all is parked: let its own index say so too."""
    git.attempt("read-tree", commit)
    git.attempt("update-index", "-q", "--refresh")


def write_patch(git: Git, base: str, tree: str, patch: Path) -> Mapping[str, int]:
    """Write the diff from the base commit as a patch that `git apply` takes; count what it changes."""
    words = ("--no-ext-diff", "--no-textconv", "--no-color", base, tree)
    fd = os.open(patch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as stream:
        git.to_file(stream.fileno(), "diff", "--binary", "--full-index", *words)
    counts = {"files": 0, "insertions": 0, "deletions": 0}
    for line in git.names("diff", "--numstat", "--no-renames", "-z", *words):
        added, deleted, _ = line.split("\t", 2)
        counts["files"] += 1
        counts["insertions"] += 0 if added == "-" else int(added)
        counts["deletions"] += 0 if deleted == "-" else int(deleted)
    return counts


def _find_off_branch(reference: str, place: Place) -> list[str]:
    if reference == f"refs/heads/{place.branch}":
        return []
    where = reference.removeprefix("refs/heads/") or "no branch"
    return [f"HEAD is on {where}, not on {place.branch}"]


def _find_work(index: Git, links: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Paths that go into the commit, and why the worktree is kept for those that cannot."""
    names: list[str] = []
    why: list[str] = []
    changed = index.names("ls-files", "-z", "--others", "--modified", "--deleted", "--exclude-standard")
    for name in dict.fromkeys(changed):
        path = index.directory / name
        if name in links:
            continue
        if name.endswith("/"):
            why.append(f"{name} is a repository of its own")
        elif path.is_file() and not path.is_symlink() and path.stat().st_size > HUGE_BYTES:
            why.append(f"{name} is larger than {HUGE_BYTES // 1024 // 1024} MiB")
        else:
            names.append(name)
    return names, why


def _dirty_submodules(git: Git) -> list[str]:
    """Submodules with another commit checked out or with changes: their own repository goes with the worktree."""
    found = []
    entries = iter(git.names("status", "--porcelain=v2", "-z", "--untracked-files=no"))
    for entry in entries:
        words = entry.split(" ")
        if words[0] == "2":
            next(entries, None)  # a rename's old name is an entry of its own
        if words[0] in ("1", "2") and words[2].startswith("S") and words[2] != "S...":
            name = entry.split(" ", 8 if words[0] == "1" else 9)[-1]
            found.append(f"submodule {name} has changes of its own")
    return found


def _copy_index(git: Git, index: Git, head: str) -> list[str]:
    """A private index that knows the files' stat data, so that only what changed is read; and what is wrong.

    Flags by which an agent may have hidden changes from git are taken off the copy.
    """
    own = Path(git.line("rev-parse", "--git-path", "index"))
    assert index.index is not None
    index.index.unlink(missing_ok=True)
    unmerged = bool(git("ls-files", "--unmerged", "-z"))
    if unmerged or not (git.directory / own).is_file():
        index("read-tree", head)
        return ["a merge was left unfinished"] if unmerged else []
    shutil.copyfile(git.directory / own, index.index)
    hidden = [line[2:] for line in index.names("ls-files", "-v", "-z") if line[:1].islower() or line[:1] == "S"]
    shown = [name for name in hidden if os.path.lexists(git.directory / name)]
    if shown:
        names = b"\0".join(os.fsencode(name) for name in shown) + b"\0"
        for flag in ("--no-assume-unchanged", "--no-skip-worktree"):
            index("update-index", flag, "-z", "--stdin", stdin=names)
    return []


def _parents(git: Git, head: str) -> list[str]:
    """HEAD, and what was being merged into it."""
    merged = git.commit_of("MERGE_HEAD")
    return [head] if merged is None or merged == head else [head, merged]


def _point_a_ref(git: Git, place: Place, head: str, commit: str, *, tidy: bool) -> str | None:
    """Move the task's branch to the commit, or make a rescue branch; return the rescue branch."""
    if tidy:
        try:
            git("update-ref", f"refs/heads/{place.branch}", commit, head)
            return None
        except GitError:
            pass  # the branch moved or is locked: the work goes beside it
    if tidy is False and git.commit_of(f"refs/heads/{place.branch}") == commit:
        return None
    number = 1
    while True:
        rescue = f"{place.branch}{RESCUE_SUFFIX}" + ("" if number == 1 else f"-{number}")
        if git.attempt("update-ref", f"refs/heads/{rescue}", commit, "0" * len(commit)).returncode == 0:
            return rescue
        if git.commit_of(f"refs/heads/{rescue}") == commit:
            return rescue
        number += 1
        if number > 100:
            raise GitError(("update-ref",), 1, f"cannot make a branch like {rescue}")
