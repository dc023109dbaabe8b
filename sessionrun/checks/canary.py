"""A test that has to fail, written into the test files of a clean room: a check that still passes runs no tests.

Its name is random.  What the runner of a check takes is known from the base, where the same is done if need be.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from sessionrun.model.reports import RanTests
from sessionrun.store.files import read_regular
from sessionrun.worktrees.testing import TEST_FILES, compile_patterns

MOST: Final = 40
"""So many files get one."""

_MAX_BYTES: Final = 4 * 1024 * 1024
_LEFT_OUT: Final = frozenset(
    (".git", "node_modules", "target", "build", "dist", "vendor", ".venv", "venv", ".tox")
)
_SUFFIXES: Final[Mapping[str, Collection[str]]] = {
    **dict.fromkeys(("pytest", "unittest"), (".py",)),
    **dict.fromkeys(("jest", "vitest", "node"), (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")),
    "cargo": (".rs",),
    "go": (".go",),
    "surefire": (".java",),
}
"""By runner, the files that its tests are in."""

_PYTHON: Final = '\n\ndef test_{0}():\n    raise AssertionError("canary")\n'
_UNITTEST: Final = (
    "\n\nimport unittest as _{0}\n\n\nclass Test_{0}(_{0}.TestCase):\n"
    '    def test_{0}(self):\n        self.fail("canary")\n'
)
_RUST: Final = (
    '\n#[cfg(test)]\nmod test_{0} {{\n    #[test]\n    fn fails() {{\n        panic!("canary");\n    }}\n}}\n'
)
_GO: Final = '\nfunc Test_{0}(t *testing.T) {{\n\tt.Fatal("canary")\n}}\n'
_SCRIPT: Final = '\n;{1}("test_{0}", () => {{\n  throw new Error("canary");\n}});\n'
_JAVA: Final = (
    '\n    @{1}.Test\n    public void test_{0}() {{\n        throw new AssertionError("canary");\n    }}\n'
)
_CALL: Final = re.compile(r"^\s*(test|it)\s*\(", re.MULTILINE)


def plant(directory: Path, found: RanTests, test_files: Collection[str]) -> dict[str, str]:
    """Write tests that fail into test files of the runners that were found; their names, by file."""
    suffixes = {suffix for runner in found.numbers for suffix in _SUFFIXES.get(runner, ())}
    known = {name.partition("::")[0] for name in found.words}
    files = sorted(_list_files(directory, suffixes, test_files), key=lambda name: name not in known)
    planted: dict[str, str] = {}
    for name in files:
        path, token = directory / name, secrets.token_hex(8)
        text = read_regular(path, _MAX_BYTES).decode("utf-8", "surrogateescape")
        worded = word_canary(path.suffix, text, token)
        if worded is not None and not (
            path.suffix == ".go" and os.path.dirname(name) in map(os.path.dirname, planted)
        ):
            path.write_text(worded, encoding="utf-8", errors="surrogateescape", newline="")
            planted[name] = token
        if len(planted) == MOST:
            break
    return planted


def _list_files(directory: Path, suffixes: Collection[str], test_files: Collection[str]) -> Iterator[str]:
    tests = compile_patterns(test_files or TEST_FILES)
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), directory)
            suffix = os.path.splitext(name)[1]
            if (
                suffix in suffixes
                and (tests.match(path) or suffix == ".rs")
                and not os.path.islink(directory / path)
            ):
                yield path


def word_canary(suffix: str, text: str, token: str) -> str | None:
    """The text of a test file with one more test, which fails; None: it has no tests of a known kind."""
    if suffix == ".py":
        return (
            None if "def test" not in text else text + (_UNITTEST if "TestCase" in text else _PYTHON).format(token)
        )
    if suffix == ".rs":
        return text + _RUST.format(token) if "#[test]" in text or "#[cfg(test)]" in text else None
    if suffix == ".go":
        return text + _GO.format(token) if '"testing"' in text and "func Test" in text else None
    if suffix == ".java":
        package = next(
            (name for name in ("org.junit.jupiter.api", "org.junit") if f"import {name}." in text), None
        )
        end = text.rfind("}")
        return None if package is None else text[:end] + _JAVA.format(token, package) + text[end:]
    call = _CALL.search(text)
    return None if call is None else text + _SCRIPT.format(token, call[1])


def find_seen(planted: Mapping[str, str], output: str, ran: RanTests) -> dict[str, bool]:
    """Whether each test that was planted ran and failed, by its file."""
    words = {name: word for name, word in ran.words.items() if any(token in name for token in planted.values())}
    failed = [name for name, word in words.items() if word in ("failed", "error")]
    named = {token for token in planted.values() if any(token in name for name in words)}
    return {
        file: any(token in name for name in failed) if token in named else token in output
        for file, token in planted.items()
    }
