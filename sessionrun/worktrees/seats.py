"""Worktrees that stay after their task: how one is found, taken, brought to where a task begins, and left.

The mark in the administrative directory (see `registration`) says who has the seat: its owner and its branch, or
`FREE`, then the commit that lies there, and the session that had it last.  What a task leaves is on its branch
before the mark changes, so a free seat holds nothing of its own but what git ignores: caches, for which it stays.
One in which a PREPARE fails, or is killed, is removed with these, and made anew.

A seat is taken under the lock of all worktrees.  Whatever is not a free seat as its last task left it is passed
over, and the next number is tried: another session's, a user's directory, one in which a user worked since.  All
but what git ignores goes when the next task takes it, and so do locks, settings and submodules of the one before.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.git import Git, GitError
from sessionrun.git.private import Fence
from sessionrun.git.rooms import fill_submodules, find_places, is_behind_link
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import TASK_FILE, Place, Repository, Seats
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.trees import remove_entry
from sessionrun.worktrees import registration
from sessionrun.worktrees.bases import list_taken
from sessionrun.worktrees.park import show_hidden, write_worktree
from sessionrun.worktrees.request import Claim, WorkspaceRequest
from sessionrun.worktrees.site import Brought, Site, find_links, included_files, is_tracked

FREE: Final = "seat"
"""The first line of a free seat's mark; an owner has a slash."""

WALLED: Final = "sessionrun-walled"
"""Beside the mark of a free seat: its last task had walls, so git outside does not read its files."""

MOST: Final = 1000

_OF_ANY_WORKTREE: Final = frozenset((registration.MARK, "commondir", "gitdir", "HEAD", "index", "locked"))
"""What stays in the administrative directory of a seat: all else is of the task before."""

_OF_A_TABLE: Final = frozenset(("reftable", "refs"))
"""What stays, too, where git keeps all refs in a table: HEAD is in it."""

GITIGNORE: Final = b"# worktrees of sessionrun\n/.*\n/w[0-9]*/\n"
"""What makes the user's git overlook seats inside of the checkout.  In `info/exclude` such a rule would hold in
all worktrees, and hide work there."""


@frozen
class Free:
    """A seat that no task has: the commit that lies there, and the session that had it last."""

    commit: str
    session_id: str


def load_free(admin: Path) -> Free | None:
    """What the mark of a free seat says; None: the worktree is not one."""
    lines = registration.read_mark(admin)
    return Free(*lines[1:3]) if len(lines) > 2 and lines[0] == FREE else None


def list_free(repository: Repository, seats: Seats) -> list[tuple[Path, Path, Free]]:
    """The free seats of a repository: top, administrative directory, and mark."""
    found = []
    for top, admin in registration.list_worktrees(repository.common_dir):
        free = load_free(admin) if str(top.parent) == seats.directory else None
        if free is not None:
            found.append((top, admin, free))
    return found


def is_unchanged(fence: Fence, path: Path, admin: Path, free: Free, folder: Path) -> bool:
    """Whether a free seat lies there as its last task left it; `folder` may have a private index."""
    if registration.read_head(admin) != free.commit:
        return False
    of_no_task = WorkspaceRequest(fence.repository, "", "", "", place=Place(branch=None, base_commit=free.commit))
    git, own = fence.inside(path, admin), None
    if (admin / WALLED).exists():
        from sessionrun.worktrees.own import open_apart  # only walled tasks need it

        own = open_apart(fence, of_no_task, path, git)
        git, folder = own.git, own.scratch
    written = write_worktree(Site(fence, git, of_no_task, Brought(path), folder, own))
    # HEAD is on no branch; but in a git directory apart it is
    return written.tree == written.head.tree and len(written.problems) == int(own is None)


def find_user(fence: Fence, path: Path, admin: Path, free: Free, folder: Path) -> str | None:
    """Why a free seat is in use all the same; None: it lies there as its last task left it, or not at all."""
    if load_free(admin) != free:
        return "another session has it now"
    if (admin / "locked").exists():
        return "it is locked (git worktree lock)"
    try:
        unchanged = not path.exists() or is_unchanged(fence, path, admin, free, folder)
    except (SessionrunError, OSError) as error:
        return f"it cannot be read: {error}"  # and what cannot be read may be a user's
    return None if unchanged else "it has changes since its last task: commit them to a branch, or take them back"


# --- taking one ---


def take_seat(fence: Fence, request: WorkspaceRequest, folder: Path, base: str) -> Claim:
    """Take the first seat that is free, or make one where there is none; under the lock."""
    seats = request.seats
    assert seats is not None
    rules = Path(seats.directory, ".gitignore")
    make_directories(rules.parent)
    if seats.placement == "inside" and not os.path.lexists(rules):  # a user's rules stay
        replace_file(rules, GITIGNORE, durable=False, mode=0o644)
    first = request.seat or 1
    for number in (first, *(number for number in range(1, MOST + 1) if number != first)):
        path = Path(seats.path_of(number))
        wanted = Claim("", str(path), base, seat=number)
        if not os.path.lexists(path):
            lost = registration.find_lost_admins(request.repository, path)
            if all(load_free(admin) is not None for admin in lost):
                if lost:  # git still lists a free one whose directory was deleted
                    registration.unregister(request.repository, path, request.owner)
                return _take(fence, request, folder, wanted, None)
            continue
        admin = registration.find_admin(request.repository, path)
        free = load_free(admin) if admin is not None else None
        if admin is not None and free is not None and find_user(fence, path, admin, free, folder) is None:
            return _take(fence, request, folder, wanted, admin)
    raise SessionrunError(f"none of {MOST} worktrees like {seats.path_of(1)} is free")


def _take(fence: Fence, request: WorkspaceRequest, folder: Path, wanted: Claim, admin: Path | None) -> Claim:
    """Take a free seat, or make it, for a branch of the first name that is free, or that holds earlier work."""
    git, earlier = fence.main(), request.earlier

    def take(claim: Claim) -> None:
        if admin is None:
            registration.register(git, fence.settings, request, claim)
        else:
            registration.create_branch(git, claim)
            registration.write_mark(admin, request.owner, claim.branch)

    if earlier is not None and earlier.branch is not None:
        again = Claim.again(earlier, wanted.worktree, wanted.base_commit, seat=wanted.seat)
        return registration.claim_first([again], folder, take)
    names = registration.free_branches(*list_taken(git, request))
    return registration.claim_first((replace(wanted, branch=branch) for branch, _ in names), folder, take)


# --- bringing it to where a task begins ---


def make_ready(fence: Fence, request: WorkspaceRequest, claim: Claim, folder: Path) -> Claim:
    """Bring the task's seat to where the task begins; one where that fails is removed, and the next is taken.

    Returns the claim of the seat that is ready.
    """
    try:
        _set_back(fence, request, claim)
        return claim
    except (GitError, OSError) as error:
        if getattr(error, "signal", None):
            raise  # git was killed: the job is done again
        with registration.register_lock(request.repository):
            registration.drop_unused(fence.main(), request, claim)
            claim = take_seat(fence, request, folder, claim.taken_up or claim.base_commit)
    _set_back(fence, request, claim)
    return claim


def _set_back(fence: Fence, request: WorkspaceRequest, claim: Claim) -> None:
    path = Path(claim.worktree)
    admin = registration.need_admin(request.repository, path)
    git = fence.inside(path, admin)
    has_modules = any(os.path.lexists(place) for place in (admin / "modules", path / ".gitmodules"))
    if has_modules or (admin / WALLED).exists():
        # the repositories of submodules are of the task before
        for line in git.names("ls-files", "--stage", "-z"):
            about, _, name = line.partition("\t")
            # it is not there in a sparse checkout; and a link that the task has left may lead anywhere
            is_there = os.path.lexists(path / name) and not is_behind_link(path, name)
            if about.startswith("160000 ") and is_there:
                remove_entry(path / name)
                (path / name).mkdir()
    before = git.commit_of("HEAD")
    kept = _OF_ANY_WORKTREE | (_OF_A_TABLE if (admin / "reftable").is_dir() else set())
    for entry in admin.iterdir():
        if entry.name not in kept:
            remove_entry(entry)
    registration.table_lock(admin).unlink(missing_ok=True)
    registration.bring_settings(admin, fence.settings)
    git("symbolic-ref", "HEAD", f"refs/heads/{claim.branch}")
    if request.walls is None:
        show_hidden(git)
    git = write_files(fence, request, claim, before)
    git("clean", "-ffdq")
    # what git ignores in the place of what is brought goes: it is brought again
    for name in (*find_links(request), *included_files(fence.main())):
        for folder in reversed(Path(name).parents):  # a link of the task before may lead anywhere
            if (path / folder).is_symlink() and not is_tracked(git, str(folder), "HEAD"):
                (path / folder).unlink()
        if is_behind_link(path, name) or is_tracked(git, name, "HEAD"):
            continue
        if os.path.lexists(path / name):
            remove_entry(path / name)


def write_files(fence: Fence, request: WorkspaceRequest, claim: Claim, before: str | None = None) -> Git:
    """Write the files of HEAD into the task's worktree, where those of `before` lie; git for its files there."""
    path = Path(claim.worktree)
    if request.walls is not None:
        from sessionrun.worktrees.own import check_out  # only walled tasks need it

        return check_out(fence, replace(request, place=claim), path, before)
    git = fence.inside(path, registration.need_admin(fence.repository, path))
    git("read-tree", "--reset", "-u", "HEAD")  # a `reset` would lock the branch as well
    if os.path.lexists(path / ".gitmodules"):
        fill_submodules(git, find_places(request.repository))
    return git


def show_task(fence: Fence, request: WorkspaceRequest, claim: Claim) -> None:
    """Leave the task's prompt in its seat, unless the repository has something of that name."""
    path = Path(claim.worktree, TASK_FILE)
    if is_tracked(fence.main(), TASK_FILE, claim.base_commit):
        return
    remove_entry(path)
    with open(path, "xb") as stream:  # it follows no link
        stream.write(request.prompt.rstrip("\n").encode("utf-8", "surrogateescape") + b"\n")


def drop_task_file(git: Git, place: Place) -> None:
    """Take the file of the current task away, unless the repository has one of that name."""
    path = git.directory / TASK_FILE
    if (path.is_symlink() or path.is_file()) and not is_tracked(git, TASK_FILE, place.base_commit):
        path.unlink()


# --- leaving it ---


def leave_seat(git: Git, commit: str, request: WorkspaceRequest) -> None:
    """Free the seat in which `git` works; under the lock.  A job that is killed here leaves it again.

    `commit` is all that lies there; a ref holds it.
    """
    for name, target in find_links(request).items():
        link = git.directory / name
        if link.is_symlink() and os.readlink(link) == target:
            link.unlink()
    if request.walls is None:
        git.settle_index(commit)
    else:
        git("read-tree", commit)
        replace_file(git.admin / WALLED, b"", durable=False)
    git("update-ref", "--no-deref", "HEAD", commit)
    registration.write_mark(git.admin, FREE, commit, request.session_id)
