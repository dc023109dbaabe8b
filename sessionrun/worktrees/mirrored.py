"""Where tasks of a mirror begin, and how their branches come home.

The branches of such tasks are in the mirror.  If the repository is one on this disk, its user looks for them
there: they are fetched into it, too.  Neither side's settings are read for that, and none of its hooks run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sessionrun.git.clone import make_excerpt, open_room
from sessionrun.git.mirrors import use_mirror
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.places import Place
from sessionrun.worktrees.registration import read_heads
from sessionrun.worktrees.request import WorkspaceRequest

if TYPE_CHECKING:
    from sessionrun.model.spec import TaskSpec


@contextmanager
def settle_start(request: WorkspaceRequest, folder: Path) -> Iterator[WorkspaceRequest]:
    """The request of a PREPARE with the commit at which the session begins, see `use_mirror`; or as it is."""
    upstream = request.upstream
    if upstream is None:
        yield request
        return
    import hashlib

    # in the session's folder of jobs: where the ref stands for all tasks of the session
    ref = hashlib.sha256(f"{upstream.mirror}\0{upstream.ref}".encode("utf-8", "surrogateescape")).hexdigest()
    note = folder.absolute().parents[1] / f".start-{ref[:20]}.json"
    limit_s = request.git_limit_s
    with use_mirror(upstream, note, folder, require_cache=request.require_cache, limit_s=limit_s) as start:
        repository = replace(request.repository, base_branch=start.name, base_commit=start.commit)
        if upstream.history is not None:
            path, mirror = Path(repository.common_dir), Path(upstream.mirror)
            make_excerpt(path, mirror, start.commit, upstream.history, folder, limit_s=limit_s)
        yield replace(request, repository=repository)


def settle_starts(
    tasks: Iterable[TaskSpec], known: Iterable[TaskSpec] = (), *, require_cache: bool
) -> tuple[TaskSpec, ...]:
    """The tasks with the commits at which their repositories' refs stand; what is lacking of these is fetched.

    A ref stands where it does for tasks that are `known`.

    Raises:
        InputError: one cannot be fetched, or lacks what was asked for.
    """
    starts = {(one.upstream.mirror, one.upstream.ref): one.upstream.start for one in known if one.upstream}

    def settle(task: TaskSpec) -> TaskSpec:
        upstream = task.upstream
        if upstream is None:
            return task
        ref = upstream.mirror, upstream.ref
        if starts.get(ref) is None:
            try:
                with use_mirror(upstream, None, require_cache=require_cache) as starts[ref]:
                    pass
            except (SessionrunError, OSError) as error:
                raise InputError(str(error)) from error
        return replace(task, upstream=replace(upstream, start=starts[ref]))

    return tuple(map(settle, tasks))


def list_home(request: WorkspaceRequest, stem: str) -> set[str]:
    """The branches of the local repository whose names begin so: what is brought home there needs a free one."""
    home = request.upstream and request.upstream.home
    if not home or not os.path.isdir(home):
        return set()
    with open_room(Path(home), "", limit_s=request.git_limit_s) as room:
        return {*room.git.list_branches(stem)}


def bring_home(request: WorkspaceRequest, place: Place, folder: Path) -> Place:
    """Fetch a place's branches into the local repository; a remark tells if that cannot be done.

    A branch that its user has checked out meanwhile stays as it is.  Done again, it changes nothing.
    """
    home = request.upstream and request.upstream.home
    names = [f"refs/heads/{name}" for name in (place.branch, place.rescue) if name]
    if not home or not names or place.holds_no_work:
        return place
    common_dir, limit_s = request.repository.common_dir, request.git_limit_s
    try:
        with (
            open_room(Path(common_dir), "", folder, limit_s=limit_s) as mirror,
            open_room(Path(home), str(mirror.git.directory), folder, limit_s=limit_s) as room,
        ):
            heads = read_heads(replace(request.repository, common_dir=home), None)
            for name in {f"refs/heads/{head}" for head in heads}.intersection(names):
                if room.git.commit_of(name) != mirror.git.commit_of(name):
                    raise SessionrunError(f"{name.removeprefix('refs/heads/')} is checked out in {home}")
            room.fetch(*(f"{name}:{name}" for name in names))
    except (SessionrunError, OSError) as error:
        words = f"{place.remark}; " if place.remark else ""
        return replace(place, remark=f"{words}its branch is only in {common_dir}: {error}")
    return place
