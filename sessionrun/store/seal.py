"""The bytes of status.json and the summary: writes their checksum, and tells whether a file may be believed.

Both may be deleted, for the logs hold all that they say.  So a file with one wrong byte, or with the keys of
another version, counts as absent, and verbs never see it.  The last key, `checksum`, is the CRC-32 of the names of
all keys and of all bytes before it.  It is found and checked without parsing.  Must not know where the files lie,
nor import the records: a poll reads status.json alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final
from zlib import crc32

import orjson

from sessionrun.model.shown import FileStatus, Status, Summary, Task
from sessionrun.model.words import SCHEMA_VERSION

TASKS_OF_A_PIECE: Final = 200

SEAL_KEY: Final = "checksum"
_SEAL: Final = b',"checksum":"%08x"}\n'
_SEAL_BYTES: Final = len(_SEAL % 0)
_TASKS: Final = b',"tasks":['
_BEGIN: Final = b'{"schema_version":%d,' % SCHEMA_VERSION


_KEYS: Final = [key for shape in (FileStatus, Summary, Status, Task) for key in shape.__annotations__]
_OF_KEYS: Final = crc32(" ".join(_KEYS).encode())


def seal(record: Mapping[str, Any]) -> bytes:
    """An object as the bytes of its file."""
    return b"".join(seal_by_pieces(record))


def seal_by_pieces(record: Mapping[str, Any]) -> Iterator[bytes]:
    """The same in pieces of `TASKS_OF_A_PIECE` tasks, so that not all of them are in memory at a time."""
    checksum = _OF_KEYS
    for piece in _split(record):
        checksum = crc32(piece, checksum)
        yield piece
    yield _SEAL % checksum


def _split(record: Mapping[str, Any]) -> Iterator[bytes]:
    """An object as JSON without its closing brace; its list of tasks is the last key."""
    tasks = record.get("tasks")
    if not isinstance(tasks, Iterable) or isinstance(tasks, (Mapping, str)):
        yield orjson.dumps(record)[:-1]
        return
    yield orjson.dumps({key: value for key, value in record.items() if key != "tasks"})[:-1] + _TASKS
    rows, between = iter(tasks), b""
    while piece := list(islice(rows, TASKS_OF_A_PIECE)):
        yield between + orjson.dumps(piece)[1:-1]
        between = b","
    yield b"]"


def find_body(content: bytes) -> memoryview | None:
    """A sealed file without its seal and its closing brace; None where the checksum is another one."""
    body, seal = memoryview(content)[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
    whole = content.startswith(_BEGIN) and seal == _SEAL % crc32(body, _OF_KEYS)
    return body if whole else None


def parse_head(content: bytes) -> tuple[dict[str, Any], bytes] | None:
    """The object of status.json without its tasks, and these as JSON; None where it cannot be believed."""
    body, end = find_body(content), 0
    while body is not None:
        end = content.index(_TASKS, end + 1)
        with suppress(orjson.JSONDecodeError):  # the feed has a key of that name, too: cut there, it is no object
            return orjson.loads(content[:end] + b"}"), content[end + len(_TASKS) - 1 : -_SEAL_BYTES]
    return None


def parse_sealed(content: bytes) -> dict[str, Any] | None:
    """The object of status.json or of the summary; None where it cannot be believed."""
    # what bears its checksum is as a supervisor wrote it; to look at each value again took as long as to parse it
    if find_body(content) is None:
        return None
    record: dict[str, Any] = orjson.loads(content)
    del record[SEAL_KEY]
    return record
