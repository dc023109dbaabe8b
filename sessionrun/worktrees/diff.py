"""What the tasks of a session changed in their worktrees, compared with the commit at which they began."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sessionrun.client.lookup import choose_tasks
from sessionrun.client.notices import notify
from sessionrun.client.reading.outputs import iterate_chunks
from sessionrun.client.reading.view import load_view
from sessionrun.model.errors import InputError, SessionrunError, StoreError
from sessionrun.store.session import WALLS_SUFFIX, SessionDir

if TYPE_CHECKING:
    from sessionrun.git.git import Git
    from sessionrun.git.private import Fence
    from sessionrun.model.places import Repository

DIFF_KEYS: Final = (
    *("id", "num", "branch", "rescue_branch", "worktree", "base_commit", "setup_commit", "commit", "diff_stat"),
)
"""What `diff --json` repeats of a task."""


class Change(NamedTuple):
    """A task that changed something, and its patch as pieces, which are read when they are taken."""

    task: dict[str, Any]
    pieces: Iterator[bytes]


def find_changed(session: SessionDir, wanted: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The tasks of a session that have a branch or ended where they began; of the `wanted` tasks, if any is named.

    Raises:
        InputError: the session has no worktrees, or a named task has no branch.
        StoreError: the session's files are damaged.
    """
    view = load_view(session)
    if view["base_branch"] is None and not any(task.get("repo") for task in view["tasks"]):
        raise InputError(f"session {view['session_id']} has no worktrees; start one with --worktree")
    named = choose_tasks(view, wanted)
    chosen = [task for task in named if task["rescue_branch"] or task["branch"] or is_unchanged(task)]
    if wanted and len(chosen) < len(named):
        missing = next(task for task in named if task not in chosen)
        raise InputError(f"task {missing['id']!r} has no {'branch' if missing['base_commit'] else 'worktree'}")
    return chosen


def read_changes(session: SessionDir, tasks: Sequence[dict[str, Any]], *, stat: bool = False) -> Iterator[Change]:
    """What each of these tasks changed: the patch that `git apply` takes, or with `stat` git's account of it.

    Of several tasks, a task whose changes cannot be found is left out, with a warning.

    Raises:
        SessionrunError, OSError: the changes of the only task cannot be found.
    """
    for task in tasks:
        yield Change(task, _read_pieces(session, task, stat=stat, alone=len(tasks) == 1))


def is_unchanged(task: Mapping[str, Any]) -> bool:
    """Whether the task ended where it began: then it has no branch any more."""
    return task["commit"] is not None and task["commit"] in (task["base_commit"], find_work_base(task))


def find_work_base(task: Mapping[str, Any]) -> str | None:
    """The commit at which the task's work began: behind what its setup left."""
    base: str | None = task.get("setup_commit") or task["base_commit"]
    return base


def patch_path(session: SessionDir, task: dict[str, Any]) -> Path:
    """The patch of the task's last attempt."""
    return session.path / "jobs" / str(task["id"]) / f"a{task['attempt']}-diff.patch"


def describe_changes(session: SessionDir, task: dict[str, Any]) -> dict[str, Any]:
    """Where a task's changes are: one object of `diff --json`."""
    patch = patch_path(session, task)
    return {
        **{key: task[key] for key in DIFF_KEYS},
        "patch": str(patch.absolute()) if patch.exists() else None,
    }


def _read_pieces(session: SessionDir, task: dict[str, Any], *, stat: bool, alone: bool) -> Iterator[bytes]:
    patch = patch_path(session, task)
    if not patch.exists():
        try:
            yield _diff_now(session, task, stat=stat)
            return
        except (SessionrunError, OSError) as error:
            if not patch.exists():  # else the task has just ended, and its worktree is gone
                if alone:
                    raise
                notify(f"task {task['id']}: {error}")
                return
    if stat:
        yield _count_patch(session, task, patch)
    else:
        yield from iterate_chunks(patch)


def _count_patch(session: SessionDir, task: dict[str, Any], patch: Path) -> bytes:
    from sessionrun.git.private import open_fence

    if patch.stat().st_size == 0:
        return b""
    repository = _load_repository(session, task)
    with open_fence(
        repository
    ) as fence:  # the patch's folder serves as a worktree: so git looks for no other repository
        return fence.inside(patch.parent.resolve(), fence.common).attempt("apply", "--stat", patch.name).stdout


def _diff_now(session: SessionDir, task: dict[str, Any], *, stat: bool) -> bytes:
    """The changes without a patch: the task's worktree or, if it is gone, its branch, against the base commit."""
    from sessionrun.git.private import open_fence

    shape = ("--stat",) if stat else ("-p", "--binary", "--full-index")
    words = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none")
    argv = ("diff-tree", "-r", *words, *shape, find_work_base(task) or "")
    repository = _load_repository(session, task)
    with open_fence(repository) as fence:
        if task["worktree"] and os.path.isdir(task["worktree"]):
            git, tree = _write_worktree(session, task, fence)
            return git(*argv, tree)
        main = fence.main()
        branch = main.commit_of(f"refs/heads/{task['rescue_branch'] or task['branch']}")
        return main(*argv, branch) if branch else b""


def _write_worktree(session: SessionDir, task: dict[str, Any], fence: Fence) -> tuple[Git, str]:
    """What lies in a worktree as RELEASE would commit it, as a tree among objects that go with the fence."""
    from sessionrun.git.repository import ignore_words
    from sessionrun.model.places import Place
    from sessionrun.session.history import find_task, load_tasks
    from sessionrun.walls.argv import OWN_GIT
    from sessionrun.worktrees.own import open_reader
    from sessionrun.worktrees.park import write_worktree
    from sessionrun.worktrees.request import WorkspaceRequest
    from sessionrun.worktrees.site import Brought, Site, find_git, find_links

    repository, path = fence.repository, Path(task["worktree"])
    links = find_task(session, load_tasks(session), task["id"]).links
    place = Place(branch=task["branch"], worktree=str(path), base_commit=task["base_commit"])
    request = WorkspaceRequest(repository, session.session_id, task["id"], "", links, place)
    git, folder, own, real = find_git(fence, request, path), fence.common, None, Path(repository.common_dir)
    walls = (session.path / "jobs" / str(task["id"]) / f"a{task['attempt']}{WALLS_SUFFIX}").absolute()
    if walls.is_dir():
        own = open_reader(fence, walls, task["branch"], git)
        git, folder, real = own.git, own.scratch, own.folder / OWN_GIT
    git = git.on_trial(folder / "new-objects", real)
    brought = Brought(path, find_links(request))
    site = Site(fence, git, request, brought, ignore_words(repository, folder), folder, own)
    return git, write_worktree(site).tree


def _load_repository(session: SessionDir, task: dict[str, Any]) -> Repository:
    """The task's repository; a damaged status.json may name branches without one."""
    from sessionrun.model.repositories import repository_of
    from sessionrun.session.history import load_spec_now

    spec = load_spec_now(session)
    own = next((one for one in spec.tasks if one.id == task["id"]), None)
    repository = spec.repository if own is None else repository_of(spec, own)
    if repository is None:
        raise StoreError(f"{session.status_path} is damaged: it names branches, and the session has no repository")
    return repository
