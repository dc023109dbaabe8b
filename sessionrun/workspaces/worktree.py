"""PREPARE: a branch and a worktree of the task's own.

Worktrees are registered one at a time, under a lock in the repository's common directory, and without files; the
files are checked out side by side.  If a worktree cannot be made, the task fails: it never runs in the user's
checkout.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Place, Repository
from sessionrun.store.files import make_directories, replace_file
from sessionrun.workspaces.bases import find_base
from sessionrun.workspaces.bringing import bring_files, check_links
from sessionrun.workspaces.claims import take_back_unused
from sessionrun.workspaces.fence import Fence, open_fence
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.ignoring import RULES, ignore_words
from sessionrun.workspaces.links import write_hidden
from sessionrun.workspaces.mirrored import list_home, settle_start
from sessionrun.workspaces.registration import find_admin, load_owner, register, register_lock, take_back
from sessionrun.workspaces.request import CLAIM, RESCUE_SUFFIX, Claim, WorkspaceRequest, load_claim
from sessionrun.workspaces.witness import note_settings

_NAME_TRIES: Final = 8
"""How many names to try that look free and turn out to be taken."""


def prepare(request: WorkspaceRequest, folder: Path) -> Place:
    """Make the worktree; after a crash, finish or replace what an earlier start began.

    Raises:
        SessionrunError, OSError: the worktree cannot be made; only the claim is left.
    """
    with (
        settle_start(request, folder) as settled,
        open_fence(settled.repository, folder, limit_s=settled.git_limit_s) as fence,
    ):
        return _prepare(fence, settled, folder)


def _prepare(fence: Fence, request: WorkspaceRequest, folder: Path) -> Place:
    repository, git = request.repository, fence.main()
    check_links(request)
    note_settings(repository, folder, git)
    if request.earlier is not None:
        from sessionrun.workspaces.taking_up import find_tip, reuse_worktree  # a first attempt has no need of it

        place = reuse_worktree(fence, request, folder)
        if place is not None:
            return place
        base = find_tip(git, request)
    else:
        base = find_base(fence, request, folder)
    take_back_unused(git, replace(request, place=None), folder)
    claim = load_claim(folder)
    claim = None if claim is not None and claim.reused else claim
    with register_lock(repository):
        if claim is not None and not _is_registered(repository, claim):
            take_back(git, repository, claim)
            claim = None
        claim = claim or _register(fence, request, folder, base)
    path = Path(claim.worktree)
    try:
        _sync_claim(claim, folder)
        _check_out(fence, path)
        bring_files(git, request, path, ignore_words(repository, folder))
        write_hidden(repository.top, request.links, (folder / RULES).read_text(), folder)
    except (SessionrunError, OSError):
        with register_lock(repository):
            take_back(git, repository, claim)
        raise
    return Place(
        branch=claim.branch,
        worktree=claim.worktree,
        base_commit=claim.base_commit,
        setup_commit=claim.setup_commit,
        start=claim.start,
        taken_up=claim.taken_up,
    )


def _check_out(fence: Fence, path: Path) -> None:
    admin = find_admin(fence.repository, path)
    if admin is None:
        raise SessionrunError(f"{path} was removed while it was made")
    (admin / "index.lock").unlink(missing_ok=True)  # of an earlier start that was killed
    fence.inside(path, admin)("read-tree", "--reset", "-u", "HEAD")  # a `reset` would lock the branch as well


def branch_stem(repository: Repository, task: str, wanted: str | None) -> str:
    """The name of a task's branch, if it is free."""
    return (wanted or "{base}-task-" + task).replace("{base}", repository.base_branch)


def free_names(
    repository: Repository, stem: str, taken: Collection[str], directory: str | None = None
) -> Iterator[tuple[str, str]]:
    """Branches and directories for a task that do not exist yet; a used name gets -2, -3 and so on.

    Args:
        repository: where.
        stem: the name of the branch, if it is free.
        taken: the branches there are.
        directory: the name of the directory, if it is free; None = as the branch.
    """
    for number in itertools.count(1):
        suffix = "" if number == 1 else f"-{number}"
        branch = stem + suffix
        path = os.path.join(repository.worktree_dir, (directory or stem).replace("/", "-") + suffix)
        used = branch in taken or f"{branch}{RESCUE_SUFFIX}" in taken
        if not used and not os.path.lexists(path):
            yield branch, path


def _register(fence: Fence, request: WorkspaceRequest, folder: Path, base: str) -> Claim:
    """Register the first name that is free."""
    git = fence.main()
    make_directories(Path(request.repository.worktree_dir))
    tries = 0
    for claim in _name_claims(git, request, folder, base):
        replace_file(folder / CLAIM, orjson.dumps(claim), durable=False)
        try:
            register(git, fence.settings, request.repository, claim)
            return claim
        except FileExistsError as error:
            tries += 1
            if tries == _NAME_TRIES:
                raise SessionrunError(f"no name is free for {claim.worktree}: {error}") from error
    raise AssertionError("names never end")


def _name_claims(git: Git, request: WorkspaceRequest, folder: Path, base: str) -> Iterator[Claim]:
    """Claims of what is free: of a branch and a directory or, if the branch is to be taken up, of a directory."""
    if request.earlier is None:
        return _free_names(git, request, base)
    from sessionrun.workspaces.taking_up import name_directories

    return name_directories(request, folder, base)


def _free_names(git: Git, request: WorkspaceRequest, base: str) -> Iterator[Claim]:
    """Claims of names that are free."""
    repository = request.repository
    stem = branch_stem(repository, request.task, request.branch)
    listed = git.line("for-each-ref", "--format=%(refname)", f"refs/heads/{stem}*")
    taken = {name.removeprefix("refs/heads/") for name in listed.split("\n")} | list_home(request, stem)
    for branch, path in free_names(repository, stem, taken, request.directory):
        yield Claim(branch, path, base, request.owner, start=request.start)


def _sync_claim(claim: Claim, folder: Path) -> None:
    """Make the claim durable before there is any work: from it `clean` knows what is ours."""
    replace_file(folder / CLAIM, orjson.dumps(claim), durable=True)


def _is_registered(repository: Repository, claim: Claim) -> bool:
    """Whether an earlier start of this job has made the worktree."""
    admin = find_admin(repository, Path(claim.worktree))
    return admin is not None and load_owner(admin) == claim.owner
