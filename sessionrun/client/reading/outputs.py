"""Reading output files of any size in pieces, from the front or from the end.

A task may replace its own output file: a link, FIFO or directory in its place counts as no output.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sessionrun.store.files import NotRegular, open_regular
from sessionrun.store.session import SessionDir

CHUNK_BYTES: Final = 256 * 1024


def read_answer(session: SessionDir, task: Mapping[str, Any]) -> str:
    """The whole answer of a task until now; bytes that are not UTF-8 become visible escapes."""
    return b"".join(iterate_chunks(session.path / task["output"])).decode("utf-8", "backslashreplace")


def iterate_chunks(path: Path, offset: int = 0) -> Iterator[bytes]:
    """The file's bytes from `offset` on; nothing when it does not exist."""
    fd = open_output(path)
    if fd is None:
        return
    try:
        while chunk := os.pread(fd, CHUNK_BYTES, offset):
            yield chunk
            offset += len(chunk)
    finally:
        os.close(fd)


def iterate_tail(path: Path, lines: int | None) -> Iterator[bytes]:
    """The file's last `lines` lines; None: all."""
    return iterate_chunks(path, 0 if lines is None else find_tail(path, lines))


def decode(chunks: Iterable[bytes]) -> Iterator[str]:
    """Decode piece by piece; bytes that are not UTF-8 become visible escapes."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for chunk in chunks:
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


def find_tail(path: Path, lines: int) -> int:
    """The offset at which the last `lines` lines begin, read from the end (a last line may lack its LF)."""
    fd = open_output(path)
    if fd is None:
        return 0
    try:
        end = os.fstat(fd).st_size
        if lines == 0:
            return end
        missing = lines
        position = end
        while position > 0:
            size = min(CHUNK_BYTES, position)
            position -= size
            chunk = os.pread(fd, size, position)
            at = len(chunk) - 1 if position + size == end and chunk.endswith(b"\n") else len(chunk)
            while (at := chunk.rfind(b"\n", 0, at)) >= 0:
                missing -= 1
                if not missing:
                    return position + at + 1
        return 0
    finally:
        os.close(fd)


def open_output(path: Path) -> int | None:
    """A descriptor of the file; None if there is none, or something else lies there."""
    try:
        return open_regular(path)
    except (FileNotFoundError, NotRegular):
        return None
