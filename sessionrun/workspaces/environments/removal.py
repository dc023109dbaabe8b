"""Where the environments of an attempt are, and how they are removed; which entries the cache has.

The name of a task's environment is made from session, task and attempt, so the name proves whose it is: an agent
may make its environment anew, and no file in it is proof.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from sessionrun.model.errors import JobFileError
from sessionrun.store.space import Cached
from sessionrun.store.trees import remove_entry
from sessionrun.workspaces.cache import discard_entry, find_remains, iterate_entries, sweep_entry
from sessionrun.workspaces.environments.interpreter import EnvironmentProblem
from sessionrun.workspaces.environments.request import FOLDER, MANIFEST, find_target, load_wish, tenant_path

PHASES: Final = ("setup", "prove")
"""Whose jobs make environments: of the worktree, and of clean rooms."""

_ENTRY: Final = re.compile("[0-9a-f]{16,64}(?:-log)?")


def drop_environments(folder: Path, owner: str, phases: Sequence[str] = PHASES) -> None:
    """Remove the environments of the attempt that a job's folder belongs to.

    Args:
        folder: of any job of the attempt.
        owner: of the worktree.
        phases: by which jobs they were made.

    Raises:
        OSError: one cannot be removed.
    """
    for target in find_environments(folder, owner, phases):
        clear(target)


def find_environments(folder: Path, owner: str, phases: Sequence[str] = PHASES) -> list[Path]:
    """Where the environments of an attempt are, or what a crash left of them."""
    attempt = folder.name.partition("-")[0]
    session_id, _, task = owner.partition("/")
    targets: dict[Path, None] = {}
    for phase in phases:
        for job in sorted(folder.parent.glob(f"{attempt}-*-{phase}*")) if attempt[1:].isdecimal() else ():
            try:
                cache = load_wish(job).cache
            except JobFileError:
                continue  # there was none, or a task has changed the file: then nothing says what may go
            target = Path(find_target(cache, session_id, task, int(attempt[1:]), in_room=phase == "prove"))
            if target.is_absolute() and (os.path.lexists(target) or find_remains(target)):
                targets[target] = None
    return list(targets)


def clear(target: Path) -> None:
    """Remove an environment of a task, and what a killed process left of it.

    Raises:
        EnvironmentProblem: no environment is ever made at this place.
        OSError: it cannot be removed.
    """
    if target.parent.name != "tasks" or not target.is_absolute():
        raise EnvironmentProblem(f"{target} is not a place of an environment")
    sweep_entry(target)
    if os.path.lexists(target):
        discard_entry(target)
    remove_entry(tenant_path(target))


def iterate_environments(cache: Path) -> Iterator[Cached]:
    """The entries of a cache, by name, and what killed processes left of others; not the copies of tasks.

    They belong to no repository: others with the same inputs use them, too.
    """
    return iterate_entries(cache / FOLDER, lambda name: _ENTRY.fullmatch(name) is not None, MANIFEST)
