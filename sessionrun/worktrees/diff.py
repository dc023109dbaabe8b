"""What the tasks of a session changed in their worktrees, compared with the commit at which they began."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sessionrun.client.graph import walk
from sessionrun.client.notices import notify
from sessionrun.client.reading.outputs import iterate_chunks
from sessionrun.client.reading.steps import Unlanded
from sessionrun.client.reading.view import choose_tasks, load_view
from sessionrun.model.errors import InputError, SessionrunError, StoreError
from sessionrun.model.words import read_landing
from sessionrun.store.session import WALLS_SUFFIX, SessionDir

if TYPE_CHECKING:
    from sessionrun.git.git import Git
    from sessionrun.git.private import Fence

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

    Where the changes of the only task cannot be found, that is an error; of several, a warning names it.
    """
    for task in tasks:
        yield Change(task, _read_pieces(session, task, stat=stat, alone=len(tasks) == 1))


def is_unchanged(task: Mapping[str, Any]) -> bool:
    """Whether the task ended where it began: then it has no branch any more."""
    return task["commit"] is not None and task["commit"] in (task["base_commit"], task.get("setup_commit"))


def patch_path(session: SessionDir, task: dict[str, Any]) -> Path:
    """The patch of the task's last attempt."""
    return session.path / "jobs" / str(task["id"]) / f"a{task['attempt']}-diff.patch"


def describe_changes(session: SessionDir, task: dict[str, Any]) -> dict[str, Any]:
    """Where a task's changes are: one object of `diff --json`."""
    patch = patch_path(session, task)
    return {**{key: task[key] for key in DIFF_KEYS}, "patch": str(patch.absolute()) if patch.exists() else None}


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
    if not stat:
        yield from iterate_chunks(patch)
        return
    from sessionrun.git.git import Git

    with open(patch, "rb") as stream:  # at the root: below the top of a repository git would count less
        yield Git(Path("/")).attempt("apply", "--stat", stdin=stream.fileno()).stdout


def _diff_now(session: SessionDir, task: dict[str, Any], *, stat: bool) -> bytes:
    """The changes without a patch: the task's worktree or, if it is gone, its branch, against the base commit."""
    from sessionrun.git.private import open_fence
    from sessionrun.model.places import Start
    from sessionrun.model.repositories import repository_of
    from sessionrun.session.history import load_spec_now

    spec = load_spec_now(session)
    own = next((one for one in spec.tasks if one.id == task["id"]), None)
    begun = Start("", task["base_commit"]) if task["base_commit"] else None
    repository = spec.repository if own is None else repository_of(spec, own, begun)
    if repository is None:
        raise StoreError(f"{session.status_path} is damaged: it names branches, and the session has no repository")
    shape = ("--stat",) if stat else ("-p", "--binary", "--full-index")
    words = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none", "-M")
    base = task.get("setup_commit") or task["base_commit"] or ""  # what its setup left is no work
    argv = ("diff-tree", "-r", *words, *shape, base)
    with open_fence(repository) as fence:
        if task["worktree"] and os.path.isdir(task["worktree"]):
            git, tree = _write_worktree(session, task, () if own is None else own.links, fence)
            return git(*argv, tree)
        main = fence.main()
        branch = main.commit_of(f"refs/heads/{task['rescue_branch'] or task['branch']}")
        return main(*argv, branch) if branch else b""


def _write_worktree(
    session: SessionDir, task: dict[str, Any], links: tuple[str, ...], fence: Fence
) -> tuple[Git, str]:
    """What lies in a worktree as RELEASE would commit it, as a tree among objects that go with the fence."""
    from sessionrun.model.places import Place
    from sessionrun.walls.argv import OWN_GIT
    from sessionrun.worktrees.own import open_apart, open_as_is
    from sessionrun.worktrees.park import write_worktree
    from sessionrun.worktrees.request import WorkspaceRequest
    from sessionrun.worktrees.site import find_site

    place = Place(branch=task["branch"], worktree=task["worktree"], base_commit=task["base_commit"])
    walls = (session.path / "jobs" / str(task["id"]) / f"a{task['attempt']}{WALLS_SUFFIX}").absolute()
    names, inside = (session.session_id, task["id"], ""), str(walls) if walls.is_dir() else None
    request = WorkspaceRequest(fence.repository, *names, links, place, walls=inside)
    opens = open_as_is if (walls / OWN_GIT).is_dir() else open_apart  # the task may be at work in its own
    site = find_site(fence, request, Path(task["worktree"]), fence.common, opens)
    real = Path(fence.repository.common_dir) if site.own is None or site.git.git_dir is None else site.git.git_dir
    git = site.git.on_trial(site.folder / "new-objects", real)
    return git, write_worktree(replace(site, git=git)).tree


Task = Mapping[str, Any]


def find_unlanded(session: SessionDir, view: Mapping[str, Any], tasks: Sequence[Task]) -> Unlanded:
    """Sort the tasks whose branches are left; none where the repository or its branch is gone."""
    ended = [
        task for task in tasks if task["status"] == "completed" and task["base_commit"] and not task.get("repo")
    ]
    if not ended:
        return Unlanded()
    from sessionrun.git.private import open_fence
    from sessionrun.session.history import load_spec_now  # most sessions that are looked at have no worktrees

    repository = load_spec_now(session).repository
    if repository is None:
        return Unlanded()
    target, words = f"refs/heads/{repository.base_branch}", ("--format=%(refname:lstrip=2)", "refs/heads")
    try:
        with open_fence(repository) as fence:
            alone = set(fence.main().line("for-each-ref", f"--no-merged={target}", *words).split("\n"))
            done = set(fence.main().line("for-each-ref", f"--merged={target}", *words).split("\n"))
    except (SessionrunError, OSError):
        return Unlanded()
    landings = {task["id"]: read_landing(task) for task in view["tasks"]}
    waiting = [task for task in ended if (task["rescue_branch"] or task["branch"]) in alone]
    waiting = [task for task in waiting if landings[task["id"]] != "landed" and not is_unchanged(task)]
    ready = [task["id"] for task in waiting if not landings[task["id"]] and _is_whole(task)]
    within = _find_reached(ready, view["tasks"], repository.base_commit)
    built_on = [task["id"] for task in view["tasks"] if task["id"] in within and not is_unchanged(task)]
    return Unlanded(
        repository.base_branch,
        tuple(name for name in built_on if landings[name] != "landed"),
        tuple(task["id"] for task in waiting if landings[task["id"]] == "bounced"),
        tuple(task["id"] for task in waiting if not landings[task["id"]] and not _is_whole(task)),
        tuple(task["id"] for task in ended if task["branch"] in done - {repository.base_branch}),
    )


def _is_whole(task: Task) -> bool:
    return bool(task["outcome"] == "succeeded" and task["commit"] is not None and not task["rescue_branch"])


def _find_reached(names: Sequence[str], graph: Sequence[Task], base: str) -> set[str]:
    """The tasks and, where their worktrees began with the work of their needs, those too."""
    by_id = {node["id"]: node for node in graph}

    def next_of(name: str) -> list[str]:
        at = by_id[name]
        return [] if at["base_commit"] == base else [need for need in at["needs"] if need in by_id]

    return {*names, *walk(names, next_of)}


def locate_work(session: SessionDir, tasks: Sequence[Task]) -> dict[str, str]:
    """Where the branches of tasks with a repository of their own are, by id: in that or in its mirror."""
    own = {task["id"] for task in tasks if task.get("repo") and (task["rescue_branch"] or task["branch"])}
    places: dict[str, str] = {}
    if not own:
        return places
    from sessionrun.model.repositories import repository_of
    from sessionrun.session.history import load_spec_now

    spec = load_spec_now(session)
    for task in spec.tasks:
        repository = repository_of(spec, task) if task.id in own else None
        if repository is not None and task.upstream is not None:
            places[task.id] = task.upstream.repo if task.upstream.home else repository.top
    return places
