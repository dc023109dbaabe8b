"""In which ways a project may be installed, and in what order they are tried: pure, from what its files say."""

from __future__ import annotations

import configparser
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from sessionrun.model.frozen import frozen

PYTEST: Final = "pytest"

_FOR_TESTS: Final[Sequence[Sequence[str]]] = (("test", "tests", "testing"), ("dev",))
"""The names under which a project asks for what its tests need; `dev` counts where there is no other."""

_TEST_FILE: Final = re.compile(r"(^|[^a-z])(tests?|testing|dev|development)([^a-z]|$)")
"""In the name of a requirement file."""

_EXTRA_OF_SETUP: Final = re.compile(r"""['"](\w+)['"]\s*:|\b(tests?|testing|dev)\s*=\s*[\[(]""")

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
"""What may be the name of a project."""


@frozen
class Way:
    """One way to install a project: a name for people, and the words for the installer.

    With `sync` the words are for ``uv sync``, which installs what the lock file says.
    """

    name: str
    words: tuple[str, ...]
    sync: bool = False


def order_ways(texts: Mapping[str, str], requirements: Sequence[str]) -> Iterator[Way]:
    """The ways to install a project, in the order in which they are tried: the first that works is taken.

    Args:
        texts: the files that describe the project, by name; one that is not there has no text.
        requirements: its requirement files.
    """
    described = _parse_toml(texts.get("pyproject.toml", ""))
    is_project = bool({"build-system", "project"} & set(described)) or "setup.py" in texts
    extras, groups = _choose(_find_extras(described, texts)), _as_map(described.get("dependency-groups"))
    named = _choose(groups)
    if is_project and "uv.lock" in texts:
        words = [word for name in extras for word in ("--extra", name)]
        yield Way("uv.lock", (*words, *(word for name in named for word in ("--group", name))), sync=True)
    grouped = dict.fromkeys(requirement for name in named for requirement in _expand(groups, name))
    if is_project and (extras or grouped):
        own = f"[{','.join(extras)}]" if extras else ""
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


def find_name(texts: Mapping[str, str]) -> str | None:
    """The name of the project, as its files say it; None: they do not, or only a program would find it out.

    Args:
        texts: the files that describe the project, by name.
    """
    name = _as_map(_parse_toml(texts.get("pyproject.toml", "")).get("project")).get("name")
    if name is None:
        name = _parse_settings(texts).get("metadata", "name", fallback="").strip()
    return name if isinstance(name, str) and _NAME.fullmatch(name) else None


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


def _expand(groups: Mapping[str, Any], name: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The requirements of a dependency group (PEP 735) and of those that it includes."""
    by_name = {_normalize(key): value for key, value in groups.items()}
    name = _normalize(name)
    for member in by_name.get(name) or () if name not in above else ():
        if isinstance(member, str):
            yield member
        elif isinstance(member, dict) and isinstance(member.get("include-group"), str):
            yield from _expand(groups, member["include-group"], (*above, name))


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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
