"""Settles what a plan says of worktrees that stay, and of tasks that begin at the branch on which work lands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sessionrun.client.planning.draft import Draft
from sessionrun.input.plan import Plan, SeatsWish
from sessionrun.model.errors import InputError
from sessionrun.model.places import SEATS_INSIDE, TASK_FILE, Repository, Seats
from sessionrun.model.spec import Landing, TaskSpec


def settle_seats(draft: Draft) -> Draft:
    """Where the worktrees of the session stay, as the plan wishes.

    Raises:
        InputError: worktrees cannot stay, or tasks cannot begin at the branch on which work lands.
    """
    spec, plan, into = draft.spec, draft.plan, draft.into
    _check_bases(spec.tasks, spec.landing if into is None else into.landing)
    if plan.seats is None:
        return draft
    seats = _find_seats(plan, plan.seats, spec.repository)
    assert spec.repository is not None
    excludes = f"/{TASK_FILE}\n{spec.repository.excludes}"
    return replace(
        draft, spec=replace(draft.spec, seats=seats, repository=replace(spec.repository, excludes=excludes))
    )


def _find_seats(plan: Plan, wish: SeatsWish, repository: Repository | None) -> Seats:
    mirrored = next((task for task in plan.tasks if task.upstream is not None), None)
    if mirrored is not None:
        whose = f"task {mirrored.id} has a repository of its own"
        raise InputError(f"worktrees: {whose}, whose worktrees cannot stay: leave worktrees out")
    if repository is None:
        raise InputError(
            "worktrees: no task has a worktree that could stay: add --worktree, or leave worktrees out"
        )
    if repository.keep != "never":
        why = "a worktree that stays goes to the next task; failed work is on its branch"
        raise InputError(f"worktrees: {why}, so leave out either worktrees or --keep-worktree {repository.keep}")
    top = Path(repository.top)
    if wish.stay == "sibling":
        _check_writable(top.parent)
        return Seats(str(top.parent), wish.prefix or f"{top.name}-w", "sibling")
    seats = Seats(str(top / SEATS_INSIDE))
    _check_inside(top, seats)
    return seats


def _check_inside(top: Path, seats: Seats) -> None:
    """Refuse a checkout in which the user's git would show the seats: files of the user's are not changed."""
    folder = Path(seats.directory)
    rules = folder / ".gitignore"
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise InputError(f'worktrees: {folder} is not a directory: move it, or say "sibling"')
    _check_writable(folder if folder.is_dir() else top)
    from sessionrun.workspaces.git import Git
    from sessionrun.workspaces.seats import has_other_rules

    git = Git(top)
    shown = git.attempt("check-ignore", "-q", "--", f"{SEATS_INSIDE}/{seats.prefix}1").returncode == 1
    if shown and has_other_rules(git, rules):
        line = f"/{seats.prefix}[0-9]*/"
        raise InputError(f'worktrees: git would show them: add the line {line} to {rules}, or say "sibling"')


def _check_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"worktrees: {folder} cannot be written, and they would stay there")


def _check_bases(tasks: Sequence[TaskSpec], landing: Landing | None) -> None:
    """Refuse tasks that are to begin at a branch on which nothing lands."""
    for num, task in enumerate(tasks, 1):
        if task.base != "target":
            continue
        where = f"task {num} (ID: {task.id})"
        if task.upstream is not None:
            raise InputError(
                f'{where}: base "target" does not fit a repository of its own: its work does not land'
            )
        if landing is None:
            raise InputError(f'{where}: base "target" is the branch on which work lands: add land, or --land')
        if task.workspace.kind == "none":
            raise InputError(f'{where}: base "target" needs a worktree; add --worktree, or leave it out')
