"""Environments: the request to the program that makes one, its answer, where they lie, and their removal.

    CACHE/environments/DIGEST/       what was built once: env/, left/, manifest.json
    CACHE/environments/DIGEST.lock   held by the process that builds it
    WORKTREES/.env-NAME              the environment of the worktree, or of the room, NAME beside it

The name of an environment says whose it is: an agent may make its environment anew, and no file in it is proof.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import MadeEnvironment, Repository
from sessionrun.store.index import find_cache_folder
from sessionrun.store.space import Cached
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

_ENTRY: Final = re.compile("[0-9a-f]{16,64}(?:-log)?")


class EnvironmentProblem(SessionrunError):
    """An environment cannot be made: the message is one line."""


@frozen
class EnvironmentRequest:
    """What environment is to be made.

    Attributes:
        top: the checkout; the environment comes beside it.
        directory: where in the checkout jobs run; the project is looked for from there upwards.
        cache: the directory of all that was built.
        python: a version as in ``3.11``, or a path; None = the first ``python3`` of PATH.
        repository: whose worktree `top` is; None = `top` is a repository of ours, which no task has written to.
        commit: what is checked out, for the tags before it.
        copy: False = only the entry of the cache is made, and nothing beside `top`.
        mirror: of whose history `top` has a part; None = it has all.
        pristine: whether nothing in `top` is the work of a task; counts only with `walls`.
        tag: on a node, which has no mirror: the last tag before the commit, as `find_tag_behind` finds it there.
    """

    top: str
    directory: str
    cache: str
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
    def target(self) -> str:
        """Where the environment is to be."""
        return find_environment(self.top)


@frozen
class EnvironmentReport:
    """What was made, or the `problem` why there is none; its digest is "" where the inputs could not be read.

    `packages` are ``name==version``.
    """

    made: MadeEnvironment
    packages: tuple[str, ...] = ()
    problem: str | None = None


def find_cache(site: CacheSite | None) -> str:
    """The directory of what was built: in the session's cache, or in the user's usual one."""
    return str((find_cache_folder() if site is None else Path(site.cache_dir)) / FOLDER)


def find_environment(top: str | Path) -> str:
    """Where the environment of a worktree, or of a room, is."""
    folder, name = os.path.split(top)
    return f"{folder}/.env-{name.lstrip('.')}"


def drop_environment(top: Path) -> None:
    """Remove it, whole or not, whatever its agent made of it."""
    remove_entry(Path(find_environment(top)))


def name_variables(folder: str, path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which programs find an environment; `path` is the PATH without it."""
    variables = {"VIRTUAL_ENV": folder, "PATH": os.pathsep.join((os.path.join(folder, "bin"), path))}
    return {**variables, "PYTHONHOME": ""} if environ.get("PYTHONHOME") else variables


def iterate_environments(cache: Path) -> Iterator[Cached]:
    """The entries of a cache, by name, and what killed processes left of others."""
    return iterate_entries(cache / FOLDER, lambda name: _ENTRY.fullmatch(name) is not None, MANIFEST)
