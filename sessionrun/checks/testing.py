"""What decides whether a check passes, also in a patch: tests, test set-up, parts of files, what it runs.  Pure.

What sets tests up is a file, or a part of one that also says other things, such as which packages are needed.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import orjson

TEST_FILES: Final = (
    "test/**",
    "tests/**",
    "**/test/**",
    "**/tests/**",
    "**/__tests__/**",
    "**/testdata/**",
    "spec/**",
    "test_*.py",
    "*_test.py",
    "*_test.go",
    "*.test.*",
    "*.spec.*",
    "tests.rs",
    "*_test.rs",
    "*_tests.rs",
    "*_spec.rb",
    "*Test.java",
    "*Tests.cs",
)
"""What counts as a test if the task does not say; without a slash a pattern is of the name alone."""

SET_UP: Final = (
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "tox.toml",
    "noxfile.py",
    ".coveragerc",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    "jest.config.*",
    "jest.setup.*",
    "vitest.config.*",
    "vitest.setup.*",
    "karma.conf.*",
    ".mocharc.*",
    ".rspec",
    "phpunit.xml*",
)
"""What decides how tests run, and so can make any of them pass."""

BUILD: Final = (
    *("Makefile", "makefile", "GNUmakefile", "*.mk", "justfile", "Justfile", ".justfile"),
    *("Taskfile.y*ml", "Rakefile", ".npmrc", ".yarnrc", ".yarnrc.yml", "bunfig.toml"),
    *("vite.config.*", "babel.config.*", ".babelrc*", ".swcrc"),
    *("node_modules/**", "**/node_modules/**", "go.work", "build.rs", ".cargo/**", "**/.cargo/**", "nextest.toml"),
    *(".mvn/**", "**/.mvn/**", "mvnw", "gradlew"),
    *("build.gradle*", "settings.gradle*", "gradle.properties", "gradle/**"),
)
"""What else decides how tests run where a check is a command of the user's."""

_SHADOWS: Final = re.compile(
    r"(?:src/)?(?:_?pytest|pluggy|iniconfig|packaging|xdist|unittest|doctest|nose2?|coverage|argparse|inspect|ast|re|os"
    r"|sys|typing|types|importlib|functools|collections|contextlib|traceback|warnings|tokenize|tempfile|shlex|json|enum"
    r"|dataclasses|pathlib|logging|platform)(?:\.py|/)"
)
"""The beginning of a path at which Python finds a module before that of the test runner."""

_TOML: Final = r"^[ \t]*(?P<key>\[+\s*(?:{})\s*\]+)[^\n]*\n?(?:(?![ \t]*\[).*\n?)*"
_ELEMENT: Final = r"[ \t]*<(?P<key>{})>.*?</(?P=key)>\n?"
_RUST: Final = (  # modules and functions of tests, and examples in comments
    r"^(?P<tab>[ \t]*)#\[(?:cfg\(test\)|(?:\w+::)*test(?:\(.*\))?)\][^\n]*\n(?:(?P=tab)#\[[^\n]*\n)*"
    r"(?P=tab)(?P<key>[^\n{;]*)(?:\{[^\n]*\}|[^;]*?\{[ \t]*\n.*?^(?P=tab)\})[ \t]*\n?"
    r"|^[ \t]*//[/!][ \t]*```[^\n]*\n(?:[ \t]*//[/!][^\n]*\n)*?[ \t]*//[/!][ \t]*```[ \t]*\n"
)
_PARTS: Final[Mapping[str, re.Pattern[str]]] = {
    "pyproject.toml": re.compile(
        _TOML.format(r"tool\s*\.\s*(?:pytest|coverage|tox|nox|hatch\s*\.\s*envs)\b[^\]]*"), re.MULTILINE
    ),
    "setup.cfg": re.compile(
        _TOML.format(r"tool:pytest|pytest|coverage:[^\]]*|tox[^\]]*|testenv[^\]]*"), re.MULTILINE
    ),
    "Cargo.toml": re.compile(
        _TOML.format(r"(?:lib|bin|test|bench|example|profile|patch|replace)\b[^\]]*"), re.MULTILINE
    ),
    "pom.xml": re.compile(
        _ELEMENT.format(r"build|profiles|parent|reporting|(?:maven\.test|surefire|failsafe|skip|test)[\w.]*"),
        re.DOTALL,
    ),
    "go.mod": re.compile(r"^(?P<key>replace|exclude)\b(?:[^\n(]*\n?|\s*\(.*?^\)\n?)", re.MULTILINE | re.DOTALL),
    ".rs": re.compile(_RUST, re.MULTILINE | re.DOTALL),
}
"""Files, by name or extension, of which some parts are tests or test set-up; a part is the same by its `key`."""

_EXAMPLES: Final = re.compile(
    r"^(?P<key>)[ \t]*>>> [^\n]*\n(?:(?![ \t]*(?:$|\"\"\"|\'\'\'))[^\n]*\n)*", re.MULTILINE
)
"""Of a source file of Python, if doctest is used: each example is taken for the one of the same number."""

_OF_NODE: Final = (
    *("scripts", "config", "jest", "vitest", "mocha", "ava"),
    *("tap", "c8", "nyc", "babel", "overrides", "resolutions"),
)
"""Keys of package.json that are test set-up."""

_BEGINS: Final = r"(?:^|(?<!\$\()(?<=[;&|(\"'!@\t]))[ \t]*(?:\w+=\S*[ \t]+)*"
_FILE: Final = r"(?P<{}>[\w./-]+)(?![\w./-])(?![^\n;&|]*(?:\|(?!\|)|>(?!&|[ \t]*/dev/null)))"
_RUNS: Final = re.compile(
    rf"{_BEGINS}(?:(?:\S*/)?(?:sh|bash|dash|zsh|ksh|source|\.)[ \t]+(?:-\w+[ \t]+)*{_FILE.format('shell')}"
    rf"|(?:\S*/)?(?:python[\d.]*|node|ruby|perl|php|deno|bun|tsx)[ \t]+(?:-\w+[ \t]+)*(?:run[ \t]+)?"
    rf"(?=[\w./-]*(?:test|check|spec|verif|suite|lint|\bci\b)){_FILE.format('script')}"
    rf"|(?=[\w.-]*/){_FILE.format('program')})"
    r"|[ \t](?:-c|-f|--config|--config-file|--rcfile)[ =](?P<config>[\w./-]+)",
    re.MULTILINE,
)
"""A file that a shell line runs as a whole command: its output goes to no other program, which would judge it."""

_RECIPES: Final = ("Makefile", "makefile", "GNUmakefile", "justfile", "Justfile", "package.json", "tox.ini")
"""The files that say what ``make test`` and the like run."""

_WILD: Final = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_SECTION: Final = re.compile(rb"^(?=diff --git )", re.MULTILINE)


def compile_patterns(patterns: Iterable[str]) -> re.Pattern[str]:
    """One expression that matches the paths of which one pattern is.

    A pattern without a slash is of a file's name, in any directory; ``**`` is any number of directories.
    """
    expressions = []
    for pattern in patterns:
        parts = (_WILD.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern))
        expressions.append(("" if "/" in pattern else _WILD["**/"]) + "".join(parts))
    return re.compile("|".join(rf"(?:{each}\Z)" for each in expressions), re.DOTALL)


def find_parts(name: str, *, doctests: bool = False) -> Callable[[str, str], str] | None:
    """How a file is given the parts of another that are tests or test set-up; None: it has no such parts."""
    base = os.path.basename(name)
    if doctests and base.endswith(".py"):
        return lambda text, other: exchange_parts(text, other, _EXAMPLES)
    if base == "package.json":
        return _exchange_keys
    pattern = _PARTS.get(base) or _PARTS.get(os.path.splitext(base)[1])
    return None if pattern is None else lambda text, other: exchange_parts(text, other, pattern)


def exchange_parts(text: str, other: str, pattern: re.Pattern[str]) -> str:
    """A text without its parts that match, and with those of another text in their places or at its end."""
    theirs: dict[str, list[str]] = defaultdict(list)
    for part in pattern.finditer(other):
        theirs[_name_part(part)].append(part[0])

    def replace(part: re.Match[str]) -> str:
        same = theirs[_name_part(part)]
        return same.pop(0) if same else ""

    kept = pattern.sub(replace, text)
    left = "".join(part for parts in theirs.values() for part in parts)
    if not left:
        return kept
    end = kept.rfind("</project>")
    end = len(kept) if end < 0 else end
    gap = "" if kept[:end].endswith("\n") or not kept[:end] else "\n"
    return kept[:end] + gap + left + kept[end:]


def _name_part(part: re.Match[str]) -> str:
    return (part["key"] or "").strip()


def _exchange_keys(text: str, other: str) -> str:
    """The same for package.json; one that is no object is taken from the other side."""
    try:
        own, theirs = orjson.loads(text), orjson.loads(other or "{}")
    except orjson.JSONDecodeError:
        return other
    if not isinstance(own, dict) or not isinstance(theirs, dict):
        return other
    mixed = {key: value for key, value in own.items() if key not in _OF_NODE}
    mixed |= {key: value for key, value in theirs.items() if key in _OF_NODE}
    return text if mixed == own else orjson.dumps(mixed, option=orjson.OPT_INDENT_2).decode() + "\n"


def find_set_up(
    commands: Iterable[str], directory: str, base: Iterable[str], added: Iterable[str], read: Callable[[str], str]
) -> set[str]:
    """The files that are test set-up, besides those of `SET_UP`, where a check is a command of the user's.

    The `commands` run in `directory`, from the top.  `base` are all files before the work, of which `read` gives
    the text, and `added` those that the work brought.
    """
    base, build = set(base), compile_patterns(BUILD)
    found = {name for name in base if build.match(name)}
    recipes = [os.path.join(place, name) for place in {"", directory} for name in _RECIPES]
    waiting = ["\n".join(commands), *(read(name) for name in recipes if name in base)]
    while waiting:
        words = {word for run in _RUNS.finditer(waiting.pop()) for word in run.groups() if word}
        named = {os.path.normpath(os.path.join(place, word)) for word in words for place in (directory, ".")}
        named &= base - found
        found |= named
        waiting += [read(name) for name in named]
    return found | {name for name in added if build.match(name) or _is_shadow(name, directory, base)}


def runs_doctests(commands: Iterable[str], base: Collection[str], read: Callable[[str], str]) -> bool:
    """Whether the check, or what sets it up, names doctest."""
    places = ("pyproject.toml", "setup.cfg", "pytest.ini", "tox.ini", "Makefile")
    texts = (read(name) for name in places if name in base)
    return any("doctest" in text for text in (*commands, *texts))


def _is_shadow(name: str, directory: str, base: Iterable[str]) -> bool:
    """Whether a file that the work brought is found by Python before a module of the test runner."""
    inside = os.path.relpath(name, directory)
    found = _SHADOWS.match(inside) or _SHADOWS.match(name)
    return found is not None and not any(
        other.startswith(name[: name.index(found[0]) + len(found[0])]) for other in base
    )


def keep_source(patch: bytes) -> bytes:
    """A patch, as git writes it, without its sections about tests and test set-up."""
    tests = compile_patterns((*TEST_FILES, *SET_UP))
    kept = []
    for section in _SECTION.split(patch):
        names = list(_name_files(section))
        if names and not any(map(tests.match, names)):
            kept.append(section)
    return b"".join(kept)


def list_files(patch: bytes) -> list[str]:
    """The files that a patch of git is about: of a rename the old and the new name; each once, in order."""
    return list(dict.fromkeys(name for section in _SECTION.split(patch) for name in _name_files(section)))


def _name_files(section: bytes) -> Iterator[str]:
    head = section.partition(b"\n@@ ")[0].split(b"\n")
    if not head[0].startswith(b"diff --git "):
        return
    both, renamed = head[0].removeprefix(b"diff --git "), (b"rename from ", b"rename to ")
    names = [_unquote(line.partition(b" ")[2].partition(b" ")[2]) for line in head if line.startswith(renamed)]
    half = both[: (len(both) - 1) // 2]  # where nothing is renamed, both names are the same
    for name in names or [_unquote(half).removeprefix(b"a/")]:
        yield name.decode("utf-8", "surrogateescape")


def _unquote(name: bytes) -> bytes:
    is_quoted = name.startswith(b'"') and name.endswith(b'"') and len(name) > 1
    return name[1:-1].decode("unicode_escape", "replace").encode("latin-1", "replace") if is_quoted else name
