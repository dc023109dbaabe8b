"""Settles where each task works: in the user's repository or a mirror, in a worktree that stays or one of its own.

What could not work there is refused before a session starts, or before a task goes on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sessionrun.client.graph import walk
from sessionrun.client.planning.assemble import Draft
from sessionrun.git.rooms import find_empty
from sessionrun.input.plan import Plan, SeatsWish
from sessionrun.input.rows import BY_NAME
from sessionrun.input.settings import first
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.places import SEATS_INSIDE, TASK_FILE, MirrorSite, Repository, Seats, Upstream, is_path
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.spec import CacheSite, Landing, SessionSpec, TaskSpec
from sessionrun.model.validation import refuse_task
from sessionrun.store.files import NotRegular, open_regular
from sessionrun.store.index import user_directory

if TYPE_CHECKING:
    from sessionrun.engine.task import TaskState


def settle_mirrors(draft: Draft) -> Draft:
    """The repositories of tasks, where their mirrors are, and the cache of their environments."""
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
    from sessionrun.git.private import read_user_settings
    from sessionrun.git.repository import check_version

    check_version(Path.cwd())
    tasks = tuple(_settle_task(num, task, draft, cache_dir) for num, task in enumerate(spec.tasks, 1))
    excludes, settings = read_user_settings(Path.cwd())
    worktree_dir = first(options.choose("worktree_dir"), draft.plan.repository.worktree_dir)
    mirrors = MirrorSite(
        cache_dir=str(cache_dir),
        excludes=excludes,
        settings=settings,
        worktree_dir=os.path.realpath(worktree_dir) if worktree_dir else None,
        keep=options.given.get("keep") or draft.plan.repository.keep or "never",
        require_cache=require_cache,
    )
    return draft.settle(tasks=tasks, mirrors=mirrors)


def find_cache_dir(wanted: str | Path | None) -> Path:
    """The cache, absolute and without links: the one that is wanted, or the user's usual one."""
    from sessionrun.git.repository import check_path

    cache_dir = Path(os.path.realpath(wanted or user_directory("cache")))
    check_path(str(cache_dir))
    there = next(path for path in (cache_dir, *cache_dir.parents) if path.exists())
    if not there.is_dir():
        raise InputError(
            f"the cache {cache_dir} cannot be made: {there} is no directory; name another (--cache-dir)"
        )
    return cache_dir


def check_needs(draft: Draft) -> Draft:
    """Refuse needs whose work is in another repository, or begins at another ref: there is nothing to begin at."""
    by_id = {task.id: task for task in draft.spec.tasks if draft.spec.mirrors is not None}
    for num, task in enumerate(by_id.values(), 1):
        for need in _walk_needs(task, by_id) if has_worktree(task) and task.base != "session" else ():
            if need.upstream != task.upstream:
                where = "is in another repository, or begins at another ref"
                mend = 'add "base": "session", so that it begins at its own'
                raise refuse_task(num, task, f"it needs task {need.id!r}, whose work {where}; {mend}")
    return draft


def check_environments(spec: SessionSpec) -> None:
    """Refuse tasks whose environment needs uv, which is not on this machine; nodes of a cluster have their own."""
    tasks = (*spec.tasks, *((spec.template,) if spec.template else ())) if spec.cluster is None else ()
    for task in tasks:
        if task.environment is None:
            continue
        from sessionrun.store.programs import locate_uv
        from sessionrun.worktrees.environments.inputs import NO_UV

        if locate_uv({**os.environ, **task.env}) is None:
            raise InputError(f"environment of task {task.id}: {NO_UV}")


def _walk_needs(task: TaskSpec, by_id: Mapping[str, TaskSpec]) -> Iterator[TaskSpec]:

    def next_of(name: str) -> list[str]:
        at = by_id[name]
        ends = at.base == "session" or (at is not task and has_worktree(at))
        return [] if ends else [need for need in at.needs if need in by_id]

    return (by_id[name] for name in walk([task.id], next_of) if has_worktree(by_id[name]))


def _settle_task(num: int, task: TaskSpec, draft: Draft, cache_dir: Path) -> TaskSpec:
    upstream, kind = task.upstream, task.workspace.kind
    if kind != "mirror":
        if upstream is None:
            return task
        key = "repo" if upstream.repo else "ref"
        hint = 'leave "workspace" out' if upstream.repo else 'it needs "repo", or "workspace": "mirror"'
        raise refuse_task(num, task, f'{key} does not go with the workspace "{kind}"; {hint}')
    if not all(os.path.isabs(os.path.expanduser(link)) for link in task.links):
        raise refuse_task(num, task, "links lead to the checkout where the session begins, and a mirror has none")
    from sessionrun.git.git import Git
    from sessionrun.git.mirrors import locate_mirror
    from sessionrun.git.repository import locate

    upstream = upstream or Upstream("")
    directory = draft.source.folder.project if draft.source.folder else draft.source.directory
    cwd = os.path.relpath(task.cwd, directory) if task.cwd else None
    if not upstream.repo:  # the repository where the session begins; the task's directory is the same one in it
        top, *_ = locate(Git(Path(draft.plan.repository.path or os.getcwd())))
        cwd = os.path.relpath(os.path.realpath(task.cwd or os.getcwd()), os.path.realpath(top))
        upstream = replace(upstream, repo=str(top))
    if cwd is not None and cwd.split(os.sep)[0] == os.pardir:
        raise refuse_task(num, task, f"cwd {task.cwd} must be a path inside the repository")
    repo, home = upstream.repo, None
    if is_path(repo):
        repo = os.path.realpath(repo)
        home = _find_home(num, task, repo)
        home = home if upstream.history is None else None  # the work does not leave the task's own repository
    mirror = locate_mirror(cache_dir, repo)
    settled = replace(upstream, repo=repo, mirror=str(mirror), home=home)
    return replace(task, upstream=settled, cwd=None if cwd == os.curdir else cwd)


def _find_home(num: int, task: TaskSpec, repo: str) -> str | None:
    """The common git directory of a local repository; None for a bundle, or what is not there (any more)."""
    from sessionrun.git.git import Git

    if not os.path.isdir(repo):
        begin = b""  # of a bundle, or of the file that stands for a git directory
        with suppress(NotRegular, OSError), open(open_regular(repo), "rb") as stream:
            begin = stream.read(32)
        if os.path.exists(repo) and not re.match(rb"# v[0-9]+ git bundle\n|gitdir: ", begin):
            raise refuse_task(num, task, f"repo {repo} is neither a git repository nor a bundle of one")
        return None
    done = Git(Path(repo)).attempt("rev-parse", "--path-format=absolute", "--git-common-dir", "--show-prefix")
    common, _, prefix = os.fsdecode(done.stdout).partition("\n")
    if done.returncode != 0:
        raise refuse_task(num, task, f"repo {repo} is not a git repository")
    if prefix.strip("\n"):
        raise refuse_task(num, task, f"repo {repo} lies inside a repository: name its top")
    return os.path.realpath(common)


def find_repository(draft: Draft) -> Draft:
    """The repository of the tasks with worktrees; a session to which tasks are added has its own."""
    draft = _add_links(draft)
    if draft.into is not None:
        return draft
    given = draft.options.given
    if not any(task.workspace.kind == "worktree" for task in draft.spec.tasks):
        mirrored = any(task.upstream is not None for task in draft.spec.tasks)
        if mirrored and "base" in given:
            raise InputError("--base has no effect on tasks with a repository of their own: say ref in the input")
        if not mirrored and given.keys() & {"base", "worktree_dir", "keep"}:
            raise InputError("--base, --worktree-dir and --keep-worktree need --worktree")
        return draft
    from sessionrun.git import repository

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
    # git is not asked for nothing
    may_have = "base" in given or wish.base or os.path.lexists(f"{found.top}/.gitmodules")
    if may_have and not filled and (names := find_empty(found)):
        more = " and others" if len(names) > 3 else ""
        mend = "git submodule update --init, now or as --setup, fills them"
        remarks.append(f"submodules that the checkout lacks are empty: {', '.join(names[:3])}{more}; {mend}")
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
            where = key if key.startswith("--") else f"{source}: {key}"
            return error if is_option else InputError(f"{where}: {problem.replace(option + ' ', '')}")
    return (
        error if wish.path is None else InputError(f"{source}: {wish.keys.get('path', 'repository')}: {problem}")
    )


def settle_seats(draft: Draft) -> Draft:
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
    from sessionrun.git.git import Git

    words = ("check-ignore", "-q", "--", f"{SEATS_INSIDE}/{seats.prefix}1")
    if os.path.lexists(rules) and Git(top).attempt(*words).returncode == 1:
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


def check_worktrees(draft: Draft) -> Draft:
    """Refuse what would fail in every worktree, or run outside of it."""
    from sessionrun.worktrees.site import describe_problem, find_missing, place_link

    spec, repository = draft.spec, draft.spec.repository
    if repository is None:
        return draft
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
        begins_elsewhere = task.base == "target" or (task.base == "needs" and task.needs)
        if (
            cwd in missing
            and not begins_elsewhere
            and not any(Path(cwd).is_relative_to(place_link(repository.top, link)[0]) for link in task.links)
        ):
            where = f"{repository.base_branch} ({repository.base_commit[:12]})"
            why = f"{cwd} is not a directory in {where}, where its worktree begins"
            mend = "commit it, start in another directory, or give another --base"
            raise refuse_task(num, task, f"{why}; {mend}")
        for link in task.links:
            if (problem := describe_problem(repository.top, task.links, link)) is not None:
                raise refuse_task(num, task, f"link {problem}")
    return draft


def check_branch(spec: SessionSpec, task: TaskState) -> None:
    """Refuse a task whose branch does not hold its work any more, or is in use; PREPARE would find the same."""
    from sessionrun.engine.task import is_empty

    earlier = task.place
    repository = repository_of(spec, task.spec, earlier.start if earlier else None)
    if not has_worktree(task.spec) or repository is None or earlier is None or is_empty(earlier):
        return
    from sessionrun.worktrees.request import WorkspaceRequest
    from sessionrun.worktrees.worktree import check_earlier

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
    from sessionrun.git.private import open_fence
    from sessionrun.worktrees.registration import branch_stem, free_branches, free_names

    with open_fence(repository) as fence:
        taken = fence.main().list_branches()
    wanted = [task for task in spec.tasks if task.workspace.kind == "worktree"]
    stems = {task.id: branch_stem(repository, task.id, task.workspace.branch) for task in wanted}
    if spec.seats is not None:
        seat = f"{spec.seats.directory}/{spec.seats.prefix}N"
        return {task.id: (next(free_branches(stems[task.id], taken))[0], seat) for task in wanted}
    return {
        task.id: next(free_names(repository, stems[task.id], taken, task.workspace.directory)) for task in wanted
    }
