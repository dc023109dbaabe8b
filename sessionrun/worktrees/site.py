"""A task's worktree, opened for our git: where it is, what of it is ours and no work, and what a kill left in it.

Also the names of branches and directories that a task may have: what is free, and what comes after it.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.git.git import Git
from sessionrun.git.private import Fence, open_fence
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import TASK_FILE, Place, Repository
from sessionrun.store.jobfiles import CLAIM, write_record
from sessionrun.walls.argv import OWN_GIT
from sessionrun.worktrees import registration
from sessionrun.worktrees.bases import list_home
from sessionrun.worktrees.bringing import find_included, find_links
from sessionrun.worktrees.request import RESCUE_SUFFIX, Claim, WorkspaceRequest

if TYPE_CHECKING:
    from sessionrun.worktrees.own import Own

BEGUN: Final = "begun"
"""File in a job's folder: the job has begun once, and when."""

_POLL_S: Final = 0.1


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
        git: in the worktree; of a walled task inside of walls, in a git directory of its own.
        request: whose it is; its place names branch and base commit.
        folder: for a private index.
        own: the git directory of a walled task; None: it has no walls.
    """

    fence: Fence
    git: Git
    request: WorkspaceRequest
    brought: Brought
    folder: Path
    own: Own | None = None

    @property
    def outer(self) -> Git:
        """Git outside of walls: for refs, and for what a person sees, but never for files."""
        return self.git if self.own is None else self.own.outer

    def settle_index(self, commit: str) -> None:
        """Bring the index up to date with the commit that holds all that lies there."""
        self.git.settle_index(commit)
        if self.own is not None:
            self.own.outer("read-tree", commit)  # without a look at files: a person's git has it when it is asked

    @property
    def place(self) -> Place:
        """What PREPARE made."""
        assert self.request.place is not None
        return self.request.place


@contextmanager
def open_site(request: WorkspaceRequest, folder: Path) -> Iterator[Site]:
    """The task's worktree, for as long as a job needs it; what an earlier start of the job has locked is free.

    Raises:
        SessionrunError: there is no such worktree any more, or git fails.
    """
    with open_fence(request.repository, folder, limit_s=request.git_limit_s) as fence:
        path = find_worktree(request)
        if path is None:
            raise SessionrunError(f"the worktree {request.place and request.place.worktree} is gone")
        break_own_locks(request, folder, path)
        yield find_site(fence, request, path, folder)


def find_site(
    fence: Fence, request: WorkspaceRequest, path: Path, folder: Path, opens: Callable[..., Own] | None = None
) -> Site:
    """The worktree at `path`, to be read and parked; `folder` is the job's.

    `opens` makes the git directory of a walled task that serves for its files; None: its own.
    """
    git, own = find_git(fence, request, path), None
    if request.walls is not None:
        from sessionrun.worktrees.own import open_own  # only walled tasks need it

        own = (opens or open_own)(fence, request, path, git)
        git, folder = own.git, own.scratch
    origins, files = find_included(fence.main(), request)
    place = request.place
    ours = place is not None and place.seat is not None and not is_tracked(git, TASK_FILE, place.base_commit)
    brought = Brought(origins, find_links(request), frozenset(files), frozenset({TASK_FILE} if ours else ()))
    return Site(fence, git, request, brought, folder, own)


def find_git(fence: Fence, request: WorkspaceRequest, path: Path) -> Git:
    """Git in the worktree, outside of walls.

    Raises:
        SessionrunError: an agent removed or replaced the worktree's link to its repository.
    """
    admin = registration.find_admin(request.repository, path)
    if admin is None or is_of_another(request, path):
        raise SessionrunError(describe_broken_link(request.repository, path))
    return fence.inside(path, admin)


def find_worktree(request: WorkspaceRequest) -> Path | None:
    """Where the task's worktree is: its mark shows it, wherever it was moved; None when it is gone."""
    place = request.place
    assert place is not None and place.worktree is not None
    for top, admin in registration.list_worktrees(request.repository.common_dir):
        if registration.read_mark(admin)[:2] == [request.owner, place.branch] and top.is_dir():
            return top
    path = Path(place.worktree)  # git does not list it any more, or an agent took the mark
    return path if path.is_dir() and not is_of_another(request, path) else None


def is_of_another(request: WorkspaceRequest, path: Path) -> bool:
    """Whether an earlier start of this job removed our worktree, and another one has its name now."""
    admin = registration.find_admin(request.repository, path)
    return admin is not None and registration.load_owner(admin) not in (None, request.owner)


def is_tracked(git: Git, name: str, commit: str | None) -> bool:
    """Whether a commit has a file or directory of this name."""
    return bool(git("--literal-pathspecs", "ls-tree", "-z", commit or "HEAD", "--", name))


def describe_broken_link(repository: Repository, path: Path) -> str:
    """A line on a worktree whose `.git` leads elsewhere, and on what the user can do about it."""
    mend = "move its .git away and run git worktree repair in the repository"
    return f"to be mended by hand ({mend}): {path} is not a worktree of {repository.top} any more"


def word_message(what: str, request: WorkspaceRequest) -> str:
    """The message of a commit of ours: what it holds, and of which task."""
    title = request.title.replace("\0", "")
    return f"{what} of task {request.task}\n\n{title}\n\nParked by sessionrun session {request.session_id}.\n"


def break_own_locks(request: WorkspaceRequest, folder: Path, worktree: Path | None) -> None:
    """At the start of a job: if it has begun before, remove the locks that a git which was killed since then left.

    That are locks of the task's refs (of a mirror's task in the user's repository, too), and those of its
    worktree, if that is there: no other process of the task runs now.  The lock of all packed refs, or of a table
    of refs, may be another program's.  It goes when it is older than `STALE_LOCK_S`.
    """
    begun = folder / BEGUN
    try:
        os.close(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return
    except FileExistsError:
        since = begun.lstat().st_mtime
    common, home = request.repository.common_dir, request.upstream and request.upstream.home
    admin = registration.find_admin(request.repository, worktree) if worktree is not None else None
    locks = [*admin.glob("*.lock"), registration.table_lock(admin)] if admin is not None else []
    branch = request.place.branch if request.place is not None else None
    if request.walls is not None and branch is not None:
        own = Path(os.path.realpath(request.walls), OWN_GIT)
        locks += own.glob("*.lock")
        lock = registration.find_branch_lock(str(own), branch)
        if os.path.realpath(lock.parent) == str(lock.parent):  # no link of the task leads away
            locks.append(lock)
    for folder_of_refs in (common, home):
        if branch is None or not folder_of_refs:
            continue
        lock = registration.find_branch_lock(folder_of_refs, branch)
        locks += [lock, *lock.parent.glob(f"{lock.name.removesuffix('.lock')}{RESCUE_SUFFIX}*.lock")]
    for lock in locks:
        if (_made(lock) or 0.0) >= since:
            _remove(lock)
    for lock in (Path(common, "packed-refs.lock"), registration.table_lock(Path(common))):
        while (made := _made(lock)) is not None and made >= since:
            if time.time() - made > registration.STALE_LOCK_S:
                _remove(lock)
            else:
                time.sleep(_POLL_S)


def break_old_lock(repository: Repository, branch: str) -> None:
    """Remove an old lock on a branch of a session of which no process lives."""
    lock = registration.find_branch_lock(repository.common_dir, branch)
    made = _made(lock)
    if made is not None and time.time() - made > registration.STALE_LOCK_S:
        _remove(lock)


def _made(lock: Path) -> float | None:
    """When a lock was last written (Unix time), or None if there is none."""
    try:
        return lock.lstat().st_mtime
    except OSError:
        return None


def _remove(lock: Path) -> None:
    with suppress(OSError):
        lock.unlink()


NAME_TRIES: Final = 8


def claim_first(claims: Iterable[Claim], folder: Path, make: Callable[[Claim], object]) -> Claim:
    """Make the first of these claims whose names turn out to be free, after it is written to the job's folder."""
    for number, claim in enumerate(claims, 1):
        write_record(folder / CLAIM, claim)
        try:
            make(claim)
            return claim
        except FileExistsError as error:
            if number == NAME_TRIES:
                raise SessionrunError(f"no name is free for {claim.worktree}: {error}") from error
    raise AssertionError("names never end")


def branch_stem(repository: Repository, task: str, wanted: str | None) -> str:
    """The name of a task's branch, if it is free."""
    return (wanted or "{base}-task-" + task).replace("{base}", repository.base_branch)


def free_branches(stem: str, taken: Collection[str]) -> Iterator[tuple[str, str]]:
    """Branches for a task that do not exist yet, and what is added to the stem: a used name gets -2, -3, ..."""
    for number in itertools.count(1):
        suffix = "" if number == 1 else f"-{number}"
        branch = stem + suffix
        if branch not in taken and f"{branch}{RESCUE_SUFFIX}" not in taken:
            yield branch, suffix


def free_names(
    repository: Repository, stem: str, taken: Collection[str], directory: str | None = None
) -> Iterator[tuple[str, str]]:
    """The same with directories, which are named like the branch where `directory` says no other name."""
    for branch, suffix in free_branches(stem, taken):
        path = os.path.join(repository.worktree_dir, (directory or stem).replace("/", "-") + suffix)
        if not os.path.lexists(path):
            yield branch, path


def list_taken(git: Git, request: WorkspaceRequest) -> tuple[str, set[str]]:
    """The name of the task's branch, if it is free, and the branches there are that begin so."""
    stem = branch_stem(request.repository, request.task, request.branch)
    return stem, {*git.list_branches(stem)} | list_home(request, stem)
