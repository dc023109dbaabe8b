"""Names of branches and of directories that a task may have: what is free, and what comes after it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import orjson

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Repository
from sessionrun.store.files import replace_file
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.mirrored import list_home
from sessionrun.workspaces.request import CLAIM, RESCUE_SUFFIX, Claim, WorkspaceRequest

NAME_TRIES: Final = 8
"""How many names to try that look free and turn out to be taken."""


def claim_first(claims: Iterable[Claim], folder: Path, make: Callable[[Claim], object]) -> Claim:
    """Make the first of these claims whose names turn out to be free, after it is written to the job's folder.

    Raises:
        SessionrunError, OSError: it cannot be made.
    """
    for number, claim in enumerate(claims, 1):
        replace_file(folder / CLAIM, orjson.dumps(claim), durable=False)
        try:
            make(claim)
            return claim
        except FileExistsError as error:
            if number == NAME_TRIES:
                raise SessionrunError(f"no name is free for {claim.worktree}: {error}") from error
    raise AssertionError("names never end")


def branch_stem(repository: Repository, task: str, wanted: str | None) -> str:
    """The name of a task's branch, if it is free."""
    return (wanted or "{base}-task-" + task).replace("{base}", repository.base_branch)


def free_branches(stem: str, taken: Collection[str]) -> Iterator[tuple[str, str]]:
    """Branches for a task that do not exist yet, and what is added to the stem: a used name gets -2, -3 and so on.

    Args:
        stem: the name of the branch, if it is free.
        taken: the branches there are.
    """
    for number in itertools.count(1):
        suffix = "" if number == 1 else f"-{number}"
        branch = stem + suffix
        if branch not in taken and f"{branch}{RESCUE_SUFFIX}" not in taken:
            yield branch, suffix


def free_names(
    repository: Repository, stem: str, taken: Collection[str], directory: str | None = None
) -> Iterator[tuple[str, str]]:
    """Branches and directories for a task that do not exist yet, as `free_branches`.

    Args:
        repository: where.
        stem: the name of the branch, if it is free.
        taken: the branches there are.
        directory: the name of the directory, if it is free; None = as the branch.
    """
    for branch, suffix in free_branches(stem, taken):
        path = os.path.join(repository.worktree_dir, (directory or stem).replace("/", "-") + suffix)
        if not os.path.lexists(path):
            yield branch, path


def list_taken(git: Git, request: WorkspaceRequest) -> tuple[str, set[str]]:
    """The name of the task's branch, if it is free, and the branches there are that begin so."""
    stem = branch_stem(request.repository, request.task, request.branch)
    listed = git.line("for-each-ref", "--format=%(refname)", f"refs/heads/{stem}*")
    return stem, {name.removeprefix("refs/heads/") for name in listed.split("\n")} | list_home(request, stem)
