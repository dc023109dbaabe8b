"""PREPARE: a branch and a worktree of the task's own, or those of an earlier attempt, whose work goes on.

Worktrees are registered one at a time, under a lock in the repository's common directory, and without files; the
files are checked out side by side.  If a worktree cannot be made, the task fails: it never runs in the user's
checkout.

The directory is the same as before if that is free, because agents keep their conversations by directory.  The
commit at which the work counts as begun stays that of the first attempt, so that a diff shows all of it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.git import Git, GitError
from sessionrun.git.merging import find_patch_fault
from sessionrun.git.private import Fence, open_fence
from sessionrun.git.repository import hide_name
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import TASK_FILE, Place, Start
from sessionrun.store.files import make_directories
from sessionrun.store.jobfiles import CLAIM, write_record
from sessionrun.worktrees import registration
from sessionrun.worktrees.bases import find_base, find_mend_base, list_taken, settle_start
from sessionrun.worktrees.park import park
from sessionrun.worktrees.request import Claim, TestsUnusable, WorkspaceRequest, load_claim
from sessionrun.worktrees.seats import make_ready, show_task, take_seat, write_files
from sessionrun.worktrees.site import (
    break_own_locks,
    bring_files,
    find_git,
    find_site,
    find_worktree,
    word_message,
    write_hidden,
)

ANSWER_LIMIT_S: Final = 5.0
"""How long git may take to say where it works."""


def prepare(request: WorkspaceRequest, folder: Path) -> Place:
    """Make the worktree; after a crash, finish or replace what an earlier start began.

    If it cannot be made, only the claim is left.
    """
    with (
        settle_start(request, folder) as settled,
        open_fence(settled.repository, folder, limit_s=settled.git_limit_s) as fence,
    ):
        base, patch = settled.repository.base_commit, settled.tests.encode("utf-8", "surrogateescape")
        # hidden tests are tried before any agent is paid for work that they could not judge
        fault = find_patch_fault(fence.main(), base, patch, folder / "tests-index")
        if fault is not None:
            raise TestsUnusable(f"the test patch does not apply to the base {base[:12]}: {fault}")
        return _prepare(fence, settled, folder)


def _prepare(fence: Fence, request: WorkspaceRequest, folder: Path) -> Place:
    repository, git = request.repository, fence.main()
    if request.seats is not None:  # every git overlooks it; where that cannot be, only ours does
        hide_name(Path(repository.common_dir), TASK_FILE)
    if request.earlier is not None:
        place = reuse_worktree(fence, request, folder)
        if place is not None:
            return place
        base = find_tip(git, request)
    elif request.mend is not None:
        base = find_mend_base(fence, request, request.mend, folder)
    else:
        base = find_base(fence, request, folder)
    claim = _find_claim(fence, request, folder, base)
    try:
        return _furnish(fence, request, claim, folder)
    except (SessionrunError, OSError):
        with registration.register_lock(repository):
            registration.drop_unused(git, request, load_claim(folder) or claim)
        raise


def _find_claim(fence: Fence, request: WorkspaceRequest, folder: Path, base: str) -> Claim:
    """The claim of a worktree that is registered for the task: what an earlier start began, or a new one."""
    git, claim = fence.main(), load_claim(folder)
    claim = None if claim is not None and claim.reused else claim
    registration.take_back_unused(git, request, folder, None if claim is None else claim.worktree)
    with registration.register_lock(request.repository):
        admin = registration.find_admin(request.repository, Path(claim.worktree)) if claim is not None else None
        mark = registration.read_mark(admin)[:2] if admin is not None else []
        if claim is not None and mark != [request.owner, claim.branch]:
            registration.drop_unused(git, request, claim)
            claim = None
        return claim or (take_seat if request.seats else _register)(fence, request, folder, base)


def _furnish(fence: Fence, request: WorkspaceRequest, claim: Claim, folder: Path) -> Claim:
    """Put into the worktree what the task begins with; the claim of the worktree that has it."""
    # durable before there is any work: from it `clean` knows what is ours
    write_record(folder / CLAIM, claim, durable=True)
    if claim.seat is not None:
        claim = make_ready(fence, request, claim, folder)
        write_record(folder / CLAIM, claim, durable=True)
    path = Path(claim.worktree)
    admin = registration.need_admin(fence.repository, path)
    if claim.seat is None:
        for name in ("index.lock", registration.LOCKED):  # of an earlier start that was killed
            (admin / name).unlink(missing_ok=True)
        write_files(fence, request, claim)
    bring_files(fence.main(), request, path)
    write_hidden(request.repository, request.links, folder)
    if claim.seat is not None:
        show_task(fence, request, claim)
    check_answer(path, admin)
    return claim


def check_answer(path: Path, admin: Path) -> None:
    """Ask git, with the user's own settings as the task's git has them, where it works when it is in the worktree.

    Elsewhere is an error: what a task cleans or resets there would be the user's.
    """
    if _find_work_tree(path, admin) in (str(path), None):
        return
    # A submodule's repository has core.worktree in its settings, and a checkout may have core.bare; with
    # extensions.worktreeConfig both hold in linked worktrees, too, unless these say otherwise.
    place = os.fsencode(path).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    with (admin / "config.worktree").open("ab") as stream:
        stream.write(b'[core]\n\tbare = false\n\tworktree = "%s"\n' % place)
    if (top := _find_work_tree(path, admin)) not in (str(path), "", None):
        raise SessionrunError(
            f"git in the worktree {path} works on {top}: core.worktree of its repository holds in worktrees, too; "
            "start in a clone of the repository"
        )


def _find_work_tree(path: Path, admin: Path) -> str | None:
    """Where git works; the worktree itself if it is that, '' if git fails, None if it does not return."""
    git = Git(path, limit_s=ANSWER_LIMIT_S)
    try:
        asked = git.attempt("rev-parse", "--path-format=absolute", "--show-toplevel", "--absolute-git-dir")
    except GitError:
        return None  # another task may have planted settings at which git hangs: no answer is no wrong one
    if asked.returncode != 0:
        return ""
    top, _, git_dir = os.fsdecode(asked.stdout.rstrip(b"\n")).partition("\n")
    is_right = os.path.realpath(top) == os.path.realpath(path) and os.path.samefile(git_dir, admin)
    return str(path) if is_right else top


def _register(fence: Fence, request: WorkspaceRequest, folder: Path, base: str) -> Claim:
    """Register the first name that is free."""
    git = fence.main()
    make_directories(Path(request.repository.worktree_dir))
    if request.earlier:  # only a directory has to be free
        claims = name_directories(request, folder, base)
    else:
        repository, mirrored = request.repository, request.upstream is not None
        start = Start(repository.base_branch, repository.base_commit) if mirrored else None
        names = registration.free_names(repository, *list_taken(git, request), request.directory)
        claims = (Claim(branch, path, base, start=start) for branch, path in names)
    return registration.claim_first(
        claims, folder, lambda claim: registration.register(git, fence.settings, request, claim)
    )


def find_tip(git: Git, request: WorkspaceRequest) -> str:
    """The commit at which a task goes on: the tip of its branch, with what a person has committed there since.

    It is an error if that does not hold the work any more, or is checked out.
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
    if (top := registration.find_checkout(request.repository, earlier.branch, request.owner)) is not None:
        raise SessionrunError(f"{where} is checked out in {top}: check out another one there")
    return tip


def reuse_worktree(fence: Fence, request: WorkspaceRequest, folder: Path) -> Place | None:
    """Go on in the worktree that the earlier attempt left, as it is; None: there is none.

    What lies in it is committed to its branch first, as far as it can be.  On an error nothing was removed.
    """
    earlier = request.earlier
    path = find_kept(request)
    if earlier is None or path is None:
        return None
    own = replace(request, place=replace(earlier, worktree=str(path)))
    break_own_locks(own, folder, path)
    site = find_site(fence, own, path, folder)
    git = site.git
    check_on_branch(site.outer, earlier)
    claim = Claim.again(earlier, str(path), git.line("rev-parse", "HEAD"), reused=True)
    write_record(folder / CLAIM, claim, durable=True)
    parked = park(site, word_message("Work", site.request))
    if parked.rescue is None:
        site.settle_index(parked.commit)
    begin = parked.commit if parked.rescue is None else git.line("rev-parse", "HEAD")
    write_hidden(request.repository, request.links, folder)
    return replace(claim, taken_up=begin)


def find_kept(request: WorkspaceRequest) -> Path | None:
    """The worktree that the earlier attempt left; None: it was removed."""
    earlier = request.earlier
    if earlier is None or earlier.worktree is None or Path(earlier.worktree).name.startswith(".trash-"):
        return None
    return find_worktree(replace(request, place=earlier))


def check_on_branch(git: Git, earlier: Place) -> None:
    head = git.attempt("symbolic-ref", "--quiet", "HEAD").stdout.decode().strip()
    if head != f"refs/heads/{earlier.branch}":
        raise SessionrunError(f"{git.directory} is not on {earlier.branch} any more: run git switch there")


def name_directories(request: WorkspaceRequest, folder: Path, tip: str) -> Iterator[Claim]:
    """Claims of the branch as it stands at `tip`, each with a directory that is free; under the lock."""
    earlier = request.earlier
    assert earlier is not None and earlier.branch is not None
    branch = earlier.branch
    claims = [claim for _, claim in registration.find_claims(folder.parent) if isinstance(claim, Claim)]
    before = [claim.worktree for claim in reversed(claims) if claim.branch == branch]
    stem = os.path.join(request.repository.worktree_dir, (request.directory or branch).replace("/", "-"))
    more = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
    for path in itertools.chain(dict.fromkeys(before), more):
        if os.path.lexists(path):
            continue
        # one of ours whose directory a person deleted
        if registration.find_lost_admins(request.repository, Path(path), request.owner):
            registration.unregister(request.repository, Path(path), request.owner)
        yield Claim.again(earlier, path, tip)


def check_earlier(request: WorkspaceRequest) -> None:
    """Check that an attempt can go on with earlier work, without a change."""
    earlier, path = request.earlier, find_kept(request)
    with open_fence(request.repository) as fence:
        if path is None or earlier is None:
            find_tip(fence.main(), request)
        else:
            check_on_branch(find_git(fence, replace(request, place=earlier), path), earlier)
