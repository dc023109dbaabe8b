"""Moves the target, and looks for switches of a person that end in that very moment.

``git switch`` reads the target's commit, writes files for some time under the lock of the index, gives the lock
back, and only then writes HEAD.  What moved the target meanwhile would be taken back by the person's next commit.
So a landing waits for every lock; it waits while an index is as a switch leaves it that has not written HEAD; it
takes the locks; and it looks again for a while after they are given back.

HEAD.lock would be of no use: a switch waits 100 ms for it, and then fails half done.

What a killed landing left is mended by its record and its locks; under the lock of the slot, and idempotent.

    the target has the commit    it has landed: its work tree is finished, and the log gets it
    else                         its work tree is put back; the same work is landed anew

Only a lock that bears our mark, or holds what we were about to write, is taken away.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from sessionrun.git.git import GitError
from sessionrun.git.private import Fence
from sessionrun.landing import places
from sessionrun.landing.checkout import Tree, follow, is_behind, is_taken_back, land_checked_out, mend
from sessionrun.landing.records import Checkout, Hold, LandingLog, SlotRecord, is_ancestor
from sessionrun.landing.target import Moved, Slot, show_head, slot_path, update_ref
from sessionrun.model.places import Repository
from sessionrun.store.files import read_regular
from sessionrun.store.locks import is_held
from sessionrun.worktrees.registration import TABLE, find_table, read_head

LOOKS: Final = 8
"""So often a landing looks for switches that ended late."""


def move(slot: Slot, fence: Fence, record: SlotRecord) -> Moved | Hold:
    """Move the target as the record says, with the files of the work tree that has it.

    Raises:
        GitError, OSError: git failed; a later turn mends what was begun.
    """
    place = places.await_locks(slot.repository, slot.target) or places.find_checkout(slot.repository, slot.target)
    if isinstance(place, Hold):
        return place
    slot.write_record(record)
    if place is not None:
        return land_checked_out(Tree(slot, fence, place, record.old, record.new))
    return _move_ref(slot, fence, record.old, record.new)


def _move_ref(slot: Slot, fence: Fence, old: str, new: str) -> Moved | Hold:
    """Move a target that is checked out nowhere, while no switch to it can write its index or HEAD."""
    persons = places.list_of_persons(slot.repository)
    # what takes time comes before the locks: a git of the person that finds one does not wait, it fails
    deadline, seen = time.monotonic() + places.LOCK_WAIT_S, {place: _stamp(place) for place in persons}
    while _is_any_ending(slot, fence, old, persons) and time.monotonic() < deadline:
        time.sleep(places.LOOK_EVERY_S)
        seen = {place: _stamp(place) for place in persons}
    show_head(fence, "")
    locked = []
    try:
        for place in persons:
            if places.take_lock(place, slot.record_path):
                locked.append(place)
            elif not places.is_passed_over(Path(place.git_dir, places.LOCK)):
                return "again"
        is_quiet = all(_stamp(place) == stamp for place, stamp in seen.items())
        if not is_quiet or places.find_checkout(slot.repository, slot.target) is not None:
            return "again"
        return update_ref(slot, fence.main(), new, old)
    finally:
        for place in locked:
            places.give_back(place, slot.record_path)


def _stamp(place: Checkout) -> tuple[object, ...]:
    """What changes when a git writes the index of a work tree, or HEAD with something else."""
    head = read_head(Path(place.git_dir))
    try:
        about = Path(place.git_dir, "index").stat()
    except OSError:
        return (head,)
    return head, about.st_ino, about.st_size, about.st_mtime_ns


def _is_any_ending(slot: Slot, fence: Fence, old: str, persons: Sequence[Checkout]) -> bool:
    """Whether a switch to the target has written its index a moment ago, and not yet HEAD.

    An index that was so for longer is one in which a person has staged the files of the target.
    """
    for place in persons:
        try:
            age = time.time() - Path(place.git_dir, "index").stat().st_mtime
        except OSError:
            continue
        if place.top and age < places.LOCK_WAIT_S and not places.is_at(place, slot.target):
            head = fence.main().commit_of(read_head(Path(place.git_dir)).removeprefix("ref: "))
            tree = Tree(slot, fence, place, old, head or old)
            try:
                if is_behind(tree, tree.git()):
                    return True
            except GitError:
                if os.path.isdir(place.top) and os.path.isdir(place.git_dir):
                    raise  # else it was removed meanwhile
    return False


def look_after(slot: Slot, fence: Fence, record: SlotRecord, late_s: float) -> list[str]:
    """Look for a while for work trees in which a switch ended that had read the old commit; they follow.

    Returns what a person has to look at.

    Raises:
        GitError, OSError: git failed; the next landing mends it.
    """
    persons = places.list_of_persons(slot.repository)
    look_until, deadline = time.monotonic() + late_s, time.monotonic() + places.LOCK_WAIT_S
    while persons:
        remarks, now = follow_late(slot, fence, record), time.monotonic()
        is_at_work = places.find_lock(persons, slot.target) is not None
        is_at_work = is_at_work or _is_any_ending(slot, fence, record.old, persons)
        if now > deadline or (now > look_until and not is_at_work):
            return remarks
        time.sleep(late_s / LOOKS)
    return []


def follow_late(slot: Slot, fence: Fence, record: SlotRecord, landed_at: float | None = None) -> list[str]:
    """Look once for a switch that ended late: files and index follow; return what a person has to look at.

    With `landed_at` the looks are over: only where nothing was staged since, and HEAD is of that time.  Else it
    may be a person's own wish that the index is as before.
    """
    remarks = []
    for place in places.list_places(slot.repository):
        tree = Tree(slot, fence, place, record.old, record.new)
        if not place.top or not places.is_at(place, slot.target):
            continue
        if landed_at is not None and not _ended_late(tree, landed_at):
            continue
        if is_behind(tree, tree.git()) and not is_taken_back(tree):
            slot.write_record(record)
            hold = follow(tree)
            remarks += [f"{hold.reason}: {place.top} is behind the branch"] if hold else []
    return remarks


def _ended_late(tree: Tree, since: float) -> bool:
    try:
        index, head = os.stat(tree.path("index")).st_mtime, os.stat(tree.path("HEAD")).st_mtime
        if (table := find_table(Path(tree.checkout.git_dir))) is not None:
            last = tree.git().attempt("reflog", "show", "-1", "--date=unix", "--format=%gd", "HEAD").stdout
            # the log has the second of HEAD; the table was written then, or later for another ref
            head = min(float(last.strip()[len(b"HEAD@{") : -1] or 0) + 1, table.stat().st_mtime)
    except (OSError, GitError):
        return False
    return index <= head and since - 1 <= head <= since + places.LOCK_WAIT_S


def name_left(slot: Slot) -> list[str]:
    """Locks that stop no landing, and that a person may remove."""
    locks = [Path(place.git_dir, places.LOCK) for place in places.list_of_persons(slot.repository)]
    return [f"{lock} was left by a git that was killed: rm it" for lock in locks if places.is_left(lock)]


EMPTY_LOCK_S: Final = 10.0
"""A lock of a ref that is empty is only taken for ours when it is older (seconds): git fills it at once."""

TELLING: Final = 12
"""So much of a commit's name tells whose a lock is; a killed git may have written a part of it."""


def recover(slot: Slot, fence: Fence) -> list[str]:
    """Mend what the last holder of the slot left; return what a person has to look at."""
    pin = Path(slot.repository.common_dir, f"{slot.pin}.lock")
    pin.unlink(missing_ok=True)  # only the holder of the slot moves the pin
    record = slot.load_record()
    if record is None:
        return []
    git = fence.main()
    trees = [Tree(slot, fence, place, record.old, record.new) for place in places.list_places(slot.repository)]
    begun = [tree for tree in trees if tree.is_begun]
    # a git that was killed alone may have left its lock where we have undone all else
    at_target = [
        Path(tree.checkout.git_dir) for tree in trees if tree in begun or places.is_at(tree.checkout, slot.target)
    ]
    remarks = _remove_locks(slot, record, at_target)
    now = git.commit_of(slot.target)
    has_landed = now is not None and is_ancestor(git, record.new, now)
    for tree in begun:
        foreign = mend(tree, has_landed=has_landed)
        what = "was changed while a landing was broken off; it stays"
        remarks += [f"{tree.top}: {name} {what}" for name in foreign]
    if has_landed:  # it may have been killed before it looked for late switches
        remarks += look_after(slot, fence, record, 0.0)
        if Path(record.folder).parent.parent.is_dir():
            with closing(LandingLog(Path(record.folder))) as log:
                log.note_moved(record)
    slot.clear_record()
    return remarks


def find_killed(repository: Repository, digest: str) -> Path | None:
    """What a landing left that was killed while it moved its target: a work tree's lock, else the record."""
    path = slot_path(repository, digest, ".json")
    if not path.exists() or is_held(slot_path(repository, digest, ".lock")):
        return None
    locked = (place for place in places.list_places(repository) if places.is_locked_by(place, path))
    return next((Path(place.git_dir, places.LOCK) for place in locked), path)


def _remove_locks(slot: Slot, record: SlotRecord, git_dirs: Sequence[Path]) -> list[str]:
    """Take away locks of refs that git left when it was killed with us; name those that are not ours.

    The lock of a table is of all refs, and does not say whose it is: it stays.
    """
    locks = [Path(f"{find_table(git_dir) or git_dir / 'HEAD'}.lock") for git_dir in git_dirs]
    begun = slot.record_path.lstat().st_mtime
    remarks = []
    for path in dict.fromkeys((slot.ref_lock, *locks)):
        if not os.path.lexists(path):
            continue
        if path.name != f"{TABLE}.lock" and _is_ours(path, record.new, begun):
            path.unlink(missing_ok=True)
        else:
            remarks.append(f"{path} is there: if no git is at work: rm {shlex.quote(str(path))}")
    return remarks


def _is_ours(path: Path, new: str, begun: float) -> bool:
    try:
        content, made = read_regular(path, 4096), path.lstat().st_mtime
    except OSError:
        return False
    held = content.decode("ascii", "replace").strip()
    if not new.startswith(held):
        return False
    if len(held) >= TELLING:
        return True
    return time.time() - made > EMPTY_LOCK_S and made >= begun - 1
