"""Finds the commit at which a worktree begins: where the needs of its task ended.

The ends of several needs are merged in the object database: no branch, index or file of the repository changes,
and a merge that is done again after a crash is the same commit (see `merging`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.phrases import name_some
from sessionrun.model.places import Handed, Repository
from sessionrun.workspaces.commits import AUTHOR, commit_repeatably
from sessionrun.workspaces.fence import Fence
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.merging import MergeRoom, open_merge_room
from sessionrun.workspaces.request import NeedsConflict, WorkspaceRequest

SUBJECT: Final = "Needs of task "
MAX_NAMED: Final = 5
"""How many files of a conflict a message names at most."""


def find_base(fence: Fence, request: WorkspaceRequest, folder: Path) -> str:
    """The commit at which the worktree of a PREPARE job begins.

    Args:
        fence: of the repository.
        request: of the job; its needs in their order.
        folder: the job's.

    Raises:
        NeedsConflict: the work of two needs cannot be merged.
        SessionrunError: the work of a need is gone, or git failed.
    """
    repository = request.repository
    git = fence.main()
    ends = _find_ends(git, request)
    if len(ends) > 1:
        words = git.line("merge-base", "--independent", *ends).split("\n")
        ends = {commit: end for commit, end in ends.items() if commit in words}
    if len(ends) > 1:
        return merge_ends(fence, request, ends, folder)
    return next(iter(ends), repository.base_commit)


def _find_ends(git: Git, request: WorkspaceRequest) -> dict[str, Handed]:
    """The commits at which needs ended, each with the first need that ended there; without unchanged needs."""
    repository = request.repository
    needs = [need for need in request.needs if need.commit != repository.base_commit]
    ends: dict[str, Handed] = {}
    if any(need.earlier for need in needs):
        ends[repository.base_commit] = Handed("", repository.base_commit, repository.base_branch)
    for need, commit in zip(needs, find_tips(git, needs), strict=True):
        ends.setdefault(commit, need)
    if request.target is None:
        return ends
    name = request.target.removeprefix("refs/heads/")
    tip = git.commit_of(request.target)
    if tip is None:
        raise SessionrunError(f"the branch {name}, at which it begins, is gone")
    return {tip: Handed("", tip, name), **{commit: end for commit, end in ends.items() if commit != tip}}


def find_tips(git: Git, needs: Sequence[Handed]) -> list[str]:
    """Where each need ended: its commit or, if the branch is to be followed, the tip of its branch.

    Raises:
        SessionrunError: a commit is gone.
    """
    if not needs:
        return []
    asked = [name for need in needs for name in (need.commit or "no", f"refs/heads/{need.branch or need.commit}")]
    lines = "".join(f"{name}^{{commit}}\n" for name in asked).encode()
    answers = git("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=lines).decode().splitlines()
    objects = [line.split(" ") for line in answers]
    tips = []
    for need, commit, tip in zip(needs, objects[::2], objects[1::2], strict=True):
        if need.commit is None or commit[-1] != "commit":
            raise SessionrunError(_describe_loss(need))
        ahead = need.follow and tip[-1] == "commit" and tip != commit
        if ahead and git.attempt("merge-base", "--is-ancestor", need.commit, tip[0]).returncode == 0:
            tips.append(tip[0])
        else:
            tips.append(need.commit)
    return tips


def _describe_loss(need: Handed) -> str:
    lost = f"nothing holds the work of task {need.task!r}, which it needs"
    if need.commit is None:
        return f"{lost}: {need.why}"
    branch = f"branch {need.branch}" if need.branch else "its branch"
    return f"{lost}: {branch} and its commit {need.commit[:12]} are gone"


def merge_ends(fence: Fence, request: WorkspaceRequest, ends: Mapping[str, Handed], folder: Path) -> str:
    """Merge commits in their order; return the commit that holds all of them.

    Args:
        fence: of the repository.
        request: of the job.
        ends: the commits, each with the need that ended there.
        folder: where a temporary directory may be made.

    Raises:
        NeedsConflict: two of the commits cannot be merged.
        GitError: git failed.
    """
    git, commits = fence.main(), list(ends)
    head = commits[0]
    whose = "".join(f"{_name(end)} at {commit}\n" for commit, end in ends.items())
    message = f"{SUBJECT}{request.task}\n\n{whose}"
    with open_merge_room(fence, head, folder) as room:
        for number, commit in enumerate(commits[1:], 2):
            tree, files = room.merge(head, commit)
            if tree is None:
                against = _find_opponents(room, commits[: number - 1], commit)
                raise NeedsConflict(_describe_conflict([ends[other] for other in against], ends[commit], files))
            parents = [head, commit] if number < len(commits) else commits
            head = commit_repeatably(git, tree, parents, message)
    return head


def _find_opponents(room: MergeRoom, earlier: list[str], commit: str) -> list[str]:
    """The commits of `earlier` with which `commit` conflicts alone; all of them if there is no such commit."""
    if len(earlier) == 1:
        return earlier
    return [end for end in earlier if room.merge(end, commit).tree is None] or earlier


def _describe_conflict(against: Sequence[Handed], end: Handed, files: Sequence[str]) -> str:
    shown = [file if file.isprintable() else repr(file) for file in files]
    where = f" in {name_some(shown, MAX_NAMED)}" if shown else ""
    others = f"{', '.join(map(_name, against[:MAX_NAMED]))}{' ...' if len(against) > MAX_NAMED else ''}"
    mend = f"merge {against[0].branch} into {end.branch}" if len(against) == 1 else "merge one into the other"
    return f"{others} and {_name(end)} conflict{where}: {mend}, then retry"


def _name(end: Handed) -> str:
    return repr(end.task) if end.task else str(end.branch)


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
    words = (
        "rev-list",
        "--max-count=2",
        base,
        "--not",
        f"--exclude={branch}",
        "--branches",
        "--tags",
        "--remotes",
    )
    listed = git.attempt(*words)
    alone = listed.stdout.decode().split()
    if listed.returncode != 0:
        return False
    return not alone or (alone == [base] and _is_merge_of_needs(git, base))


def _is_merge_of_needs(git: Git, commit: str) -> bool:
    head, _, message = git("cat-file", "commit", commit).decode("utf-8", "replace").partition("\n\n")
    return message.startswith(SUBJECT) and f"\ncommitter {AUTHOR} " in head
