"""RELEASE parks the work, writes the diff, and removes the worktree if all of it is safe, else it says why not.

PARK, before a proof, and the end of a SETUP commit what lies in the worktree as well, and leave it.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from sessionrun.git.clone import drop_excerpt
from sessionrun.git.git import Git
from sessionrun.git.merging import AUTHOR
from sessionrun.git.mirrors import hold_mirror
from sessionrun.git.private import Fence, open_fence
from sessionrun.git.rooms import clear_settings, room_path
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Place, Repository
from sessionrun.store.jobfiles import CLAIM, write_record
from sessionrun.store.trees import remove_entry, remove_tree
from sessionrun.walls.argv import OWN_GIT
from sessionrun.worktrees import registration
from sessionrun.worktrees.bases import SUBJECT, bring_home, finish_mend
from sessionrun.worktrees.park import Parked, commit_setup, find_rescues, park, rescue_lost_head, write_patch
from sessionrun.worktrees.request import WorkspaceRequest, drop_environment, find_environment
from sessionrun.worktrees.rounds import REFS, name_ref, put_back
from sessionrun.worktrees.seats import drop_task_file, leave_seat
from sessionrun.worktrees.site import (
    Site,
    break_own_locks,
    find_git,
    find_site,
    find_worktree,
    is_of_another,
    open_site,
    word_message,
)
from sessionrun.worktrees.worktree import check_answer


def release(request: WorkspaceRequest, folder: Path) -> Place:
    """Release what PREPARE made; after a crash, go on where the earlier start stopped.

    If the work cannot be parked, that is raised, and the worktree is unchanged.
    """
    request = _settle_first(request, folder)
    with (
        nullcontext() if request.upstream is None else hold_mirror(request.upstream),
        open_fence(request.repository, folder, limit_s=request.git_limit_s) as fence,
    ):
        released = release_behind(fence, request, folder)
        if request.place is not None:  # else an earlier attempt's work may be in them alone
            drop_rounds(fence.main(), request)
        if request.mend is not None:
            released = finish_mend(fence.main(), request, released)
        released = _drop_empty_branch(request, fence.main(), released, folder)
        if released.branch is None and released.holds_no_work:  # then nothing holds what setup left
            released = replace(released, commit=released.base_commit, setup_commit=None)
        if request.upstream is not None:
            released = bring_home(request, released, folder)
        if request.walls is not None:
            from sessionrun.worktrees.own import leave_walls  # only walled tasks need it

            released = leave_walls(request, released)
    if request.upstream is not None and request.upstream.history is not None:
        drop_excerpt(Path(request.repository.common_dir))
    return released


def release_behind(fence: Fence, request: WorkspaceRequest, folder: Path) -> Place:
    """The same with a private common directory that exists already; its branch and the refs of rounds stay."""
    place, main = request.place, fence.main()
    room = room_path(request.repository, request.owner)
    remove_entry(room)  # the clean room that a crash left
    drop_environment(room)
    registration.take_back_unused(main, request, folder, None if place is None else place.worktree)
    if place is None or place.worktree is None or place.branch is None:
        return place or Place()
    path = find_worktree(request)
    break_own_locks(request, folder, path)
    if path is None:
        return _release_gone(fence, request, folder)
    moved, place = str(path) != place.worktree, replace(place, worktree=str(path))
    if place.seat is not None:
        drop_task_file(find_git(fence, request, path), place)
    site, parked, remark = _park(fence, request, path, folder)
    released = replace(_describe(main, place, parked, request), remark=remark)
    if request.expect_change and not released.changed:
        request = replace(request, succeeded=False)
    kept = _why_kept(request, parked, path) or drop_made(request, _find_first(request, folder))
    if kept is None and request.seats is not None and not moved:
        with registration.register_lock(request.repository):
            leave_seat(site.outer, parked.commit, request)
        return replace(released, worktree=None)
    if kept is None:
        return _remove(request, path, released)
    if not parked.problems and parked.rescue is None:
        site.settle_index(parked.commit)
    if request.walls is not None and os.path.lexists(path / ".gitmodules"):
        clear_settings(path, [pair for pair in fence.settings.config if pair[0] == "extensions.objectformat"])
    return replace(released, kept=kept)


def _park(fence: Fence, request: WorkspaceRequest, path: Path, folder: Path) -> tuple[Site, Parked, str | None]:
    """Park what lies in the worktree; files of a walled task also where its commits have to stay inside."""
    try:
        site = find_site(fence, request, path, folder)
        remark = put_back(site, request.best) if request.best is not None else None
        return site, park(site, word_message("Work", request)), remark
    except (SessionrunError, OSError) as error:
        if request.walls is None:
            raise
        from sessionrun.worktrees.own import open_apart

        inside = f"{error}; its commits stay in {Path(request.walls, OWN_GIT)}"
    site = find_site(fence, request, path, folder, open_apart)
    remark = None if request.best is None else "the best round's work is not put back: its commits are inside"
    return site, park(site, word_message("Work", request), inside), remark


def _release_gone(fence: Fence, request: WorkspaceRequest, folder: Path) -> Place:
    """Release a worktree that is gone: the task deleted it, or an earlier start of this job removed it."""
    place, main = request.made, fence.main()
    path, remark = Path(place.worktree or ""), None
    # it is lost if git still lists it, and we did not remove it
    is_there = os.path.lexists(path) or registration.trash_path(path, request.owner).exists()
    if not is_there and registration.find_lost_admins(request.repository, path, request.owner):
        remark = "its worktree was gone before it ended: what was not committed there is on no branch"
    if request.walls is not None:
        from sessionrun.worktrees.own import publish_gone

        publish_gone(fence, request, path, folder)
    rescue_lost_head(request, main, path)
    rescue = next(reversed(find_rescues(main, place.branch or "")), None)
    commit = main.commit_of(f"refs/heads/{rescue or place.branch}")
    claims = registration.prepare_jobs(folder, place.branch)
    if commit is None and any(claim.emptied for _, claim in claims):  # an earlier start dropped the branch
        commit = place.work_base
    if commit is None:
        nowhere = f"worktree and branch {place.branch} were deleted before it ended: nothing holds its work"
        released = replace(place, branch=None, setup_commit=None, kept=None, remark=nowhere, changed=False)
    else:
        parked = Parked(commit, main.line("rev-parse", f"{commit}^{{tree}}"), rescue, ())
        branch = place.branch if main.commit_of(f"refs/heads/{place.branch}") else None
        released = replace(_describe(main, place, parked, request), branch=branch, remark=remark)
    remark = "; ".join(filter(None, (released.remark, drop_made(request, _find_first(request, folder)))))
    return _remove(request, path, replace(released, remark=remark or None))


def park_work(request: WorkspaceRequest, folder: Path) -> Place:
    """Commit the work to the task's branch and leave the worktree; done again after a crash, do it once.

    If an earlier round was better, its work is put back first, as by RELEASE.  It is an error if not all of the
    work can be in a commit of that branch.  If the request says `partly`, RELEASE says so and keeps the worktree.
    """
    with open_site(request, folder) as site:
        remark = put_back(site, request.best) if request.best is not None else None
        parked = park(site, word_message("Work", request))
        if parked.problems and not request.partly:
            raise SessionrunError("; ".join(parked.problems[:5]))
        if not parked.problems:
            site.settle_index(parked.commit)
        place = replace(site.place, worktree=str(site.git.directory))
        return replace(_describe(site.fence.main(), place, parked, request), remark=remark)


def end_setup(request: WorkspaceRequest, folder: Path) -> Place:
    """Commit what SETUP left, and ask again where the task's git works: SETUP may have run `git config`."""
    place = settle(request, folder)
    path = None if request.walls is not None else find_worktree(request)  # git in walls has settings of its own
    if path is not None:
        check_answer(path, registration.need_admin(request.repository, path))
    return place


def settle(request: WorkspaceRequest, folder: Path) -> Place:
    """Commit what SETUP left; done again after a crash, do it once.  On an error the worktree is as it was.

    If the attempt goes on with earlier work, this commit is a part of the work: the attempt counts as begun there,
    and the work as begun where it was.  In any other attempt the work counts as begun at this commit.
    """
    with open_site(request, folder) as site:
        place, begins_at = site.place, commit_setup(site, word_message("Setup", request))
        if place.taken_up is None:
            registration.mark_begin(site.outer)
    if place.taken_up is not None:
        return replace(place, taken_up=begins_at or place.taken_up)
    _note(folder, place.branch, setup_commit=begins_at)
    return replace(place, setup_commit=begins_at)


def _settle_first(request: WorkspaceRequest, folder: Path) -> WorkspaceRequest:
    """The request of a RELEASE; if no work has begun, what a broken-off SETUP has left is told from work first."""
    place = request.place
    if request.worked or place is None or place.worktree is None or place.setup_commit is not None:
        return request
    path = find_worktree(request)
    if path is not None:
        try:
            place = settle(replace(request, place=replace(place, worktree=str(path))), folder)
        except SessionrunError:
            return request  # RELEASE finds the same fault, keeps the worktree and says why
    else:  # an earlier start of this job has removed it
        claims = registration.prepare_jobs(folder, place.branch)
        place = replace(place, setup_commit=claims[-1][1].setup_commit if claims else None)
    return replace(request, place=place)


def _why_kept(request: WorkspaceRequest, parked: Parked, path: Path) -> str | None:
    """Why the worktree stays, or None when it may go: then a ref holds all that is in it."""
    if parked.problems:
        named = os.fsencode("; ".join(parked.problems[:5]))
        return named.decode("utf-8", "replace")  # a name may be no UTF-8, and then no record could hold it
    admin = registration.find_admin(request.repository, path)
    if admin is not None and (admin / "locked").exists():
        return "it is locked (git worktree lock)"
    if request.seats is not None:
        return None
    if request.repository.keep == "always":
        return "worktrees are kept"
    if request.repository.keep == "on-failure" and not request.succeeded:
        return "worktrees of failed tasks are kept"
    return None


def _find_first(request: WorkspaceRequest, folder: Path) -> Path:
    """Where PREPARE had the worktree: a task, or a person, may have moved it since."""
    claims = registration.prepare_jobs(folder, request.made.branch)
    return Path(claims[-1][1].worktree if claims else request.made.worktree or "")


def has_environment(request: WorkspaceRequest, top: Path) -> bool:
    """Whether an environment lies beside `top`; where a worktree was moved to, what lies there is a person's."""
    place, path = request.place or Place(), find_environment(top)
    among_ours = place.seat is not None or top.parent == Path(request.repository.worktree_dir)
    is_made = among_ours or (place.environment is not None and place.environment.path == path)
    return is_made and os.path.lexists(path) and not is_of_another(request, top)


def drop_made(request: WorkspaceRequest, top: Path) -> str | None:
    """Remove the environment, before the name of its worktree is free; why it cannot be deleted, or None."""
    try:
        if has_environment(request, top):
            drop_environment(top)
    except OSError as error:
        return f"its environment cannot be deleted: {error}"
    return None


def _remove(request: WorkspaceRequest, path: Path, released: Place) -> Place:
    """Remove the worktree; its work is safe, so a remark names files that cannot be deleted."""
    left = path
    try:
        if is_of_another(request, path):
            left = registration.trash_path(path, request.owner)
        else:
            with registration.register_lock(request.repository):
                left = registration.unregister(request.repository, path, request.owner)
        remove_tree(left)
    except OSError as error:
        return replace(released, worktree=str(left), kept=f"its work is parked; it cannot be deleted: {error}")
    return replace(released, worktree=None)


def _describe(main: Git, place: Place, parked: Parked, request: WorkspaceRequest) -> Place:
    """The place with what was parked; writes the patch while the worktree still exists."""
    stat = None
    if request.patch is not None and place.work_base is not None:
        stat = write_patch(main, place.work_base, parked.tree, Path(request.patch))
    there = parked.rescue is None or main.commit_of(f"refs/heads/{place.branch}") is not None
    changed = bool(parked.problems) or parked.rescue is not None or bool(stat and stat["files"])
    return replace(
        place,
        branch=place.branch if there else None,
        commit=parked.commit,
        diff_stat=stat,
        rescue=parked.rescue,
        kept=None,
        changed=changed,
    )


def _drop_empty_branch(request: WorkspaceRequest, main: Git, place: Place, folder: Path) -> Place:
    """The place without its branch, if that holds nothing and its worktree is gone; else the place as it is.

    So only branches with work stay, and the name is free again.  This is noted in the claim first: a new start
    after a crash finds neither worktree nor branch, as if the task had deleted both.
    """
    branch, base = place.branch, place.base_commit
    if branch is None or base is None or not place.holds_no_work or place.rescue or place.worktree:
        return place
    with registration.register_lock(request.repository):
        tip = main.commit_of(f"refs/heads/{branch}")
        if tip is None or branch in registration.read_heads(request.repository, None):
            return place
        if not holds_nothing(main, request.repository, branch, tip, base, place.setup_commit):
            return place
        _note(folder, branch, emptied=True)
        gone = main.attempt("update-ref", "-d", f"refs/heads/{branch}", tip).returncode == 0
    return replace(place, branch=None) if gone else place


def _note(folder: Path, branch: str | None, **changes: Any) -> None:
    """Note in the claims of this attempt's branch what a later start could not find out any more."""
    for job, claim in registration.prepare_jobs(folder, branch):
        write_record(job / CLAIM, replace(claim, **changes), durable=True)


def holds_nothing(
    git: Git, repository: Repository, branch: str, tip: str, base: str, setup_commit: str | None
) -> bool:
    """Whether a branch can be deleted and no work is lost; under the lock.

    The branch stands where it began, or where its work did.  If it began at another task's end, another branch or
    tag must hold that, too.  A merge of needs that we made can be made again.
    """
    if tip not in (base, setup_commit):
        return False
    if base == repository.base_commit:
        return True
    others = (f"--exclude={branch}", "--branches", "--tags", "--remotes")
    listed = git.attempt("rev-list", "--max-count=2", base, "--not", *others)
    alone = listed.stdout.decode().split()
    if listed.returncode != 0 or alone not in ([], [base]):
        return False
    if not alone:
        return True
    head, _, message = git("cat-file", "commit", base).decode("utf-8", "replace").partition("\n\n")
    return message.startswith(SUBJECT) and f"\ncommitter {AUTHOR} " in head


def drop_rounds(git: Git, request: WorkspaceRequest) -> None:
    """Delete the refs of a task's rounds: its work is on its branch, and the others' is in their patches."""
    common = Path(request.repository.common_dir)
    packed = common / "packed-refs"
    is_packed = packed.is_file() and REFS.encode() in packed.read_bytes()
    if not is_packed and not any((common / name).exists() for name in (REFS, "reftable")):
        return  # few sessions have any, and to ask git takes longer
    for name in git.list_refs(name_ref(request)):
        git.attempt("update-ref", "-d", name)
