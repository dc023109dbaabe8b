"""Environments: the request to the program that makes one, its answer, where they lie, and their removal.

    CACHE/environments/DIGEST/              what was built once: env/, left/, manifest.json
    CACHE/environments/DIGEST.lock          held by the process that builds it
    CACHE/environments/tasks/NAME/          the environment of one attempt of a task
    CACHE/environments/tasks/NAME.worktree  a link to the worktree that it was made for

An environment of a task lies in the cache, so that a file system which can share blocks between files does so.
Its name is made from session, task and attempt, so the name says whose it is: an agent may make its environment
anew, and no file in it is proof.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import EnvironmentStep, MadeEnvironment, Repository
from sessionrun.store.index import find_cache_folder
from sessionrun.store.jobfiles import load_record_if_any
from sessionrun.store.space import Cached, measure
from sessionrun.store.trees import iterate_entries, remove_entry
from sessionrun.walls.wish import WallsWish

if TYPE_CHECKING:
    from sessionrun.model.spec import CacheSite


FOLDER: Final = "environments"

WISH: Final = "environment-request.json"
REPORT: Final = "environment.json"
LOG: Final = "environment.log"
"""In the folder of a SETUP; in the last is what uv was told to do, and printed."""

MANIFEST: Final = "manifest.json"
"""In an entry: it is whole, and what is in it."""

_TASKS: Final = "tasks"
_WORKTREE: Final = ".worktree"
_ENTRY: Final = re.compile("[0-9a-f]{16,64}(?:-log)?")


class EnvironmentProblem(SessionrunError):
    """An environment cannot be made: the message is one line."""


@frozen
class EnvironmentRequest:
    """What environment is to be made.

    Attributes:
        directory: where in the checkout `top` jobs run; the project is looked for from there upwards.
        target: where this one is to be, see `find_target`.
        python: a version as in ``3.11``, or a path; None = the first ``python3`` of PATH.
        repository: whose worktree `top` is; None = `top` is a repository of ours, which no task has written to.
        commit: what is checked out, for the tags before it.
        copy: False = only the entry of the cache is made, and nothing at `target`.
        mirror: of whose history `top` has a part; None = it has all.
        pristine: whether nothing in `top` is the work of a task; counts only with `walls`.
        tag: on a node, which has no mirror: the last tag before the commit, as `find_tag_behind` finds it there.
    """

    top: str
    directory: str
    target: str
    python: str | None = None
    require_cache: bool = False
    repository: Repository | None = None
    commit: str = "HEAD"
    copy: bool = True
    mirror: str | None = None
    walls: WallsWish | None = None
    pristine: bool = False
    tag: str | None = None

    @property
    def cache(self) -> Path:
        """The directory of all environments; EnvironmentProblem: none is ever made at `target`."""
        return _check_place(Path(self.target)).parent.parent


@frozen
class EnvironmentReport:
    """What was made, or the `problem` why there is none; `digest` is "" where the inputs could not be read.

    `cached`: it was there and was only copied.  `choice` is the way to install that was taken, `packages` are
    ``name==version``.
    """

    digest: str = ""
    cached: bool = False
    path: str | None = None
    choice: str | None = None
    packages: tuple[str, ...] = ()
    steps: tuple[EnvironmentStep, ...] = ()
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
    return str(Path(cache) / _TASKS / sha256(name.encode()).hexdigest()[:16])


def name_variables(folder: str, path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which programs find an environment; `path` is the PATH without it."""
    variables = {"VIRTUAL_ENV": folder, "PATH": os.pathsep.join((os.path.join(folder, "bin"), path))}
    return {**variables, "PYTHONHOME": ""} if environ.get("PYTHONHOME") else variables


def load_report(folder: Path) -> EnvironmentReport | None:
    """What a SETUP left; None where it did not come so far."""
    return load_record_if_any(folder / REPORT, EnvironmentReport)


def show(report: EnvironmentReport) -> MadeEnvironment:
    """The part of a report that status shows."""
    return MadeEnvironment(report.digest, report.cached, report.path, report.choice, report.steps)


# --- how they go ---


def drop_environments(cache: str | None, owner: str, folder: Path, *, rooms: bool = False) -> None:
    """Remove the environments of the attempt that a job's folder belongs to; with `rooms` those of rooms alone."""
    for target in find_environments(cache, owner, folder, rooms=rooms):
        clear(target)


def find_environments(cache: str | None, owner: str, folder: Path, *, rooms: bool = False) -> list[Path]:
    """Where the environments of an attempt are, whole or not."""
    attempt, (session_id, _, task) = folder.name.partition("-")[0][1:], owner.partition("/")
    if cache is None or not attempt.isdecimal():
        return []
    kinds = (True,) if rooms else (True, False)
    names = (find_target(cache, session_id, task, int(attempt), in_room=in_room) for in_room in kinds)
    return [target for target in map(Path, names) if any(map(os.path.lexists, (target, link_path(target))))]


def clear(target: Path) -> None:
    """Remove an environment of a task, whole or not; EnvironmentProblem: none is ever made at this place."""
    with suppress(FileNotFoundError):  # `clean` is at it, too
        remove_entry(_check_place(target))
    link_path(target).unlink(missing_ok=True)  # last: as long as it is there, `clean` leaves the place alone


def _check_place(target: Path) -> Path:
    if target.parent.name != _TASKS or not target.is_absolute():
        raise EnvironmentProblem(f"{target} is not a place of an environment")
    return target


def link_path(target: Path) -> Path:
    """Outside of the environment, for a task may make that anew."""
    return target.with_name(f"{target.name}{_WORKTREE}")


def iterate_environments(cache: Path) -> Iterator[Cached]:
    """The entries of a cache, by name, and what killed processes left of others; not the copies of tasks."""
    return iterate_entries(cache / FOLDER, lambda name: _ENTRY.fullmatch(name) is not None, MANIFEST)


def iterate_copies(cache: Path) -> Iterator[Cached]:
    """The environments of tasks in a cache, by name.

    One without a worktree is of a session that was deleted by hand, or killed before its worktree was taken away.
    """
    tasks = cache / FOLDER / _TASKS
    for name in sorted({path.name.removesuffix(_WORKTREE) for path in tasks.glob("*")}):
        places = [path for path in (tasks / name, link_path(tasks / name)) if os.path.lexists(path)]
        with suppress(FileNotFoundError):  # removed meanwhile
            used_at = max((path.lstat().st_mtime for path in places), default=0.0)
            yield Cached(tasks / name, used_at, measure(tasks / name))


def remove_copy(copy: Cached, *, dry_run: bool = False) -> str | None:
    """Remove the environment of a task whose worktree is gone; why it stays, or None."""
    link = link_path(copy.path)
    if link.exists():
        return f"its worktree is there: {os.readlink(link)}"
    if not dry_run:
        clear(copy.path)
    return None
