"""What decides what an environment holds: files, an interpreter, uv, a tag; and the ways to install a project.

Of the files what an installer reads counts: the project's own description, lock and requirement files, sources
that it compiles, the names and versions of its packages.  Other files are used where they are, because the install
is editable.

A repository of a task's own has not the whole history, so the last tag may be out of reach.  Without a tag
setuptools_scm would call the project 0.1, which may be too old for its own tests.  The mirror knows the last tag
before the base: in the repository of the build it marks the first commit that is there.  A task never sees it.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.git.clone import list_tags, make_repository, open_room
from sessionrun.git.git import Git
from sessionrun.git.private import open_fence
from sessionrun.input.parse import parse_toml
from sessionrun.model.errors import InputError
from sessionrun.model.frozen import frozen
from sessionrun.store.files import read_regular
from sessionrun.store.programs import ask, locate_python, locate_uv
from sessionrun.worktrees.request import EnvironmentProblem, EnvironmentRequest

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
_OF_VERSION: Final = re.compile(rb"(?im)^.*version.*$|^[^a-z0-9\n]*[0-9][^a-z\n]*$")
"""Modules from which an installer may take the version: only lines that say "version", or numbers alone, count."""

_COMPILED: Final = ("__pycache__",)
_PASSED_OVER: Final = (*_COMPILED, "node_modules", ".venv", "venv", ".tox", ".nox", ".eggs")


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
    names = sorted(name for name in iterate_names(project, _PASSED_OVER) if _counts(name))
    folders = (project, project / "src")
    modules = [path for folder in folders for path in folder.glob("*.py")]
    packages = [path.parent for folder in folders for path in folder.glob("*/__init__.py")]
    # an editable install may name each of them
    listed = sorted(str(path.relative_to(project)) for path in (*modules, *packages))
    return {**{name: digest_file(project / name) for name in names}, "packages": " ".join(listed)}


def iterate_names(top: Path, passed_over: Collection[str] = _COMPILED) -> Iterator[str]:
    """The paths of all files and links of a checkout, but for what lies in folders that are `passed_over`."""
    for place, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != ".git" and name not in passed_over]
        inside = os.path.relpath(place, top)
        for name in (*names, *(name for name in folders if os.path.islink(os.path.join(place, name)))):
            yield os.path.normpath(os.path.join(inside, name))


def make_digest(inputs: Mapping[str, str], **circumstances: object) -> str:
    whole = {"format": FORMAT, "inputs": inputs, **circumstances}
    return hashlib.sha256(orjson.dumps(whole, option=orjson.OPT_SORT_KEYS)).hexdigest()[:40]


def _counts(path: str) -> bool:
    """Whether an installer, or a compiler, reads the file at this path in the project."""
    inside, name = os.path.split(path)
    if ".egg-info/" in path:
        return False
    if name.endswith(_NATIVE):
        return True
    if not inside:
        return any(fnmatch(name, pattern) for pattern in _IN_PROJECT)
    if inside == _REQUIREMENTS and name.endswith((".txt", ".in")):
        return True
    return name in _SAYS_VERSION and os.sep not in inside.removeprefix(f"src{os.sep}")


def digest_file(path: Path, *, whole: bool = False) -> str:
    """The digest of what counts of a file, or of the whole of it; of a link it is where that leads."""
    try:
        content = read_regular(path, _MAX_BYTES)
        # work on the rest changes nothing of what an installer makes: no proof has to build anew for it
        parts = _OF_VERSION.findall(content) if path.name in _SAYS_VERSION and not whole else [content]
        return hashlib.sha256(b"\n".join(parts)).hexdigest()
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
    described: Mapping[str, Any] = {}
    with suppress(InputError):  # what is wrong with it is the installer's to say
        described = parse_toml(texts.get("pyproject.toml", "").encode(), "pyproject.toml")
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
    settings, setup = configparser.RawConfigParser(strict=False), texts.get("setup.py", "")
    with suppress(configparser.Error):
        settings.read_string(texts.get("setup.cfg", ""))
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
        return Programs(python, uv, (python, about, ask([uv, "--version"], environ, cwd)))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EnvironmentProblem(f"{program} is no Python that runs, or {uv} no uv: {error}") from None


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
    """Make the repository of a build in its checkout: the commit, and the tags before it.

    It borrows the objects, so nothing that a build runs changes a branch or a setting of the user.
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
    if request.repository is None:
        yield Git(top)
    else:
        with open_fence(request.repository) as fence:
            yield fence.main()
