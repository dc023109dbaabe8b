"""The work trees of a repository: where a branch is checked out, and git's locks of their indexes.

A branch that a rebase has in hand is checked out nowhere by git's word, and yet must not move.  The settings of
the launch do not say what is checked out now, so the files of each work tree are read.

    <admin>/index.lock    while a landing holds it, a link of the record of its slot
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from sessionrun.git.git import Git
from sessionrun.landing.records import MARK, Checkout, Hold, shorten
from sessionrun.model.places import Repository
from sessionrun.worktrees.registration import list_worktrees, load_owner, read_head

LOCK: Final = "index.lock"

LOCK_WAIT_S: Final = 10.0
"""So long a landing waits for the user's git in any work tree: it may be a switch to the target, which reads the
target's commit first, writes files for some time, and only then says in HEAD where it is."""

STALE_LOCK_S: Final = 600.0
"""A lock of this age that no process has open was left by a git that was killed."""

LOOK_EVERY_S: Final = 0.02


def list_places(repository: Repository) -> Iterator[Checkout]:
    """Each work tree; the top of the main one may be unknown, and is empty then."""
    common, settings = Path(repository.common_dir), repository.settings
    words = ("config", "--file", str(common / "config"), "--no-includes", "--type=bool", "core.bare")
    if Git(common).attempt(*words).stdout.strip() != b"true":
        main = str(common.parent) if common.name == ".git" else ""
        if settings is not None and os.path.realpath(settings.git_dir) == os.path.realpath(common):
            main = repository.top
        yield Checkout(main, str(common))
    for top, admin in list_worktrees(repository.common_dir):
        if top.is_dir():
            yield Checkout(str(top), str(admin))


def list_of_persons(repository: Repository) -> list[Checkout]:
    """The work trees that are none of our tasks': those are on branches of their own, and agents work there."""
    return [place for place in list_places(repository) if load_owner(Path(place.git_dir)) is None]


def is_at(place: Checkout, target: str) -> bool:
    return read_head(Path(place.git_dir)) == f"ref: {target}"


def find_checkout(repository: Repository, target: str) -> Checkout | Hold | None:
    """The work tree in which a branch is checked out; None: in none; a hold if nothing may move it now."""
    found: list[Checkout] = []
    for place in list_places(repository):
        rebased = ""
        for name in ("rebase-merge", "rebase-apply"):
            with suppress(OSError):
                rebased = os.fsdecode(Path(place.git_dir, name, "head-name").read_bytes()).rstrip("\n")
            if rebased == target:
                where = place.top or place.git_dir
                finish = f"git -C {shlex.quote(where)} rebase --continue"
                return Hold("rebase", f"{where} rebases {shorten(target)}", finish)
        if is_at(place, target):
            if not place.top:
                what = f"{shorten(target)} is checked out in a work tree of {place.git_dir}"
                return Hold("checkout_unknown", f"{what} that is not to be found")
            found.append(place)
    if len(found) > 1:
        tops = " and ".join(one.top for one in found)
        mend = f"git -C {shlex.quote(found[1].top)} switch --detach"
        return Hold("checked_out_twice", f"{shorten(target)} is checked out in {tops}", mend)
    return found[0] if found else None


def take_lock(place: Checkout, record: Path) -> bool:
    """Take git's lock of the index, so that it is never without our mark; False: it is locked, or just removed."""
    try:
        os.link(record, Path(place.git_dir, LOCK))
    except (FileExistsError, FileNotFoundError):
        return False
    return True


def give_back(place: Checkout, record: Path) -> None:
    """Give git's lock of the index back, if it was taken with this record."""
    if is_locked_by(place, record):
        Path(place.git_dir, LOCK).unlink(missing_ok=True)


def is_locked_by(place: Checkout, record: Path) -> bool:
    """Whether git's lock of the index was taken with this record."""
    try:
        return os.path.samefile(Path(place.git_dir, LOCK), record)
    except FileNotFoundError:
        return False


def find_lock(places: Sequence[Checkout], target: str) -> Path | None:
    """A lock that may be of a switch to the target; None: there is none.

    A lock with the mark of a landing is not one, nor is a lock that a killed git left where another branch is.
    """
    for place in places:
        lock = Path(place.git_dir, LOCK)
        if os.path.lexists(lock) and (is_at(place, target) or not is_passed_over(lock)):
            return lock
    return None


def is_passed_over(lock: Path) -> bool:
    """Whether the lock of a work tree that has another branch says nothing of a switch."""
    try:
        return lock.read_bytes().startswith(MARK) or is_left(lock)
    except OSError:
        return False  # it is gone


def is_left(lock: Path) -> bool:
    """Whether a lock was left by a git that was killed: it is old, and no process has it open."""
    try:
        about = lock.lstat()
    except OSError:
        return False
    return time.time() - about.st_mtime > STALE_LOCK_S and not _is_open(about)


def _is_open(about: os.stat_result) -> bool:
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):  # it has ended, or is another user's
            for name in os.listdir(folder):
                with suppress(OSError):
                    if os.path.samestat(os.stat(folder / name), about):
                        return True
    return False


def await_locks(repository: Repository, target: str) -> Hold | None:
    """Wait until a person's git is at work in no work tree; a hold if one goes on for `LOCK_WAIT_S`."""
    deadline, places = time.monotonic() + LOCK_WAIT_S, list_of_persons(repository)
    while (lock := find_lock(places, target)) is not None:
        if time.monotonic() > deadline or is_left(lock):
            return explain_lock(lock)
        time.sleep(LOOK_EVERY_S)
    return None


def explain_lock(lock: Path) -> Hold:
    """Nothing lands while the index of a work tree is locked."""
    reason = f"{lock} is there: another git is at work, or was killed"
    return Hold("index_locked", reason, f"rm {shlex.quote(str(lock))}")
