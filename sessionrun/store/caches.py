"""The bytes of status.json and the summary: writes their checksum, and tells whether a file may be believed.

Both may be deleted, for the logs hold all that they say.  So a file with one wrong byte, a missing key or a value
of another type counts as absent, and verbs never see it.  The last key, `checksum`, is the CRC-32 of all bytes
before it.  It is found and checked without parsing.  Must not know where the files lie, nor import the records: a
poll reads status.json alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final
from zlib import crc32

import orjson

from sessionrun.model.words import RESULTS, STATES, WORDS
from sessionrun.store.shapes import (
    FLAG,
    NUMBER,
    TEXT,
    Kind,
    count,
    file_name,
    lists,
    mappings,
    nullable,
    objects,
    of_types,
    path,
    time,
    words,
)

STATUS_VERSION: Final = 1
"""The `schema_version` of status.json and the summary that is read here: `model.SCHEMA_VERSION`."""

TASKS_OF_A_PIECE: Final = 200

SEAL_KEY: Final = "checksum"
_SEAL: Final = b',"checksum":"%08x"}\n'
_SEAL_BYTES: Final = len(_SEAL % 0)
_BEGIN: Final = b'{"schema_version":%d,' % STATUS_VERSION

USAGE: Final = objects(
    {
        "input_tokens": nullable(count),
        "output_tokens": nullable(count),
        "cost_usd": nullable(NUMBER),
        "cached_input_tokens": nullable(count),
        "cost_source": nullable(words("agent", "table")),
        "unpriced_jobs": count,
    },
    {"cost_complete": FLAG},
)
DIFF_STAT: Final = objects({"files": count, "insertions": count, "deletions": count})
COUNTS: Final = objects({"passed": count, "failed": count, "errors": count, "skipped": count, "total": count})
_PROCESS: Final = objects({"pid": count, "started": nullable(count)})

OUTCOMES: Final = ("succeeded", "failed", "timed_out", "cancelled", "skipped", "lost", "interrupted")
PHASES: Final = (
    "queued",
    "preparing",
    "initializing",
    "running",
    "checking",
    "parking",
    "proving",
    "landing",
    "releasing",
)
PROOFS: Final = ("proved", "not_red", "weakened", "flaky", "unproved")

_FEED: Final = objects(
    {
        "queue": path,
        "backend": TEXT,
        "group": nullable(TEXT),
        "tasks": nullable(lists(TEXT)),
        "watch": FLAG,
        "open": FLAG,
        "held": nullable(TEXT),
    }
)

_ENVIRONMENT: Final = objects(
    {
        "cached": FLAG,
        "digest": TEXT,
        "choice": nullable(TEXT),
        "path": nullable(path),
        "steps": lists(objects({"name": TEXT, "duration_s": NUMBER})),
    }
)

_LANDING: Final = objects(
    {
        "status": words("ready", "landing", "waiting", "landed", "bounced", "mending", "held"),
        "target": path,
        "commit": nullable(TEXT),
        "reason_class": nullable(TEXT),
        "reason": nullable(path),
        "mend": nullable(path),
        "files": lists(path),
        "against": lists(TEXT),
        "output": nullable(path),
        "at": nullable(time),
    }
)

NOTE: Final = objects(
    {"rule": TEXT, "level": words("note", "alarm"), "where": path, "text": TEXT, "certain": FLAG}
)
SUMMARY: Final[Mapping[str, Kind]] = {
    "schema_version": of_types(int),
    "session_id": TEXT,
    "name": nullable(TEXT),
    "labels": mappings(TEXT),
    "dialect": TEXT,
    "agent": TEXT,
    "status": words("running", "completed", "cancelled"),
    "outcome": nullable(words("succeeded", "failed")),
    "state": words(*STATES),
    "result": nullable(words(*RESULTS)),
    "held_until": nullable(time),
    "started_at": time,
    "ended_at": nullable(time),
    "total": count,
    "counts": objects(dict.fromkeys(WORDS, count)),
    "completed": count,
    "running": count,
    "successful": count,
    "failed": count,
    "skipped": count,
    "max_parallel": nullable(count),
    "usage": nullable(USAGE),
    "budget": nullable(
        objects(
            {
                "budget_usd": nullable(NUMBER),
                "soft_budget_usd": nullable(NUMBER),
                "spent_usd": NUMBER,
                "reserved_usd": NUMBER,
                "held": FLAG,
            }
        )
    ),
    "seq": count,
    "processes": nullable(
        objects({"boot_id": TEXT, "pid_ns": TEXT, "supervisor": nullable(_PROCESS), "keeper": nullable(_PROCESS)})
    ),
    "parent": nullable(objects({"session_id": file_name, "task": TEXT, "depth": count})),
}
"""The keys of the summary, and what their values are."""

TASK: Final[Mapping[str, Kind]] = {
    "num": count,
    "id": file_name,
    "title": TEXT,
    "labels": mappings(TEXT),
    "status": words("pending", "running", "completed"),
    "phase": nullable(words(*PHASES)),
    "outcome": nullable(words(*OUTCOMES)),
    "word": words(*WORDS),
    "reason_class": nullable(TEXT),
    "reason": nullable(TEXT),
    "held_until": nullable(time),
    "attempt": count,
    "round": count,
    "agent": TEXT,
    "model": nullable(TEXT),
    "exit_code": nullable(count),
    "signal": nullable(count),
    "started_at": nullable(time),
    "ended_at": nullable(time),
    "duration_s": nullable(NUMBER),
    "pid": nullable(count),
    "branch": nullable(path),
    "rescue_branch": nullable(path),
    "worktree": nullable(path),
    "worktree_kept": nullable(TEXT),
    "worktree_remark": nullable(TEXT),
    "base_commit": nullable(path),
    "commit": nullable(path),
    "diff_stat": nullable(DIFF_STAT),
    "output": file_name,
    "stderr": file_name,
    "raw": nullable(file_name),
    "needs": lists(TEXT),
    "conversation": nullable(TEXT),
    "usage": nullable(USAGE),
    "usage_by_model": nullable(mappings(USAGE)),
    "check": nullable(
        objects(
            {"passed": nullable(FLAG), "rounds": count},
            {
                "counts": nullable(COUNTS),
                "best_round": nullable(count),
                "best_counts": nullable(COUNTS),
                "best_reason": nullable(TEXT),
            },
        )
    ),
    "node": nullable(path),
    "setup_commit": nullable(path),
    "proof": nullable(words(*PROOFS)),
    "audit": nullable(lists(NOTE)),
    "leftovers": nullable(lists(objects({"command": TEXT, "how": TEXT}))),
    "repo": nullable(path),
    "ref": nullable(path),
    "ref_name": nullable(path),
    "ref_commit": nullable(path),
    "environment": nullable(_ENVIRONMENT),
    "landing": nullable(_LANDING),
    "follow_ups": count,
    "mends": nullable(file_name),
    "seat": nullable(count),
    "ended_seq": nullable(count),
    "earlier_agents": nullable(lists(objects({"attempt": count, "agent": TEXT, "model": nullable(TEXT)}))),
    "usage_by_agent": nullable(mappings(mappings(USAGE))),
}
"""The keys of a task."""

STATUS: Final[Mapping[str, Kind]] = {
    **SUMMARY,
    "base_branch": nullable(path),
    "usage_by_model": nullable(mappings(USAGE)),
    "epoch": count,
    "view_problems": lists(TEXT),
    "feed": nullable(_FEED),
}
"""The keys of status.json, beside `tasks`."""

_SUMMARY: Final = objects(SUMMARY)
_STATUS: Final = objects({**STATUS, "tasks": lists(objects(TASK))})


def seal(record: Mapping[str, Any]) -> bytes:
    """An object as the bytes of its file."""
    return b"".join(seal_by_pieces(record))


def seal_by_pieces(record: Mapping[str, Any]) -> Iterator[bytes]:
    """The same in pieces of `TASKS_OF_A_PIECE` tasks, so that not all of them are in memory at a time."""
    checksum = 0
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
    yield orjson.dumps({key: value for key, value in record.items() if key != "tasks"})[:-1] + b',"tasks":['
    rows, between = iter(tasks), b""
    while piece := list(islice(rows, TASKS_OF_A_PIECE)):
        yield between + orjson.dumps(piece)[1:-1]
        between = b","
    yield b"]"


def find_body(content: bytes) -> memoryview | None:
    """A sealed file without its seal and its closing brace; None where the checksum is another one."""
    body, seal = memoryview(content)[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
    whole = content.startswith(_BEGIN) and seal == _SEAL % crc32(body)
    return body if whole else None


def parse_status(content: bytes) -> dict[str, Any] | None:
    """The object of status.json; None where it cannot be believed."""
    status = _parse(content, _STATUS)
    if status is None or status["total"] != len(status["tasks"]) or not _are_numbered(status["tasks"]):
        return None
    return status


def parse_summary(content: bytes) -> dict[str, Any] | None:
    """The object of the summary; None where it cannot be believed."""
    return _parse(content, _SUMMARY)


def _parse(content: bytes, kind: Kind) -> dict[str, Any] | None:
    if find_body(content) is None:
        return None
    try:
        record = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    if not kind((record,)) or record["schema_version"] != STATUS_VERSION:
        return None
    record.pop(SEAL_KEY, None)
    return dict(record)


def _are_numbered(tasks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether each task can be named: numbers that count from 1, and ids of which none is there twice."""
    numbered = all(task["num"] == num for num, task in enumerate(tasks, 1))
    return numbered and len({task["id"] for task in tasks}) == len(tasks)
