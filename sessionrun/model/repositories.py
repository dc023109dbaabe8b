"""Which repository the worktree of a task belongs to: the session's, or the mirror of the task's own.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sessionrun.model.places import Repository, Start, begin_at
from sessionrun.model.spec import IN_GIT, SessionSpec, TaskSpec


def ignore_leavings(excludes: str, leavings: Iterable[str]) -> str:
    """Rules of what git ignores, with those for what agents leave there; the user's own come last."""
    known = excludes.split("\n")
    return "\n".join([*(rule for rule in leavings if rule not in known), excludes])


def has_worktree(task: TaskSpec) -> bool:
    return task.workspace.kind in IN_GIT


def has_rounds(task: TaskSpec) -> bool:
    """Whether what each round came to is kept: there may be several, and git can keep it."""
    return task.rounds > 1 and has_worktree(task)


def resets_hard(task: TaskSpec) -> bool:
    """Whether a further round begins with the files with which WORK began."""
    return has_rounds(task) and task.check is not None and task.check.reset == "hard"


def repository_of(spec: SessionSpec, task: TaskSpec, start: Start | None = None) -> Repository | None:
    """The repository of a task's worktree; None: the task gets none.

    `start` is where the task's ref stood in the mirror, as its place or its claim tells.
    """
    site, upstream = spec.mirrors, task.upstream
    if site is None or upstream is None:
        return spec.repository
    mirror, settings = upstream.mirror, site.settings
    if not site.require_cache and any(name.startswith("filter.") for name, _ in settings.config):
        # Git LFS asks git where its server is
        settings = replace(settings, config=(*settings.config, ("remote.origin.url", upstream.repo)))
    stem = mirror.rpartition("/")[2].removesuffix(".git")
    worktree_dir = site.worktree_dir or f"{site.cache_dir}/worktrees/{stem}"
    if upstream.history is not None:  # it holds an excerpt of the mirror; see `git.clone`
        mirror = f"{worktree_dir}/.excerpt-{spec.session_id}-{task.id}.git"
    repository = Repository(
        top=mirror,
        common_dir=mirror,
        base_branch="",
        base_commit="",
        worktree_dir=worktree_dir,
        keep=site.keep,
        excludes=site.excludes,
        settings=replace(settings, git_dir=mirror),
        upstream=upstream.repo,
    )
    return begin_at(repository, start) if start else repository
