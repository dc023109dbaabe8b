"""Settles the repository of worktrees, and where they stay; refuses tasks that cannot have one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.client.planning.draft import Draft
from sessionrun.input.plan import Plan, SeatsWish
from sessionrun.input.rows import BY_NAME
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.places import SEATS_INSIDE, TASK_FILE, Repository, Seats
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.spec import Landing, SessionSpec, TaskSpec
from sessionrun.model.validation import refuse_task

if TYPE_CHECKING:
    from sessionrun.engine.task import TaskState

_OF_WORKTREES: Final = ("base", "worktree_dir", "keep")


def find_repository(draft: Draft) -> Draft:
    """The repository of the tasks with worktrees; a session to which tasks are added has its own.

    Raises:
        InputError: there is none that can be used, or something is said of worktrees that no task has.
    """
    draft = _add_links(draft)
    if draft.into is not None:
        return draft
    given = draft.options.given
    if not any(task.workspace.kind == "worktree" for task in draft.spec.tasks):
        mirrored = any(task.upstream is not None for task in draft.spec.tasks)
        if mirrored and "base" in given:
            raise InputError("--base has no effect on tasks with a repository of their own: say ref in the input")
        if not mirrored and any(name in given for name in _OF_WORKTREES):
            raise InputError("--base, --worktree-dir and --keep-worktree need --worktree")
        return draft
    from sessionrun.workspaces import repository

    wish, source = draft.plan.repository, draft.source.name
    if wish.path and not os.path.isdir(wish.path):
        raise InputError(f"{source}: {wish.keys['path']}: {wish.path} is not a directory")
    worktree_dir = draft.options.choose("worktree_dir", wish.worktree_dir)
    try:
        found, remarks = repository.find_repository(
            Path(wish.path) if wish.path else draft.place,
            base=given.get("base", wish.base),
            worktree_dir=Path(worktree_dir) if worktree_dir else None,
            keep=given.get("keep") or wish.keep or "never",
        )
    except InputError as error:
        raise _name_key(error, draft) from None
    filled = all("submodule" in " ".join(task.setup) for task in draft.plan.tasks)
    if not filled and (names := repository.find_submodules(found)):
        more = " and others" if len(names) > 3 else ""
        mend = "--setup 'git submodule update --init' fills them"
        remarks.append(f"submodules are empty in worktrees: {', '.join(names[:3])}{more}; {mend}")
    return draft.settle(repository=found).remark(*remarks)


def _add_links(draft: Draft) -> Draft:
    """The tasks with those of the plan's optional links that lead to something."""
    links = tuple(link for link in draft.plan.optional_links if os.path.lexists(link))
    if not links:
        return draft
    return draft.settle(tasks=tuple(replace(task, links=(*task.links, *links)) for task in draft.spec.tasks))


def _name_key(error: InputError, draft: Draft) -> InputError:
    """The error, with the input's key in place of the option if the value came from the input."""
    problem, wish, source = str(error), draft.plan.repository, draft.source.name
    for option, key in wish.keys.items():
        if problem.startswith(option) or f": {option}" in problem:
            is_option = any(BY_NAME[name].spell() == option for name in draft.options.given)
            return error if is_option else InputError(f"{source}: {key}: {problem.replace(option + ' ', '')}")
    return (
        error if wish.path is None else InputError(f"{source}: {wish.keys.get('path', 'repository')}: {problem}")
    )


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
    return draft.settle(seats=seats, repository=replace(spec.repository, excludes=excludes))


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
        problem = None
        if task.upstream is not None:
            problem = "does not fit a repository of its own: its work does not land"
        elif landing is None:
            problem = "is the branch on which work lands: add land, or --land"
        elif task.workspace.kind == "none":
            problem = "needs a worktree; add --worktree, or leave it out"
        if problem is not None:
            raise refuse_task(num, task, f'base "target" {problem}')


def check_worktrees(spec: SessionSpec) -> None:
    """Refuse what would fail in every worktree, or run outside of it.

    Raises:
        InputError: which task.
    """
    from sessionrun.workspaces.links import describe_problem, find_name
    from sessionrun.workspaces.repository import find_missing

    repository = spec.repository
    if repository is None:
        return
    top = os.path.realpath(repository.top)
    wanted = [task for task in spec.tasks if task.workspace.kind == "worktree"]
    inside = {task.id: os.path.relpath(os.path.realpath(task.cwd or spec.cwd), top) for task in wanted}
    missing = find_missing(repository, {path for path in inside.values() if path.split(os.sep)[0] != os.pardir})
    for num, task in enumerate(spec.tasks, 1):
        if task.id not in inside:
            continue
        cwd = inside[task.id]
        if cwd.split(os.sep)[0] == os.pardir:
            raise refuse_task(num, task, f"cwd {task.cwd} lies outside {repository.top}")
        begins_elsewhere = task.base == "target" or (task.base == "needs" and (task.needs or task.handed))
        if (
            cwd in missing
            and not begins_elsewhere
            and not any(_is_below(cwd, find_name(repository.top, link)) for link in task.links)
        ):
            where = f"{repository.base_branch} ({repository.base_commit[:12]})"
            why = f"{cwd} is not a directory in {where}, where its worktree begins"
            mend = "commit it, start in another directory, or give another --base"
            raise refuse_task(num, task, f"{why}; {mend}")
        for link in task.links:
            if (problem := describe_problem(repository.top, task.links, link)) is not None:
                raise refuse_task(num, task, f"link {problem}")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def check_branch(spec: SessionSpec, task: TaskState) -> None:
    """Refuse a task whose branch does not hold its work any more, or is in use; PREPARE would find the same.

    Raises:
        InputError: why it cannot go on.
    """
    from sessionrun.engine.handed import is_empty

    repository, earlier = repository_of(spec, task.spec), task.place
    if not has_worktree(task.spec) or repository is None or earlier is None or is_empty(earlier):
        return
    from sessionrun.workspaces.request import WorkspaceRequest
    from sessionrun.workspaces.taking_up import check_earlier

    try:
        check_earlier(WorkspaceRequest(repository, spec.session_id, task.spec.id, "", earlier=earlier))
    except (SessionrunError, OSError) as error:
        raise InputError(f"task {task.spec.id!r} cannot be continued: {error}") from None


def foresee_places(spec: SessionSpec) -> dict[str, tuple[str, str]]:
    """Branch and worktree of each task that gets one, unless these names are taken before the task starts.

    Which of the worktrees that stay it will be is not known yet.
    """
    repository = spec.repository
    if repository is None:
        return {}
    from sessionrun.workspaces.fence import open_fence
    from sessionrun.workspaces.naming import branch_stem, free_branches, free_names

    with open_fence(repository) as fence:
        taken = set(fence.main().line("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads").split("\n"))
    wanted = [task for task in spec.tasks if task.workspace.kind == "worktree"]
    stems = {task.id: branch_stem(repository, task.id, task.workspace.branch) for task in wanted}
    if spec.seats is not None:
        seat = f"{spec.seats.directory}/{spec.seats.prefix}N"
        return {task.id: (next(free_branches(stems[task.id], taken))[0], seat) for task in wanted}
    return {
        task.id: next(free_names(repository, stems[task.id], taken, task.workspace.directory)) for task in wanted
    }
