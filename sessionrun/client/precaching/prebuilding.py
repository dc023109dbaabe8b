"""Builds ahead the environments that the tasks of a session would ask for; none is copied.

Each is made as a SETUP makes it: by the same program, with the same variables, from a checkout of the commit at
which the task begins.  A task with hidden tests has a second one, that of its clean room.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from sessionrun.client.precaching.abreast import run_abreast
from sessionrun.model.errors import JobFileError, SessionrunError
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place, Start
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.runtime.jobs.environment import wall_build, wish_environment
from sessionrun.runtime.jobs.inside import raise_for_build_if_any
from sessionrun.runtime.jobs.shared import PROGRAM, Site
from sessionrun.runtime.launch import CALLER_S_REPOSITORY
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.programs import under_way
from sessionrun.store.session import SessionDir
from sessionrun.workspaces.environments.entries import find_entry
from sessionrun.workspaces.environments.make import find_digest
from sessionrun.workspaces.environments.request import WISH, EnvironmentRequest, load_report
from sessionrun.workspaces.registration import remove_tree
from sessionrun.workspaces.request import WorkspaceRequest
from sessionrun.workspaces.throwaway import open_checkout, open_folder

Record = dict[str, Any]
"""One environment: an object of `environments` in ``precache --json``."""

Starts = Mapping[tuple[str, str | None], Start]
"""Where refs are, by the mirror and the ref."""

OUTPUT: Final = "output.txt"
LOG_SUFFIX: Final = "-log"
"""End of the name, after the digest, of a directory in the cache with what a build printed that failed."""


class Ahead(NamedTuple):
    """An environment to build: for which commit, with which patch of hidden tests, and for which tasks.

    `task` is the first of them, and `start` is where its ref is in the mirror.
    """

    spec: SessionSpec
    task: TaskSpec
    start: Start | None
    commit: str
    tests: str
    tasks: list[str]

    @property
    def repository(self) -> str:
        """The mirror, or the top of the repository where the session begins."""
        if self.task.upstream is not None:
            return self.task.upstream.mirror
        return self.spec.repository.top if self.spec.repository is not None else ""


def list_ahead(spec: SessionSpec, tasks: Iterable[TaskSpec], starts: Starts) -> list[Ahead]:
    """The environments that these tasks ask for, as far as the commits are known at which they begin."""
    spec = replace(
        spec,
        cluster=None,  # they are built on this machine
        mirrors=spec.mirrors and replace(spec.mirrors, require_cache=False),
        cache=spec.cache and replace(spec.cache, require_cache=False),
    )
    by_ground: dict[bytes, Ahead] = {}
    for task in tasks:
        for ahead in _iterate_ahead(spec, task, starts):
            upstream = task.upstream
            ground = (ahead.repository, ahead.commit, upstream and upstream.history, task.cwd, task.environment)
            key = orjson.dumps((*ground, task.links, sorted(task.env.items()), ahead.tests, task.sandbox))
            by_ground.setdefault(key, ahead).tasks.append(task.id)
    return list(by_ground.values())


def _iterate_ahead(spec: SessionSpec, task: TaskSpec, starts: Starts) -> Iterator[Ahead]:
    if task.environment is None or not has_worktree(task):
        return
    start = None
    if task.upstream is not None:
        start = starts.get((task.upstream.mirror, task.upstream.ref))
        if start is None:
            return  # that it cannot be fetched is said already
        commit = start.commit
    elif spec.repository is not None:
        commit = spec.repository.base_commit
    else:
        return
    hidden = task.prove and task.prove.hidden if task.sandbox is None else None  # see decision 313
    for tests in dict.fromkeys(("", hidden.patch if hidden else "")):
        yield Ahead(spec, task, start, commit, tests, [])


def build_ahead(wanted: Iterable[Ahead], tell: Callable[[Record], None]) -> dict[str, list[Record]]:
    """Build environments, several at a time and each digest once; records by `Ahead.repository`.

    A record has `digest` (null if it cannot be found out), `tasks`, `path` (null if there is none), `cached`
    (whether it was there before), `error` (null: it is there), `log` (the directory with the output of a build
    that failed, or null) and `duration_s`.

    Args:
        wanted: what is asked for.
        tell: is given a record when a build begins (`duration_s` null), and each when it is done.
    """
    wanted, builds, lock = list(wanted), _Builds(), threading.Lock()
    made: dict[int, Record] = {}

    def tell_one_at_a_time(record: Record) -> None:
        with lock:
            tell(record)

    jobs = [partial(_build, builds, ahead, tell_one_at_a_time) for ahead in wanted]
    run_abreast(jobs, lambda result: made.update({id(result[0]): result[1]}))
    by_repository: dict[str, dict[object, Record]] = {}
    for ahead in wanted:
        record = made[id(ahead)]
        records = by_repository.setdefault(ahead.repository, {})
        record |= builds.records.get(record["digest"], {}) | {"tasks": ahead.tasks}
        same = records.setdefault(record["digest"] or id(ahead), record)
        same["tasks"] = list(dict.fromkeys((*same["tasks"], *ahead.tasks)))
    return {repository: list(records.values()) for repository, records in by_repository.items()}


class _Builds:
    """Which digests have been taken by a thread, and what came of them."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self._taken: set[str] = set()
        self._lock = threading.Lock()

    def take(self, digest: str) -> bool:
        """Whether this thread is the first that asks for it, and so has to build it."""
        with self._lock:
            first = digest not in self._taken
            self._taken.add(digest)
        return first


def _build(builds: _Builds, ahead: Ahead, tell: Callable[[Record], None]) -> tuple[Ahead, Record]:
    begun = time.monotonic()
    names: Record = {"digest": None, "tasks": ahead.tasks, "path": None, "cached": False}
    record: Record = {**names, "error": None, "log": None, "duration_s": None}
    try:
        assert ahead.spec.cache is not None
        with open_folder(Path(ahead.spec.cache.cache_dir)) as (folder, fd):
            spec = _settle_in(ahead.spec, folder)
            asked = _ask_for_checkout(spec, ahead, folder)
            with open_checkout(asked, ahead.commit, folder, ahead.tests) as top:
                make_directories(folder / "session", 0o700)
                site = Site(SessionDir(folder / "session"), lambda: spec)
                request, environ = _ask_for_environment(site, ahead, top), _choose_variables(ahead.task)
                log = folder / "log"
                make_directories(log, 0o700)
                record["digest"] = digest = find_digest(
                    request, log, raise_for_build_if_any(request.walls), environ
                )
                if not builds.take(digest):
                    return ahead, record
                record |= _make(request, digest, log, environ, fd, partial(tell, dict(record)))
    except (SessionrunError, OSError) as error:
        record["error"] = str(error)
    record["duration_s"] = round(time.monotonic() - begun, 3)
    if record["digest"] is not None:
        builds.records[record["digest"]] = record
    tell(record)
    return ahead, record


def _settle_in(spec: SessionSpec, folder: Path) -> SessionSpec:
    """The same with all that is made of mirrors in this folder."""
    return spec if spec.mirrors is None else replace(spec, mirrors=replace(spec.mirrors, worktree_dir=str(folder)))


def _ask_for_checkout(spec: SessionSpec, ahead: Ahead, folder: Path) -> WorkspaceRequest:
    """What a PREPARE of the task would be asked, with all that it makes in this folder."""
    task = ahead.task
    repository = repository_of(spec, task, ahead.start)
    assert repository is not None
    return WorkspaceRequest(
        repository=replace(repository, worktree_dir=str(folder)),
        session_id=spec.session_id,
        task=task.id,
        title="",
        links=task.links,
        limit_s=spec.limits.workspace_timeout_s,
        upstream=task.upstream,
        start=ahead.start,
    )


def _ask_for_environment(site: Site, ahead: Ahead, top: Path) -> EnvironmentRequest:
    place = Place(worktree=str(top), start=ahead.start)
    directory = site.directory_of(ahead.task, place)
    key = JobKey(ahead.task.id, 1, 1, "setup", 1)
    wish = wish_environment(site, ahead.task, key, top=str(top), directory=directory, commit=ahead.commit)
    wish = wall_build(site, wish, ahead.task, key, place, git=str(top / ".git"))
    return replace(wish, copy=False, pristine=True)


def _choose_variables(task: TaskSpec) -> dict[str, str]:
    """The variables that a SETUP of the task gets, as far as an installer looks at them."""
    own = {name: value for name, value in os.environ.items() if name not in CALLER_S_REPOSITORY}
    return {**own, **task.env}


def _make(
    request: EnvironmentRequest,
    digest: str,
    log: Path,
    environ: Mapping[str, str],
    fd: int,
    begin: Callable[[], None],
) -> Record:
    """Have the entry made or checked, in a process of its own; what is new in its record."""
    cache = Path(request.cache)
    if find_entry(cache, digest) is None:
        begin()
    replace_file(log / WISH, orjson.dumps(request), durable=False)
    with open(log / OUTPUT, "wb") as stream:
        process = subprocess.Popen(
            (sys.executable, PROGRAM, "environment", str(log)),
            cwd=request.top,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            pass_fds=(fd,),  # if this process is killed, the checkout stays as long as it is read
        )
        with process, under_way(process):
            code = process.wait()
    try:
        report = load_report(log)
    except JobFileError:
        report = None
    kept = cache / f"{digest}{LOG_SUFFIX}"
    remove_tree(kept)
    if report is not None and report.problem is None:
        return {"path": str(cache / digest), "cached": report.cached}
    os.rename(log, kept)
    why = f"the program that makes it ended with {code}" if report is None else report.problem
    return {"error": f"{why}, see {kept}", "log": str(kept)}
