"""Which files decide what an environment holds, the digest of all that does, and the ways to install a project.

What counts is what an installer reads: the project's own description, lock and requirement files, sources that
it compiles, the names and versions of its packages.  Other files of a project are used where they are, because the
install is editable.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.model.frozen import frozen
from sessionrun.store.files import read_regular

FORMAT: Final = 3
"""Counts up when an entry of the cache is made differently."""

_MAX_BYTES: Final = 256 * 1024 * 1024

PROJECT_FILES: Final = ("pyproject.toml", "setup.py", "setup.cfg")

_IN_PROJECT: Final = (
    *PROJECT_FILES,
    *("uv.lock", "poetry.lock", "pdm.lock", "Pipfile", "Pipfile.lock", "pylock.toml", "pylock.*.toml"),
    *("MANIFEST.in", "VERSION", "VERSION.txt", "version.txt", ".python-version"),
    *("*requirements*.txt", "*requirements*.in", "constraints*.txt"),
)
"""Patterns of files that count at the top of a project."""

_REQUIREMENTS: Final = "requirements"
_NATIVE: Final = (
    *(".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".pyx", ".pxd", ".pxi"),
    *(".rs", ".f", ".f90", ".pyf", ".build", ".cmake"),
    *("CMakeLists.txt", "meson.options", "meson_options.txt", "Cargo.toml", "Cargo.lock"),
)
"""Ends of names of what a compiler reads: an editable install may leave what it made of it in the checkout."""

_SAYS_VERSION: Final = ("__init__.py", "_version.py", "version.py", "__version__.py", "__about__.py")
"""Modules from which an installer may take the version: of them only lines that say "version" count."""

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


def read_texts(project: Path, names: Sequence[str]) -> dict[str, str]:
    """The texts of those of a project's files that are there, or that a link leads to."""
    texts = {}
    for name in names:
        with suppress(OSError):
            content = read_regular(os.path.realpath(project / name), _MAX_BYTES)
            texts[name] = content.decode("utf-8", "replace")
    return texts


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


def make_digest(inputs: Mapping[str, str], **circumstances: object) -> str:
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


def _digest_file(path: Path, *, whole: bool = False) -> str:
    """The digest of what counts of a file, or of the whole of it; of a link it is where that leads."""
    try:
        content = read_regular(path, _MAX_BYTES)
        if path.name in _SAYS_VERSION and not whole:
            # work on the rest changes nothing of what an installer makes: no proof has to build anew for it
            content = b"".join(line for line in content.splitlines(keepends=True) if b"version" in line.lower())
        return hashlib.sha256(content).hexdigest()
    except OSError:
        try:
            return f"link {os.readlink(path)}"
        except OSError as error:
            return f"error {error.errno}"


PYTEST: Final = "pytest"

_FOR_TESTS: Final[Sequence[Sequence[str]]] = (("test", "tests", "testing"), ("dev",))
"""The names under which a project asks for what its tests need; `dev` counts where there is no other."""

_TEST_FILE: Final = re.compile(r"(^|[^a-z])(tests?|testing|dev|development)([^a-z]|$)")
"""In the name of a requirement file."""

_EXTRA_OF_SETUP: Final = re.compile(r"""['"](\w+)['"]\s*:|\b(tests?|testing|dev)\s*=\s*[\[(]""")


@frozen
class Way:
    """A way to install: a name for people, and words for ``uv pip install`` or, with `sync`, ``uv sync``."""

    name: str
    words: tuple[str, ...]
    sync: bool = False


def order_ways(texts: Mapping[str, str], requirements: Sequence[str]) -> Iterator[Way]:
    """The ways to install a project, in the order in which they are tried: the first that works is taken."""
    described = _parse_toml(texts.get("pyproject.toml", ""))
    is_project = bool({"build-system", "project"} & set(described)) or "setup.py" in texts
    extras, groups = _choose(_find_extras(described, texts)), _as_map(described.get("dependency-groups"))
    named = _choose(groups)
    if is_project and "uv.lock" in texts:
        words = [word for name in extras for word in ("--extra", name)]
        yield Way("uv.lock", (*words, *(word for name in named for word in ("--group", name))), sync=True)
    if is_project and (extras or named):
        own = f"[{','.join(extras)}]" if extras else ""
        grouped = (word for name in named for word in ("--group", name))
        yield Way(f"editable with {' '.join((own, *named)).strip()}", ("-e", f".{own}", *grouped))
    tested = [name for name in requirements if _TEST_FILE.search(name.lower())]
    if is_project and tested:
        yield Way("editable with test requirements", ("-e", ".", *_as_files(tested), PYTEST))
    if is_project:
        yield Way("editable and pytest", ("-e", ".", PYTEST))
    if requirements:
        yield Way("requirement files", (*_as_files(requirements), PYTEST))
    elif not is_project:
        yield Way("pytest", (PYTEST,))


def _find_extras(described: Mapping[str, Any], texts: Mapping[str, str]) -> list[str]:
    """The names of all extras, as far as they can be known without running the project."""
    poetry = _as_map(_as_map(described.get("tool")).get("poetry"))
    own = _as_map(_as_map(described.get("project")).get("optional-dependencies"))
    names = [*own, *_as_map(poetry.get("extras"))]
    settings, setup = _parse_settings(texts), texts.get("setup.py", "")
    if settings.has_section("options.extras_require"):
        names += settings.options("options.extras_require")
    if "extras_require" in setup:
        names += [one or other for one, other in _EXTRA_OF_SETUP.findall(setup)]
    return names


def _choose(names: Iterable[str]) -> list[str]:
    known = set(names)
    return next((chosen for wanted in _FOR_TESTS if (chosen := [name for name in wanted if name in known])), [])


def _as_files(names: Sequence[str]) -> list[str]:
    return [word for name in names for word in ("-r", name)]


def _as_map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _parse_toml(text: str) -> Mapping[str, Any]:
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return dict(toml.loads(text))
    except (ValueError, RecursionError):
        return {}


def _parse_settings(texts: Mapping[str, str]) -> configparser.RawConfigParser:
    """What setup.cfg says; nothing where it cannot be read."""
    settings = configparser.RawConfigParser(strict=False)
    try:
        settings.read_string(texts.get("setup.cfg", ""))
    except configparser.Error:
        return configparser.RawConfigParser()
    return settings
