"""What crashed or kept sessions left in a repository, and taking away what is provably not needed.

Only what a claim of ours names is looked at, and only what bears that claim's mark, or holds nothing, is touched:
names come back, and the worktree that has this name now may be a living session's.  A worktree goes once all in
it is on a branch (it can be made again from there); a branch goes when it holds nothing beyond its base commit,
or when all it holds is in the branch it began from.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from sessionrun.errors import SessionrunError
from sessionrun.git import Git
from sessionrun.model import Place, Repository
from sessionrun.workspaces import Claim, Request, load_claim
from sessionrun.workspaces.registration import (
    find_admin,
    find_lost_admins,
    load_owner,
    register_lock,
    remove_tree,
    trash_path,
    unregister,
)
from sessionrun.workspaces.release import find_rescues, is_untouched, release, rescue_lost_head

What = Literal["worktree", "branch", "trash"]

STALE_LOCK_S: Final = 10.0
"""Git holds the lock of a branch for moments; one of this age on a dead session's branch is a crash's."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was left: `removed` says whether it went (or would go), `why` why or why not."""

    what: What
    name: str
    task: str
    removed: bool
    why: str


@dataclass(frozen=True, slots=True)
class Leftover:
    """One claim of a session: `worked` is whether a SETUP or WORK job may have been started in the worktree."""

    repository: Repository
    session_id: str
    task: str
    title: str
    links: tuple[str, ...]
    claim: Claim
    worked: bool

    @property
    def path(self) -> Path:
        """The worktree's place."""
        return Path(self.claim.worktree)

    @property
    def request(self) -> Request:
        """What the RELEASE job would be asked."""
        claim = self.claim
        return Request(
            repository=self.repository,
            session_id=self.session_id,
            task=self.task,
            title=self.title,
            links=self.links,
            place=Place(branch=claim.branch, worktree=claim.worktree, base_commit=claim.base_commit),
            keep="never",
        )


def find_claims(session: Path, task: str) -> Iterator[tuple[int, Claim]]:
    """The claims of one task's PREPARE jobs, with their attempt."""
    folder = session / "jobs" / task
    for job in sorted(folder.glob("a*-prepare*")):
        claim = load_claim(job)
        if claim is not None:
            yield int(job.name[1:].partition("-")[0]), claim


def clean_leftover(leftover: Leftover, *, dry_run: bool) -> Iterator[Finding]:
    """Take away what is provably not needed of one claim, and say what was found."""
    main = Git(Path(leftover.repository.top))
    worktree = _clean_worktree(leftover, dry_run=dry_run)
    if worktree is not None:
        yield worktree
    yield from _clean_trash(leftover, dry_run=dry_run)
    if worktree is not None and not worktree.removed:
        return
    would_park = dry_run and worktree is not None and leftover.worked
    with register_lock(leftover.repository):
        for branch in (leftover.claim.branch, *find_rescues(main, leftover.claim.branch)):
            finding = _clean_branch(main, leftover, branch, dry_run=dry_run, would_park=would_park)
            if finding is not None:
                yield finding


def _clean_worktree(leftover: Leftover, *, dry_run: bool) -> Finding | None:
    path = leftover.path
    finding = Finding("worktree", str(path), leftover.task, True, "nothing was done in it")
    if leftover.worked and path.exists():
        return _release(leftover, finding, dry_run=dry_run)
    with register_lock(leftover.repository):
        lost = find_lost_admins(leftover.repository, path)
        if not (path.exists() or lost) or not is_untouched(leftover.request, path):
            return None
        if not dry_run:
            rescue_lost_head(leftover.request, path)
            remove_tree(unregister(leftover.repository, path, leftover.claim.owner))
    return finding if path.exists() or not leftover.worked else replace(finding, why="its directory is gone")


def _release(leftover: Leftover, finding: Finding, *, dry_run: bool) -> Finding | None:
    """Park what is in the worktree, as RELEASE does, and remove it if nothing stays behind."""
    admin = find_admin(leftover.repository, leftover.path)
    owner = load_owner(admin) if admin else None
    if owner is None:
        return replace(finding, removed=False, why=f"it is no worktree of {leftover.repository.top} any more")
    if owner != leftover.claim.owner:
        return None
    if dry_run:
        return replace(finding, why="its work goes to its branch first; it stays if that cannot be")
    try:
        with tempfile.TemporaryDirectory(prefix="sessionrun-") as folder:
            place = release(leftover.request, Path(folder))
    except (SessionrunError, OSError) as error:
        return replace(finding, removed=False, why=str(error))
    if place.kept is not None:
        return replace(finding, removed=False, why=place.kept)
    return replace(finding, why="its work is on its branch")


def _clean_trash(leftover: Leftover, *, dry_run: bool) -> Iterator[Finding]:
    """A worktree that was on its way out when its job was killed: its work had been parked."""
    trash = trash_path(leftover.path, leftover.claim.owner)
    if not trash.exists():
        return
    finding = Finding("trash", str(trash), leftover.task, True, "a worktree that was being removed")
    try:
        if not dry_run:
            remove_tree(trash)
    except OSError as error:
        finding = replace(finding, removed=False, why=str(error))
    yield finding


def _clean_branch(
    main: Git, leftover: Leftover, branch: str, *, dry_run: bool, would_park: bool
) -> Finding | None:
    if not dry_run:
        _break_stale_lock(leftover.repository, branch)
    tip = main.commit_of(f"refs/heads/{branch}")
    if tip is None:
        return None
    finding = Finding("branch", branch, leftover.task, False, "it holds work that is not merged")
    if branch in _checked_out(main, but=leftover.claim.worktree if dry_run else None):
        return replace(finding, why="it is checked out")
    why = None if would_park else _why_not_needed(main, leftover, tip)
    if why is None:
        return finding
    if not dry_run:
        try:
            main("update-ref", "-d", f"refs/heads/{branch}", tip)
        except SessionrunError as error:
            return replace(finding, why=str(error))
    return replace(finding, removed=True, why=why)


def _break_stale_lock(repository: Repository, branch: str) -> None:
    """Remove the lock that a killed git left on a branch of a session of which no process lives."""
    lock = Path(repository.common_dir, "refs", "heads", f"{branch}.lock")
    try:
        if time.time() - lock.stat().st_mtime > STALE_LOCK_S:
            lock.unlink()
    except OSError:
        pass


def _why_not_needed(main: Git, leftover: Leftover, tip: str) -> str | None:
    repository = leftover.repository
    if tip == leftover.claim.base_commit:
        return "it holds nothing of its own"
    target = main.commit_of(f"refs/heads/{repository.base_branch}")
    if target and main.attempt("merge-base", "--is-ancestor", tip, target).returncode == 0:
        return f"it is merged into {repository.base_branch}"
    return None


def _checked_out(main: Git, but: str | None) -> Collection[str]:
    """Branches that some worktree has checked out."""
    branches = set()
    path = None
    for line in os.fsdecode(main("worktree", "list", "--porcelain")).split("\n"):
        word, _, rest = line.partition(" ")
        if word == "worktree":
            path = rest
        elif word == "branch" and path != but:
            branches.add(rest.removeprefix("refs/heads/"))
    return branches
