"""RELEASE: park the work, write the diff, remove the worktree if all of it is safe, else keep it and say why."""

from __future__ import annotations

from pathlib import Path

from sessionrun.errors import SessionrunError
from sessionrun.git import Git
from sessionrun.model import Place
from sessionrun.workspaces import Request
from sessionrun.workspaces.park import Parked, park, settle_index, write_patch
from sessionrun.workspaces.worktree import register_lock, remove_worktree


def release(request: Request, folder: Path) -> Place:
    """Release what PREPARE made; done again after a crash, go on where it stopped.

    Raises:
        SessionrunError: the work could not be parked; the worktree is as it was.
    """
    place = request.place
    if place is None or place.worktree is None or place.branch is None:
        return place or Place()
    main = Git(Path(request.repository.top))
    path = Path(place.worktree)
    if not path.is_dir():
        with register_lock(request.repository):
            remove_worktree(main, path)
        return _describe(main, place, _parked_before(main, place), request, kept=None, removed=True)
    git = _git_of(main, path)
    message = (
        f"Work of task {request.task}\n\n{request.title}\n\nParked by sessionrun session {request.session_id}."
    )
    parked = park(git, place, links=request.links, message=message, folder=folder)
    kept = _why_kept(request, parked)
    if kept is not None:
        if not parked.problems and parked.rescue is None:
            settle_index(git, parked.commit)
        return _describe(main, place, parked, request, kept=kept, removed=False)
    with register_lock(request.repository):
        remove_worktree(main, path)
    return _describe(main, place, parked, request, kept=None, removed=True)


def _git_of(main: Git, path: Path) -> Git:
    """Git in the worktree, made sure that it is that worktree and not a repository around it.

    Raises:
        SessionrunError: an agent removed or replaced the worktree's link to its repository.
    """
    git = Git(path)
    common = git.attempt("rev-parse", "--path-format=absolute", "--git-common-dir", "--show-toplevel")
    said = common.stdout.decode("utf-8", "surrogateescape").splitlines()
    wanted = main.line("rev-parse", "--path-format=absolute", "--git-common-dir")
    if common.returncode != 0 or said[:1] != [wanted] or not path.samefile(said[1]):
        raise SessionrunError(f"{path} is no worktree of {main.directory} any more")
    return git


def _why_kept(request: Request, parked: Parked) -> str | None:
    """Why the worktree stays, or None when it may go: then a ref holds all that is in it."""
    if parked.problems:
        return "; ".join(parked.problems[:5])
    if request.keep == "always":
        return "worktrees are kept"
    if request.keep == "on-failure" and not request.succeeded:
        return "worktrees of failed tasks are kept"
    return None


def _parked_before(main: Git, place: Place) -> Parked:
    """The worktree is gone already: an earlier start of this job came as far as that."""
    commit = main.commit_of(f"refs/heads/{place.branch}") or place.base_commit or ""
    rescue = f"{place.branch}-rescue"
    rescued = main.commit_of(f"refs/heads/{rescue}")
    commit = rescued or commit
    return Parked(commit, main.line("rev-parse", f"{commit}^{{tree}}"), rescue if rescued else None, ())


def _describe(
    main: Git, place: Place, parked: Parked, request: Request, *, kept: str | None, removed: bool
) -> Place:
    stat = None
    if request.patch is not None and place.base_commit is not None:
        Path(request.patch).parent.mkdir(parents=True, exist_ok=True)
        stat = write_patch(main, place.base_commit, parked.tree, Path(request.patch))
    return Place(
        branch=place.branch,
        worktree=None if removed else place.worktree,
        base_commit=place.base_commit,
        commit=parked.commit,
        diff_stat=stat,
        rescue=parked.rescue,
        kept=kept,
    )
