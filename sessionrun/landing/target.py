"""Where a target is checked out, and moving a target that is checked out nowhere.

A branch that a rebase has in hand is checked out nowhere by git's word, and yet must not move.  The settings of
the launch do not say what is checked out now, so the files of each work tree are read.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from sessionrun.landing.records import Checkout, Hold
from sessionrun.landing.slot import Slot
from sessionrun.model.errors import InputError
from sessionrun.model.places import Repository
from sessionrun.workspaces.fence import Fence, open_fence
from sessionrun.workspaces.git import Git, GitError
from sessionrun.workspaces.registration import list_worktrees, load_owner, read_head

HEADS: Final = "refs/heads/"

Moved = Literal["moved", "again"]
"""What came of an attempt to land: `again`, because the target was elsewhere."""

INDEX_LOCK: Final = "index.lock"
LOCK_WAIT_S: Final = 10.0
"""So long a landing waits for the user's git in any work tree: it may be a switch to the target, which reads the
target's commit first, writes files for some time, and only then says in HEAD where it is."""

STALE_LOCK_S: Final = 600.0
"""A lock of this age was left by a git that was killed."""

_LOOK_EVERY_S: Final = 0.02

_REBASES: Final = ("rebase-merge", "rebase-apply")


def find_checkout(repository: Repository, target: str) -> Checkout | Hold | None:
    """The work tree in which a branch is checked out; None: in none; a hold if nothing may move it now."""
    found: list[Checkout] = []
    for top, git_dir in _iterate_places(repository):
        for name in _REBASES:
            if _read(git_dir / name / "head-name") == target:
                where = top or git_dir
                finish = f"git -C {shlex.quote(str(where))} rebase --continue"
                return Hold("rebase", f"{where} rebases {_short(target)}", finish)
        if read_head(git_dir) == f"ref: {target}":
            if top is None:
                reason = f"{_short(target)} is checked out in a work tree of {git_dir} that is not to be found"
                return Hold("checkout_unknown", reason)
            found.append(Checkout(str(top), str(git_dir)))
    if len(found) > 1:
        tops = " and ".join(one.top for one in found)
        mend = f"git -C {shlex.quote(found[1].top)} switch --detach"
        return Hold("checked_out_twice", f"{_short(target)} is checked out in {tops}", mend)
    return found[0] if found else None


def await_indexes(repository: Repository, target: str) -> Hold | None:
    """Wait until the user's git is at work in no work tree; a hold if one goes on for `LOCK_WAIT_S`.

    Worktrees of tasks do not count: they are on branches of their own.  A lock that was left in a work tree that
    has another branch is passed over.
    """
    deadline = time.monotonic() + LOCK_WAIT_S
    while (lock := _find_lock(repository, target)) is not None:
        if time.monotonic() > deadline or _age(lock) > STALE_LOCK_S:
            reason = f"{lock} is there: another git is at work, or was killed"
            return Hold("index_locked", reason, f"rm {shlex.quote(str(lock))}")
        time.sleep(_LOOK_EVERY_S)
    return None


def _find_lock(repository: Repository, target: str) -> Path | None:
    for _, git_dir in _iterate_places(repository):
        lock = git_dir / INDEX_LOCK
        if not os.path.lexists(lock) or load_owner(git_dir) is not None:
            continue
        if _age(lock) <= STALE_LOCK_S or read_head(git_dir) == f"ref: {target}":
            return lock
    return None


def _age(path: Path) -> float:
    """How long ago a file was made (seconds); 0 if it is gone."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def find_late_checkout(repository: Repository, target: str, late_s: float) -> Checkout | None:
    """The work tree in which a user's switch to a target ended just after the target had moved; None: in none.

    A switch gives its lock of the index back before it writes HEAD, so it is looked for a while.
    """
    if all(load_owner(git_dir) is not None for _, git_dir in _iterate_places(repository)):
        return None
    look_until, deadline = time.monotonic() + late_s, time.monotonic() + LOCK_WAIT_S
    while True:
        found = find_checkout(repository, target)
        if isinstance(found, Checkout):
            return found
        now = time.monotonic()
        if now > deadline or (now > look_until and _find_lock(repository, target) is None):
            return None
        time.sleep(_LOOK_EVERY_S)


def move_ref(slot: Slot, fence: Fence, new: str, old: str) -> Moved | Hold:
    """Move a target that is checked out nowhere.

    Raises:
        GitError: git failed for another reason than that the target is elsewhere.
    """
    show_head(fence, b"")
    return update_ref(slot, fence.main(), new, old)


def update_ref(slot: Slot, git: Git, new: str, old: str) -> Moved | Hold:
    """Move the target from `old` to `new` if it is at `old`.

    Raises:
        GitError: git failed for another reason.
    """
    words = ("update-ref", "-m", f"sessionrun: land {new[:12]}", slot.target, new, old)
    done = git.attempt(*words)
    if done.returncode == 0:
        return "moved"
    if done.returncode < 0:  # it was killed: its locks are for the recovery, by the record
        raise GitError(words, done.returncode, f"fatal: killed by signal {-done.returncode}")
    if git.commit_of(slot.target) != old:
        return "again"
    lock = slot.ref_path.with_name(f"{slot.ref_path.name}.lock")
    if os.path.lexists(lock):
        reason = f"{lock} is there: another git is at work on {_short(slot.target)}, or was killed"
        return Hold("ref_locked", reason, f"rm {shlex.quote(str(lock))}")
    raise GitError(words, done.returncode, done.stderr.decode("utf-8", "replace"))


def show_head(fence: Fence, head: bytes) -> None:
    """Say in the private common directory what is checked out, by which git writes the log of HEAD.

    What was read there when the fence was made may be out of date.  An empty `head` stands for no branch.
    """
    (fence.common / "HEAD").write_bytes(head or b"ref: refs/heads/none\n")


def is_main(repository: Repository, checkout: Checkout) -> bool:
    """Whether it is the repository's main work tree, whose administrative directory is the common one."""
    return checkout.git_dir == repository.common_dir


def _iterate_places(repository: Repository) -> Iterator[tuple[Path | None, Path]]:
    """Each work tree: its top, None if that is unknown, and its administrative directory."""
    common = Path(repository.common_dir)
    if not _is_bare(common):
        yield _find_main_top(repository, common), common
    for top, admin in list_worktrees(repository.common_dir):
        if top.is_dir():
            yield top, admin


def _find_main_top(repository: Repository, common: Path) -> Path | None:
    settings = repository.settings
    if settings is not None and os.path.realpath(settings.git_dir) == os.path.realpath(common):
        return Path(repository.top)
    return common.parent if common.name == ".git" else None


def _is_bare(common: Path) -> bool:
    words = ("config", "--file", str(common / "config"), "--no-includes", "--type=bool", "core.bare")
    return Git(common).attempt(*words).stdout.strip() == b"true"


def _read(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes()).rstrip("\n")
    except OSError:
        return ""


def _short(target: str) -> str:
    return target.removeprefix("refs/heads/")


def find_target(repository: Repository, into: str | None) -> str:
    """The full name of the branch.

    Raises:
        InputError: there is none of that name.
    """
    name = (into or repository.base_branch).removeprefix(HEADS)
    with open_fence(repository) as fence:
        git = fence.main()
        if git.commit_of(HEADS + name) is None:
            how = "" if into else ": say where to land (--land-into BRANCH; for merge: --into BRANCH)"
            if not into and git.commit_of(name) is not None:
                raise InputError(f"{repository.top}: worktrees begin at {name}, which is no branch{how}")
            raise InputError(f"{repository.top} has no branch {name!r}{how}")
    return HEADS + name
