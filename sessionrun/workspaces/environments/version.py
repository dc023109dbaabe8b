"""The version of a project that makes it from git's tags: the tag in reach, else the version its build is told.

A repository of a task's own has not the whole history, so the last tag may be out of reach.  Then setuptools_scm
would call the project 0.1, which may be too old for its own tests.  So its build is told the version after the
last tag, by the variable that setuptools_scm documents.  The mirror knows that tag, which comes before the base.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.workspaces.environments.request import EnvironmentProblem, EnvironmentRequest
from sessionrun.workspaces.fence import open_fence
from sessionrun.workspaces.git import Git, GitError
from sessionrun.workspaces.transport import open_room

VARIABLE: Final = "SETUPTOOLS_SCM_PRETEND_VERSION"

_USES_TAGS: Final = re.compile(
    r"setuptools[-_]scm|hatch-vcs|versioneer|versioningit|pbr|dunamai|dynamic-versioning"
)
"""In a project's description: its version comes from git's tags."""

_IS_TOLD: Final = re.compile(r"setuptools[-_]scm|hatch-vcs")
"""In a project's description: its build reads `VARIABLE`."""

_VERSION: Final = re.compile(r"(?:[\w-]+-)?[vV]?(\d+(?:\.\d+)*)(?P<before>[-._]?(?:a|b|rc|alpha|beta|dev).*)?")


_NOTHING: Final[Mapping[str, str]] = {}


class Told(NamedTuple):
    """What of a version decides about an environment (None: nothing), and variables that say it to the build."""

    decides: str | None = None
    variables: Mapping[str, str] = _NOTHING


def find_version(request: EnvironmentRequest, top: Path, described: str, environ: Mapping[str, str]) -> Told:
    """How the project comes by its version.

    Args:
        request: for the environment.
        top: of the checkout.
        described: the files that describe the project.
        environ: for the build.

    Raises:
        EnvironmentProblem, OSError: git cannot be run.
    """
    if not _USES_TAGS.search(described):
        return Told()
    try:
        tag = _find_tag(request, top)
        if tag or request.mirror is None or VARIABLE in environ or not _IS_TOLD.search(described):
            return Told(tag)
        version = guess_next(_find_tag_behind(request.mirror, request.commit))
    except GitError as error:
        raise EnvironmentProblem(str(error)) from error
    return Told(tag) if version is None else Told(f"told {version}", {VARIABLE: version})


def guess_next(tag: str) -> str | None:
    """The version of what comes after a tag; None: the tag does not say one.

    It is the same for all commits after the tag, so that they can share an environment.
    """
    found = _VERSION.fullmatch(tag.partition("+")[0])
    if found is None:
        return None
    *first, last = found[1].split(".")
    return ".".join([*first, last if found["before"] else str(int(last) + 1)]) + ".dev0"


def _find_tag(request: EnvironmentRequest, top: Path) -> str:
    """The last tag before the checkout's commit, as git shows it with the settings of the launch."""
    words = ("describe", "--tags", "--abbrev=0", request.commit)
    if request.repository is None:
        done = Git(top).attempt(*words)
    else:
        with open_fence(request.repository) as fence:
            done = fence.main().attempt(*words)
    return done.stdout.decode("utf-8", "replace").strip()


def _find_tag_behind(mirror: str, commit: str) -> str:
    """The same of a mirror, with all history; tags without a number are no versions."""
    with open_room(Path(mirror), "") as room:
        done = room.git.attempt("describe", "--tags", "--abbrev=0", "--match=*[0-9]*", commit)
    return done.stdout.decode("utf-8", "replace").strip()
