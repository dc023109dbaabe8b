"""Fetches ahead what the tasks of an input name, and builds the environments that they would ask for.

An environment is made as a SETUP makes it: by the same program, with the same variables, from a checkout of the
commit at which the task begins.  A task with hidden tests has a second one, that of its clean room.  None is
copied.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.client.planning.plan import Nothing, plan
from sessionrun.git.clone import make_excerpt
from sessionrun.git.merging import apply_to_tree, commit_repeatably
from sessionrun.git.mirrors import hold_mirror, use_mirror
from sessionrun.git.private import open_fence
from sessionrun.git.rooms import open_clean_room
from sessionrun.input.given import Given
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place, Start, Upstream
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.session.launch import CALLER_S_REPOSITORY
from sessionrun.session.shared import PROGRAM, Site
from sessionrun.store.jobfiles import load_usable, write_record
from sessionrun.store.programs import run, run_abreast
from sessionrun.store.session import SessionDir
from sessionrun.store.trees import remove_tree
from sessionrun.walls.build import raise_if_any
from sessionrun.worktrees.environments.build import find_digest, load_manifest
from sessionrun.worktrees.phases import wish_environment
from sessionrun.worktrees.request import REPORT, WISH, EnvironmentReport, EnvironmentRequest, WorkspaceRequest
from sessionrun.worktrees.site import bring_files

Record = dict[str, Any]
"""One repository, or one environment: an object of ``precache --json``."""

Tell = Callable[[Record], None]

_Ref = tuple[str, str | None]
"""A mirror, and a ref of its upstream."""

AT_A_TIME: Final = 4
"""How many are fetched or built at once."""

OUTPUT: Final = "output.txt"
LOG_SUFFIX: Final = "-log"
"""End of the name, after the digest, of a directory in the cache with what a build printed that failed."""


def precache(
    given: Given,
    *,
    dialect: str | None = None,
    limit: int | None = None,
    cache_dir: Path | None = None,
    environments: bool = True,
    tell: Tell = lambda record: None,
    tell_environment: Tell = lambda record: None,
) -> list[Record]:
    """Fetch what the tasks of an input name, then build their environments, several at a time.

    Returns a record for each repository, in the order of the input; null is a `commit` that is missing, and the
    `error` if all is there.  The last record is of the repository where the session would begin, if tasks have
    environments in worktrees of that: its `mirror` is null.

    Args:
        given: a file or directory by name, what its JSON would be as a value, or None for standard input.
        limit: only the first tasks, so many.
        tell: is given each record, in any thread, when its repository begins (`duration_s` null) and at its end.
        tell_environment: the same for records of environments.

    Raises:
        InputError: the input cannot be read, or there is nothing to fetch or to build.
    """
    planned = plan(given, {"dialect": dialect, "cache_dir": cache_dir and str(cache_dir)}, preview=True)
    tasks = () if isinstance(planned, Nothing) else planned.spec.tasks[:limit]
    wanted: dict[tuple[str, str], dict[str | None, None]] = {}
    for upstream in filter(None, (task.upstream for task in tasks)):
        wanted.setdefault((upstream.repo, upstream.mirror), {})[upstream.ref] = None
    records = [_name_repository(*names, refs) for names, refs in wanted.items()]
    starts: dict[_Ref, Start] = {}
    run_abreast([partial(_fetch, record, starts, tell) for record in records], AT_A_TIME)
    if environments and not isinstance(planned, Nothing) and any(task.environment for task in tasks):
        built = _build_ahead(_list_ahead(planned.spec, tasks, starts), tell_environment)
        if None in built and planned.spec.repository is not None:  # nothing is fetched where the session begins
            own = planned.spec.repository
            ref = {"ref": own.base_branch, "commit": own.base_commit}
            records.append({**_name_repository(own.top, None, ()), "refs": [ref], "duration_s": 0.0})
        for record in records:
            record["environments"] = built.get(record["mirror"], [])
    if not records:
        what = "no task of this input names a repo, or wants an environment that can be built"
        raise InputError(f"{what}: nothing to fetch ahead")
    return records


def _name_repository(repo: str, mirror: str | None, refs: Iterable[str | None]) -> Record:
    wanted = [{"ref": ref, "commit": None} for ref in refs]
    return {"repo": repo, "mirror": mirror, "refs": wanted, "error": None, "duration_s": None, "environments": []}


def _fetch(record: Record, starts: dict[_Ref, Start], tell: Tell) -> None:
    """Make or renew a mirror, and note where its refs are."""
    begun, mirror, problems = time.monotonic(), record["mirror"], list[str]()
    tell(record)
    for ref in record["refs"]:
        try:
            with use_mirror(Upstream(record["repo"], ref["ref"], mirror), None) as start:
                ref["commit"], starts[mirror, ref["ref"]] = start.commit, start
        except (SessionrunError, OSError) as error:
            problems.append(str(error))
            if not os.path.exists(mirror):
                break  # none of its refs can be had
    if problems:
        more = f" (and {len(problems) - 1} more of its refs)" if len(problems) > 1 else ""
        record["error"] = problems[0] + more
    record["duration_s"] = round(time.monotonic() - begun, 3)
    tell(record)


_NOT_THERE: Final = {"path": None, "cached": False, "error": None, "log": None, "duration_s": None}


@dataclass
class _Ahead:
    """An environment to build: for which commit, with which patch of hidden tests, and for which first task.

    `start` is where its ref is in the mirror; `log` in the record is the directory of a build that failed.
    """

    spec: SessionSpec
    task: TaskSpec
    start: Start | None
    commit: str
    tests: str
    record: Record = field(default_factory=lambda: {"digest": None, "tasks": [], **_NOT_THERE})

    @property
    def mirror(self) -> str | None:
        """None: it is for the repository where the session begins."""
        return None if self.task.upstream is None else self.task.upstream.mirror


def _list_ahead(spec: SessionSpec, tasks: Iterable[TaskSpec], starts: Mapping[_Ref, Start]) -> list[_Ahead]:
    """The environments that these tasks ask for, as far as the commits are known at which they begin."""
    spec = replace(
        spec,
        cluster=None,  # they are built on this machine
        mirrors=spec.mirrors and replace(spec.mirrors, require_cache=False),
        cache=spec.cache and replace(spec.cache, require_cache=False),
    )
    by_ground: dict[bytes, _Ahead] = {}
    for task in tasks:
        upstream = task.upstream
        start = None if upstream is None else starts.get((upstream.mirror, upstream.ref))
        begins_at = repository_of(spec, task, start) if upstream is None or start is not None else None
        if task.environment is None or not has_worktree(task) or begins_at is None:
            continue  # that it cannot be fetched is said already
        hidden = task.prove and task.prove.hidden if task.sandbox is None else None  # see decision 313
        for tests in dict.fromkeys(("", hidden.patch if hidden else "")):
            ahead = _Ahead(spec, task, start, begins_at.base_commit, tests)
            ground = (ahead.mirror, ahead.commit, upstream and upstream.history, task.cwd, task.environment)
            key = orjson.dumps((*ground, task.links, sorted(task.env.items()), tests, task.sandbox))
            by_ground.setdefault(key, ahead).record["tasks"].append(task.id)
    return list(by_ground.values())


def _build_ahead(wanted: Sequence[_Ahead], tell: Tell) -> dict[str | None, list[Record]]:
    """Build environments, several at a time and each digest once; records by the mirror."""
    takers = dict[str | None, _Ahead]()
    run_abreast([partial(_build, ahead, takers, tell) for ahead in wanted], AT_A_TIME)
    by_mirror: dict[str | None, dict[int, Record]] = {}
    for ahead in wanted:
        record = takers.get(ahead.record["digest"], ahead).record
        same = by_mirror.setdefault(ahead.mirror, {}).setdefault(id(record), {**record, "tasks": []})
        same["tasks"] = list(dict.fromkeys((*same["tasks"], *ahead.record["tasks"])))
    return {mirror: list(records.values()) for mirror, records in by_mirror.items()}


def _build(ahead: _Ahead, takers: dict[str | None, _Ahead], tell: Tell) -> None:
    """Build one, unless another thread has taken its digest."""
    begun, record = time.monotonic(), ahead.record
    try:
        with _open_checkout(ahead) as top:
            request, log = _ask(ahead, top), top.with_name("log")
            # the variables that a SETUP of the task gets, as far as an installer looks at them
            own = {name: value for name, value in os.environ.items() if name not in CALLER_S_REPOSITORY}
            environ = {**own, **ahead.task.env}
            log.mkdir()
            walls = raise_if_any(request.walls, builds=True)
            record["digest"] = digest = find_digest(request, log, walls, environ)
            if takers.setdefault(digest, ahead) is not ahead:
                return
            if load_manifest(Path(request.cache, digest)) is None:
                tell(dict(record))
            record |= _make(request, digest, log, environ)
    except (SessionrunError, OSError) as error:
        record["error"] = str(error)
    record["duration_s"] = round(time.monotonic() - begun, 3)
    tell(record)


@contextmanager
def _open_checkout(ahead: _Ahead) -> Iterator[Path]:
    """Check out a commit as PREPARE does, among the temporary files, in a repository of its own.

    It goes at the end, but stays if this process is killed.
    """
    task, commit, upstream = ahead.task, ahead.commit, ahead.task.upstream
    held = nullcontext() if upstream is None else hold_mirror(upstream)
    with tempfile.TemporaryDirectory(prefix="sessionrun-") as made, held:
        folder, objects = Path(made), Path(made, "objects")
        mirrors = ahead.spec.mirrors and replace(ahead.spec.mirrors, worktree_dir=made)
        ahead.spec = replace(ahead.spec, mirrors=mirrors)
        found = repository_of(ahead.spec, task, ahead.start)
        assert found is not None
        repository, common_dir = replace(found, worktree_dir=made), Path(found.common_dir)
        whose = repository, ahead.spec.session_id, task.id, "", task.links
        request = WorkspaceRequest(*whose, upstream=upstream, limit_s=ahead.spec.limits.workspace_timeout_s)
        limit_s, patch = request.git_limit_s, ahead.tests
        if upstream is not None and upstream.history is not None:
            make_excerpt(common_dir, Path(upstream.mirror), commit, upstream.history, limit_s=limit_s)
        with open_fence(repository, folder, limit_s=limit_s) as fence:
            main = fence.main().on_trial(objects, common_dir)
            tree = apply_to_tree(main, commit, patch.encode("utf-8", "surrogateescape"), folder / "index")
            whole = commit_repeatably(main, tree, [commit], "What is built\n") if patch else commit
            with open_clean_room(fence, request.owner, whole, objects) as top:
                if not patch:  # a clean room for tests gets nothing beside them
                    bring_files(fence.main(), request, top, in_room=True)
                yield top


def _ask(ahead: _Ahead, top: Path) -> EnvironmentRequest:
    """What the SETUP of the task would ask for, of a checkout."""
    session, place = top.with_name("session"), Place(worktree=str(top), start=ahead.start)
    session.mkdir()
    site, key = Site(SessionDir(session), lambda: ahead.spec), JobKey(ahead.task.id, 1, 1, "setup", 1)
    directory, git = site.directory_of(ahead.task, place), str(top / ".git")
    wish = wish_environment(site, ahead.task, key, place, top=str(top), directory=directory, git=git)
    return replace(wish, commit=ahead.commit, copy=False, pristine=True)


def _make(request: EnvironmentRequest, digest: str, log: Path, environ: Mapping[str, str]) -> Record:
    """Have the entry made or checked, in a process of its own; what is new in its record."""
    write_record(log / WISH, request)
    with open(log / OUTPUT, "wb") as stream:
        argv = (sys.executable, PROGRAM, "environment", str(log))
        code = run(argv, environ=environ, limit_s=None, cwd=request.top, stdout=stream, stderr=stream).returncode
    report = load_usable(log / REPORT, EnvironmentReport)
    kept = Path(request.cache, f"{digest}{LOG_SUFFIX}")
    remove_tree(kept)
    if report is not None and report.problem is None:
        return {"path": f"{request.cache}/{digest}", "cached": report.made.cached}
    shutil.copytree(log, kept)  # temporary files may lie on another file system
    why = f"the program that makes it ended with {code}" if report is None else report.problem
    return {"error": f"{why}, see {kept}", "log": str(kept)}
