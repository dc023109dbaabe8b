"""Paths as an input may write them: inside of a project, or anywhere.  Must not know fields, files or formats."""

from __future__ import annotations

import os
import posixpath
from typing import Any

from sessionrun.dialects.convert import Misfit, as_line, describe
from sessionrun.model.upstreams import is_path


def as_project_path(value: Any) -> str:
    """A path that stays inside of the project, without detours."""
    path = as_line(value)
    if path.startswith(("/", "~")):
        raise Misfit(f"must be a path inside of the project, not {describe(value)}")
    normal = posixpath.normpath(path)
    if normal == ".." or normal.startswith("../"):
        raise Misfit(f"leads out of the project: {describe(value)}")
    return normal


def as_project_paths(value: Any) -> tuple[str, ...]:
    """One path or a list of paths, each counted once."""
    paths = []
    for place, path in enumerate(value if isinstance(value, list) else [value]):
        try:
            paths.append(as_project_path(path))
        except Misfit as misfit:
            raise misfit.within(place) if isinstance(value, list) else misfit from None
    return tuple(dict.fromkeys(paths))


def resolve(directory: str, path: str) -> str:
    """A path made absolute; it counts from a directory."""
    return os.path.normpath(os.path.join(directory, os.path.expanduser(path)))


def resolve_repo(directory: str, repo: str) -> str:
    """The name of a repository (see `upstreams.parse_repo`) that can be used from anywhere."""
    return resolve(directory, repo) if is_path(repo) else repo
