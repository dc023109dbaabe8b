"""Mends what a killed landing left, by its record and its marks; under the lock of the slot, and idempotent.

    the target has the commit    it has landed: its work tree is finished, and the log gets it
    else                         its work tree is put back; the same work is landed anew

Only a lock that bears our mark, or holds what we were about to write, is taken away.
"""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Final

from sessionrun.git.private import Fence
from sessionrun.landing.checkout import Tree, mend
from sessionrun.landing.history import open_log
from sessionrun.landing.moving import begin_record, look_after
from sessionrun.landing.places import LOCK, find_mark, give_back, list_places
from sessionrun.landing.records import SlotRecord, is_ancestor
from sessionrun.landing.target import Slot, lock_path, record_path
from sessionrun.model.places import Repository
from sessionrun.store.files import read_regular
from sessionrun.store.jobfiles import load_record_if_any
from sessionrun.store.locks import is_held

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
    remarks = _recover_landing(slot, fence, record)
    slot.clear_record()
    return remarks


def find_killed(repository: Repository, digest: str) -> Path | None:
    """What a landing left that was killed while it moved its target: a work tree's lock, else the record."""
    path = record_path(repository, digest)
    record = load_record_if_any(path, SlotRecord)
    if record is None or is_held(lock_path(repository, digest)):
        return None
    ours = [record.old, record.new]
    locks = [Path(place.git_dir, LOCK) for place in list_places(repository)]
    return next((lock for lock in locks if [*(find_mark(lock) or ())][:2] == ours), path)


def _recover_landing(slot: Slot, fence: Fence, record: SlotRecord) -> list[str]:
    git = fence.main()
    admin = None if record.checkout is None else Path(record.checkout.git_dir)
    remarks = _remove_locks(slot, record, admin)
    now = git.commit_of(slot.target)
    has_landed = now is not None and is_ancestor(git, record.new, now)
    if record.checkout is not None and os.path.isdir(record.checkout.git_dir):
        tree = Tree(slot, fence, record.checkout, record.old, record.new)
        foreign = mend(tree, has_landed=has_landed)
        what = "was changed while a landing was broken off; it stays"
        remarks += [f"{record.checkout.top}: {name} {what}" for name in foreign]
    for place in list_places(slot.repository):
        give_back(place, slot.mark_path)
    if has_landed:  # it may have been killed before it looked for late switches
        remarks += look_after(slot, fence, record.old, record.new, 0.0, begin_record(slot, record))
        if Path(record.folder).parent.parent.is_dir():
            with open_log(Path(record.folder)) as log:
                log.note_moved(record.entries, record.old, record.new, record.target)
    return remarks


def _remove_locks(slot: Slot, record: SlotRecord, admin: Path | None) -> list[str]:
    """Take away locks of refs that git left when it was killed with us; name those that are not ours."""
    paths = [slot.ref_path.with_name(f"{slot.ref_path.name}.lock")]
    if admin is not None:
        paths.append(admin / "HEAD.lock")
    begun = slot.record_path.lstat().st_mtime
    remarks = []
    for path in paths:
        if not os.path.lexists(path):
            continue
        if _is_ours(path, record.new, begun):
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
