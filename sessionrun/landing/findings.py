"""What `doctor`, `clean` and `explain` find of landings: killed ones, rooms of gates, pins, places in the line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sessionrun.client.evidence import Evidence
from sessionrun.client.findings import Cleaned, Finding, Findings, Leftover, warning
from sessionrun.client.notices import notify
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.landing.mends import land_of
from sessionrun.model.errors import SessionrunError
from sessionrun.model.landings import LANDING_FOLDER
from sessionrun.model.places import Repository
from sessionrun.model.units import format_time
from sessionrun.model.words import IN_LANDING, choose_word
from sessionrun.store.files import list_folders
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.landing.history import End


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
    from sessionrun.landing.records import find_prefix
    from sessionrun.store.trees import remove_tree

    for path in sorted(Path(repository.worktree_dir).glob(f"{find_prefix(repository)}*")):
        if path.is_symlink() or not path.is_dir():
            continue  # none of ours
        about = session_id, repository.top
        try:
            with _hold_room(repository, path):
                if not dry_run:
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


_TO_MS: Final = len("2026-01-01T00:00:00.000")
"""As much of two times is compared."""


def add_landings(session: SessionDir, tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tasks, each whose work was tried with `landing`; a log that cannot be read is a warning.

    Of several targets the last that was tried counts.  What was tried before the task ended is not told: it was
    the work of an earlier attempt.
    """
    ends = _load(session)
    return [_add(task, ends.get(task["id"])) for task in tasks]


def find_killed_landings(session: SessionDir) -> list[Path]:
    """What landings of the session's work left that were killed while they moved a branch: `merge` mends it.

    Raises:
        SessionrunError: the session's spec or a record of a landing is damaged.
    """
    from sessionrun.landing.gates import WORK

    folder = session.path / LANDING_FOLDER
    begun = [name for name in list_folders(folder) if os.path.lexists(folder / name / WORK)]
    if not begun:
        return []
    from sessionrun.landing.moving import find_killed
    from sessionrun.session.history import load_spec_now

    repository = load_spec_now(session).repository
    left = [] if repository is None else [find_killed(repository, name) for name in begun]
    return [path for path in left if path is not None]


def _load(session: SessionDir) -> dict[str, dict[str, Any]]:
    from sessionrun.client.notices import notify
    from sessionrun.landing.history import MAX_BYTES, load_history
    from sessionrun.model.errors import SessionrunError

    found: dict[str, End] = {}
    folder = session.path / LANDING_FOLDER
    try:
        for path in find_killed_landings(session):
            notify(f"a landing was killed and left {path}: sessionrun merge {session.session_id} mends it")
        for name in sorted(os.listdir(folder)):
            for task, end in load_history(folder / name, MAX_BYTES)[0].ends.items():
                if task not in found or found[task].at <= end.at:
                    found[task] = end
        return {task: _describe(end) for task, end in found.items()}
    except (SessionrunError, OSError, ValueError) as error:
        notify(f"what landed is not shown: {error}")
        return {}


def _describe(end: End) -> dict[str, Any]:
    return {
        "status": end.status,
        "target": end.target.removeprefix("refs/heads/"),
        **{name: getattr(end, name) or None for name in ("commit", "reason_class", "reason", "mend", "output")},
        "files": list(end.files),
        "against": list(end.against),
        "at": format_time(datetime.fromisoformat(end.at).timestamp()),
    }


def is_of(task: Mapping[str, Any], at: str) -> bool:
    """Whether a landing at a time is of a task's work as it is now; of an earlier attempt it is not."""
    return task["status"] == "completed" and at[:19] >= (task.get("ended_at") or "")[:19]


def _add(task: dict[str, Any], logged: Mapping[str, Any] | None) -> dict[str, Any]:
    known = logged is not None and is_of(task, logged["at"]) and not _is_newer(task.get("landing"), logged["at"])
    if not known or logged is None:
        return task
    changed = task["word"] != "changed_nothing"
    word = choose_word(task["outcome"], landing=logged["status"], changed=changed)
    return {**task, "landing": dict(logged), "word": word}


def _is_newer(known: Mapping[str, Any] | None, at: str) -> bool:
    """Whether what status.json says of a task's landing is newer than what the log says since `at`."""
    is_on_its_way = known is not None and known["status"] in (*IN_LANDING, "waiting")
    return is_on_its_way or (known is not None and at[:_TO_MS] <= (known["at"] or "")[:_TO_MS])
