"""The target of a landing: its slot, where it is checked out, and how it moves where it is not.

One process at a time, of whatever session, holds the slot and lands there; it says first what it will do.

A branch that a rebase has in hand is checked out nowhere by git's word, and yet must not move.  The settings of
the launch do not say what is checked out now, so the files of each work tree are read.

In the repository's common directory lie the lock, the record and, as a ref, the pin.  That is a commit whose
parents are all commits that are needed, so that no collection of garbage takes them.  It is moved, and only
`clean` deletes it: git deletes a ref under a lock of all packed refs, which a kill would leave behind.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import orjson

from sessionrun.git.git import Git, GitError
from sessionrun.git.merging import commit_tree
from sessionrun.git.private import Fence, open_fence
from sessionrun.landing.records import Checkout, Hold, SlotRecord, digest_target
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Repository
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import load_record_if_any
from sessionrun.store.locks import hold_lock
from sessionrun.worktrees.registration import list_worktrees, load_owner, read_head

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
        """The record of what the holder is about to do."""
        return record_path(self.repository, digest_target(self.target))

    @property
    def ref_path(self) -> Path:
        """The file of the target, if it is not packed."""
        return Path(self.repository.common_dir, self.target)

    @contextmanager
    def hold(
        self, tell: Callable[[str], None] = lambda line: None, *, limit_s: float | None = None
    ) -> Iterator[None]:
        """Hold the slot.  The holder before runs gates, which may take hours: it is waited for without a limit.

        Args:
            tell: is given a line if another process holds it now.
            limit_s: how long to wait at most (seconds); None: until it is free.

        Raises:
            SessionrunError: another process held it for so long.
        """
        path = lock_path(self.repository, digest_target(self.target))
        with ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(path, timeout_s=SOON_S))
            except SessionrunError:
                branch = self.target.removeprefix("refs/heads/")
                tell(f"another landing on {branch} is under way: waiting for its end")
                stack.enter_context(hold_lock(path, timeout_s=-1 if limit_s is None else limit_s))
            yield

    def load_record(self) -> SlotRecord | None:
        """What the last holder was about to do, if it did not come to its end.

        Raises:
            SessionrunError: the record is damaged.
        """
        return load_record_if_any(self.record_path, SlotRecord)

    def write_record(self, record: SlotRecord) -> None:
        """Say durably what is done next."""
        replace_file(self.record_path, orjson.dumps(record), durable=True, mode=0o644)

    def clear_record(self) -> None:
        """It is done."""
        self.record_path.unlink(missing_ok=True)

    def move_pin(self, git: Git, commits: Iterable[str]) -> None:
        """Let the pin hold these commits, and no others.

        Raises:
            GitError: git failed.
        """
        parents = list(dict.fromkeys(commits))
        if not parents:
            return
        commit = commit_tree(git, f"{parents[0]}^{{tree}}", parents, "What a landing needs\n")
        git("update-ref", self.pin, commit)


def sweep_slots(repository: Repository, git: Git) -> None:
    """Remove the pins and the locks of slots that no landing holds or has left in the middle of its work.

    Raises:
        OSError: the repository cannot be written.
    """
    for path in sorted(Path(repository.common_dir).glob(f"{PREFIX}*.lock")):
        digest = path.name.removeprefix(PREFIX).removesuffix(".lock")
        with suppress(SessionrunError), hold_lock(path, timeout_s=0.0):  # another process lands now
            if not record_path(repository, digest).exists():
                git("update-ref", "-d", PINS + digest)
                path.unlink()


def lock_path(repository: Repository, digest: str) -> Path:
    """The lock of the slot of a target, by the short name of the target."""
    return _path(repository, digest, ".lock")


def record_path(repository: Repository, digest: str) -> Path:
    """The record of the slot of a target, by the short name of the target."""
    return _path(repository, digest, ".json")


def _path(repository: Repository, digest: str, end: str) -> Path:
    return Path(repository.common_dir, f"{PREFIX}{digest}{end}")


HEADS: Final = "refs/heads/"

Moved = Literal["moved", "again"]
"""What came of an attempt to land: `again`, because the target was elsewhere."""

LOCK: Final = "index.lock"
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
            return explain_lock(lock)
        time.sleep(_LOOK_EVERY_S)
    return None


def explain_lock(lock: Path) -> Hold:
    """Nothing lands while the index of a work tree is locked."""
    reason = f"{lock} is there: another git is at work, or was killed"
    return Hold("index_locked", reason, f"rm {shlex.quote(str(lock))}")


def _find_lock(repository: Repository, target: str) -> Path | None:
    for _, git_dir in _iterate_places(repository):
        lock = git_dir / LOCK
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
