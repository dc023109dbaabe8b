"""Paths that stay inside of a project, as an input may write them.  Must not know fields, files or formats."""

from __future__ import annotations

import posixpath
from typing import Any

from sessionrun.dialects.convert import Misfit, as_line, describe


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
