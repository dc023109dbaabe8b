"""From what an environment is made beside the files: an interpreter, uv, and the last tag before a commit.

A build never works in the repository of its task: it gets one of its own, which borrows the objects.  So nothing
that it runs changes a branch or a setting of the user.

A repository of a task's own has not the whole history, so the last tag may be out of reach.  Without a tag
setuptools_scm would call the project 0.1, which may be too old for its own tests.  The mirror knows the last tag
before the base: in the repository of the build it marks the first commit that is there.  A task never sees it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionrun.git.clone import list_alternates, make_repository, open_room
from sessionrun.git.git import Git
from sessionrun.git.private import open_fence
from sessionrun.model.frozen import frozen
from sessionrun.store.interpreters import ask, locate_python, locate_uv
from sessionrun.worktrees.env_request import EnvironmentProblem, EnvironmentRequest

NO_UV: Final = "it is made by uv, which is not on PATH: pip install uv"

_PROGRAM: Final = """
import _imp, os, sys
base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
own = sys.implementation
about = (sys.version, own.name, own.cache_tag, sys.platform, os.uname().machine, _imp.extension_suffixes())
print(base, repr((*about, os.path.realpath(sys.base_prefix))), sep=chr(0), end="")
"""
"""Imports nothing that an interpreter does not have at its start: `sysconfig` alone takes longer than that."""

_NOT_PASSED_ON: Final = (
    *("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH"),
    *("PYTHONPYCACHEPREFIX", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__"),
)
"""Variables by which another environment would get into the one that is made, or its compiled files out of it."""


@frozen
class Programs:
    """The paths of the base interpreter and of uv; `about`, what both say of themselves, is in the digest."""

    python: str
    uv: str
    about: tuple[str, ...]


def clean_environ(environ: Mapping[str, str], *, without: str) -> dict[str, str]:
    """The user's variables for programs that make an environment, with PATH without the folder `without`."""
    kept = {name: value for name, value in environ.items() if name not in _NOT_PASSED_ON}
    return {
        **kept,
        "PATH": os.pathsep.join(part for part in kept.get("PATH", "").split(os.pathsep) if part != without),
        "GIT_OPTIONAL_LOCKS": "0",
        "UV_LINK_MODE": "copy",  # a hard link would be one file with uv's own cache
        "UV_NO_PROGRESS": "1",
    }


def find_programs(wanted: str | None, environ: Mapping[str, str], cwd: str | None = None) -> Programs:
    """The base interpreter that is wanted, by its real path, and the first uv of PATH.

    Args:
        wanted: a version, a path, or None for the first of PATH.
        cwd: where what is asked begins; None: here.  Some read files of the project there, or run them.

    Raises:
        EnvironmentProblem: one of them is not there, or does not run.
    """
    program, uv = locate_python(wanted, environ, cwd), locate_uv(environ)
    if program is None:
        raise EnvironmentProblem(f"there is no Python {wanted}" if wanted else "there is no python3 on PATH")
    if uv is None:
        raise EnvironmentProblem(NO_UV)
    try:
        answer = ask([program, "-I", "-S", "-X", "utf8", "-c", _PROGRAM], environ, cwd)
        python, about = answer.split("\0")
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EnvironmentProblem(f"{program} is no Python that runs: {error}") from None
    try:
        return Programs(python, uv, (python, about, ask([uv, "--version"], environ, cwd)))
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentProblem(f"{uv} does not run: {error}") from None


_USES_TAGS: Final = re.compile(
    r"setuptools[-_]scm|hatch-vcs|versioneer|versioningit|pbr|dunamai|dynamic-versioning"
)
"""In a project's description: its version comes from git's tags."""


def find_tag(request: EnvironmentRequest, top: Path, texts: Mapping[str, str]) -> str | None:
    """The tag that decides about the version: the last one before the commit; None: no tag decides.

    `texts` are the files that describe the project, by name.
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
    """Make the repository of a build in its checkout: the commit, and the tags before it."""
    real = top / ".git" if request.repository is None else Path(request.repository.common_dir)
    words = ("for-each-ref", "--format=%(objectname) %(refname)", f"--merged={request.commit}", "refs/tags")
    with _open_git(request, top) as git:
        commit = git.line("rev-parse", f"{request.commit}^{{commit}}")
        tags = git(*words)
        if not _describe(git, commit) and (behind := _find_behind(request)):
            first = git.line("rev-list", "--max-parents=0", commit).split("\n")[-1]
            tags += os.fsencode(f"{first} refs/tags/{behind}\n")
        make_repository(
            checkout / ".git",
            commit,
            [("extensions.objectFormat", git.line("rev-parse", "--show-object-format"))],
            borrow=[real / "objects", *map(Path, list_alternates(real))],  # of `real` walls may show nothing
            refs=tags,
            shallow=(real / "shallow").read_bytes() if (real / "shallow").is_file() else b"",
        )
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
    if request.repository is None:
        yield Git(top)
    else:
        with open_fence(request.repository) as fence:
            yield fence.main()
