"""What crashed or kept sessions left in a repository, and taking away what is provably not needed.

`clean` looks only at what a claim of ours names, and touches only what bears that claim's mark or holds nothing:
names come back, and the worktree that has this name now may be a living session's.  A worktree goes once all in
it is on a branch (it can be made again from there); a branch goes when it holds nothing beyond its base commit,
or when all it holds is in the branch it began from.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.client.findings import Leftover, Remains
from sessionrun.git.clone import drop_excerpt
from sessionrun.git.git import Git
from sessionrun.git.mirrors import HEADS
from sessionrun.git.private import Fence, open_fence
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import WORKSPACE_LIMIT_S, Place, Repository, Seats
from sessionrun.store.session import WALLS_SUFFIX
from sessionrun.store.trees import remove_tree
from sessionrun.worktrees import registration
from sessionrun.worktrees.bases import bring_home
from sessionrun.worktrees.park import find_rescues, rescue_lost_head
from sessionrun.worktrees.release import drop_made, drop_rounds, has_environment, holds_nothing, release_behind
from sessionrun.worktrees.request import Claim, WorkspaceRequest
from sessionrun.worktrees.seats import GITIGNORE, Free, find_user, list_free
from sessionrun.worktrees.site import break_old_lock, describe_broken_link, find_worktree

LOCK_NAME: Final = ".clean"
"""Lock file in a session's folder of jobs: two `clean` at a time would park the same work twice."""

NOTHING_OWN: Final = "it is empty: nothing was committed on it"
"""Why a branch without work of any job is deleted."""


@frozen
class Claimed:
    """One claim of a session, from the PREPARE in `folder`, and what the RELEASE of its attempt would be asked.

    `worked` is whether a SETUP or WORK job may have been started in the worktree.
    """

    request: WorkspaceRequest
    claim: Claim
    folder: Path
    worked: bool

    @classmethod
    def of(cls, request: WorkspaceRequest, claim: Claim, folder: Path, *, worked: bool) -> Claimed:
        """What a claim names; the request says whose it is."""
        walls = folder.absolute().with_name(f"{folder.name.partition('-')[0]}{WALLS_SUFFIX}")
        place = replace(claim, start=None, taken_up=None)
        repository = replace(request.repository, keep="never")  # what was kept goes now
        own = replace(request, repository=repository, place=place, walls=str(walls) if walls.is_dir() else None)
        return cls(own, claim, folder, worked)

    def describe(self, what: Remains, name: str, why: str, *, removed: bool) -> Leftover:
        request = self.request
        return Leftover(what, name, removed, why, request.session_id, request.repository.top, request.task)


def clean_claimed(claimed: Claimed, *, dry_run: bool) -> Iterator[Leftover]:
    """Remove what is provably not needed of one claim, and report what was found.

    A dry run changes nothing, and says what would go at most: it does not look what a worktree holds.
    """
    repository, attempt = claimed.request.repository, claimed.folder.name.partition("-")[0]
    parent = claimed.folder.parent.absolute()  # git runs in other directories than ours
    with (
        tempfile.TemporaryDirectory(prefix=f"{attempt}-clean-", dir=parent) as folder,
        open_fence(repository, Path(folder), limit_s=WORKSPACE_LIMIT_S) as fence,
    ):
        main = fence.main()
        worktree = _clean_worktree(claimed, fence, main, Path(folder), dry_run=dry_run)
        if worktree is not None:
            yield worktree
        trash = registration.trash_path(Path(claimed.claim.worktree), claimed.request.owner)
        if trash.exists():  # the removal was broken off when its job was killed: its work had been parked
            finding = claimed.describe("trash", str(trash), "a worktree that was being removed", removed=True)
            yield finding if dry_run else _remove(finding)
        if worktree is not None and not worktree.removed:
            return  # its branches, and the excerpt that it is of, stay as well
        if not dry_run:
            drop_rounds(main, claimed.request)
        with nullcontext() if dry_run else registration.register_lock(repository):
            if not dry_run:
                registration.drop_empty_books(Path(repository.common_dir))
            there = Path(worktree.name) if dry_run and worktree is not None else None
            for branch in dict.fromkeys((claimed.claim.branch, *find_rescues(main, claimed.claim.branch))):
                if not dry_run:
                    break_old_lock(repository, branch)  # also of a branch that git was about to make
                tip = main.commit_of(f"refs/heads/{branch}")
                if tip is not None:
                    finding = _clean_branch(main, claimed, branch, tip, there, dry_run=dry_run)
                    if not finding.removed and not dry_run:  # what stays in a mirror comes home, as by RELEASE
                        place = bring_home(claimed.request, Place(branch=branch), Path(folder))
                        finding = replace(finding, why="; ".join(filter(None, (finding.why, place.remark))))
                    yield finding
    if claimed.request.upstream is not None and claimed.request.upstream.history is not None and not dry_run:
        drop_excerpt(Path(repository.common_dir))


def _clean_worktree(claimed: Claimed, fence: Fence, main: Git, folder: Path, *, dry_run: bool) -> Leftover | None:
    worktree = find_worktree(claimed.request)
    request, path = claimed.request, worktree or Path(claimed.claim.worktree)
    finding = claimed.describe("worktree", str(path), "nothing was done in it", removed=True)
    if claimed.worked and worktree is not None:
        return _release(claimed, finding, fence, folder, dry_run=dry_run)
    if claimed.worked and request.walls is not None and not dry_run:
        from sessionrun.worktrees.own import publish_gone

        try:
            publish_gone(fence, request, path, folder)
        except (SessionrunError, OSError) as error:
            return replace(finding, removed=False, why=f"{error}; git worktree prune gives them up")
    with nullcontext() if dry_run else registration.register_lock(claimed.request.repository):
        lost = registration.find_lost_admins(claimed.request.repository, path)
        first = Path(claimed.claim.worktree)
        made = has_environment(request, first)  # a task may have deleted its worktree alone
        if not (path.exists() or lost or made) or not registration.is_untouched(request, path):
            return None
        if claimed.worked and not path.exists():
            finding = replace(finding, why="its directory is gone")
        if not dry_run:
            if claimed.worked and not path.exists():
                rescue_lost_head(request, main, path)
            if (why := drop_made(request, first)) is not None:
                return replace(finding, removed=False, why=why)
            remove_tree(registration.unregister(request.repository, path, request.owner))
    return finding


def _release(claimed: Claimed, finding: Leftover, fence: Fence, folder: Path, *, dry_run: bool) -> Leftover:
    """Park what is in the worktree, as RELEASE does, and remove it if nothing stays behind."""
    path = Path(finding.name)
    admin = registration.find_admin(claimed.request.repository, path)
    if admin is None or registration.load_owner(admin) is None:
        return replace(finding, removed=False, why=describe_broken_link(claimed.request.repository, path))
    if dry_run:
        return replace(finding, why="its work is put on its branch first; it stays if that cannot be")
    try:
        place = release_behind(fence, claimed.request, folder)
    except (SessionrunError, OSError) as error:
        return replace(finding, removed=False, why=str(error))
    walls = claimed.request.walls
    if place.kept is not None:
        apart = f"; what lies in it is on {place.rescue}" if walls is not None and place.rescue else ""
        return replace(finding, removed=False, why=f"{place.kept}{apart}")
    why = "its work is on its branch"
    if walls is not None:
        from sessionrun.worktrees.own import read_left

        why = "; ".join(part for part in (why, read_left(Path(walls))) if part)
    return replace(finding, why=why)


def _remove(finding: Leftover) -> Leftover:
    try:
        remove_tree(Path(finding.name))
    except OSError as error:
        return replace(finding, removed=False, why=str(error))
    return finding


def _clean_branch(
    main: Git, claimed: Claimed, branch: str, tip: str, there: Path | None, *, dry_run: bool
) -> Leftover:
    """Delete a branch that is not needed; `there` is a worktree that a dry run left, and does not count."""
    finding = claimed.describe("branch", branch, "it holds work that is not merged", removed=False)
    if branch in registration.read_heads(claimed.request.repository, there):
        return replace(finding, why="it is checked out")
    why = _why_not_needed(main, claimed, branch, tip)
    if why is None:
        return finding
    if dry_run:
        why += ", unless its worktree holds more" if there is not None and claimed.worked else ""
    else:
        try:
            main("update-ref", "-d", f"refs/heads/{branch}", tip)
        except SessionrunError as error:
            return replace(finding, why=str(error))
    return replace(finding, removed=True, why=why, empty=why == NOTHING_OWN)


def _why_not_needed(main: Git, claimed: Claimed, branch: str, tip: str) -> str | None:
    repository = claimed.request.repository
    claim = claimed.claim
    if holds_nothing(main, repository, branch, tip, claim.base_commit, claim.setup_commit):
        return NOTHING_OWN
    branches = HEADS if repository.upstream else "refs/heads/"
    target = main.commit_of(branches + repository.base_branch)
    if target and main.attempt("merge-base", "--is-ancestor", tip, target).returncode == 0:
        return f"it is merged into {repository.base_branch}"
    if claimed.request.upstream is not None and claimed.request.upstream.history is not None:
        attempt = claimed.folder.name.partition("-")[0]
        patch = claimed.folder.with_name(f"{attempt}-diff.patch")
        return f"its work is in {patch}" if patch.is_file() else None
    return None


# --- worktrees that stay ---


def clean_seats(
    repository: Repository, seats: Seats, session: Path, session_id: str, *, dry_run: bool
) -> Iterator[Leftover]:
    """Remove the free seats that no session took after this one; one in which a user worked since stays."""
    mine = [found for found in list_free(repository, seats) if found[2].session_id == session_id]
    if mine:
        folder = session.absolute() / "jobs"
        with (
            tempfile.TemporaryDirectory(prefix=".seats-", dir=folder) as made,
            open_fence(repository, Path(made), limit_s=WORKSPACE_LIMIT_S) as fence,
        ):
            for top, admin, free in mine:
                yield _clean_seat(fence, top, admin, free, Path(made), dry_run=dry_run)
    if not dry_run and seats.placement == "inside":
        rules = Path(seats.directory, ".gitignore")
        with suppress(OSError):
            if os.listdir(rules.parent) == [rules.name] and rules.read_bytes() == GITIGNORE:
                rules.unlink()
            rules.parent.rmdir()  # not if anything else is in it


def _clean_seat(fence: Fence, top: Path, admin: Path, free: Free, folder: Path, *, dry_run: bool) -> Leftover:
    about, why = (free.session_id, fence.repository.top), "no task has it, and its work is on branches"
    finding = Leftover("worktree", str(top), True, why, *about, empty=True)
    with nullcontext() if dry_run else registration.register_lock(fence.repository):
        in_use = find_user(fence, top, admin, free, folder)
        if in_use is not None or dry_run:
            return replace(finding, removed=in_use is None, why=in_use or why)
        trash = registration.unregister(fence.repository, top, f"{free.session_id}/")
    gone = _remove(Leftover("trash", str(trash), True, "", *about))
    return finding if gone.removed else gone
