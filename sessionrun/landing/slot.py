"""The slot of a target: one process at a time lands there, of whatever session, and says first what it will do.

In the repository's common directory lie the lock, the record and, as a ref, the pin.  That is a commit whose
parents are all commits that are needed, so that no collection of garbage takes them.  It is moved, and only
`clean` deletes it: git deletes a ref under a lock of all packed refs, which a kill would leave behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import orjson

from sessionrun.landing.records import SlotRecord, digest_target
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Repository
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import load_record_if_any
from sessionrun.store.locks import hold_lock
from sessionrun.workspaces.commits import commit_tree
from sessionrun.workspaces.git import Git

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
