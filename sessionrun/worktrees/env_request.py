"""What is asked of the program that makes an environment, what it leaves, where environments lie, how they go.

    CACHE/environments/DIGEST/            what was built once: env/, left/, manifest.json
    CACHE/environments/DIGEST.lock        held by the process that builds it
    CACHE/environments/tasks/NAME/        the environment of one attempt of a task
    CACHE/environments/tenants/NAME.json  of which attempt, for `clean --cache`

What is made or deleted has other names meanwhile, see `store.trees`.
An environment of a task lies in the cache, so that a file system which can share blocks between files does so.

The name of a task's environment is made from session, task and attempt, so the name proves whose it is: an agent
may make its environment anew, and no file in it is proof.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.model.frozen import frozen
from sessionrun.model.places import EnvironmentStep, MadeEnvironment, Repository
from sessionrun.store.index import find_cache_folder
from sessionrun.store.jobfiles import load_record_if_any, load_usable
from sessionrun.store.space import Cached
from sessionrun.store.trees import discard_entry, find_remains, iterate_entries, remove_entry, sweep_entry
from sessionrun.walls.wish import WallsWish
from sessionrun.worktrees.env_interpreter import EnvironmentProblem

if TYPE_CHECKING:
    from sessionrun.model.spec import CacheSite


FOLDER: Final = "environments"
"""In the cache: the directory of all environments."""

WISH: Final = "environment-request.json"
"""In the folder of a SETUP: written before its process starts, so that `clean` finds what a crash left."""

REPORT: Final = "environment.json"
"""In the folder of a SETUP: how the environment was made, or why it could not be."""

MANIFEST: Final = "manifest.json"
"""In an entry: it is whole, and what is in it."""

LIMIT_S: Final = 1800.0
"""How long a build may take where nothing else is said, and a wait for another process that builds."""


TENANTS: Final = "tenants"
"""In the directory of all environments: which attempts those of tasks are of."""


@frozen
class Tenant:
    """The attempt that an environment is of; `session` is its directory, `in_room` as of `find_target`.

    On a node, which has no such directory, the attempt uses it as long as its `worktree` is there.
    """

    session: str
    session_id: str
    task: str
    attempt: int
    in_room: bool = False
    worktree: str | None = None


@frozen
class EnvironmentRequest:
    """What environment is to be made.

    Attributes:
        top: the task's checkout.
        directory: where in it the task's jobs run; the project is looked for from there upwards.
        cache: the directory of all environments.
        target: where this one is to be.
        python: a version as in ``3.11``, or a path; None = the first ``python3`` of PATH.
        require_cache: nothing is built.
        limit_s: how long a build may take (seconds).
        repository: whose worktree `top` is; None = `top` is a repository of ours, which no task has written to.
        commit: what is checked out, for the tags before it.
        copy: False = only the entry of the cache is made, and nothing at `target`.
        tenant: which attempt it is for; None = none, if nothing is made at `target`.
        mirror: of whose history `top` has a part; None = it has all.
        walls: inside of which it is built; None = it is built outside.
        pristine: whether nothing in `top` is the work of a task; counts only with `walls`.
        tag: on a node, which has no mirror: the last tag before the commit, as `find_tag_behind` finds it there.
    """

    top: str
    directory: str
    cache: str
    target: str
    python: str | None = None
    require_cache: bool = False
    limit_s: float = LIMIT_S
    repository: Repository | None = None
    commit: str = "HEAD"
    copy: bool = True
    tenant: Tenant | None = None
    mirror: str | None = None
    walls: WallsWish | None = None
    pristine: bool = False
    tag: str | None = None


@frozen
class StepReport:
    """One step: what ran (nothing where it is work of ours), how long, how it ended, and where its output is."""

    name: str
    duration_s: float
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    log: str | None = None


@frozen
class EnvironmentReport:
    """What was made.

    Attributes:
        digest: of the inputs; "" where they could not be read.
        cached: it was there and was only copied.
        path: where it is.
        choice: which of the ways to install was taken.
        packages: what is installed, as ``name==version``.
        built_with: the steps of the build, if that was an earlier one.
        remarks: lines for people.
        problem: why there is none.
    """

    digest: str = ""
    cached: bool = False
    path: str | None = None
    choice: str | None = None
    packages: tuple[str, ...] = ()
    steps: tuple[StepReport, ...] = ()
    built_with: tuple[StepReport, ...] = ()
    remarks: tuple[str, ...] = ()
    problem: str | None = None


def find_cache(site: CacheSite | None) -> str:
    """The directory of all environments: of the session's cache, or of the user's usual one."""
    return str((find_cache_folder() if site is None else Path(site.cache_dir)) / FOLDER)


def find_target(cache: str, session_id: str, task: str, attempt: int, *, in_room: bool = False) -> str:
    """Where an attempt's environment is: a short name, because programs in it begin with its path.

    With `in_room` it is the one of the attempt's clean rooms.
    """
    from hashlib import sha256

    name = f"{session_id}/{task}/{attempt}{'/room' if in_room else ''}"
    return str(Path(cache) / "tasks" / sha256(name.encode()).hexdigest()[:16])


def tenant_path(target: Path) -> Path:
    """The note of which attempt the environment at `target` is; outside of it, for a task may make it anew."""
    return target.parent.with_name(TENANTS) / f"{target.name}.json"


def load_tenant(target: Path) -> Tenant | None:
    """The attempt that the environment at `target` is of; None if there is no note that fits its name."""
    tenant = load_usable(tenant_path(target), Tenant)
    if tenant is None:
        return None
    cache, names = str(target.parent.parent), (tenant.session_id, tenant.task, tenant.attempt)
    return tenant if find_target(cache, *names, in_room=tenant.in_room) == str(target) else None


def name_variables(folder: str, path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which programs find an environment; `path` is the PATH without it."""
    variables = {"VIRTUAL_ENV": folder, "PATH": os.pathsep.join((os.path.join(folder, "bin"), path))}
    return {**variables, "PYTHONHOME": ""} if environ.get("PYTHONHOME") else variables


def load_report(folder: Path) -> EnvironmentReport | None:
    """What a SETUP left; None where it did not come so far.

    Raises:
        JobFileError: it cannot be used.
    """
    return load_record_if_any(folder / REPORT, EnvironmentReport)


def show(report: EnvironmentReport) -> MadeEnvironment:
    """The part of a report that status shows."""
    steps = tuple(EnvironmentStep(step.name, round(step.duration_s, 3)) for step in report.steps)
    return MadeEnvironment(report.digest, report.cached, report.path, report.choice, steps)


PHASES: Final = ("setup", "prove")
"""Whose jobs make environments: of the worktree, and of clean rooms."""

_ENTRY: Final = re.compile("[0-9a-f]{16,64}(?:-log)?")


def drop_environments(folder: Path, owner: str, phases: Sequence[str] = PHASES) -> None:
    """Remove what jobs of these phases made in the attempt that a job's folder belongs to.

    Raises:
        OSError: one cannot be removed.
    """
    for target in find_environments(folder, owner, phases):
        clear(target)


def find_environments(folder: Path, owner: str, phases: Sequence[str] = PHASES) -> list[Path]:
    """Where the environments of an attempt are, or what a crash left of them."""
    attempt = folder.name.partition("-")[0]
    session_id, _, task = owner.partition("/")
    targets: dict[Path, None] = {}
    for phase in phases:
        for job in sorted(folder.parent.glob(f"{attempt}-*-{phase}*")) if attempt[1:].isdecimal() else ():
            wish = load_usable(job / WISH, EnvironmentRequest)
            if wish is None:
                continue  # there was none, or a task has changed the file: then nothing says what may go
            target = Path(find_target(wish.cache, session_id, task, int(attempt[1:]), in_room=phase == "prove"))
            if target.is_absolute() and (os.path.lexists(target) or find_remains(target)):
                targets[target] = None
    return list(targets)


def clear(target: Path) -> None:
    """Remove an environment of a task, and what a killed process left of it.

    Raises:
        EnvironmentProblem: no environment is ever made at this place.
        OSError: it cannot be removed.
    """
    if target.parent.name != "tasks" or not target.is_absolute():
        raise EnvironmentProblem(f"{target} is not a place of an environment")
    sweep_entry(target)
    if os.path.lexists(target):
        discard_entry(target)
    remove_entry(tenant_path(target))


def iterate_environments(cache: Path) -> Iterator[Cached]:
    """The entries of a cache, by name, and what killed processes left of others; not the copies of tasks.

    They belong to no repository: others with the same inputs use them, too.
    """
    return iterate_entries(cache / FOLDER, lambda name: _ENTRY.fullmatch(name) is not None, MANIFEST)
