"""RELEASE: park the work, write the diff, remove the worktree if all of it is safe, else keep it and say why."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import TASK_FILE, Place, Repository
from sessionrun.store.files import make_directories, replace_file
from sessionrun.workspaces.bases import holds_nothing
from sessionrun.workspaces.bringing import find_included
from sessionrun.workspaces.clone import drop_excerpt, remove_clean_room
from sessionrun.workspaces.environments.removal import drop_environments
from sessionrun.workspaces.fence import Fence, open_fence
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.git_locks import break_own_locks
from sessionrun.workspaces.ignoring import RULES, ignore_words
from sessionrun.workspaces.links import find_name, find_target
from sessionrun.workspaces.mirrored import bring_home, hold_mirror
from sessionrun.workspaces.park import (
    Brought,
    Parked,
    Site,
    find_rescues,
    park,
    rescue_lost_head,
    settle_index,
    write_patch,
)
from sessionrun.workspaces.registration import (
    find_admin,
    find_lost_admins,
    find_moved,
    load_owner,
    prepare_jobs,
    read_heads,
    register_lock,
    remove_tree,
    take_back_unused,
    trash_path,
    unregister,
)
from sessionrun.workspaces.request import CLAIM, Claim, WorkspaceRequest
from sessionrun.workspaces.rounds import drop_rounds, put_back
from sessionrun.workspaces.seats import drop_task_file, finish_leaving, is_leaving, is_tracked, leave_seat


def release(request: WorkspaceRequest, folder: Path) -> Place:
    """Release what PREPARE made; after a crash, go on where the earlier start stopped.

    Raises:
        SessionrunError, OSError: the work could not be parked; the worktree is unchanged.
    """
    with (
        hold_mirror(request.upstream),
        open_fence(request.repository, folder, limit_s=request.git_limit_s) as fence,
    ):
        released = release_behind(fence, request, folder)
        if request.mend is not None:
            from sessionrun.workspaces.mending import finish_mend

            released = finish_mend(fence.main(), request, released)
        released = drop_empty_branch(request, fence.main(), released, prepare_jobs(folder))
        if released.branch is None and released.holds_no_work:  # then nothing holds what setup left
            released = replace(released, commit=released.base_commit, setup_commit=None)
        released = bring_home(request, released, folder)
        released = _drop_environment(request, released, folder)
        if request.walls is not None:
            from sessionrun.workspaces.bringing_out import leave_walls  # only walled tasks need it

            released = leave_walls(request, released)
    if request.upstream is not None and request.upstream.history is not None:
        drop_excerpt(Path(request.repository.common_dir))
    return released


def _drop_environment(request: WorkspaceRequest, released: Place, folder: Path) -> Place:
    """The environment goes with its worktree; a remark names what cannot be deleted, and the job passes."""
    if released.worktree is not None:
        return released
    try:
        drop_environments(folder, request.owner)
    except OSError as error:
        remark = f"its environment cannot be deleted: {error}"
        return replace(released, remark=f"{released.remark}; {remark}" if released.remark else remark)
    return released


def release_behind(fence: Fence, request: WorkspaceRequest, folder: Path) -> Place:
    """The same with a private common directory that exists already; the branch stays, whatever it holds.

    Raises:
        SessionrunError, OSError: as `release`.
    """
    released = _release(fence, request, folder)
    if request.place is not None:
        drop_rounds(fence.main(), request)
    return released


def _release(fence: Fence, request: WorkspaceRequest, folder: Path) -> Place:
    place, main = request.place, fence.main()
    remove_clean_room(request.repository, request.owner)
    drop_environments(folder, request.owner, ("prove",))
    take_back_unused(main, request, folder)
    if place is None or place.worktree is None or place.branch is None:
        return place or Place()
    path = find_worktree(request)
    break_own_locks(request, folder, path)
    if path is not None and is_leaving(request.repository, path):
        finish_leaving(fence, path)
        path = None
    if path is None:
        return _release_gone(request, main, folder)
    if path != Path(place.worktree):
        _note_move(place.branch, path, folder)
        place = replace(place, worktree=str(path))
    site = find_site(fence, request, path, folder, brings_out=False)
    git, inside = site.git, _try_to_bring_out(request, site.git)
    if place.seat is not None:
        drop_task_file(git, place)
    remark = _put_back(site, inside)
    parked = park(site, word_message("Work", request), inside)
    released = replace(_describe(main, place, parked, request), remark=remark)
    if request.expect_change and not released.changed:
        request = replace(request, succeeded=False)
    kept = _why_kept(request, parked, path)
    if kept is None and request.seats is not None and str(path) == place.worktree:
        return _leave(request, git, released, folder)
    if kept is None:
        return _remove(request, path, released)
    if not parked.problems and parked.rescue is None:
        settle_index(git, parked.commit)
    return replace(released, kept=kept)


def find_worktree(request: WorkspaceRequest) -> Path | None:
    """Where the task's worktree is, also when it was moved; None when it is gone."""
    place = request.place
    assert place is not None and place.worktree is not None
    path = Path(place.worktree)
    admin = find_admin(request.repository, path)
    made_here = any(load_owner(lost) == request.owner for lost in find_lost_admins(request.repository, path))
    if (admin is not None and load_owner(admin) in (None, request.owner)) or (made_here and path.is_dir()):
        return path
    claim = Claim(place.branch or "", place.worktree, place.base_commit or "", request.owner)
    return find_moved(request.repository, claim) or (path if admin is None and path.is_dir() else None)


def _note_move(branch: str, path: Path, folder: Path) -> None:
    """Note in the claim where the worktree is, before it is removed: a crash could leave its remains there."""
    for job, claim in prepare_jobs(folder):
        if claim.branch == branch:
            replace_file(job / CLAIM, orjson.dumps(replace(claim, moved=str(path))), durable=True)


def _release_gone(request: WorkspaceRequest, main: Git, folder: Path) -> Place:
    """Release a worktree that is gone: the task deleted it, or an earlier start of this job removed it."""
    place = request.place
    assert place is not None and place.worktree is not None
    path = Path(place.worktree)
    remark = _remark_on_loss(request, path)
    if request.walls is not None:
        from sessionrun.workspaces.bringing_out import bring_out_of_gone

        bring_out_of_gone(request, main, path, folder)
    rescue_lost_head(request, main, path)
    parked = _parked_before(main, place, emptied=is_emptied(place, prepare_jobs(folder)))
    if parked is None:
        nowhere = f"worktree and branch {place.branch} were deleted before it ended: nothing holds its work"
        released = Place(
            base_commit=place.base_commit,
            start=place.start,
            environment=place.environment,
            remark=nowhere,
            changed=False,
        )
    else:
        released = replace(_describe(main, place, parked, request), remark=remark)
    for _, claim in prepare_jobs(folder):
        if claim.branch == place.branch and claim.moved:
            _clear_moved(request, Path(claim.moved))
    return _remove(request, path, released)


def _clear_moved(request: WorkspaceRequest, path: Path) -> None:
    """Delete what is left of a worktree whose removal, by an earlier start of this job, was broken off."""
    with register_lock(request.repository):
        if not os.path.lexists(path):  # else the remains belong to a later worktree
            unregister(request.repository, path, request.owner)
    remove_tree(trash_path(path, request.owner))


def _remark_on_loss(request: WorkspaceRequest, path: Path) -> str | None:
    """A remark if the worktree is gone, git still lists it, and we did not remove it."""
    lost = find_lost_admins(request.repository, path)
    if os.path.lexists(path) or trash_path(path, request.owner).exists():
        return None
    if any(load_owner(admin) == request.owner for admin in lost):
        return "its worktree was gone before it ended: what was not committed there is on no branch"
    return None


def _parked_before(main: Git, place: Place, *, emptied: bool) -> Parked | None:
    """What the branches hold whose worktree is gone; None if no branch is left, unless it was dropped as empty."""
    rescue = next(reversed(find_rescues(main, place.branch or "")), None)
    commit = main.commit_of(f"refs/heads/{rescue or place.branch}") or (place.work_base if emptied else None)
    if commit is None:
        return None
    return Parked(commit, main.line("rev-parse", f"{commit}^{{tree}}"), rescue, ())


def _is_of_another(request: WorkspaceRequest, path: Path) -> bool:
    """Whether an earlier start of this job removed our worktree, and another one has its name now."""
    admin = find_admin(request.repository, path)
    return admin is not None and load_owner(admin) not in (None, request.owner)


def find_git(fence: Fence, request: WorkspaceRequest, path: Path, *, brings_out: bool = True) -> Git:
    """Git in the worktree; checks that it is this worktree and not a repository around it.

    If the task has walls, its commits come out of them first; without `brings_out` nothing changes.

    Raises:
        SessionrunError: an agent removed or replaced the worktree's link to its repository; or the commits cannot
            be brought out.
    """
    admin = find_admin(request.repository, path)
    if admin is None or _is_of_another(request, path):
        raise SessionrunError(describe_broken_link(request.repository, path))
    git = fence.inside(path, admin)
    if brings_out and request.walls is not None:
        from sessionrun.workspaces.bringing_out import bring_out_of

        bring_out_of(request, git)
    return git


def describe_broken_link(repository: Repository, path: Path) -> str:
    """A line on a worktree whose `.git` leads elsewhere, and on what the user can do about it."""
    mend = "move its .git away and run git worktree repair in the repository"
    return f"to be mended by hand ({mend}): {path} is not a worktree of {repository.top} any more"


def park_work(request: WorkspaceRequest, folder: Path) -> Place:
    """Commit the work to the task's branch and leave the worktree; done again after a crash, do it once.

    If an earlier round was better, its work is put back first, as by RELEASE.  If the request says `partly`, a
    commit that lacks something, or that another branch has, will do: RELEASE says so and keeps the worktree.

    Raises:
        SessionrunError, OSError: not all of it can be in a commit of that branch.
    """
    place = request.place
    assert place is not None and place.worktree is not None
    with open_fence(request.repository, folder, limit_s=request.git_limit_s) as fence:
        path = find_worktree(request)
        if path is None:
            raise SessionrunError("its worktree is gone")
        break_own_locks(request, folder, path)
        site = find_site(fence, request, path, folder)
        remark = _put_back(site)
        parked = park(site, word_message("Work", request))
        if parked.problems and not request.partly:
            raise SessionrunError("; ".join(parked.problems[:5]))
        if not parked.problems:
            settle_index(site.git, parked.commit)
        parked_at = _describe(fence.main(), replace(place, worktree=str(path)), parked, request)
        return replace(parked_at, remark=remark)


def word_message(what: str, request: WorkspaceRequest) -> str:
    """The message of a commit of ours: what it holds, and of which task."""
    title = request.title.replace("\0", "")
    return f"{what} of task {request.task}\n\n{title}\n\nParked by sessionrun session {request.session_id}.\n"


def _try_to_bring_out(request: WorkspaceRequest, git: Git) -> str | None:
    """Bring out the commits of a walled task; if they have to stay inside of its walls, why."""
    if request.walls is None:
        return None
    from sessionrun.workspaces.bringing_out import try_to_bring_out

    return try_to_bring_out(request, git)


def find_site(
    fence: Fence, request: WorkspaceRequest, path: Path, folder: Path, *, brings_out: bool = True
) -> Site:
    """The worktree at `path`, to be read and parked; `folder` is the job's.

    Raises:
        SessionrunError, OSError: as `find_git`.
    """
    git, ignore = find_git(fence, request, path, brings_out=brings_out), ignore_words(request.repository, folder)
    return Site(fence, git, request, find_brought(request, fence.main(), ignore), ignore, folder)


def _put_back(site: Site, inside: str | None = None) -> str | None:
    """The best round's work takes the place of what lies there; why not, if it cannot."""
    if inside is not None and site.request.best is not None:
        return "the best round's work is not put back: its commits are inside"
    return put_back(site)


def find_brought(request: WorkspaceRequest, main: Git, ignore: Sequence[str]) -> Brought:
    """What PREPARE put into the worktree; `ignore` as of `ignore_words`."""
    top = request.repository.top
    links = {find_name(top, link): find_target(top, link) for link in request.links}
    origins, files = find_included(main, request, ignore)
    place = request.place
    ours = place is not None and place.seat is not None and not is_tracked(main, TASK_FILE, place.base_commit)
    return Brought(origins, links, frozenset(files), frozenset({TASK_FILE} if ours else ()))


def _why_kept(request: WorkspaceRequest, parked: Parked, path: Path) -> str | None:
    """Why the worktree stays, or None when it may go: then a ref holds all that is in it."""
    if parked.problems:
        named = os.fsencode("; ".join(parked.problems[:5]))
        return named.decode("utf-8", "replace")  # a name may be no UTF-8, and then no record could hold it
    admin = find_admin(request.repository, path)
    if admin is not None and (admin / "locked").exists():
        return "it is locked (git worktree lock)"
    if request.seats is not None:
        return None
    if request.keep == "always":
        return "worktrees are kept"
    if request.keep == "on-failure" and not request.succeeded:
        return "worktrees of failed tasks are kept"
    return None


def _leave(request: WorkspaceRequest, git: Git, released: Place, folder: Path) -> Place:
    """The worktree stays, and no task has it; its work is safe."""
    assert released.branch is not None or released.rescue is not None
    assert released.commit is not None
    top = request.repository.top
    brought = Brought(Path(top), {find_name(top, link): find_target(top, link) for link in request.links})
    with register_lock(request.repository):
        leave_seat(git, released.commit, brought=brought, rules=(folder / RULES).read_bytes())
    return replace(released, worktree=None)


def _remove(request: WorkspaceRequest, path: Path, released: Place) -> Place:
    """Remove the worktree; its work is safe, so a remark names files that cannot be deleted."""
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


def _describe(main: Git, place: Place, parked: Parked, request: WorkspaceRequest) -> Place:
    """The place with what was parked; writes the patch while the worktree still exists."""
    stat = None
    if request.patch is not None and place.work_base is not None:
        make_directories(Path(request.patch).parent, 0o700)
        stat = write_patch(main, place.work_base, parked.tree, Path(request.patch))
    branch = place.branch if main.commit_of(f"refs/heads/{place.branch}") else None
    changed = bool(parked.problems) or parked.rescue is not None or bool(stat and stat["files"])
    return replace(
        place,
        branch=branch,
        commit=parked.commit,
        diff_stat=stat,
        rescue=parked.rescue,
        kept=None,
        changed=changed,
    )


def drop_empty_branch(
    request: WorkspaceRequest, main: Git, place: Place, jobs: Iterable[tuple[Path, Claim]]
) -> Place:
    """The place without its branch, if that holds nothing and its worktree is gone; else the place as it is.

    So only branches with work stay, and the name is free again.  This is noted in the claim first: a new start
    after a crash finds neither worktree nor branch, as if the task had deleted both.

    Args:
        request: of the RELEASE.
        main: git in the repository.
        place: what the RELEASE found.
        jobs: the PREPARE jobs of its attempt, with their claims.
    """
    branch, base = place.branch, place.base_commit
    if branch is None or base is None or not place.holds_no_work or place.rescue or place.worktree:
        return place
    with register_lock(request.repository):
        tip = main.commit_of(f"refs/heads/{branch}")
        if tip is None or branch in read_heads(request.repository, None):
            return place
        if not holds_nothing(main, request.repository, branch, tip, base, place.setup_commit):
            return place
        for job, claim in jobs:
            if claim.branch == branch:
                replace_file(job / CLAIM, orjson.dumps(replace(claim, emptied=True)), durable=True)
        gone = main.attempt("update-ref", "-d", f"refs/heads/{branch}", tip).returncode == 0
    return replace(place, branch=None) if gone else place


def is_emptied(place: Place, jobs: Iterable[tuple[Path, Claim]]) -> bool:
    """Whether an earlier start of this RELEASE found that the place's branch holds nothing."""
    return any(claim.emptied and claim.branch == place.branch for _, claim in jobs)
