"""RELEASE: park the work, write the diff, remove the worktree if all of it is safe, else keep it and say why."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from sessionrun.errors import SessionrunError
from sessionrun.git import Git
from sessionrun.model import Place
from sessionrun.workspaces import RESCUE_SUFFIX, Claim, Request, load_claim
from sessionrun.workspaces.park import Brought, Parked, make_rescue, park, settle_index, write_patch
from sessionrun.workspaces.registration import (
    find_admin,
    find_lost_admins,
    find_moved,
    load_owner,
    register_lock,
    remove_tree,
    take_back,
    trash_path,
    unregister,
)
from sessionrun.workspaces.worktree import included_files


def release(request: Request, folder: Path) -> Place:
    """Release what PREPARE made; done again after a crash, go on where it stopped.

    Raises:
        SessionrunError, OSError: the work could not be parked; the worktree is as it was.
    """
    place = request.place
    _take_back_unused(request, folder)
    if place is None or place.worktree is None or place.branch is None:
        return place or Place()
    main = Git(Path(request.repository.top))
    path = Path(place.worktree)
    if not path.exists():
        claim = Claim(place.branch, place.worktree, place.base_commit or "", request.owner)
        path = find_moved(request.repository, claim) or path
        place = replace(place, worktree=str(path))
    if not path.is_dir() or _is_of_another(request, path):
        rescue_lost_head(request, path)
        parked = _parked_before(main, place)
        return _remove(request, path, _describe(main, place, parked, request))
    git = _git_of(request, path)
    title = request.title.replace("\0", "")
    message = f"Work of task {request.task}\n\n{title}\n\nParked by sessionrun session {request.session_id}.\n"
    parked = park(git, place, brought=_brought(request, main), message=message, folder=folder)
    released = _describe(main, place, parked, request)
    kept = _why_kept(request, parked, path)
    if kept is None:
        return _remove(request, path, released)
    if not parked.problems and parked.rescue is None:
        settle_index(git, parked.commit)
    return replace(released, kept=kept)


def _take_back_unused(request: Request, folder: Path) -> None:
    """What PREPARE jobs of this attempt began and did not finish: nobody has worked there."""
    attempt = folder.name.partition("-")[0]
    for job in sorted(folder.parent.glob(f"{attempt}-*-prepare*")):
        claim = load_claim(job)
        used = request.place.worktree if request.place else None
        if claim is None or claim.worktree == used:
            continue
        with register_lock(request.repository):
            if is_untouched(request, Path(claim.worktree)):
                take_back(Git(Path(request.repository.top)), request.repository, claim)


def is_untouched(request: Request, path: Path) -> bool:
    """Whether this is ours, or nobody's, to take away if nobody worked there; under the lock.

    What bears no mark is either half made, and holds nothing, or somebody else's.
    """
    if not path.exists():
        return True
    admin = find_admin(request.repository, path)
    owner = load_owner(admin) if admin else None
    if owner is not None:
        return owner == request.owner
    if not path.is_dir():
        return False
    link = path / ".git"
    no_link = link.is_file() and link.stat().st_size == 0  # git was killed before it could write it
    return {entry.name for entry in path.iterdir()} <= ({".git"} if admin or no_link else set())


def rescue_lost_head(request: Request, path: Path) -> None:
    """Put on a rescue branch the commits that only the HEAD of a worktree holds whose directory is gone.

    Raises:
        SessionrunError: no branch can be made.
    """
    place = request.place
    for admin in find_lost_admins(request.repository, path):
        if place is None or place.branch is None or load_owner(admin) != request.owner or path.exists():
            continue
        main = Git(Path(request.repository.top))
        head = main.attempt(f"--git-dir={admin}", "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        commit = head.stdout.decode().strip()
        if head.returncode == 0 and not main.line("for-each-ref", "--count=1", "--contains", commit):
            make_rescue(main, place.branch, commit, ours=False)


def _is_of_another(request: Request, path: Path) -> bool:
    """Whether ours went in an earlier start of this job and its name has been given anew."""
    admin = find_admin(request.repository, path)
    return admin is not None and load_owner(admin) not in (None, request.owner)


def _brought(request: Request, main: Git) -> Brought:
    links = frozenset(os.path.normpath(link) for link in request.links)
    return Brought(main.directory, links, frozenset(included_files(main, main.directory)))


def _git_of(request: Request, path: Path) -> Git:
    """Git in the worktree, made sure that it is that worktree and not a repository around it.

    Raises:
        SessionrunError: an agent removed or replaced the worktree's link to its repository.
    """
    git = Git(path)
    common = git.attempt("rev-parse", "--path-format=absolute", "--git-common-dir", "--show-toplevel")
    said = os.fsdecode(common.stdout).split("\n")
    ours = common.returncode == 0 and os.path.samefile(said[0], request.repository.common_dir)
    if not ours or not path.samefile(said[1]):
        raise SessionrunError(f"{path} is no worktree of {request.repository.top} any more")
    return git


def _why_kept(request: Request, parked: Parked, path: Path) -> str | None:
    """Why the worktree stays, or None when it may go: then a ref holds all that is in it."""
    if parked.problems:
        return "; ".join(parked.problems[:5])
    admin = find_admin(request.repository, path)
    if admin is not None and (admin / "locked").exists():
        return "it is locked (git worktree lock)"
    if request.keep == "always":
        return "worktrees are kept"
    if request.keep == "on-failure" and not request.succeeded:
        return "worktrees of failed tasks are kept"
    return None


def _remove(request: Request, path: Path, released: Place) -> Place:
    """Remove the worktree; what it held is safe, so what cannot be deleted is named and is no failure."""
    if _is_of_another(request, path):
        trash = trash_path(path, request.owner)
    else:
        with register_lock(request.repository):
            trash = unregister(request.repository, path, request.owner)
    try:
        remove_tree(trash)
    except OSError as error:
        return replace(released, worktree=str(trash), kept=f"its work is parked; it cannot be deleted: {error}")
    return replace(released, worktree=None)


def _parked_before(main: Git, place: Place) -> Parked:
    """The worktree is gone already: an earlier start of this job came as far as that."""
    rescue = find_rescues(main, place.branch or "")[-1:]
    branch = rescue[0] if rescue else place.branch
    commit = main.commit_of(f"refs/heads/{branch}") or place.base_commit or ""
    return Parked(commit, main.line("rev-parse", f"{commit}^{{tree}}"), rescue[0] if rescue else None, ())


def find_rescues(main: Git, branch: str) -> list[str]:
    """The rescue branches of a task branch, oldest first."""
    stem = f"refs/heads/{branch}{RESCUE_SUFFIX}"
    listed = main.line("for-each-ref", "--format=%(refname)", f"{stem}*").split("\n")
    names = [name for name in listed if re.fullmatch(r"(-[0-9]+)?", name.removeprefix(stem)) and name]
    return [name.removeprefix("refs/heads/") for name in sorted(names, key=lambda name: (len(name), name))]


def _describe(main: Git, place: Place, parked: Parked, request: Request) -> Place:
    """The place with what was parked; writes the patch, while the worktree is still there."""
    stat = None
    if request.patch is not None and place.base_commit is not None:
        Path(request.patch).parent.mkdir(parents=True, exist_ok=True)
        stat = write_patch(main, place.base_commit, parked.tree, Path(request.patch))
    return replace(place, commit=parked.commit, diff_stat=stat, rescue=parked.rescue, kept=None)
