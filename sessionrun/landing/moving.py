"""Moves the target, and looks for switches of a person that end in that very moment.

``git switch`` reads the target's commit, writes files for some time under the lock of the index, gives the lock
back, and only then writes HEAD.  What moved the target meanwhile would be taken back by the person's next commit.
So a landing waits for every lock; it waits while an index is as a switch leaves it that has not written HEAD; it
takes the locks; and it looks again for a while after they are given back.

HEAD.lock would be of no use: a switch waits 100 ms for it, and then fails half done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.git import GitError
from sessionrun.git.private import Fence
from sessionrun.landing.checkout import Tree, follow, is_behind, is_taken_back, land_checked_out
from sessionrun.landing.places import (
    LOCK,
    LOCK_WAIT_S,
    LOOK_EVERY_S,
    await_locks,
    find_checkout,
    find_lock,
    give_back,
    is_at,
    is_left,
    is_passed_over,
    list_of_persons,
    list_places,
    take_lock,
)
from sessionrun.landing.records import Checkout, Hold, Landed, SlotRecord
from sessionrun.landing.target import Moved, Slot, show_head, update_ref
from sessionrun.worktrees.registration import read_head

LOOKS: Final = 8
"""So often a landing looks for switches that ended late."""

Begin = Callable[[Checkout | None], None]
"""Says durably in which work tree something is to change; None: in none."""


def begin_record(slot: Slot, record: SlotRecord) -> Begin:
    """What says durably that the target moves as in this record, and in which work tree."""
    return lambda place: slot.write_record(replace(record, checkout=place))


def move(slot: Slot, fence: Fence, old: str, new: str, begin: Begin) -> Moved | Hold:
    """Move the target from `old` to `new`, with the files of the work tree that has it.

    Raises:
        GitError, OSError: git failed; a later turn mends what was begun.
    """
    place = await_locks(slot.repository, slot.target) or find_checkout(slot.repository, slot.target)
    if isinstance(place, Hold):
        return place
    begin(place)
    if place is not None:
        return land_checked_out(Tree(slot, fence, place, old, new))
    return _move_ref(slot, fence, old, new)


def _move_ref(slot: Slot, fence: Fence, old: str, new: str) -> Moved | Hold:
    """Move a target that is checked out nowhere, while no switch to it can write its index or HEAD."""
    persons, mark = list_of_persons(slot.repository), slot.mark_path
    # what takes time comes before the locks: a git of the person that finds one does not wait, it fails
    deadline, seen = time.monotonic() + LOCK_WAIT_S, {place: _stamp(place) for place in persons}
    while _is_any_ending(slot, fence, old, persons) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
        seen = {place: _stamp(place) for place in persons}
    show_head(fence, b"")
    locked = []
    try:
        for place in persons:
            if take_lock(place, mark):
                locked.append(place)
            elif not is_passed_over(Path(place.git_dir, LOCK)):
                return "again"
        is_quiet = all(_stamp(place) == stamp for place, stamp in seen.items())
        if not is_quiet or find_checkout(slot.repository, slot.target) is not None:
            return "again"
        return update_ref(slot, fence.main(), new, old)
    finally:
        for place in locked:
            give_back(place, mark)


def _stamp(place: Checkout) -> tuple[tuple[int, int, int] | None, ...]:
    """What changes when a git writes the index or HEAD of a work tree."""
    return tuple(_stamp_file(Path(place.git_dir, name)) for name in ("index", "HEAD"))


def _stamp_file(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def _is_any_ending(slot: Slot, fence: Fence, old: str, places: Sequence[Checkout]) -> bool:
    """Whether a switch to the target has written its index a moment ago, and not yet HEAD.

    An index that was so for longer is one in which a person has staged the files of the target.
    """
    for place in places:
        if place.top and _age(Path(place.git_dir, "index")) < LOCK_WAIT_S and not is_at(place, slot.target):
            head = fence.main().commit_of(read_head(Path(place.git_dir)).removeprefix("ref: "))
            tree = Tree(slot, fence, place, old, head or old)
            try:
                if is_behind(tree, tree.git()):
                    return True
            except GitError:
                if os.path.isdir(place.top) and os.path.isdir(place.git_dir):
                    raise  # else it was removed meanwhile
    return False


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return LOCK_WAIT_S + 1


def look_after(slot: Slot, fence: Fence, old: str, new: str, late_s: float, begin: Begin) -> list[str]:
    """Look for a while for work trees in which a switch ended that had read the old commit; they follow.

    Returns what a person has to look at.

    Raises:
        GitError, OSError: git failed; the next landing mends it.
    """
    persons = list_of_persons(slot.repository)
    look_until, deadline = time.monotonic() + late_s, time.monotonic() + LOCK_WAIT_S
    while persons:
        remarks, now = _follow_late(slot, fence, old, new, begin), time.monotonic()
        is_at_work = find_lock(persons, slot.target) is not None or _is_any_ending(slot, fence, old, persons)
        if now > deadline or (now > look_until and not is_at_work):
            return remarks
        time.sleep(late_s / LOOKS)
    return []


def look_back(slot: Slot, fence: Fence, landed: Landed, begin: Begin) -> list[str]:
    """Look once for a switch that ended after the looks: nothing was staged since, and HEAD is of that time.

    Else it may be a person's own wish that the index is as before.
    """
    return _follow_late(slot, fence, landed.old, landed.new, begin, landed.at)


def _follow_late(
    slot: Slot, fence: Fence, old: str, new: str, begin: Begin, since: float | None = None
) -> list[str]:
    remarks = []
    for place in list_places(slot.repository):
        tree = Tree(slot, fence, place, old, new)
        if not place.top or not is_at(place, slot.target) or (since is not None and not _ended_late(tree, since)):
            continue
        if is_behind(tree, tree.git()) and not is_taken_back(tree):
            begin(place)
            hold = follow(tree)
            remarks += [f"{hold.reason}: {place.top} is behind the branch"] if hold else []
            begin(None)
    return remarks


def _ended_late(tree: Tree, since: float) -> bool:
    try:
        index, head = os.stat(tree.path("index")).st_mtime, os.stat(tree.path("HEAD")).st_mtime
    except OSError:
        return False
    return index <= head and since - 1 <= head <= since + LOCK_WAIT_S


def name_left(slot: Slot) -> list[str]:
    """Locks that stop no landing, and that a person may remove."""
    locks = [Path(place.git_dir, LOCK) for place in list_of_persons(slot.repository)]
    return [f"{lock} was left by a git that was killed: rm it" for lock in locks if is_left(lock)]
