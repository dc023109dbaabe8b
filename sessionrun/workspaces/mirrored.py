"""What a repository of a task's own asks of PREPARE and RELEASE: find its start, and bring branches home.

The branches of such tasks are in the mirror.  If the repository is one on this disk, its user looks for them
there: they are fetched into it, too.  Neither side's settings are read for that, and none of its hooks run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Place
from sessionrun.workspaces.excerpt import make_excerpt
from sessionrun.workspaces.mirrors import use_mirror
from sessionrun.workspaces.registration import read_heads
from sessionrun.workspaces.request import WorkspaceRequest
from sessionrun.workspaces.transport import open_room


@contextmanager
def settle_start(request: WorkspaceRequest, folder: Path) -> Iterator[WorkspaceRequest]:
    """The request of a PREPARE with the commit at which the session begins; as it is without a mirror.

    Meanwhile the mirror is not removed.

    Raises:
        RepositoryFailed: the repository cannot be fetched, or has no such ref.
        SessionrunError, OSError: another process held the mirror for too long, or the cache cannot be written.
    """
    upstream = request.upstream
    if upstream is None:
        yield request
        return
    note = folder.absolute().parents[1] / _name_note(upstream.mirror, upstream.ref)
    limit_s = request.git_limit_s
    with use_mirror(upstream, note, folder, require_cache=request.require_cache, limit_s=limit_s) as start:
        repository = replace(request.repository, base_branch=start.name, base_commit=start.commit)
        if upstream.history is not None:
            path, mirror = Path(repository.common_dir), Path(upstream.mirror)
            make_excerpt(path, mirror, start.commit, upstream.history, folder, limit_s=limit_s)
        yield replace(request, repository=repository, start=start)


def list_home(request: WorkspaceRequest, stem: str) -> set[str]:
    """The branches of the local repository whose names begin so: what is brought home there needs a free one."""
    home = request.upstream and request.upstream.home
    if not home or not os.path.isdir(home):
        return set()
    with open_room(Path(home), "", limit_s=request.git_limit_s) as room:
        listed = room.git.line("for-each-ref", "--format=%(refname)", f"refs/heads/{stem}*")
    return {name.removeprefix("refs/heads/") for name in listed.split("\n")}


def bring_home(request: WorkspaceRequest, place: Place, folder: Path) -> Place:
    """Fetch a place's branches into the local repository; a remark tells if that cannot be done.

    A branch that its user has checked out meanwhile stays as it is.  Done again, it changes nothing.
    """
    home = request.upstream and request.upstream.home
    names = [name for name in (place.branch, place.rescue) if name]
    if not home or not names or place.holds_no_work:
        return place
    refspecs = [f"refs/heads/{name}:refs/heads/{name}" for name in names]
    limit_s = request.git_limit_s
    try:
        with (
            open_room(Path(request.repository.common_dir), "", folder, limit_s=limit_s) as mirror,
            open_room(Path(home), str(mirror.git.directory), folder, limit_s=limit_s) as room,
        ):
            heads = read_heads(replace(request.repository, common_dir=home), None)
            for name in heads.intersection(names):
                if room.git.commit_of(f"refs/heads/{name}") != mirror.git.commit_of(f"refs/heads/{name}"):
                    raise SessionrunError(f"{name} is checked out in {home}")
            room.fetch(*refspecs)
    except (SessionrunError, OSError) as error:
        words = f"{place.remark}; " if place.remark else ""
        return replace(place, remark=f"{words}its branch is only in {request.repository.common_dir}: {error}")
    return place


def _name_note(mirror: str, ref: str | None) -> str:
    """File in a session's folder of jobs: where a ref of a mirror stands for all tasks of the session."""
    import hashlib

    digest = hashlib.sha256(f"{mirror}\0{ref}".encode("utf-8", "surrogateescape")).hexdigest()[:20]
    return f".start-{digest}.json"
