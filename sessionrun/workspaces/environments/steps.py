"""In which ways a project may be installed, and in what order they are tried: pure, from what its files say."""

from __future__ import annotations

import configparser
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from sessionrun.model.frozen import frozen

TEST_NAMES: Final = ("test", "tests", "testing")
DEV_NAMES: Final = ("dev",)
"""The names under which a project asks for what its tests need; `dev` counts where there is no other."""

PYTEST: Final = "pytest"
_TEST_WORDS: Final = re.compile(r"(^|[^a-z])(tests?|testing|dev|development)([^a-z]|$)")

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
"""What may be the name of a project."""


@frozen
class Project:
    """What a project says of itself.

    Attributes:
        installable: it can be installed.
        extras: those of its extras that its tests need.
        grouped: requirements of its dependency groups (PEP 735) that its tests need.
        requirements: its requirement files.
        locked: it has a ``uv.lock``.
        groups: the names of these groups.
    """

    installable: bool = False
    extras: tuple[str, ...] = ()
    grouped: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    locked: bool = False
    groups: tuple[str, ...] = ()


@frozen
class Way:
    """One way to install a project: a name for people, and the words for the installer.

    With `sync` the words are for ``uv sync``, which installs what the lock file says.
    """

    name: str
    words: tuple[str, ...]
    sync: bool = False


def read_project(texts: Mapping[str, str], requirements: Sequence[str]) -> Project:
    """What the files of these names say; a file that is not there has no text."""
    described = _parse_toml(texts.get("pyproject.toml", ""))
    installable = bool({"build-system", "project"} & set(described)) or "setup.py" in texts
    groups = _as_map(described.get("dependency-groups"))
    names = _choose(groups)
    return Project(
        installable=installable,
        extras=_choose(_find_extras(described, texts)),
        grouped=tuple(dict.fromkeys(requirement for name in names for requirement in _expand(groups, name, ()))),
        requirements=tuple(requirements),
        locked="uv.lock" in texts,
        groups=names,
    )


def order_ways(project: Project) -> list[Way]:
    """The ways to install it, in the order in which they are tried: the first that works is taken."""
    return list(_iterate_ways(project))


def _iterate_ways(project: Project) -> Iterator[Way]:
    files = [word for name in project.requirements for word in ("-r", name)]
    if project.installable and project.locked:
        extras = [word for name in project.extras for word in ("--extra", name)]
        groups = [word for name in project.groups for word in ("--group", name)]
        yield Way("uv.lock", (*extras, *groups), sync=True)
    if project.installable and (project.extras or project.grouped):
        named = f".[{','.join(project.extras)}]" if project.extras else "."
        what = " ".join((f"[{','.join(project.extras)}]" if project.extras else "", *project.groups)).strip()
        yield Way(f"editable with {what}", ("-e", named, *project.grouped))
    tested = [word for name in project.requirements if _TEST_WORDS.search(name.lower()) for word in ("-r", name)]
    if project.installable and tested:
        yield Way("editable with test requirements", ("-e", ".", *tested, PYTEST))
    if project.installable:
        yield Way("editable and pytest", ("-e", ".", PYTEST))
    if files:
        yield Way("requirement files", (*files, PYTEST))
    if not project.installable and not files:
        yield Way("pytest", (PYTEST,))


def find_name(texts: Mapping[str, str]) -> str | None:
    """The name of the project, as its files say it; None: they do not, or only a program would find it out.

    Args:
        texts: the files that describe the project, by name.
    """
    name = _as_map(_parse_toml(texts.get("pyproject.toml", "")).get("project")).get("name")
    if name is None:
        settings = configparser.RawConfigParser(strict=False)
        try:
            settings.read_string(texts.get("setup.cfg", ""))
            name = settings.get("metadata", "name").strip()
        except configparser.Error:
            return None
    return name if isinstance(name, str) and _NAME.fullmatch(name) else None


def _find_extras(described: Mapping[str, Any], texts: Mapping[str, str]) -> list[str]:
    """The names of all extras, as far as they can be known without running the project."""
    names = list(_as_map(_as_map(described.get("project")).get("optional-dependencies")))
    poetry = _as_map(_as_map(described.get("tool")).get("poetry"))
    names += list(_as_map(poetry.get("extras")))
    settings = configparser.RawConfigParser(strict=False)
    try:
        settings.read_string(texts.get("setup.cfg", ""))
        names += settings.options("options.extras_require")
    except configparser.Error:
        pass
    if "extras_require" in texts.get("setup.py", ""):
        names += re.findall(r"""['"](\w+)['"]\s*:""", texts["setup.py"])
        names += re.findall(r"\b(tests?|testing|dev)\s*=\s*[\[(]", texts["setup.py"])
    return names


def _choose(names: Sequence[str] | Mapping[str, Any]) -> tuple[str, ...]:
    for wanted in (TEST_NAMES, DEV_NAMES):
        if chosen := tuple(name for name in wanted if name in names):
            return chosen
    return ()


def _expand(groups: Mapping[str, Any], name: str, above: tuple[str, ...]) -> Iterator[str]:
    """The requirements of a dependency group and of those that it includes."""
    by_name = {re.sub(r"[-_.]+", "-", key).lower(): value for key, value in groups.items()}
    name = re.sub(r"[-_.]+", "-", name).lower()
    for member in by_name.get(name) or () if name not in above else ():
        if isinstance(member, str):
            yield member
        elif isinstance(member, dict) and isinstance(member.get("include-group"), str):
            yield from _expand(groups, member["include-group"], (*above, name))


def _as_map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _parse_toml(text: str) -> Mapping[str, Any]:
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return dict(toml.loads(text))
    except (ValueError, RecursionError):
        return {}
