"""The version of a project that makes it from git's tags: the tag in reach, else the version its build is told.

A repository of a task's own has not the whole history, so the last tag may be out of reach.  Then setuptools_scm
would call the project 0.1, which may be too old for its own tests.  So its build is told the version after the
last tag, by a variable that setuptools_scm documents.  The mirror knows that tag, which comes before the base.

There are two such variables.  One is for all projects: it also changes the version of a dependency that is built
during the install.  The other has the name of the project in its own name, and is for that project alone.  It is
taken where the project's name can be read and its build looks at that variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.git.clone import open_room
from sessionrun.git.git import Git, GitError
from sessionrun.git.private import open_fence
from sessionrun.worktrees.env_inputs import find_name
from sessionrun.worktrees.env_interpreter import EnvironmentProblem
from sessionrun.worktrees.env_request import EnvironmentRequest

VARIABLE: Final = "SETUPTOOLS_SCM_PRETEND_VERSION"
"""The variable for all projects; `name_variable` gives the one for a single project."""

_USES_TAGS: Final = re.compile(
    r"setuptools[-_]scm|hatch-vcs|versioneer|versioningit|pbr|dunamai|dynamic-versioning"
)
"""In a project's description: its version comes from git's tags."""

_IS_TOLD: Final = re.compile(r"setuptools[-_]scm|hatch-vcs")
"""In a project's description: its build reads `VARIABLE`."""

_READS_NO_NAME: Final = re.compile(
    r"hatch-vcs|\bget_version\b|setuptools[-_]scm\s*(?:\[[^\]]*\]\s*)?\(?\s*(?:==|~=|<)"
)
"""In a project's description: its build may read `VARIABLE` alone.

hatch-vcs and a call of `get_version` do not know the project's name.  An old setuptools_scm does not look for it.
"""

_VERSION: Final = re.compile(r"(?:[\w-]+-)?[vV]?(\d+(?:\.\d+)*)(?P<before>[-._]?(?:a|b|rc|alpha|beta|dev).*)?")


_NOTHING: Final[Mapping[str, str]] = {}


class Told(NamedTuple):
    """What of a version decides about an environment (None: nothing), and variables that say it to the build."""

    decides: str | None = None
    variables: Mapping[str, str] = _NOTHING


def find_version(
    request: EnvironmentRequest, top: Path, texts: Mapping[str, str], environ: Mapping[str, str]
) -> Told:
    """How the project comes by its version.

    Args:
        texts: the files that describe the project, by name.
        environ: for the build.

    Raises:
        EnvironmentProblem, OSError: git cannot be run.
    """
    described = "".join(texts.values())
    if not _USES_TAGS.search(described):
        return Told()
    try:
        tag = _find_tag(request, top)
        name = find_name(texts)
        named = VARIABLE if name is None or _READS_NO_NAME.search(described) else name_variable(name)
        if tag or {VARIABLE, named} & set(environ) or not _IS_TOLD.search(described):
            return Told(tag)
        behind = request.tag if request.mirror is None else find_tag_behind(request.mirror, request.commit)
        version = guess_next(behind or "")
    except GitError as error:
        raise EnvironmentProblem(str(error)) from error
    if version is None:
        return Told(tag)
    return Told(f"told {version}" + ("" if named == VARIABLE else " by name"), {named: version})


def name_variable(name: str) -> str:
    """The variable for the project of this name alone, as setuptools_scm spells it."""
    return f"{VARIABLE}_FOR_{re.sub(r'[-_.]+', '_', name).upper()}"


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


def find_tag_behind(mirror: str, commit: str) -> str:
    """The same of a mirror, with all history; tags without a number are no versions."""
    with open_room(Path(mirror), "") as room:
        done = room.git.attempt("describe", "--tags", "--abbrev=0", "--match=*[0-9]*", commit)
    return done.stdout.decode("utf-8", "replace").strip()
