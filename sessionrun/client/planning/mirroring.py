"""Settles which tasks get a worktree of a mirror, and where mirrors are; refuses what cannot work with one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.client.graph import walk
from sessionrun.client.planning.draft import Draft
from sessionrun.input.settings import first
from sessionrun.model.errors import InputError
from sessionrun.model.repositories import has_worktree
from sessionrun.model.spec import CacheSite, SessionSpec, TaskSpec, hides_tests
from sessionrun.model.upstreams import MirrorSite, Upstream, is_path
from sessionrun.model.validation import refuse_task
from sessionrun.store.files import NotRegular, open_regular
from sessionrun.store.user_directories import user_directory

LOOKS: Final = 8
"""So many test patches are tried at once."""


class _Ground(NamedTuple):
    """Where relative paths begin, the cache, and where the input says that the session is (None: here)."""

    directory: str
    cache_dir: Path
    here: str | None


def settle_mirrors(draft: Draft) -> Draft:
    """The repositories of tasks, where their mirrors are, and the cache of their environments.

    Raises:
        InputError: a task asks for what a mirror cannot give; or the cache has a name that cannot be used.
    """
    spec, options = draft.spec, draft.options
    mirrored = any(task.upstream is not None or task.workspace.kind == "mirror" for task in spec.tasks)
    built = any(task.environment is not None for task in spec.tasks)
    if not (mirrored or built):
        return draft
    cache_dir = find_cache_dir(first(options.choose("cache_dir"), draft.plan.repository.cache_dir))
    require_cache = bool(options.choose("require_cache", draft.plan.require_cache))
    if built:
        draft = draft.settle(cache=CacheSite(str(cache_dir), require_cache=require_cache))
    if not mirrored:
        return draft
    from sessionrun.workspaces.repository import check_version

    check_version(Path.cwd())
    directory = draft.source.folder.project if draft.source.folder else draft.source.directory
    ground = _Ground(directory, cache_dir, draft.plan.repository.path)
    tasks = tuple(_settle_task(num, task, ground) for num, task in enumerate(spec.tasks, 1))
    return draft.settle(tasks=tasks, mirrors=_find_site(draft, cache_dir, require_cache=require_cache))


def find_cache_dir(wanted: str | Path | None) -> Path:
    """The cache, absolute and without links: the one that is wanted, or the user's usual one.

    Raises:
        InputError: git's files could not hold its name, or it cannot be a directory.
    """
    from sessionrun.workspaces.repository import check_path

    cache_dir = Path(os.path.realpath(wanted or user_directory("cache")))
    check_path(str(cache_dir))
    there = next(path for path in (cache_dir, *cache_dir.parents) if path.exists())
    if not there.is_dir():
        raise InputError(
            f"the cache {cache_dir} cannot be made: {there} is no directory; name another (--cache-dir)"
        )
    return cache_dir


def check_mirrors(spec: SessionSpec) -> None:
    """Refuse tasks in mirrors that could not begin, and instances that no work could solve.

    Raises:
        InputError: which task, and why.
    """
    if spec.mirrors is not None:
        _check_needs(spec.tasks)
        _check_hidden_tests(spec.tasks)


def _check_needs(tasks: Sequence[TaskSpec]) -> None:
    """Refuse needs whose work is in another repository, or begins at another ref: there is nothing to begin at."""
    by_id = {task.id: task for task in tasks}
    for num, task in enumerate(tasks, 1):
        for need in _walk_needs(task, by_id) if has_worktree(task) and task.base != "session" else ():
            if need.upstream != task.upstream:
                where = "is in another repository, or begins at another ref"
                mend = 'add "base": "session", so that it begins at its own'
                raise refuse_task(num, task, f"it needs task {need.id!r}, whose work {where}; {mend}")


def _check_hidden_tests(tasks: Sequence[TaskSpec]) -> None:
    """Refuse a base that its repository lacks, and a patch with tests that does not apply to it.

    That is as far as repositories are at hand; PREPARE asks of the others.
    """
    judged = [(num, task) for num, task in enumerate(tasks, 1) if task.upstream is not None and hides_tests(task)]
    if not judged:
        return
    from concurrent.futures import ThreadPoolExecutor  # few inputs have instances
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="sessionrun-") as folder, ThreadPoolExecutor(LOOKS) as pool:
        for (num, task), fault in zip(judged, pool.map(partial(_find_fault, Path(folder)), judged), strict=True):
            if fault is not None:
                raise refuse_task(num, task, f"{fault}; correct it, or leave the instance out with --filter")


def _find_fault(folder: Path, judged: tuple[int, TaskSpec]) -> str | None:
    from sessionrun.workspaces.crossing import find_patch_fault
    from sessionrun.workspaces.git import Git, GitError

    num, task = judged
    assert task.upstream is not None and task.prove is not None and task.prove.hidden is not None
    repo, mirror, ref = task.upstream.repo, task.upstream.mirror, task.upstream.ref
    place = next((path for path in (repo, mirror) if is_path(path) and os.path.isdir(path)), None)
    if place is None:
        return None
    try:
        git = Git(Path(place))
        commit = git.commit_of(ref or "HEAD")
        if commit is None:
            return f"base_commit: {repo} has no commit {ref}" if place == repo else None
        why = find_patch_fault(git, commit, task.prove.hidden.patch, folder / f"index-{num}")
    except GitError:
        return None  # a history that is only partly here, a mirror that is just removed
    return None if why is None else f"test_patch does not apply to its base {commit[:12]}: {why}"


def check_environments(spec: SessionSpec) -> None:
    """Refuse tasks whose environment could not be made on this machine; nodes of a cluster have their own uv.

    Raises:
        InputError: uv is not there.
    """
    tasks = (*spec.tasks, *((spec.template,) if spec.template else ())) if spec.cluster is None else ()
    for task in tasks:
        if task.environment is None:
            continue
        from sessionrun.store.interpreters import locate_uv
        from sessionrun.workspaces.environments.interpreter import NO_UV

        if locate_uv({**os.environ, **task.env}) is None:
            raise InputError(f"environment of task {task.id}: {NO_UV}")


def _walk_needs(task: TaskSpec, by_id: Mapping[str, TaskSpec]) -> Iterator[TaskSpec]:
    """The tasks with worktrees at whose ends a task begins."""

    def next_of(name: str) -> list[str]:
        at = by_id[name]
        ends = at.base == "session" or (at is not task and has_worktree(at))
        return [] if ends else [need for need in at.needs if need in by_id]

    return (by_id[name] for name in walk([task.id], next_of) if has_worktree(by_id[name]))


def _settle_task(num: int, task: TaskSpec, ground: _Ground) -> TaskSpec:
    upstream, kind = task.upstream, task.workspace.kind
    if kind != "mirror":
        if upstream is None:
            return task
        key = "repo" if upstream.repo else "ref"
        hint = 'leave "workspace" out' if upstream.repo else 'it needs "repo", or "workspace": "mirror"'
        raise refuse_task(num, task, f'{key} does not go with the workspace "{kind}"; {hint}')
    if not all(os.path.isabs(os.path.expanduser(link)) for link in task.links):
        raise refuse_task(num, task, "links lead to the checkout where the session begins, and a mirror has none")
    upstream = upstream or Upstream("")
    if not upstream.repo:
        return _settle_own(num, task, upstream, ground)
    inside = os.path.relpath(task.cwd, ground.directory) if task.cwd else None
    return _settle(num, task, upstream, inside, ground)


def _settle_own(num: int, task: TaskSpec, upstream: Upstream, ground: _Ground) -> TaskSpec:
    """A mirror of the repository where the session begins; the task's directory is the same one in it."""
    from sessionrun.workspaces.git import Git
    from sessionrun.workspaces.repository import locate

    here = ground.here or os.getcwd()
    top, *_ = locate(Git(Path(here)))
    cwd = os.path.relpath(os.path.realpath(task.cwd or os.getcwd()), os.path.realpath(top))
    return _settle(num, task, replace(upstream, repo=str(top)), cwd, ground)


def _settle(num: int, task: TaskSpec, upstream: Upstream, cwd: str | None, ground: _Ground) -> TaskSpec:
    from sessionrun.workspaces.mirrors import locate_mirror

    if cwd is not None and cwd.split(os.sep)[0] == os.pardir:
        raise refuse_task(num, task, f"cwd {task.cwd} must be a path inside the repository")
    repo, home = upstream.repo, None
    if is_path(repo):
        repo = os.path.realpath(repo)
        home = _find_home(num, task, repo)
        home = home if upstream.history is None else None  # the work does not leave the task's own repository
    mirror = locate_mirror(ground.cache_dir, repo)
    settled = replace(upstream, repo=repo, mirror=str(mirror), home=home)
    return replace(task, upstream=settled, cwd=None if cwd == os.curdir else cwd)


def _find_home(num: int, task: TaskSpec, repo: str) -> str | None:
    """The common git directory of a local repository; None for a bundle, or what is not there (any more)."""
    from sessionrun.workspaces.git import Git

    if os.path.exists(repo) and not os.path.isdir(repo) and not _can_be_fetched(repo):
        raise refuse_task(num, task, f"repo {repo} is neither a git repository nor a bundle of one")
    if not os.path.isdir(repo):
        return None
    done = Git(Path(repo)).attempt("rev-parse", "--path-format=absolute", "--git-common-dir", "--show-prefix")
    common, _, prefix = os.fsdecode(done.stdout).partition("\n")
    if done.returncode != 0:
        raise refuse_task(num, task, f"repo {repo} is not a git repository")
    if prefix.strip("\n"):
        raise refuse_task(num, task, f"repo {repo} lies inside a repository: name its top")
    return os.path.realpath(common)


def _can_be_fetched(file: str) -> bool:
    """Whether a file begins as a bundle does, or as the file that stands for a git directory."""
    try:
        fd = open_regular(file)
    except (NotRegular, OSError):
        return False
    with open(fd, "rb") as stream:
        return re.match(rb"# v[0-9]+ git bundle\n|gitdir: ", stream.read(32)) is not None


def _find_site(draft: Draft, cache_dir: Path, *, require_cache: bool) -> MirrorSite:
    from sessionrun.workspaces.freezing import read_user_settings

    wish = draft.plan.repository
    worktree_dir = first(draft.options.choose("worktree_dir"), wish.worktree_dir)
    excludes, settings = read_user_settings(Path.cwd())
    return MirrorSite(
        cache_dir=str(cache_dir),
        excludes=excludes,
        settings=settings,
        worktree_dir=os.path.realpath(worktree_dir) if worktree_dir else None,
        keep=draft.options.given.get("keep") or wish.keep or "never",
        require_cache=require_cache,
    )
