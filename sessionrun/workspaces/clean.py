"""What crashed or kept sessions left in a repository, and taking away what is provably not needed.

Only branches and worktrees that a claim of ours names are touched.  A worktree goes once all in it is on a
branch (it can be made again from there); a branch goes when it holds nothing beyond its base commit, or when
all it holds is in the branch it began from.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sessionrun.errors import SessionrunError
from sessionrun.git import Git
from sessionrun.model import Place, Repository
from sessionrun.workspaces import Claim, Request, load_claim
from sessionrun.workspaces.park import RESCUE_SUFFIX
from sessionrun.workspaces.release import release
from sessionrun.workspaces.worktree import delete_tree, register_lock, remove_worktree

What = Literal["worktree", "branch", "trash"]


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
    """One claim of a session: `worked` is whether a SETUP or WORK job was ever started in the worktree."""

    repository: Repository
    session_id: str
    task: str
    title: str
    links: tuple[str, ...]
    claim: Claim
    worked: bool


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
    worktree = _clean_worktree(main, leftover, dry_run=dry_run)
    if worktree is not None:
        yield worktree
    yield from _clean_trash(leftover, dry_run=dry_run)
    if worktree is not None and not worktree.removed:
        return
    would_park = dry_run and worktree is not None and leftover.worked
    for branch in (leftover.claim.branch, *_rescues(main, leftover.claim)):
        yield from _clean_branch(main, leftover, branch, dry_run=dry_run, would_park=would_park)


def _clean_worktree(main: Git, leftover: Leftover, *, dry_run: bool) -> Finding | None:
    path = Path(leftover.claim.worktree)
    listed = f"worktree {path}" in main.line("worktree", "list", "--porcelain").split("\n")
    if not listed and not path.exists():
        return None
    finding = Finding("worktree", str(path), leftover.task, True, "its work is on its branch")
    if not leftover.worked or not path.exists():
        finding = replace(finding, why="nothing was done in it")
        if not dry_run:
            with register_lock(leftover.repository):
                remove_worktree(main, path)
        return finding
    if dry_run:
        return replace(finding, why="its work goes to its branch first; it stays if that cannot be")
    return _release(leftover, finding)


def _release(leftover: Leftover, finding: Finding) -> Finding:
    """Park what is in the worktree, as RELEASE does, and remove it if nothing stays behind."""
    claim = leftover.claim
    request = Request(
        repository=leftover.repository,
        session_id=leftover.session_id,
        task=leftover.task,
        title=leftover.title,
        links=leftover.links,
        place=Place(branch=claim.branch, worktree=claim.worktree, base_commit=claim.base_commit),
        keep="never",
    )
    try:
        with tempfile.TemporaryDirectory(prefix="sessionrun-") as folder:
            place = release(request, Path(folder))
    except (SessionrunError, OSError) as error:
        return replace(finding, removed=False, why=str(error))
    return finding if place.kept is None else replace(finding, removed=False, why=place.kept)


def _clean_trash(leftover: Leftover, *, dry_run: bool) -> Iterator[Finding]:
    """Worktrees that were on their way out when their job was killed: their work had been parked."""
    path = Path(leftover.claim.worktree)
    for trash in path.parent.glob(f".trash-{path.name}-*"):
        if not trash.name.rpartition("-")[2].isdigit():
            continue
        if not dry_run:
            delete_tree(trash)
        yield Finding("trash", str(trash), leftover.task, True, "a worktree that was being removed")


def _rescues(main: Git, claim: Claim) -> list[str]:
    pattern = f"refs/heads/{claim.branch}{RESCUE_SUFFIX}*"
    names = main.line("for-each-ref", "--format=%(refname)", pattern).split("\n")
    return [name.removeprefix("refs/heads/") for name in names if name]


def _clean_branch(
    main: Git, leftover: Leftover, branch: str, *, dry_run: bool, would_park: bool
) -> Iterator[Finding]:
    tip = main.commit_of(f"refs/heads/{branch}")
    if tip is None:
        return
    finding = Finding("branch", branch, leftover.task, False, "it holds work that is not merged")
    in_use = branch in _checked_out(main, but=leftover.claim.worktree if dry_run else None)
    why = None if in_use or would_park else _why_not_needed(main, leftover, tip)
    if why is None:
        yield replace(finding, why="it is checked out") if in_use else finding
        return
    if not dry_run:
        main("update-ref", "-d", f"refs/heads/{branch}", tip)
    yield replace(finding, removed=True, why=why)


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
    for line in main.line("worktree", "list", "--porcelain").split("\n"):
        word, _, rest = line.partition(" ")
        if word == "worktree":
            path = rest
        elif word == "branch" and path != but:
            branches.add(rest.removeprefix("refs/heads/"))
    return branches
