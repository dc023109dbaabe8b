"""What `clean` finds of the queue: its lock, in the directory of a repository's git."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sessionrun.client.findings import Findings
from sessionrun.model.places import Repository
from sessionrun.queue.task import LOCK_NAME
from sessionrun.store import locks


def sweep_repository(repository: Repository) -> None:
    """Remove the lock, if no process holds it."""
    locks.remove_free(Path(repository.common_dir, LOCK_NAME))


FINDINGS: Final = Findings(sweep_repository=sweep_repository)
