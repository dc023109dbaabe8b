"""Append-only logs of checked lines: the format that the journal and the ledger share.

A line is ``CRC32 (8 hex digits) SPACE payload LF``; the payload holds no LF.  One process writes (the holder
of the log's lock); anyone may read at any time.  A torn last line is normal after a crash and is no record;
a bad line with good ones behind it is damage.  This module must not know what the payloads mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from sessionrun.errors import StoreError


@dataclass(frozen=True, slots=True)
class LogContents:
    """The good records of a log, the offset behind the last one, and where damage begins, if any."""

    payloads: list[bytes]
    end: int
    damage_at: int | None = None


class AppendLog:
    """The writing end of one log.  Not for two writers.

    Raises:
        StoreError: from `append` and `sync`, when the disk refuses; the log then ends where it ended before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        self.end = os.fstat(self._fd).st_size
        self._dirty = False
        self._broken = False

    def append(self, payloads: Iterable[bytes]) -> int:
        """Write records with one system call; return the offset behind the last (bytes)."""
        chunk = b"".join([b"%08x %b\n" % (crc32(payload), payload) for payload in payloads])
        if not chunk:
            return self.end
        try:
            written = os.write(self._fd, chunk)
        except OSError as error:
            raise self._refused("write", error) from error
        if written != len(chunk):  # a disk that fills up first writes a part
            os.ftruncate(self._fd, self.end)
            raise StoreError(f"cannot write {self.path}: no space left on device")
        self.end += written
        self._dirty = True
        return self.end

    def sync(self) -> None:
        """Make all records durable.

        After a failed sync the kernel may forget what it could not write and report success the next time, so
        a log whose sync failed once never claims to be durable again.
        """
        if self._broken:
            raise StoreError(f"cannot sync {self.path}: an earlier sync failed")
        if not self._dirty:
            return
        try:
            _fdatasync(self._fd)
        except OSError as error:
            self._broken = True
            raise self._refused("sync", error) from error
        self._dirty = False

    def cut(self, end: int) -> None:
        """Drop a torn tail, so that what is appended next begins a line."""
        if end < self.end:
            os.ftruncate(self._fd, end)
            self.end = end
            self._dirty = True

    def close(self) -> None:
        """Give up the descriptor."""
        os.close(self._fd)

    def _refused(self, what: str, error: OSError) -> StoreError:
        return StoreError(f"cannot {what} {self.path}: {error.strerror}")


_fdatasync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


def parse_log(content: bytes) -> LogContents:
    """Read a log's records; never raises, whatever the bytes are."""
    payloads: list[bytes] = []
    end = 0
    position = 0
    damage_at: int | None = None
    while position < len(content):
        newline = content.find(b"\n", position)
        line_end = len(content) if newline < 0 else newline + 1
        payload = _check_line(content[position:line_end])
        if payload is None:
            damage_at = position if damage_at is None else damage_at
        elif damage_at is not None:
            return LogContents(payloads, end, damage_at)  # a good record behind a bad one
        else:
            payloads.append(payload)
            end = line_end
        position = line_end
    return LogContents(payloads, end)


def read_log(path: Path) -> LogContents:
    """Read a log file; one that does not exist is empty.

    Raises:
        StoreError: the file cannot be read.
    """
    try:
        return parse_log(path.read_bytes())
    except FileNotFoundError:
        return LogContents([], 0)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def _check_line(line: bytes) -> bytes | None:
    if len(line) < 10 or line[8:9] != b" " or not line.endswith(b"\n"):
        return None
    payload = line[9:-1]
    return payload if line[:8] == b"%08x" % crc32(payload) else None
