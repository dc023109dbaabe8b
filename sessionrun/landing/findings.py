"""What `doctor`, `clean` and `explain` find of landings: killed ones, rooms of gates, pins, places in the line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from sessionrun.client.evidence import Evidence
from sessionrun.client.findings import Cleaned, Finding, Findings, Leftover, warning
from sessionrun.client.notices import notify
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.landing.landed import find_killed_landings
from sessionrun.landing.mends import land_of
from sessionrun.model.errors import SessionrunError
from sessionrun.model.landings import LANDING_FOLDER
from sessionrun.model.places import Repository


def check_landings(evidence: Evidence) -> Iterator[Finding]:
    """Whether a landing was killed while it moved a branch: its lock keeps git out of the user's checkout."""
    if evidence.spec is None or evidence.alive:
        return
    for path in find_killed_landings(evidence.session):
        plan = f"sessionrun merge {evidence.session.session_id}"
        yield warning(path, "a landing was killed and left it", plan)


# --- what landings keep for the next one ---


def sweep_rooms(cleaned: Sequence[Cleaned], *, dry_run: bool) -> Iterator[Leftover]:
    """Remove rooms of gates that no landing uses now: they hold no work, and the next landing makes them anew."""
    found = ((each.home, each) for each in reversed(cleaned) if LANDING_FOLDER in each.folders)
    landed_on = {(home.common_dir, home.worktree_dir): (home, each) for home, each in found if home is not None}
    for home, each in landed_on.values():
        try:
            yield from _sweep_rooms(home, each.session_id, dry_run=dry_run)
        except (SessionrunError, OSError) as error:
            notify(f"rooms of gates in {home.worktree_dir}: {error}")


def _sweep_rooms(repository: Repository, session_id: str, *, dry_run: bool) -> Iterator[Leftover]:
    from sessionrun.environments.request import drop_environment
    from sessionrun.landing.records import find_prefix
    from sessionrun.store.trees import remove_tree

    for path in sorted(Path(repository.worktree_dir).glob(f"{find_prefix(repository)}*")):
        if path.is_symlink() or not path.is_dir():
            continue  # none of ours
        about = session_id, repository.top
        try:
            with _hold_room(repository, path):
                if not dry_run:
                    drop_environment(path)  # of a landing that was killed
                    remove_tree(path)
        except SessionrunError:
            yield Leftover("room", str(path), False, "a landing uses it", *about)
        else:
            yield Leftover("room", str(path), True, "no landing uses it", *about)


def _hold_room(repository: Repository, path: Path) -> AbstractContextManager[None]:
    """The lock of the slot whose gates run in a room, if it is free; where there is no lock, no landing was."""
    from sessionrun.landing.target import lock_path
    from sessionrun.store.locks import hold_lock

    lock = lock_path(repository, path.name.rpartition("-")[2])
    return hold_lock(lock, timeout_s=0.0) if lock.exists() else nullcontext()


def sweep_repository(repository: Repository) -> None:
    """Remove the locks and pins of slots in which no landing is."""
    import tempfile  # `explain` comes here too, and need not wait for it

    from sessionrun.git.private import open_fence
    from sessionrun.landing.target import sweep_slots
    from sessionrun.model.places import WORKSPACE_LIMIT_S

    if os.path.isdir(repository.common_dir):
        with (
            tempfile.TemporaryDirectory(prefix="sessionrun-clean-") as folder,
            open_fence(repository, Path(folder), limit_s=WORKSPACE_LIMIT_S) as fence,
        ):
            sweep_slots(repository, fence.main())


# --- what `explain` says ---


def describe_success(state: State, task: TaskState) -> str:
    """Which place its work has in the landing queue; its `landing` says the rest."""
    if task.landing is None or task.landing.status != "ready" or task.spec.id in land_of(state).taken:
        return ""
    held = f", held: {state.held}" if state.held else ""
    place = list(land_of(state).ready).index(task.spec.id) + 1
    target = (state.spec.landing.target if state.spec.landing else "").removeprefix("refs/heads/")
    return f"; its work is number {place} of {len(land_of(state).ready)} to land on {target}{held}"


FINDINGS: Final = Findings(
    session_checks={"landings": check_landings},
    sweep=sweep_rooms,
    sweep_repository=sweep_repository,
    describe_success=describe_success,
)
