"""The old paths in the text of an environment become the new ones: pure functions of bytes.

Where they stand (seen with pip, setuptools, uv and venv): the first line of each program in ``bin`` and its form
for long paths, ``activate*``, ``pyvenv.cfg``, ``*.pth`` and ``__editable__*.py``, ``direct_url.json``,
``*.egg-link``.  A changed file has another digest in its ``RECORD``.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import quote

MAX_SHEBANG: Final = 127
"""The longest first line that every kernel reads; longer ones, and those with white space, go through sh."""

_REFUSED: Final = re.compile(r"""['"\\\n\r$`%]|[^\x20-\x7e\u00a0-\U0010ffff]""")

_INTERPRETER: Final = rb"""(?P<path>/[^\n"']*?/bin/(?:python|pypy)[^\s/"']*)"""
_DIRECT: Final = re.compile(rb"#!" + _INTERPRETER + rb"(?P<words>[ \t][^\n]*)?\n")
_THROUGH_SH: Final = re.compile(
    rb"#!/bin/sh\n'''exec' [\"']?" + _INTERPRETER + rb"[\"']?(?P<words>(?: [^\n\"]*)?) \"\$0\" \"\$@\"\n' '''\n"
)


def refuse_path(path: str) -> str | None:
    """Why a path cannot stand in the files of an environment, or None."""
    if _REFUSED.search(path):
        return "it holds a character that scripts give a meaning to"
    return None


def holds_path(content: bytes, old: Sequence[str]) -> bool:
    """Whether one of the paths may stand in there, also as a part of a URL."""
    return any(path.encode() in content or quote(path).encode() in content for path in old)


def is_text(content: bytes) -> bool:
    """Whether it may be rewritten: UTF-8 without NUL."""
    if b"\0" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def rewrite(content: bytes, moves: Mapping[str, str]) -> bytes:
    """Replace whole paths, and what lies below them, by those that they moved to; mend the first line."""
    for old, new in moves.items():
        if old.encode() in content:
            content = new.encode().join(_whole(old).split(content))
        in_url = quote(old)
        if in_url != old or quote(new) != new:
            content = _mend_urls(content, old, new)
    return _mend_shebang(content)


def rewrite_record(content: bytes, digests: Mapping[str, tuple[bytes, int]]) -> bytes:
    """A RECORD with the SHA-256 and the size of the files that changed; the other rows stay as they are."""
    rows = list(csv.reader(io.StringIO(content.decode())))
    for row in rows:
        if len(row) >= 3 and row[0] in digests and row[1]:
            digest, size = digests[row[0]]
            row[1:3] = ["sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode(), str(size)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n" if b"\r\n" in content else "\n").writerows(rows)
    return text.getvalue().encode()


def digest_of(content: bytes) -> tuple[bytes, int]:
    """What a RECORD says of a file."""
    return hashlib.sha256(content).digest(), len(content)


@lru_cache(maxsize=16)
def _whole(path: str) -> re.Pattern[bytes]:
    """The path where it is not the beginning of another name, nor the end of a longer path."""
    return re.compile(rb"(?<![\w.~-])" + re.escape(path.encode()) + rb"(?![\w~-]|\.[\w])")


def _mend_urls(content: bytes, old: str, new: str) -> bytes:
    """In a URL a path is spelled in another way; `rewrite` may have put the new one there as it is."""
    for spelled in dict.fromkeys((old, quote(old), new)):
        content = re.sub(
            rb"file://" + re.escape(spelled.encode()) + rb"(?![\w~-]|\.[\w])",
            lambda _: b"file://" + quote(new).encode(),
            content,
        )
    return content


def _mend_shebang(content: bytes) -> bytes:
    """Give a Python script the form of its first line that its length and its characters want."""
    first = _DIRECT.match(content) or _THROUGH_SH.match(content)
    if first is None:
        return content
    path, words = first["path"], (first["words"] or b"").rstrip()
    line = b"#!" + path + words
    if len(line) <= MAX_SHEBANG and not re.search(rb"\s", path):
        return line + b"\n" + content[first.end() :]
    head = b"#!/bin/sh\n'''exec' \"" + path + b'"' + words + b' "$0" "$@"\n' + b"' '''\n"
    return head + content[first.end() :]
