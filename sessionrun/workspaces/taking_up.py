"""PREPARE of an attempt that goes on with earlier work: on its branch and, if that stayed, in its worktree.

The directory is the same as before if that is free, because agents keep their conversations by directory.  The
commit at which the work counts as begun stays that of the first attempt, so that a diff shows all of it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Place
from sessionrun.store.files import replace_file
from sessionrun.workspaces.environments.removal import drop_environments
from sessionrun.workspaces.fence import Fence, open_fence
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.ignoring import RULES
from sessionrun.workspaces.links import write_hidden
from sessionrun.workspaces.park import park
from sessionrun.workspaces.registration import find_checkout, find_lost_admins, list_claims, load_owner, unregister
from sessionrun.workspaces.request import CLAIM, Claim, WorkspaceRequest
from sessionrun.workspaces.site import Site, break_own_locks, find_git, find_site, find_worktree, word_message


def find_tip(git: Git, request: WorkspaceRequest) -> str:
    """The commit at which a task goes on: the tip of its branch, with what a person has committed there since.

    Raises:
        SessionrunError: the branch does not hold the work any more, or is checked out.
    """
    earlier = request.earlier or Place()
    commit = git.commit_of(earlier.commit) if earlier.commit else None
    holder = earlier.rescue or (commit or "")[:12]
    if earlier.branch is None:
        raise SessionrunError(f"its branch is gone; what is left of its work is on {holder}")
    where = f"branch {earlier.branch}"
    tip = git.commit_of(f"refs/heads/{earlier.branch}")
    if (tip or commit) is None or (earlier.commit is not None and commit is None):
        raise SessionrunError(f"nothing holds its work any more: {where} or its commit is gone")
    if tip is None or commit is None:
        return str(tip or commit)
    if git.attempt("merge-base", "--is-ancestor", commit, tip).returncode != 0:
        raise SessionrunError(f"{where} does not hold {holder}, where its work is: merge {holder} into it")
    if (top := find_checkout(request.repository, earlier.branch, request.owner)) is not None:
        raise SessionrunError(f"{where} is checked out in {top}: check out another one there")
    return tip


def reuse_worktree(fence: Fence, request: WorkspaceRequest, folder: Path) -> Place | None:
    """Go on in the worktree that the earlier attempt left, as it is; None: there is none.

    What lies in it is committed to its branch first, as far as it can be.

    Raises:
        SessionrunError, OSError: it is not a worktree of the task any more, or git failed; nothing was removed.
    """
    earlier = request.earlier
    path = find_kept(request)
    if earlier is None or path is None:
        return None
    own = replace(request, place=replace(earlier, worktree=str(path)))
    break_own_locks(own, folder, path)
    site = find_site(fence, own, path, folder)
    git = site.git
    check_on_branch(git, earlier)
    claim = Claim(
        branch=earlier.branch or "",
        worktree=str(path),
        base_commit=earlier.base_commit or "",
        owner=request.owner,
        setup_commit=earlier.setup_commit,
        taken_up=git.line("rev-parse", "HEAD"),
        reused=True,
    )
    replace_file(folder / CLAIM, orjson.dumps(claim), durable=True)
    for job, other in list_claims(folder):
        if other.worktree == claim.worktree and job != folder:
            drop_environments(job, request.owner)
    begin = _commit_all(site)
    write_hidden(request.repository.top, request.links, (folder / RULES).read_text(), folder)
    return replace(claim.place, taken_up=begin)


def find_kept(request: WorkspaceRequest) -> Path | None:
    """The worktree that the earlier attempt left; None: it was removed."""
    earlier = request.earlier
    if earlier is None or earlier.worktree is None or Path(earlier.worktree).name.startswith(".trash-"):
        return None
    return find_worktree(replace(request, place=earlier))


def check_on_branch(git: Git, earlier: Place) -> None:
    """Check that a worktree is on the task's branch.

    Raises:
        SessionrunError: it is not.
    """
    head = git.attempt("symbolic-ref", "--quiet", "HEAD").stdout.decode().strip()
    if head != f"refs/heads/{earlier.branch}":
        raise SessionrunError(f"{git.directory} is not on {earlier.branch} any more: run git switch there")


def name_directories(request: WorkspaceRequest, folder: Path, tip: str) -> Iterator[Claim]:
    """Claims of the branch as it stands at `tip`, each with a directory that is free; under the lock."""
    earlier = request.earlier
    assert earlier is not None and earlier.branch is not None
    branch = earlier.branch
    before = [claim.worktree for _, claim in list_claims(folder) if claim.branch == branch]
    stem = os.path.join(request.repository.worktree_dir, (request.directory or branch).replace("/", "-"))
    more = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
    for path in itertools.chain(dict.fromkeys(before), more):
        if os.path.lexists(path):
            continue
        _forget_lost(request, Path(path))
        yield Claim(
            branch=branch,
            worktree=path,
            base_commit=earlier.base_commit or "",
            owner=request.owner,
            setup_commit=earlier.setup_commit,
            taken_up=tip,
        )


def _forget_lost(request: WorkspaceRequest, path: Path) -> None:
    """Take a worktree of ours whose directory a person deleted out of git's books."""
    if any(load_owner(admin) == request.owner for admin in find_lost_admins(request.repository, path)):
        unregister(request.repository, path, request.owner)


def _commit_all(site: Site) -> str:
    """Commit what lies in the worktree to its branch; where the attempt begins."""
    parked = park(site, word_message("Work", site.request))
    if parked.rescue is None:
        site.git.settle_index(parked.commit)
        return parked.commit
    return site.git.line("rev-parse", "HEAD")


def check_earlier(request: WorkspaceRequest) -> None:
    """Check that an attempt can go on with earlier work, without a change.

    Raises:
        SessionrunError, OSError: it cannot.
    """
    earlier, path = request.earlier, find_kept(request)
    with open_fence(request.repository) as fence:
        if path is None or earlier is None:
            find_tip(fence.main(), request)
        else:
            check_on_branch(find_git(fence, replace(request, place=earlier), path), earlier)
