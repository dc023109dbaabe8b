"""Fetches ahead what the tasks of an input name, and builds the environments that they would ask for.

An environment is made as a SETUP makes it: by the same program, with the same variables, from a checkout of the
commit at which the task begins.  A task with hidden tests has a second one, that of its clean room.  None is
copied.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import orjson

from sessionrun.client.planning.inputs import Given
from sessionrun.client.planning.plan import Nothing, plan
from sessionrun.git.clone import make_excerpt, open_clean_room
from sessionrun.git.private import open_fence
from sessionrun.git.repository import ignore_words
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place, Start
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.session.launch import CALLER_S_REPOSITORY
from sessionrun.session.shared import PROGRAM, Site
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import load_usable
from sessionrun.store.programs import Programs, under_way
from sessionrun.store.session import SessionDir
from sessionrun.store.trees import remove_tree
from sessionrun.walls.build import raise_if_any
from sessionrun.worktrees.bringing import bring_files
from sessionrun.worktrees.crossing import add_tests
from sessionrun.worktrees.env_copying import load_manifest
from sessionrun.worktrees.env_make import find_digest
from sessionrun.worktrees.env_request import REPORT, WISH, EnvironmentReport, EnvironmentRequest
from sessionrun.worktrees.mirrored import hold_mirror
from sessionrun.worktrees.mirrors import Fetched, Record, fetch_wanted, group_mirrors
from sessionrun.worktrees.phases import wish_environment
from sessionrun.worktrees.request import WorkspaceRequest

Result = TypeVar("Result")

Starts = Mapping[tuple[str, str | None], Start]
"""Where refs are, by the mirror and the ref."""

AT_A_TIME: Final = 4
"""How many are fetched or built at once."""

_PAUSE_S: Final = 0.05

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
    tell: Callable[[Record], None] = lambda record: None,
    tell_environment: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Fetch what the tasks of an input name, then build their environments, several at a time.

    Returns a record for each repository, in the order of the input: `repo`, `mirror`, `refs` (each with its
    `commit`, null if it is missing), `error` (null: all is there), `duration_s`, and `environments`.  The last
    record is of the repository where the session would begin, if tasks have environments in worktrees of that: its
    `mirror` is null.

    A record of an environment has `digest` (null if it cannot be found out), `tasks`, `path` (null if there is
    none), `cached` (whether it was there before), `error` (null: it is there), `log` (the directory with the
    output of a build that failed, or null) and `duration_s`.

    Args:
        given: a file or directory by name, what its JSON would be as a value, or None for standard input.
        dialect: how it is read; None: as `run` would guess.
        limit: only the first tasks, so many.
        cache_dir: the cache; None: the configured one.
        environments: whether environments are built, too.
        tell: is given each record when its repository begins (`duration_s` null) and when it is fetched.
        tell_environment: the same for records of environments.

    Raises:
        InputError: the input cannot be read, or there is nothing to fetch or to build.
    """
    planned = plan(given, {"dialect": dialect, "cache_dir": cache_dir and str(cache_dir)}, preview=True)
    if isinstance(planned, Nothing):
        raise _refuse()
    spec, tasks = planned.spec, planned.spec.tasks[:limit]
    wanted = group_mirrors(tasks)
    fetched: dict[str, Fetched] = {}

    def add(one: Fetched) -> None:
        fetched[one.record["mirror"]] = one
        tell(one.record)

    run_abreast([partial(fetch_wanted, repository, tell) for repository in wanted], add)
    records = [fetched[str(repository.mirror)].record for repository in wanted]
    if environments and any(task.environment is not None for task in tasks):
        starts = {(mirror, ref): start for mirror, one in fetched.items() for ref, start in one.starts.items()}
        built = _build_ahead(_list_ahead(spec, tasks, starts), tell_environment)
        for record in records:
            record["environments"] = built.pop(record["mirror"], [])
        records += [_describe_own(spec, made) for made in built.values()]
    if not records:
        raise _refuse()
    return records


def _refuse() -> InputError:
    return InputError(
        "no task of this input names a repo, or wants an environment that can be built: nothing to fetch ahead"
    )


def _describe_own(spec: SessionSpec, environments: list[Record]) -> Record:
    """The record of the repository where the session would begin: nothing is fetched for it."""
    assert spec.repository is not None
    ref = {"ref": spec.repository.base_branch, "commit": spec.repository.base_commit}
    names = {"repo": spec.repository.top, "mirror": None, "refs": [ref]}
    return {**names, "error": None, "duration_s": 0.0, "environments": environments}


def run_abreast(jobs: Sequence[Callable[[], Result]], tell: Callable[[Result], None]) -> None:
    """Run all, each in a thread; `tell` gets each result when it is there, in the thread of the caller.

    Whatever is raised, Ctrl+C too, ends the others first, and of all children of this process only their programs.
    """
    programs = Programs()

    def run(job: Callable[[], Result]) -> Result:
        with programs.collect():
            return job()

    pool = ThreadPoolExecutor(AT_A_TIME)
    futures = [pool.submit(run, job) for job in jobs]
    try:
        for future in as_completed(futures):
            tell(future.result())
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in futures):
            programs.kill()  # again and again: a job may go on with another program
            time.sleep(_PAUSE_S)
        raise
    finally:
        pool.shutdown()


@dataclass
class _Ahead:
    """An environment to build: for which commit, with which patch of hidden tests, and for which tasks.

    `task` is the first of them, `start` is where its ref is in the mirror; for `record` see `precache`.
    """

    spec: SessionSpec
    task: TaskSpec
    start: Start | None
    commit: str
    tests: str
    tasks: list[str] = field(default_factory=list)
    record: Record = field(init=False)

    def __post_init__(self) -> None:
        names: Record = {"digest": None, "tasks": self.tasks, "path": None, "cached": False}
        self.record = {**names, "error": None, "log": None, "duration_s": None}

    @property
    def repository(self) -> str:
        """The mirror, or the top of the repository where the session begins."""
        if self.task.upstream is not None:
            return self.task.upstream.mirror
        return self.spec.repository.top if self.spec.repository is not None else ""


def _list_ahead(spec: SessionSpec, tasks: Iterable[TaskSpec], starts: Starts) -> list[_Ahead]:
    """The environments that these tasks ask for, as far as the commits are known at which they begin."""
    spec = replace(
        spec,
        cluster=None,  # they are built on this machine
        mirrors=spec.mirrors and replace(spec.mirrors, require_cache=False),
        cache=spec.cache and replace(spec.cache, require_cache=False),
    )
    by_ground: dict[bytes, _Ahead] = {}
    for task in tasks:
        for ahead in _iterate_ahead(spec, task, starts):
            upstream = task.upstream
            ground = (ahead.repository, ahead.commit, upstream and upstream.history, task.cwd, task.environment)
            key = orjson.dumps((*ground, task.links, sorted(task.env.items()), ahead.tests, task.sandbox))
            by_ground.setdefault(key, ahead).tasks.append(task.id)
    return list(by_ground.values())


def _iterate_ahead(spec: SessionSpec, task: TaskSpec, starts: Starts) -> Iterator[_Ahead]:
    if task.environment is None or not has_worktree(task):
        return
    upstream, repository = task.upstream, spec.repository
    start = None if upstream is None else starts.get((upstream.mirror, upstream.ref))
    if start is not None:
        commit = start.commit
    elif upstream is None and repository is not None:
        commit = repository.base_commit
    else:
        return  # that it cannot be fetched is said already
    hidden = task.prove and task.prove.hidden if task.sandbox is None else None  # see decision 313
    for tests in dict.fromkeys(("", hidden.patch if hidden else "")):
        yield _Ahead(spec, task, start, commit, tests)


def _build_ahead(wanted: Sequence[_Ahead], tell: Callable[[Record], None]) -> dict[str, list[Record]]:
    """Build environments, several at a time and each digest once; records by the repository, see `precache`."""
    lock, takers = threading.Lock(), dict[str | None, _Ahead]()

    def tell_one_at_a_time(record: Record) -> None:
        with lock:
            tell(record)

    run_abreast([partial(_build, ahead, takers, tell_one_at_a_time) for ahead in wanted], lambda nothing: None)
    by_repository: dict[str, dict[int, Record]] = {}
    for ahead in wanted:
        record = takers.get(ahead.record["digest"], ahead).record
        same = by_repository.setdefault(ahead.repository, {}).setdefault(id(record), {**record, "tasks": []})
        same["tasks"] = list(dict.fromkeys((*same["tasks"], *ahead.tasks)))
    return {repository: list(records.values()) for repository, records in by_repository.items()}


def _build(ahead: _Ahead, takers: dict[str | None, _Ahead], tell: Callable[[Record], None]) -> None:
    """Build one, unless another thread has taken its digest."""
    begun, record = time.monotonic(), ahead.record
    try:
        with _open_checkout(ahead) as top:
            request, environ, log = _ask(ahead, top), _choose_variables(ahead.task), top.with_name("log")
            log.mkdir()
            walls = raise_if_any(request.walls, builds=True)
            record["digest"] = digest = find_digest(request, log, walls, environ)
            if takers.setdefault(digest, ahead) is not ahead:
                return
            if load_manifest(request.cache / digest) is None:
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
    with tempfile.TemporaryDirectory(prefix="sessionrun-") as made, hold_mirror(upstream):
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
            whole = add_tests(main, commit, commit, patch.encode("utf-8", "surrogateescape"), folder)
            with open_clean_room(fence, request.owner, whole, objects) as top:
                if not patch:  # a clean room for tests gets nothing beside them
                    bring_files(fence.main(), request, top, ignore_words(repository, folder), in_room=True)
                yield top


def _ask(ahead: _Ahead, top: Path) -> EnvironmentRequest:
    """What the SETUP of the task would ask for, of a checkout."""
    session, place = top.with_name("session"), Place(worktree=str(top), start=ahead.start)
    session.mkdir()
    site, key = Site(SessionDir(session), lambda: ahead.spec), JobKey(ahead.task.id, 1, 1, "setup", 1)
    directory, git = site.directory_of(ahead.task, place), str(top / ".git")
    wish = wish_environment(site, ahead.task, key, place, top=str(top), directory=directory, git=git)
    return replace(wish, commit=ahead.commit, copy=False, pristine=True)


def _choose_variables(task: TaskSpec) -> dict[str, str]:
    """The variables that a SETUP of the task gets, as far as an installer looks at them."""
    own = {name: value for name, value in os.environ.items() if name not in CALLER_S_REPOSITORY}
    return {**own, **task.env}


def _make(request: EnvironmentRequest, digest: str, log: Path, environ: Mapping[str, str]) -> Record:
    """Have the entry made or checked, in a process of its own; what is new in its record."""
    replace_file(log / WISH, orjson.dumps(request), durable=False)
    with open(log / OUTPUT, "wb") as stream:
        process = subprocess.Popen(
            (sys.executable, PROGRAM, "environment", str(log)),
            cwd=request.top,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
        with process, under_way(process):
            code = process.wait()
    report = load_usable(log / REPORT, EnvironmentReport)
    kept = request.cache / f"{digest}{LOG_SUFFIX}"
    remove_tree(kept)
    if report is not None and report.problem is None:
        return {"path": str(request.cache / digest), "cached": report.cached}
    shutil.copytree(log, kept)  # temporary files may lie on another file system
    why = f"the program that makes it ended with {code}" if report is None else report.problem
    return {"error": f"{why}, see {kept}", "log": str(kept)}
