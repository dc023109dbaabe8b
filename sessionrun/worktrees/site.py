"""A task's worktree, opened for our git: where it is, what of it is ours and no work, and what a kill left in it.

Ours is what a worktree, or a clean room, gets beside its commit: ignored files of the user's checkout, and links.
A link to a path inside of the repository stands in the worktree where that path stands in the checkout.  One to a
path outside, which only the user's own plan can name, stands at the top of the worktree under its last name.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.git.git import Git
from sessionrun.git.private import Fence, open_fence
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import TASK_FILE, Place, Repository
from sessionrun.store.files import expand_path, replace_file
from sessionrun.walls.argv import OWN_GIT
from sessionrun.worktrees import registration
from sessionrun.worktrees.request import HIDDEN, RESCUE_SUFFIX, WorkspaceRequest

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
        return self.request.made


@contextmanager
def open_site(request: WorkspaceRequest, folder: Path) -> Iterator[Site]:
    """The task's worktree, for as long as a job needs it; what an earlier start of the job has locked is free.

    Raises:
        SessionrunError: there is no such worktree any more, or git fails.
    """
    with open_fence(request.repository, folder, limit_s=request.git_limit_s) as fence:
        path = find_worktree(request)
        if path is None:
            raise SessionrunError(f"the worktree {request.made.worktree} is gone")
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
    place = request.made
    assert place.worktree is not None
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


# --- what a worktree gets beside its commit ---

INCLUDE_FILE: Final = ".worktreeinclude"


def included_files(git: Git) -> list[str]:
    """Ignored files of the checkout where git works that `.worktreeinclude` (as gitignore(5)) asks for."""
    if not (git.directory / INCLUDE_FILE).is_file():
        return []
    wanted = git.names("ls-files", "-z", "--others", "--ignored", f"--exclude-from={INCLUDE_FILE}")
    ignored = set(git.names("ls-files", "-z", "--others", "--ignored", "--exclude-standard"))
    return [name for name in wanted if name in ignored and not name.endswith("/")]


def find_missing(repository: Repository, folders: Collection[str]) -> set[str]:
    """Those directories, relative to the top, that a worktree will lack, unless links bring them."""
    git = Git(Path(repository.top))
    missing = set()
    for folder in folders:
        if folder == os.curdir:
            continue
        entry = git("--literal-pathspecs", "ls-tree", "--full-tree", "-z", repository.base_commit, folder)
        if not entry.startswith((b"040000 ", b"160000 ")):
            missing.add(folder)
    if missing:
        brought = included_files(git)
        missing -= {folder for folder in missing if any(name.startswith(f"{folder}/") for name in brought)}
    return missing


def kept_path(top: Path, owner: str) -> Path:
    """Where a node keeps the included files of a task, beside the replica `top`."""
    return top.parent / "included" / sha256(os.fsencode(owner)).hexdigest()[:16]


def find_included(git: Git, request: WorkspaceRequest) -> tuple[Path, list[str]]:
    """The directory that has the included files, and their names: the checkout, or on a node what was sent."""
    top = Path(request.repository.top)
    if request.upstream is not None:  # a mirror has no files
        return top, []
    kept = kept_path(top, request.owner)
    if not kept.is_dir():
        return top, included_files(git)
    found = [Path(place, name) for place, _, names in os.walk(kept) for name in names]
    return kept, sorted(str(path.relative_to(kept)) for path in found)


def bring_files(git: Git, request: WorkspaceRequest, path: Path, *, in_room: bool = False) -> None:
    """Copy what `.worktreeinclude` names and link what the task asks for, out of the user's checkout.

    Args:
        git: in the user's checkout.
        path: the worktree or, with `in_room`, a clean room: there files of the work stay where a link would be.
    """
    top = Path(request.repository.top)
    origins, included = find_included(git, request)
    for name in included:
        if not os.path.lexists(path / name) and _is_inside(path / name, path):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(origins / name, path / name, follow_symlinks=False)
    for link in request.links:
        name, origin, _ = place_link(str(top), link)
        if not in_room and (problem := describe_problem(str(top), request.links, link)) is not None:
            raise SessionrunError(f"links: {problem}")
        target = path / name
        if target.is_symlink() and os.readlink(target) == origin:
            continue  # an earlier start of this job did that
        gives_way = request.gives_way or (request.upstream is not None and request.upstream.history is not None)
        if gives_way and os.path.lexists(target):
            continue  # its links are those that are usual, as far as there is room for them
        if in_room and (os.path.lexists(target) or not _is_inside(target, path)):
            continue
        if os.path.lexists(target):
            raise SessionrunError(f"links: {link} is tracked by git, so the worktree has its own")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(origin)


def _is_inside(target: Path, top: Path) -> bool:
    """Whether no link, and no file, of the work stands in the way to the target."""
    between = takewhile(lambda parent: parent != top, target.parents)
    return not any(parent.is_symlink() or (os.path.lexists(parent) and not parent.is_dir()) for parent in between)


def place_link(top: str, link: str) -> tuple[str, str, bool]:
    """Where a link stands in a worktree, where it leads, and whether that is out of the checkout `top`.

    By its words alone: nothing is looked up.
    """
    target = expand_path(top, link)
    leads_out = not target.startswith(top.rstrip("/") + "/")
    return os.path.basename(target) if leads_out else os.path.relpath(target, top), target, leads_out


def describe_problem(top: str, links: Iterable[str], link: str) -> str | None:
    """Why a worktree of the checkout `top`, which is to have all of `links`, cannot have this link, or None."""
    name, target, leads_out = place_link(top, link)
    if not name or name.partition("/")[0] in (".", "..", ".git") or top == target or top.startswith(target + "/"):
        return f"{link} is not a path that a worktree could have a link to"
    if not os.path.lexists(target):
        return f"{link}: there is no {target}" if leads_out else f"{link}: there is none in {top}"
    twin = next((other for other in links if other != link and place_link(top, other)[0] == name), None)
    return f"{link} and {twin} would both be {name} in the worktree" if twin is not None else None


def write_hidden(repository: Repository, links: Iterable[str], folder: Path) -> None:
    """Leave rules that ignore what git ignores anyway, and the links that lead out; nothing where none does."""
    placed = (place_link(repository.top, link) for link in links)
    if out := [name for name, _, leads_out in placed if leads_out]:
        rules = (re.sub(r"([\\*?\[ ])", r"\\\1", f"/{name}") for name in out)
        replace_file(
            folder / HIDDEN, "".join(f"{line}\n" for line in (repository.excludes, *rules)).encode(), durable=False
        )


def find_links(request: WorkspaceRequest) -> dict[str, str]:
    """The links of a worktree: where each stands, and where it leads."""
    placed = (place_link(request.repository.top, link) for link in request.links)
    return {name: target for name, target, _ in placed}
