"""The repository of a build: a project that makes its version from tags finds the last one before its commit.

A build never works in the repository of its task: it gets one of its own, which borrows the objects.  So nothing
that it runs changes a branch or a setting of the user.

A repository of a task's own has not the whole history, so the last tag may be out of reach.  Without a tag
setuptools_scm would call the project 0.1, which may be too old for its own tests.  The mirror knows the last tag
before the base: in the repository of the build it marks the first commit that is there.  A task never sees it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionrun.git.clone import list_tags, make_repository, open_room
from sessionrun.git.git import Git, GitError
from sessionrun.git.private import open_fence
from sessionrun.worktrees.env_request import EnvironmentProblem, EnvironmentRequest

_USES_TAGS: Final = re.compile(
    r"setuptools[-_]scm|hatch-vcs|versioneer|versioningit|pbr|dunamai|dynamic-versioning"
)
"""In a project's description: its version comes from git's tags."""

_DESCRIBE: Final = ("describe", "--tags", "--abbrev=0")


def find_tag(request: EnvironmentRequest, top: Path, texts: Mapping[str, str]) -> str | None:
    """The tag that decides about the version: the last one before the commit; None: no tag decides.

    Args:
        texts: the files that describe the project, by name.

    Raises:
        EnvironmentProblem, OSError: git cannot be run.
    """
    if not _USES_TAGS.search("".join(texts.values())):
        return None
    with _open_git(request, top) as git:
        return _describe(git, request.commit) or _find_behind(request)


def find_tag_behind(mirror: str, commit: str) -> str:
    """The last tag before a commit, of all history."""
    with open_room(Path(mirror), "") as room:
        return _describe(room.git, commit)


def make_build_repository(request: EnvironmentRequest, top: Path, checkout: Path) -> None:
    """Make the repository of a build in its checkout: the commit, and the tags before it.

    Raises:
        EnvironmentProblem, OSError: it cannot be made.
    """
    real = top / ".git" if request.repository is None else Path(request.repository.common_dir)
    with _open_git(request, top) as git:
        commit = git.line("rev-parse", f"{request.commit}^{{commit}}")
        tags = list_tags(git, commit)
        if not _describe(git, commit) and (behind := _find_behind(request)):
            first = git.line("rev-list", "--max-parents=0", commit).split("\n")[-1]
            tags += os.fsencode(f"{first} refs/tags/{behind}\n")
        form = [("extensions.objectFormat", git.line("rev-parse", "--show-object-format"))]
        make_repository(checkout / ".git", commit, form, of=real, refs=tags)
        Git(checkout)("read-tree", commit)


def _describe(git: Git, commit: str) -> str:
    """The last tag before a commit; one without a number is no version."""
    done = git.attempt("describe", "--tags", "--abbrev=0", "--match=*[0-9]*", commit)  # fails if there is none
    return os.fsdecode(done.stdout).strip()


def _find_behind(request: EnvironmentRequest) -> str:
    return (request.tag or "") if request.mirror is None else find_tag_behind(request.mirror, request.commit)


@contextmanager
def _open_git(request: EnvironmentRequest, top: Path) -> Iterator[Git]:
    """Git in the task's repository, with the settings of the launch."""
    try:
        if request.repository is None:
            yield Git(top)
        else:
            with open_fence(request.repository) as fence:
                yield fence.main()
    except GitError as error:
        raise EnvironmentProblem(str(error)) from error
