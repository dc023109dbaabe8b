"""Parking: everything in a worktree that is not ignored becomes reachable from a ref, by plumbing alone.

A private index, write-tree, commit-tree and update-ref: no index.lock, half-done merge, hook or signing key
stands in the way, and the agent's own index stays as it is.  If something cannot be committed, it is named, and
then the worktree must be kept.

Two proofs follow.  Each blob is the file itself, or what the conversions of the launch (filters, line ends) make
of it: else the file changed while it was read.  And the repository has all of the commit that a ref holds: git may
have collected garbage between the first new object and the ref.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.git.git import Git, GitError, split_names
from sessionrun.git.rooms import is_behind_link
from sessionrun.model.errors import name_some
from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import DiffStat
from sessionrun.model.places import Place
from sessionrun.store.files import NotRegular, is_folder, make_directories, open_regular, read_regular
from sessionrun.worktrees.registration import find_lost_admins
from sessionrun.worktrees.request import RESCUE_SUFFIX, WorkspaceRequest
from sessionrun.worktrees.site import Brought, Site

_PRUNED_TRIES: Final = 3
"""How often a commit is tried in all that git refuses to make."""

_FATAL: Final = 128
"""Git's exit code when it gives up (git(1)); a command that was stopped or killed has another."""

HUGE_BYTES: Final = 100 * 1024 * 1024
"""A new file larger than this stays out of the repository; its worktree is kept."""

_MOST_NAMED: Final = 3
_MAX_MERGED: Final = 1 << 12
_MOST_RESCUES: Final = 100


@frozen
class Parked:
    """Where the work is: `commit` on `branch` or on `rescue`; `problems` name the work that no ref holds."""

    commit: str
    tree: str
    rescue: str | None
    problems: tuple[str, ...]


@frozen
class Head:
    """Where a worktree's HEAD is: the full name of its branch ('HEAD' = no branch), commit and tree."""

    reference: str
    commit: str
    tree: str


@frozen
class Written:
    """All that lies in a worktree as the object `tree`; `problems` are what it cannot hold."""

    head: Head
    tree: str
    problems: tuple[str, ...]


def park(site: Site, message: str, inside: str | None = None) -> Parked:
    """Commit what lies in the worktree to its branch, or else to a rescue branch; an error changes nothing.

    Args:
        inside: why commits of the task cannot leave its walls; the branch stays free for them.
    """
    written, commit = _make_commit(site, message)
    head, problems = written.head, [*filter(None, [inside]), *written.problems]
    if site.own is not None:
        # where the task finds it; if it is locked there, it is rescued
        if not problems and not site.own.refs.set_ref(head.reference, commit, head.commit):
            problems.append(f"{site.place.branch} is locked inside of its walls")
        site.own.publish(commit)
    rescue = _point_a_ref(site.outer, site.place, head.commit, commit, tidy=not problems)
    if rescue is not None:
        commit = rescue[0]
    known = ("--not", site.place.base_commit) if site.place.base_commit is not None else ()
    if site.outer.attempt("rev-list", "--objects", "--quiet", commit, *known, "--").returncode != 0:
        problems.append("a part of its commit is missing in the repository")
    return Parked(commit, written.tree, rescue and rescue[1], tuple(problems))


def commit_setup(site: Site, message: str) -> str | None:
    """Commit what lies in a worktree after SETUP to its branch, and let its own index say so.

    What cannot be in a commit stays as it is, for RELEASE to name; so does everything if setup left the branch.
    Returns where the work begins; None: there is nothing that git does not ignore.
    """
    written, commit = _make_commit(site, message)
    head = written.head
    name = f"refs/heads/{site.place.branch}"
    if head.reference != name or commit == site.place.base_commit:
        return None
    if commit != head.commit:
        refs = site.git if site.own is None else site.own.refs  # the branch as the task sees it
        refs("update-ref", name, commit, head.commit)
    if site.own is not None:
        site.own.publish(commit)
    site.settle_index(commit)
    return commit


def _make_commit(site: Site, message: str) -> tuple[Written, str]:
    """What lies in the worktree, and a commit of it.  No ref moves.

    Another task may run ``git gc --prune=now``, which deletes objects that nothing refers to yet: then all is made
    again.
    """
    for left in reversed(range(_PRUNED_TRIES)):
        try:
            written = write_worktree(site)
            head, commit = written.head, written.head.commit
            if written.tree != head.tree:
                commit = site.git.commit_tree(written.tree, _parents(site.git, head), message)
            return written, commit
        except GitError as error:
            if not left or error.code != _FATAL:
                raise
    raise AssertionError("the last try raises")


def write_worktree(site: Site) -> Written:
    """Write what lies in the worktree as a tree; no ref, index or file of it changes."""
    git = site.git
    head = _read_head(git, site.place)
    problems = _find_off_branch(git, head, site.place)
    index = git.with_index(site.folder / "park-index")
    seen, unmerged = _look(index, head)
    names, why = _choose_work(index.directory, seen, site.brought)
    problems += [*unmerged, *why]
    if seen.gitlinks or (git.admin / "modules").is_dir():
        from sessionrun.worktrees.inside import find_repositories  # few worktrees have any

        problems += find_repositories(site, seen.gitlinks)
    links: dict[str, bool] = {}
    gone = [name for name in names if is_behind_link(git.directory, name, links)]  # git refuses to look there
    there = sorted(set(names).difference(gone))  # a file that became a directory comes before what is in that
    for listed, words in ((gone, ("--force-remove",)), (there, ("--add", "--remove", "--replace"))):
        if listed:  # names, no pathspecs: git refuses an ignored path even if a pathspec excludes it
            index("update-index", *words, "-z", "--stdin", stdin=_join(listed))
    problems += _find_untrue(index, there, seen.gitlinks)
    tree = index.line("write-tree")
    assert index.index is not None
    index.index.unlink(missing_ok=True)
    return Written(head, tree, tuple(problems))


def copy_index(git: Git, commit: str) -> None:
    """Fill the private index of a git from that of its worktree, or from a commit if there is none.

    The copy has the same time of change, which is part of what an index says.  Git compares times by the second,
    and looks into a file that changed in the second in which the index was written, or later.  With a newer copy
    it would overlook a change of that second that keeps the size.
    """
    assert git.index is not None
    try:
        source = open_regular(git.admin / "index")
    except (FileNotFoundError, NotRegular):  # of a walled task it may be anything, and its copy be seen inside
        git("read-tree", commit)
        return
    with open(source, "rb") as index, open(git.index, "xb") as copy:
        times = os.fstat(source)
        shutil.copyfileobj(index, copy)
    os.utime(git.index, ns=(times.st_atime_ns, times.st_mtime_ns))


def write_patch(git: Git, base: str, tree: str, patch: Path) -> DiffStat:
    """Write the diff from the base commit as a patch that `git apply` takes; count what it changes.

    It uses plumbing, because settings of the user (prefixes, submodules as log) do not change its output.  Git
    prints the counts of files, an empty line, and the patch.
    """
    words = ("diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none")
    counts: DiffStat = {"files": 0, "insertions": 0, "deletions": 0}
    make_directories(patch.parent, 0o700)
    fd = open_regular(patch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(fd, "wb") as stream, tempfile.TemporaryFile(dir=patch.parent) as both:
        git(*words, "--numstat", "-p", "-M", "--binary", "--full-index", base, tree, stdout=both.fileno())
        both.seek(0)
        while line := both.readline().strip(b"\n"):
            added, deleted, _ = line.split(b"\t", 2)
            counts["files"] += 1
            counts["insertions"] += 0 if added == b"-" else int(added)
            counts["deletions"] += 0 if deleted == b"-" else int(deleted)
        shutil.copyfileobj(both, stream)
    return counts


def _read_head(git: Git, place: Place) -> Head:
    done = git.attempt("rev-parse", "HEAD^{commit}", "HEAD^{tree}", "--symbolic-full-name", "HEAD")
    lines = os.fsdecode(done.stdout).split("\n")
    if done.returncode == 0:
        return Head(lines[2], lines[0], lines[1])
    # a branch without a commit: an agent began a history of its own, or deleted its branch
    base = place.base_commit or ""
    tree = git.line("rev-parse", f"{base}^{{tree}}")
    return Head(git.line("symbolic-ref", "HEAD"), base, tree)


def _find_off_branch(git: Git, head: Head, place: Place) -> list[str]:
    branch = f"refs/heads/{place.branch}"
    if head.reference == branch:
        return []
    if head.reference == "HEAD" and place.seat is not None:
        # a RELEASE may have been killed when it left a worktree that stays: HEAD comes before the mark
        words = ("for-each-ref", "--count=1", f"--points-at={head.commit}", branch, f"{branch}{RESCUE_SUFFIX}*")
        if git.line(*words):
            return []
    where = "no branch" if head.reference == "HEAD" else head.reference.removeprefix("refs/heads/")
    return [f"HEAD is on {where}, not on {place.branch}"]


class _Seen(NamedTuple):
    """What git says of a worktree: paths that are new, changed or gone; links to repositories; and what it cannot
    say, for directories that it cannot open, entries that were hidden from it, and conflicts.
    """

    changed: list[str]
    gitlinks: list[str]
    closed: list[str]
    hidden: list[str]
    unmerged: bool


def _look(index: Git, head: Head) -> tuple[_Seen, list[str]]:
    """What lies in the worktree, by a private index, and whether a merge is unfinished.

    The index knows the files' stat data, so that only what changed is read.  Flags by which an agent may have
    hidden changes from git are taken off.
    """
    copy_index(index, head.commit)
    seen = _list(index)
    if seen.unmerged:
        index("read-tree", head.commit)
        return _list(index), ["a merge was left unfinished"]
    if shown := [name for name in seen.hidden if os.path.lexists(index.directory / name)]:
        _show(index, shown)
        seen = _list(index)
    return seen, []


def _list(index: Git) -> _Seen:
    words = ("-v", "--stage", "--others", "--exclude-standard", "--modified", "--deleted")
    lines, closed = index.list_files(*words)
    seen = _Seen([], [], closed, [], any(line[0] in "Mm" for line in lines))
    for line in lines:
        tag, name = line[0], line[2:]
        if tag != "?":
            about, _, name = name.partition("\t")
            if about.startswith("160000 ") and tag in "HhSs":
                seen.gitlinks.append(name)
        if tag in "?CcRr":
            seen.changed.append(name)
        elif tag.islower() or tag == "S":
            seen.hidden.append(name)
    return seen


def show_hidden(git: Git) -> None:
    """Take off flags by which git overlooks changes; an index that cannot be read is made anew by the reset."""
    listed = git.attempt("ls-files", "-v", "-z")
    if listed.returncode:
        (git.admin / "index").unlink(missing_ok=True)
        return
    if hidden := [entry[2:] for entry in split_names(listed.stdout) if entry[0].islower() or entry[0] == "S"]:
        _show(git, hidden)


def _show(git: Git, names: Sequence[str]) -> None:
    for flag in ("--no-assume-unchanged", "--no-skip-worktree"):
        git("update-index", flag, "-z", "--stdin", stdin=_join(names))


def _choose_work(top: Path, seen: _Seen, brought: Brought) -> tuple[list[str], list[str]]:
    """Paths that go into the commit, and why the worktree is kept for those that cannot."""
    names: list[str] = []
    why = list(seen.closed)
    for name in dict.fromkeys(seen.changed):
        path = top / name
        if not is_readable(path):
            why.append(f"{name} cannot be read")
        elif brought.has(name, path):
            continue
        elif name.endswith("/"):
            why.append(f"{name} is a repository of its own")
        elif name not in seen.gitlinks and is_folder(path) and os.path.lexists(path / ".git"):
            why.append(f"{name}/ is a repository of its own")  # in the place of a file
        elif path.is_file() and not path.is_symlink() and path.stat().st_size > HUGE_BYTES:
            why.append(f"{name} is larger than {HUGE_BYTES // 1024 // 1024} MiB")
        else:
            names.append(name)
    for folder in dict.fromkeys(os.path.dirname(name) for name in names):
        git_dir = top / folder / ".git"  # one that is not a repository (any more): git overlooks what is in it
        if folder and not git_dir.parent.is_symlink() and git_dir.is_dir() and any(git_dir.iterdir()):
            why.append(f"{folder}/.git is not a repository, and no commit can hold it")
    return names, why


def _join(names: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def is_readable(path: Path) -> bool:
    """Whether a commit can hold what is at a path, or nothing is there."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return not stat.S_ISREG(mode) or os.access(path, os.R_OK)


def _find_untrue(index: Git, names: Sequence[str], gitlinks: Sequence[str]) -> list[str]:
    """Name the files that were added to the index, and of which it holds something else; at most one line."""
    found = {*names}.difference(gitlinks)
    top = index.directory
    untrue = [name for name in names if name in found and (top / name).is_file() and not (top / name).is_symlink()]
    if not untrue:
        return []
    entries = (entry.partition("\t") for entry in index.names("ls-files", "--stage", "-z"))
    held = {name: about.split(" ")[1] for about, _, name in entries if name in found}
    untrue = [name for name in untrue if not _holds(index.directory / name, held.get(name, ""))]
    if untrue:  # these have a filter: what git makes of a file is asked of git
        listed = b"".join(os.fsencode(_quote(name)) + b"\n" for name in untrue)
        blobs = index("hash-object", "--stdin-paths", stdin=listed).decode().split()
        untrue = [name for name, blob in zip(untrue, blobs, strict=True) if held.get(name) != blob]
    return [f"{name_some(untrue, _MOST_NAMED)} changed while the work was parked"] if untrue else []


def _holds(path: Path, blob: str) -> bool:
    """Whether a file, as it is, has the content of which `blob` is git's name."""
    import hashlib  # only work that is not committed needs it

    try:
        with open(open_regular(path), "rb") as stream:
            head = b"blob %d\0" % os.fstat(stream.fileno()).st_size
            digest = hashlib.new("sha256" if len(blob) == 64 else "sha1", head, usedforsecurity=False)
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return False
    return digest.hexdigest() == blob


def _quote(name: str) -> str:
    """A path as git reads it from a line: in quotes if git would otherwise read another path."""
    if not (name.startswith('"') or "\n" in name or name.endswith("\r")):
        return name
    quoted = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{quoted}"'


def _parents(git: Git, head: Head) -> list[str]:
    """HEAD, and the commits of an unfinished merge into it."""
    try:
        merged = read_regular(git.admin / "MERGE_HEAD", _MAX_MERGED).decode("ascii").split()
    except (OSError, ValueError):
        merged = []
    return list(dict.fromkeys([head.commit, *(commit for commit in merged if git.commit_of(commit) == commit)]))


def _point_a_ref(git: Git, place: Place, head: str, commit: str, *, tidy: bool) -> tuple[str, str] | None:
    """Move the task's branch to the commit, or make a rescue branch; return what holds the work then.

    A branch that was deleted under its worktree is made again; a branch that moved, or is locked, stays as it is.
    """
    name = f"refs/heads/{place.branch}"
    if tidy and git.set_ref(name, commit, head):
        return None
    tip = git.commit_of(name)
    if tip == commit or (tidy and tip is None and git.set_ref(name, commit, None)):
        return None
    return make_rescue(git, place.branch or "", commit, ours=commit != head)


def make_rescue(git: Git, branch: str, commit: str, *, ours: bool) -> tuple[str, str]:
    """A rescue branch at the commit, or one with the same content if the commit is `ours`: its commit and name."""
    for number in range(1, _MOST_RESCUES + 1):
        rescue = f"{branch}{RESCUE_SUFFIX}" + ("" if number == 1 else f"-{number}")
        if git.set_ref(f"refs/heads/{rescue}", commit, None):
            return commit, rescue
        there = git.commit_of(f"refs/heads/{rescue}")
        if there is not None and (there == commit or (ours and _content(git, there) == _content(git, commit))):
            return there, rescue
    raise GitError(("update-ref",), 1, f"cannot make a branch like {rescue}")


def _content(git: Git, commit: str) -> str:
    return git.line("rev-parse", f"{commit}^{{tree}}", f"{commit}^@")


def rescue_lost_head(request: WorkspaceRequest, main: Git, path: Path) -> None:
    """Make a rescue branch for each commit that only the HEAD of a worktree holds whose directory is gone."""
    place = request.place
    for admin in find_lost_admins(request.repository, path, request.owner):
        if place is None or place.branch is None or path.exists():
            continue
        commit = replace(main, git_dir=admin).commit_of("HEAD")
        if commit is not None and not main.line("for-each-ref", "--count=1", "--contains", commit):
            make_rescue(main, place.branch, commit, ours=False)


def find_rescues(main: Git, branch: str) -> list[str]:
    """The rescue branches of a task branch, oldest first."""
    stem = f"{branch}{RESCUE_SUFFIX}"
    names = [name for name in main.list_branches(stem) if re.fullmatch(r"(-[0-9]+)?", name.removeprefix(stem))]
    return sorted(names, key=lambda name: (len(name), name))
