"""Which files decide what an environment holds, and the digest of all that does.

What counts is what an installer reads: the project's own description, lock and requirement files, sources that
it compiles, the names and versions of its packages.  Other files of a project are used where they are, because the
install is editable.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import orjson

from sessionrun.store.files import read_regular

FORMAT: Final = 2
"""Counts up when an entry of the cache is made differently."""

MAX_INPUT_BYTES: Final = 256 * 1024 * 1024

PROJECT_FILES: Final = ("pyproject.toml", "setup.py", "setup.cfg")

_IN_PROJECT: Final = (
    *PROJECT_FILES,
    *("uv.lock", "poetry.lock", "pdm.lock", "Pipfile", "Pipfile.lock", "pylock.toml", "pylock.*.toml"),
    *("MANIFEST.in", "VERSION", "VERSION.txt", "version.txt", ".python-version"),
    *("*requirements*.txt", "*requirements*.in", "constraints*.txt"),
)
"""Patterns of files that count at the top of a project."""

_REQUIREMENTS: Final = "requirements"
"""A folder of a project in which every text file counts."""

_NATIVE: Final = (
    *(".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".pyx", ".pxd", ".pxi"),
    *(".rs", ".f", ".f90", ".pyf", ".build", ".cmake"),
    *("CMakeLists.txt", "meson.options", "meson_options.txt", "Cargo.toml", "Cargo.lock"),
)
"""Ends of names of what a compiler reads: an editable install may leave what it made of it in the checkout."""

_SAYS_VERSION: Final = ("__init__.py", "_version.py", "version.py", "__version__.py", "__about__.py")
"""Modules from which an installer may take the version.  Their functions do not count: `leave_out_functions`."""

_FUNCTION: Final = re.compile(rb"(?:async[ \t]+)?def[ \t]")
_OF_BLOCK: Final = (b" ", b"\t", b"\n", b"\r", b"\f")

_PASSED_OVER: Final = frozenset((".git", "__pycache__", "node_modules", ".venv", "venv", ".tox", ".nox", ".eggs"))


def find_project(directory: Path, top: Path) -> Path:
    """The project to install: from `directory` upwards to `top`, the first that describes one; else `top`."""
    at = directory
    while at != top and top in at.parents:
        if any((at / name).is_file() for name in PROJECT_FILES) or find_requirements(at):
            return at
        at = at.parent
    return top


def find_requirements(project: Path) -> list[str]:
    """The project's requirement files, by name."""
    found = [*project.glob("*requirements*.txt"), *project.glob(f"{_REQUIREMENTS}/*.txt")]
    inside = [str(path.relative_to(project)) for path in found if path.is_file()]
    return sorted(inside, key=lambda name: (os.sep in name, name))


def collect_inputs(project: Path) -> dict[str, str]:
    """The digest of each file that counts, by its path in the project, and the names of its packages."""
    digests = {name: _digest_file(project / name) for name in sorted(_iterate_files(project))}
    return {**digests, "packages": " ".join(_list_packages(project))}


def collect_all(top: Path) -> dict[str, str]:
    """The digest of each file of a checkout, by its path: where a task may have written any of it."""
    return {name: _digest_file(top / name, whole=True) for name in iterate_names(top, compiled=True)}


def iterate_names(top: Path, *, compiled: bool = False) -> Iterator[str]:
    """The paths of all files and links of a checkout; `compiled` says whether those of ``__pycache__`` count."""
    for place, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != ".git" and (compiled or name != "__pycache__")]
        inside = os.path.relpath(place, top)
        for name in (*names, *(name for name in folders if os.path.islink(os.path.join(place, name)))):
            yield os.path.normpath(os.path.join(inside, name))


def make_digest(inputs: Mapping[str, str], **circumstances: str | None) -> str:
    """One digest of all that decides: files, and what is given by name."""
    whole = {"format": FORMAT, "inputs": inputs, **circumstances}
    return hashlib.sha256(orjson.dumps(whole, option=orjson.OPT_SORT_KEYS)).hexdigest()[:40]


def _iterate_files(project: Path) -> Iterator[str]:
    for place, folders, names in os.walk(project):
        folders[:] = [name for name in folders if name not in _PASSED_OVER and not name.endswith(".egg-info")]
        inside = os.path.relpath(place, project)
        for name in names:
            if name.endswith(_NATIVE) or _counts(name, inside):
                yield os.path.normpath(os.path.join(inside, name))


def _counts(name: str, inside: str) -> bool:
    """Whether a file counts though no compiler reads it; `inside` is its folder in the project."""
    if inside == ".":
        return any(fnmatch(name, pattern) for pattern in _IN_PROJECT)
    if inside == _REQUIREMENTS and name.endswith((".txt", ".in")):
        return True
    return name in _SAYS_VERSION and os.sep not in inside.removeprefix(f"src{os.sep}")


def _list_packages(project: Path) -> list[str]:
    """The top-level packages and modules: an editable install may name each of them."""
    folders = (project, project / "src")
    modules = [path for folder in folders for path in folder.glob("*.py")]
    packages = [path.parent for folder in folders for path in folder.glob("*/__init__.py")]
    return sorted(str(path.relative_to(project)) for path in (*modules, *packages))


def leave_out_functions(source: bytes) -> bytes:
    """A module without the functions at its top level, but with each line that says "version".

    Work on these functions changes nothing of what an installer makes: so the environment of a clean room is the
    one that the cache has already.
    """
    kept, inside = [], False
    for line in source.splitlines(keepends=True):
        inside = bool(_FUNCTION.match(line)) or (inside and line.startswith(_OF_BLOCK))
        if not inside or b"version" in line.lower():
            kept.append(line)
    return b"".join(kept)


def _digest_file(path: Path, *, whole: bool = False) -> str:
    """The digest of what counts of a file, or of the whole of it; of a link it is where that leads."""
    try:
        content = read_regular(path, MAX_INPUT_BYTES)
        if path.name in _SAYS_VERSION and not whole:
            content = leave_out_functions(content)
        return hashlib.sha256(content).hexdigest()
    except OSError:
        try:
            return f"link {os.readlink(path)}"
        except OSError as error:
            return f"error {error.errno}"
