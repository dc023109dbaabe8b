"""Keeps of a patch what is source: sections about tests and test set-up go.  Pure.

The words for what is a test are those of `testing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sessionrun.workspaces.testing import SET_UP, TEST_FILES, compile_patterns

_SECTION: Final = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_ESCAPE: Final = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_LETTERS: Final = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


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
    """The names in the head of a section."""
    head = section.partition(b"\n@@ ")[0].split(b"\n")
    if not head[0].startswith(b"diff --git "):
        return
    named = False
    for line in head[1:]:
        for mark, prefix in ((b"--- ", b"a/"), (b"+++ ", b"b/"), (b"rename from ", b""), (b"rename to ", b"")):
            name = _unquote(line[len(mark) :].removesuffix(b"\t")) if line.startswith(mark) else b""
            if name.startswith(prefix) and name not in (b"", b"/dev/null"):
                named = True
                yield name[len(prefix) :].decode("utf-8", "surrogateescape")
    if not named:  # a file without content, or binary: both names are the same
        both = head[0].removeprefix(b"diff --git ")
        yield _unquote(both[: (len(both) - 1) // 2]).removeprefix(b"a/").decode("utf-8", "surrogateescape")


def _unquote(name: bytes) -> bytes:
    if not (name.startswith(b'"') and name.endswith(b'"') and len(name) > 1):
        return name
    return _ESCAPE.sub(_unescape, name[1:-1])


def _unescape(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _LETTERS.get(code, code)
