"""The target of a landing: its slot, and how the branch moves.

One process at a time, of whatever session, holds the slot and lands there; it says first what it will do.

In the repository's common directory lie the lock, the record and, as a ref, the pin.  That is a commit whose
parents are all commits that are needed, so that no collection of garbage takes them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal

import orjson

from sessionrun.git.git import Git, GitError
from sessionrun.git.private import Fence, open_fence
from sessionrun.landing.records import HEADS, MARK, Hold, SlotRecord, digest_target, shorten
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Repository
from sessionrun.store.files import open_regular, read_regular, replace_file
from sessionrun.store.jobfiles import load_record_if_any
from sessionrun.store.locks import hold_lock
from sessionrun.worktrees.registration import find_table

PREFIX: Final = "sessionrun-land-"
PINS: Final = "refs/sessionrun/land-"

SOON_S: Final = 0.5
"""After so long a person is told what is waited for."""


@frozen
class Slot:
    """The slot of one branch, `target` by its full name."""

    repository: Repository
    target: str

    @property
    def pin(self) -> str:
        """The ref that holds what a landing needs."""
        return PINS + digest_target(self.target)

    @property
    def record_path(self) -> Path:
        """The record of what the holder is about to do; each lock of an index that it takes is a link of it."""
        return slot_path(self.repository, digest_target(self.target), ".json")

    @property
    def ref_lock(self) -> Path:
        """The lock of the target, or of all refs where git keeps them in a table."""
        common = Path(self.repository.common_dir)
        table = find_table(common)
        return Path(f"{table or common / self.target}.lock")

    @contextmanager
    def hold(
        self, tell: Callable[[str], None] = lambda line: None, *, limit_s: float | None = None
    ) -> Iterator[None]:
        """Hold the slot.  The holder before runs gates, which may take hours: it is waited for without a limit.

        Raises:
            SessionrunError: another process held it for so long.
        """
        path = slot_path(self.repository, digest_target(self.target), ".lock")
        with ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(path, timeout_s=SOON_S))
            except SessionrunError:
                tell(f"another landing on {shorten(self.target)} is under way: waiting for its end")
                stack.enter_context(hold_lock(path, timeout_s=-1 if limit_s is None else limit_s))
            yield

    def load_record(self) -> SlotRecord | None:
        """What the last holder was about to do, if it did not come to its end."""
        return load_record_if_any(self.record_path, SlotRecord)

    def write_record(self, record: SlotRecord) -> None:
        """Say durably what is done next."""
        replace_file(self.record_path, MARK + orjson.dumps(record)[1:], durable=True, mode=0o644)

    def note_writing(self) -> None:
        """Say durably that files of a work tree change from now on."""
        with os.fdopen(open_regular(self.record_path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
            stream.write(b"\n")
            stream.flush()
            os.fsync(stream.fileno())

    def has_written(self) -> bool:
        """Whether files of a work tree may have changed."""
        return read_regular(self.record_path).endswith(b"\n")

    def clear_record(self) -> None:
        self.record_path.unlink(missing_ok=True)

    def move_pin(self, git: Git, commits: Collection[str]) -> None:
        """Let the pin hold these commits, and no others; without any it goes."""
        if not commits and find_table(Path(self.repository.common_dir)) is None:
            # `update-ref -d` locks all packed refs, and a kill would leave that lock without a name: what git has
            # packed meanwhile waits for `clean`
            Path(self.repository.common_dir, self.pin).unlink(missing_ok=True)
            return
        if not commits:
            git.attempt("update-ref", "-d", self.pin)
            return
        parents = list(dict.fromkeys(commits))
        commit = git.commit_tree(f"{parents[0]}^{{tree}}", parents, "What a landing needs\n")
        git("update-ref", self.pin, commit)


def list_slots(repository: Repository) -> list[str]:
    """The short names of the targets on which there were landings, by their locks."""
    locks = Path(repository.common_dir).glob(f"{PREFIX}*.lock")
    return [path.name.removeprefix(PREFIX).removesuffix(".lock") for path in locks]


def remove_slot(repository: Repository, digest: str, git: Git) -> None:
    """Remove the pin and the lock of a slot that the caller holds, but of none that was left in the middle."""
    if slot_path(repository, digest, ".json").exists():
        return
    if git.attempt("update-ref", "-d", PINS + digest).returncode == 0:
        slot_path(repository, digest, ".lock").unlink(missing_ok=True)


def slot_path(repository: Repository, digest: str, end: Literal[".lock", ".json"]) -> Path:
    """The lock or the record of the slot of a target, by the short name of the target."""
    return Path(repository.common_dir, f"{PREFIX}{digest}{end}")


Moved = Literal["moved", "again"]
"""What came of an attempt to land: `again`, because the target was elsewhere, or a person's git was at work."""


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
    lock = slot.ref_lock
    if os.path.lexists(lock):
        reason = f"{lock} is there: another git is at work on {shorten(slot.target)}, or was killed"
        return Hold("ref_locked", reason, f"rm {shlex.quote(str(lock))}")
    raise GitError(words, done.returncode, done.stderr.decode("utf-8", "replace"))


def show_head(fence: Fence, head: str) -> None:
    """Say in the private common directory what is checked out, by which git writes the log of HEAD.

    What was read there when the fence was made may be out of date.  An empty `head` stands for no branch.
    """
    (fence.common / "HEAD").write_bytes(os.fsencode(head or "ref: refs/heads/none") + b"\n")


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
