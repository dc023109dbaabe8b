"""PREPARE in a worktree that stays: find a seat that is free, take it, and bring it to where the task begins.

A seat is taken under the lock of the books.  Whatever is not a free seat as its last task left it is passed over,
and the next number is tried: another session's, a user's directory, one in which a user worked since.  What git
ignores stays in a seat; all else that the task before left is gone, and so are its locks, settings and submodules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import TASK_FILE, Place, Repository, Seats
from sessionrun.store import crashpoint
from sessionrun.store.files import make_directories, open_regular, read_regular, replace_file
from sessionrun.workspaces.books import MARK, bring_settings
from sessionrun.workspaces.bringing import included_files
from sessionrun.workspaces.claims import prepare_jobs
from sessionrun.workspaces.fence import Fence
from sessionrun.workspaces.git import Git, GitError
from sessionrun.workspaces.ignoring import RULES, hide_name
from sessionrun.workspaces.links import find_name, find_target
from sessionrun.workspaces.naming import NAME_TRIES, free_branches, list_taken
from sessionrun.workspaces.park import Brought
from sessionrun.workspaces.registration import (
    create_branch,
    drop_branch,
    find_admin,
    find_lost_admins,
    register,
    register_lock,
    remove_entry,
    take_back,
    unregister,
)
from sessionrun.workspaces.request import CLAIM, Claim, WorkspaceRequest
from sessionrun.workspaces.rounds import show_hidden
from sessionrun.workspaces.seats import (
    drop_task_file,
    is_seat_of,
    is_tracked,
    is_unchanged,
    leave_seat,
    load_free,
    write_mark,
    write_task_file,
)

MOST: Final = 1000
"""How many numbers are tried."""

_OF_ANY_WORKTREE: Final = frozenset((MARK, "commondir", "gitdir", "HEAD", "index", "locked"))
"""What stays in the administrative directory of a seat: all else is of the task before."""

GITIGNORE: Final = b"# worktrees of sessionrun\n/.*\n/w[0-9]*/\n"
"""What makes the user's git overlook seats inside of the checkout.  In `info/exclude` such a rule would hold in
all worktrees, and hide work there."""


def find_begun(request: WorkspaceRequest, folder: Path) -> Claim | None:
    """The claim of the seat that an earlier PREPARE of this attempt took and did not make ready."""
    for job, claim in prepare_jobs(folder):
        if job != folder and claim.seat is not None and has_seat(request, claim):
            replace_file(folder / CLAIM, orjson.dumps(claim), durable=False)
            return claim
    return None


def has_seat(request: WorkspaceRequest, claim: Claim) -> bool:
    """Whether the seat of a claim is the task's."""
    return is_seat_of(request.repository, Path(claim.worktree), request.owner, claim.branch)


def take_seat(fence: Fence, request: WorkspaceRequest, folder: Path, base: str) -> Claim:
    """Take the first seat that is free, or make one where there is none; under the lock.

    Raises:
        SessionrunError, OSError: no seat can be had; only the claim is left.
    """
    seats = request.seats
    assert seats is not None
    _hide_seats(fence.main(), seats)
    for number in _numbers(request.seat):
        path = Path(seats.path_of(number))
        if os.path.lexists(path):
            admin = _find_free(fence, path, folder)
            if admin is not None:
                return _take(fence, request, folder, Claim("", str(path), base, request.owner, seat=number), admin)
        elif _forget_lost(request, path):
            return _take(fence, request, folder, Claim("", str(path), base, request.owner, seat=number), None)
    raise SessionrunError(f"none of {MOST} worktrees like {seats.path_of(1)} is free")


def _numbers(wish: int | None) -> Iterator[int]:
    first = wish or 1
    yield first
    yield from (number for number in range(1, MOST + 1) if number != first)


def _find_free(fence: Fence, path: Path, folder: Path) -> Path | None:
    """The administrative directory of a free seat in which all is as its last task left it."""
    admin = find_admin(fence.repository, path)
    free = load_free(admin) if admin is not None else None
    if admin is None or free is None:
        return None
    try:
        return admin if is_unchanged(fence, path, admin, free, folder) else None
    except (SessionrunError, OSError):
        return None  # what cannot be read may be a user's


def _forget_lost(request: WorkspaceRequest, path: Path) -> bool:
    """Whether a seat can be made there: git may still list a free one whose directory was deleted."""
    lost = find_lost_admins(request.repository, path)
    if any(load_free(admin) is None for admin in lost):
        return False
    if lost:
        unregister(request.repository, path, request.owner)
    return True


def _take(fence: Fence, request: WorkspaceRequest, folder: Path, wanted: Claim, admin: Path | None) -> Claim:
    """Take a free seat, or make it, for a branch of the first name that is free."""
    git, tries = fence.main(), 0
    for claim in _name_branches(git, request, wanted):
        replace_file(folder / CLAIM, orjson.dumps(claim), durable=False)
        try:
            if admin is None:
                register(git, fence.settings, request.repository, claim)
            else:
                create_branch(git, claim)
                crashpoint.step()
                write_mark(admin, claim.owner, claim.branch)
            return claim
        except FileExistsError as error:
            tries += 1
            if tries == NAME_TRIES:
                raise SessionrunError(f"no name is free for {claim.branch}: {error}") from error
    raise AssertionError("names never end")


def _name_branches(git: Git, request: WorkspaceRequest, wanted: Claim) -> Iterator[Claim]:
    """Claims of branches whose names are free or, if earlier work is taken up, of the branch that holds it."""
    earlier = request.earlier
    if earlier is not None and earlier.branch is not None:
        base, setup = earlier.base_commit or "", earlier.setup_commit
        yield replace(
            wanted, branch=earlier.branch, base_commit=base, setup_commit=setup, taken_up=wanted.base_commit
        )
        return
    stem, taken = list_taken(git, request)
    for branch, _ in free_branches(stem, taken):
        yield replace(wanted, branch=branch)


def make_ready(fence: Fence, request: WorkspaceRequest, claim: Claim, folder: Path) -> None:
    """Bring the task's seat to where the task begins; one that cannot be set back is made anew.

    Raises:
        SessionrunError, OSError: it cannot be made either.
    """
    try:
        _set_back(fence, request, claim, folder)
    except (GitError, OSError) as error:
        if getattr(error, "signal", None):
            raise  # git was killed: the job is done again
        with register_lock(request.repository):
            take_back(fence.main(), request.repository, claim)
            register(fence.main(), fence.settings, request.repository, claim)
        _set_back(fence, request, claim, folder)


def give_back(fence: Fence, request: WorkspaceRequest, claim: Claim, folder: Path) -> None:
    """Take the seat from a task that never worked in it; it stays if it can be free, under the lock."""
    top, path = request.repository.top, Path(claim.worktree)
    links = {find_name(top, link): find_target(top, link) for link in request.links}
    try:
        _set_back(fence, request, claim, folder)
        admin = find_admin(request.repository, path)
        assert admin is not None
        git, rules = fence.inside(path, admin), (folder / RULES).read_bytes()
        drop_task_file(git, Place(base_commit=claim.base_commit))
        leave_seat(git, claim.taken_up or claim.base_commit, brought=Brought(Path(top), links), rules=rules)
        drop_branch(fence.main(), request.repository, claim)
    except (SessionrunError, OSError):
        take_back(fence.main(), request.repository, claim)


def _set_back(fence: Fence, request: WorkspaceRequest, claim: Claim, folder: Path) -> None:
    path = Path(claim.worktree)
    admin = find_admin(request.repository, path)
    if admin is None:
        raise SessionrunError(f"{path} was removed while it was made")
    git = fence.inside(path, admin)
    _empty_submodules(git, admin)
    for entry in admin.iterdir():
        if entry.name not in _OF_ANY_WORKTREE:
            remove_entry(entry)
    bring_settings(admin, path, request.repository, fence.settings)
    replace_file(admin / "HEAD", f"ref: refs/heads/{claim.branch}\n".encode(), durable=False, mode=0o644)
    crashpoint.step()
    show_hidden(git)
    git("read-tree", "--reset", "-u", "HEAD")  # a `reset` would lock the branch as well
    (fence.common / "info" / "exclude").write_bytes((folder / RULES).read_bytes())
    git("clean", "-ffdq")
    crashpoint.step()
    _make_room(fence, git, request, folder)


def _empty_submodules(git: Git, admin: Path) -> None:
    """Delete the files of submodules: their repositories are of the task before."""
    if not (admin / "modules").exists():
        return
    for entry in git.names("ls-files", "--stage", "-z"):
        about, _, name = entry.partition("\t")
        if about.startswith("160000 "):
            remove_entry(git.directory / name)
            (git.directory / name).mkdir()


def _make_room(fence: Fence, git: Git, request: WorkspaceRequest, folder: Path) -> None:
    """Delete ignored files in the place of links, and those that the user's checkout has otherwise by now."""
    repository, top = request.repository, git.directory
    for link in request.links:
        name = find_name(repository.top, link)
        target = top / name
        right = target.is_symlink() and os.readlink(target) == find_target(repository.top, link)
        if not right and os.path.lexists(target) and not is_tracked(git, name, "HEAD"):
            remove_entry(target)
    ignore = ("--exclude-per-directory=.gitignore", f"--exclude-from={folder.absolute() / RULES}")
    for name in included_files(fence.main(), Path(repository.top), ignore):
        target, origin = top / name, Path(repository.top, name)
        if os.path.lexists(target) and not _is_same(target, origin) and not is_tracked(git, name, "HEAD"):
            remove_entry(target)


def _is_same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink() or not (one.is_file() and other.is_file()):
        return False
    return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def show_task(fence: Fence, request: WorkspaceRequest, claim: Claim) -> None:
    """Leave the task's prompt in its seat.

    Raises:
        OSError: it cannot be written.
    """
    admin = find_admin(request.repository, Path(claim.worktree))
    if admin is not None:
        write_task_file(fence.inside(Path(claim.worktree), admin), request.prompt, claim.base_commit)


def hide_task_file(repository: Repository) -> None:
    """Let every git overlook the file of the current task; where that cannot be, only ours does."""
    hide_name(Path(repository.common_dir), TASK_FILE)


def _hide_seats(git: Git, seats: Seats) -> None:
    """Make the directory of the seats; git overlooks it where it lies in the checkout."""
    folder = Path(seats.directory)
    make_directories(folder)
    path = folder / ".gitignore"
    if seats.placement == "inside" and not has_other_rules(git, path) and _load_rules(path) != GITIGNORE:
        with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "wb") as stream:
            stream.write(GITIGNORE)


def has_other_rules(git: Git, path: Path) -> bool:
    """Whether the file for the rules that hide the seats is a user's; a kill may have left a part of ours."""
    present = _load_rules(path)
    if not os.path.lexists(path) or present == GITIGNORE:
        return False
    tracked = git.names("--literal-pathspecs", "ls-files", "-z", "--", str(path))
    return present is None or not GITIGNORE.startswith(present) or bool(tracked)


def _load_rules(path: Path) -> bytes | None:
    try:
        return read_regular(path, 1 << 20)
    except OSError:
        return None
