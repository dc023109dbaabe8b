"""Removes the environments of an attempt, together with its worktree.

Their names are made from session, task and attempt, so the name proves whose an environment is: an agent may make
its environment anew, and no file in it is proof.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sessionrun.model.errors import JobFileError
from sessionrun.workspaces.environments.request import EnvironmentProblem, find_target, load_wish, tenant_path
from sessionrun.workspaces.registration import remove_tree

PHASES: Final = ("setup", "prove")
"""Whose jobs make environments: of the worktree, and of clean rooms."""


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
            in_room = phase == "prove"
            target = Path(find_target(cache, session_id, task, int(attempt[1:]), in_room=in_room))
            if os.path.isabs(target) and any(os.path.lexists(path) for path in _places(target)):
                targets[target] = None
    return list(targets)


def clear(target: Path) -> None:
    """Remove an environment, and what a killed process left of it.

    Raises:
        EnvironmentProblem: no environment is ever made at this place.
        OSError: it cannot be removed.
    """
    if target.parent.name != "tasks" or not target.is_absolute():
        raise EnvironmentProblem(f"{target} is not a place of an environment")
    trash = trash_path(target)
    for path in _places(target):
        if not os.path.lexists(path):
            continue
        if path != trash:
            _remove(trash)
            os.rename(path, trash)
        _remove(trash)
    _remove(tenant_path(target))


def beside_path(target: Path) -> Path:
    """Where an environment is while it is made."""
    return target.with_name(f".new-{target.name}")


def trash_path(target: Path) -> Path:
    """Where an environment is while it is deleted."""
    return target.with_name(f".trash-{target.name}")


def _places(target: Path) -> tuple[Path, Path, Path]:
    return target, beside_path(target), trash_path(target)


def _remove(path: Path) -> None:
    """Delete a tree, or whatever a task has put in its place."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    elif os.path.lexists(path):
        path.unlink()
