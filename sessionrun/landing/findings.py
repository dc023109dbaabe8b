"""What `doctor`, `clean` and `explain` find of landings: killed ones, rooms of gates, pins, places in the line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
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
from sessionrun.model.places import Repository


def check_landings(evidence: Evidence) -> Iterator[Finding]:
    """Whether a landing was killed while it moved a branch: its lock keeps git out of the user's checkout."""
    if evidence.spec is None or evidence.alive:
        return
    for path in find_killed_landings(evidence.session):
        plan = f"sessionrun merge {evidence.session.session_id}"
        yield warning(path, "a landing was killed and left it", plan)


# --- what landings keep for the next one ---


def sweep(cleaned: Sequence[Cleaned], *, dry_run: bool) -> Iterator[Leftover]:
    """Remove rooms of gates, pins and locks that no landing uses: they hold no work, and are made anew."""
    found = ((each.home, each) for each in reversed(cleaned))
    homes = {(home.common_dir, home.worktree_dir): (home, each) for home, each in found if home is not None}
    for home, each in homes.values():
        try:
            yield from _sweep_slots(home, each.session_id, dry_run=dry_run)
        except (SessionrunError, OSError) as error:
            notify(f"what landings left in {home.top}: {error}")


def _sweep_slots(repository: Repository, session_id: str, *, dry_run: bool) -> Iterator[Leftover]:
    from sessionrun.git.private import open_fence  # `explain` comes here too, and need not wait for these
    from sessionrun.landing.records import find_prefix
    from sessionrun.landing.target import list_slots, remove_slot, slot_path
    from sessionrun.model.places import WORKSPACE_LIMIT_S
    from sessionrun.store.locks import hold_lock
    from sessionrun.store.trees import remove_tree
    from sessionrun.worktrees.request import drop_environment

    prefix = find_prefix(repository)
    found = Path(repository.worktree_dir).glob(f"{prefix}*")
    rooms = {path.name.removeprefix(prefix): path for path in found if path.is_dir() and not path.is_symlink()}
    slots = sorted({*rooms, *list_slots(repository)})
    is_to_free = slots and not dry_run and os.path.isdir(repository.common_dir)
    with open_fence(repository, limit_s=WORKSPACE_LIMIT_S) if is_to_free else nullcontext() as fence:
        for digest in slots:
            room, lock, is_free = rooms.get(digest), slot_path(repository, digest, ".lock"), True
            try:  # where there is no lock, no landing was
                with hold_lock(lock, timeout_s=0.0) if lock.exists() else nullcontext():
                    if room is not None and not dry_run:
                        drop_environment(room)  # of a landing that was killed
                        remove_tree(room)
                    if fence is not None:
                        remove_slot(repository, digest, fence.main())
            except SessionrunError:
                is_free = False
            if room is not None:
                why = "no landing uses it" if is_free else "a landing uses it"
                yield Leftover("room", str(room), is_free, why, session_id, repository.top)


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
    sweep=sweep,
    describe_success=describe_success,
)
