"""The objects that show sessions and their tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

from sessionrun.client.reading import terse
from sessionrun.store.caches import (
    OUTCOMES,
    STATUS,
    SUMMARY,
    TASK,
)
from sessionrun.store.shapes import (
    FLAG,
    NUMBER,
    TEXT,
    Kind,
    count,
    lists,
    mappings,
    nullable,
    objects,
    path,
    time,
    words,
)

Table: TypeAlias = Mapping[str, Kind]


def without(table: Table, *keys: str) -> Table:
    """A table without some of its keys."""
    return {key: kind for key, kind in table.items() if key not in keys}


def only(table: Table, keys: Collection[str]) -> Table:
    """Those of its keys."""
    return {key: kind for key, kind in table.items() if key in keys}


STATUS_WORD: Final = words("running", "recovering", "completed", "cancelled", "interrupted")
OUTCOME: Final = nullable(words(*OUTCOMES))
SESSION_OUTCOME: Final = nullable(words("succeeded", "failed"))
TASK_STATUS: Final = words("pending", "running", "completed")

_PLACE: Final[Table] = {
    "results_dir": path,
    "stopped": lists(words("root", "keeper", "supervisor")),
    "no_contact": lists(objects({"node": nullable(TEXT), "since": time, "lease_ends_at": time})),
    "disk_full": nullable(objects({"path": path, "free_bytes": count, "free_inodes": nullable(count)})),
}
"""What no file of a session says of it."""

SESSION: Final[Table] = {**without(STATUS, "schema_version"), **_PLACE, "status": STATUS_WORD}
SUMMARY_SHOWN: Final[Table] = {**without(SUMMARY, "schema_version"), **_PLACE, "status": STATUS_WORD}
_TELLING: Final[Table] = {
    "telling": nullable(objects({"step": words("setup", "work", "check", "proof", "gate"), "lines": lists(TEXT)})),
}
"""Where verbs say why a task failed; see `client.reading.telling`."""

_OPTIONAL_OF_ANSWERED: Final[Table] = {
    **_TELLING,
    "hidden_tests": nullable(objects({"passed": count, "total": count})),
}
TASK_SHOWN: Final[Table] = {**TASK, **_TELLING}
_TASKS: Final = lists(objects(TASK))
_TEXTS: Final[Table] = {"text": nullable(TEXT), "stderr_text": nullable(TEXT)}

JOB_FILES: Final = objects(
    {
        **dict.fromkeys(("processed", "passed", "failed", "skipped"), count),
        "results": lists(
            objects(
                {
                    "job_id": TEXT,
                    "status": TEXT,
                    "error": nullable(TEXT),
                    "output_paths": lists(path),
                    "output_lines": nullable(count),
                    "test_path": nullable(path),
                    "test_lines": nullable(count),
                    "retry_attempted": FLAG,
                    "implicit_context_files": lists(path),
                }
            )
        ),
    }
)
"""What Markdown job files came to."""

SHOWN: Final = objects({**SESSION, "tasks": _TASKS}, {"cursor": count, "timed_out": FLAG})
FAILED: Final = objects({"session_id": TEXT, "error": objects({"code": count, "message": TEXT})})
"""Of several sessions, one for which the verb failed."""

ANSWERED: Final = objects(
    {**SESSION, "tasks": lists(objects({**TASK, **_TEXTS}, _OPTIONAL_OF_ANSWERED))},
    {"summary": JOB_FILES},
)
"""What `--sync` prints at the end."""

ID_ALONE: Final = objects({"session_id": TEXT})
LAUNCHED: Final = objects(
    {
        "session_id": TEXT,
        "results_dir": path,
        "agent": TEXT,
        "dialect": TEXT,
        "name": nullable(TEXT),
        "labels": mappings(TEXT),
        "total": count,
        "max_parallel": nullable(count),
    }
)
NOTHING_TO_DO: Final = objects(
    {"session_id": nullable(TEXT)}, {"total": count, "skipped": count, "open": count, "summary": JOB_FILES}
)

_AMOUNTS: Final = objects(dict.fromkeys(("files", "insertions", "deletions"), NUMBER))
_COMPARED: Final[Table] = {
    **dict.fromkeys(("runs", "succeeded", "failed", "open"), count),
    "duration_s": nullable(NUMBER),
    "cost_usd": nullable(NUMBER),
    "cost_source": nullable(words("agent", "table")),
    "unpriced_jobs": nullable(count),
    "diff": nullable(_AMOUNTS),
    "check": nullable(objects({"passed": count, "failed": count})),
    "proof": nullable(mappings(count)),
    "pass_at": mappings(objects(dict.fromkeys(("estimate", "low", "high"), NUMBER))),
}
_CELL: Final = objects({**_COMPARED, "model": TEXT, "task": TEXT, "agent": TEXT}, {"outcome": OUTCOME})
COMPARED: Final = objects(
    {
        "session_id": TEXT,
        "by": TEXT,
        "samples": count,
        "groups": lists(objects({**_COMPARED, "key": TEXT, "cells": lists(_CELL)})),
    }
)
BRIEF: Final = objects(
    {"session_id": TEXT, "cursor": count, "tasks": lists(objects({}, only(TASK_SHOWN, terse.TASK_KEYS)))},
    {**only(SESSION, terse.HEAD_KEYS), "counts": mappings(count)},
)
FIELDS: Final = objects(
    {"session_id": TEXT, "cursor": count},
    {**SESSION, "tasks": lists(objects({}, TASK_SHOWN))},
)

COUNTERS: Final = ("total", "completed", "running", "successful", "failed", "skipped", "counts")
STANDING: Final = ("status", "outcome", "state", "result", "held_until")
_ENDED_KEYS: Final = (
    *(
        "num",
        "id",
        "title",
        "labels",
        "status",
        "outcome",
        "word",
        "reason_class",
        "reason",
        "attempt",
        "agent",
        "model",
    ),
    *("exit_code", "signal", "ended_at", "ended_seq", "duration_s", "branch", "commit", "output", "stderr"),
    "landing",
)
NEXT_END: Final = objects(
    {
        **only(SESSION, ("session_id", *STANDING, *COUNTERS, "results_dir")),
        "left": count,
        "cursor": count,
        "timed_out": FLAG,
        "tasks": lists(objects(only(TASK_SHOWN, _ENDED_KEYS))),
    }
)

RESULTS: Final = objects(
    {
        "session_id": TEXT,
        "status": STATUS_WORD,
        "outcome": SESSION_OUTCOME,
        "results_dir": path,
        "tasks": lists(objects({**TASK, **_TEXTS}, _OPTIONAL_OF_ANSWERED)),
    },
    {"summary": JOB_FILES},
)
DIGEST: Final = objects(
    {
        **only(SESSION, ("session_id", "status", "outcome", "state", "result")),
        **only(SESSION, ("total", "completed", "successful", "failed")),
        "results_dir": path,
        "rest": TEXT,
        "more_failed": lists(TEXT),
        "more_failed_numbers": lists(TEXT),
        "more_fine": count,
        "tasks": lists(
            objects(
                {
                    **only(TASK, ("num", "id", "word", "reason")),
                    "text": nullable(TEXT),
                    "text_bytes": nullable(count),
                },
                {"stderr_text": TEXT, "stderr_bytes": count, **_TELLING},
            )
        ),
    }
)

_HOLD: Final = objects({"resource": TEXT, "reason": TEXT, "until": nullable(time)})
_TOKEN: Final[Table] = {"resource": TEXT, "capacity": count, "free": count, "holders": lists(TEXT)}
_JOB: Final = objects(
    {
        "key": TEXT,
        "round": count,
        "phase": TEXT,
        "start": count,
        "node": nullable(TEXT),
        "pid": nullable(count),
        "started_at": nullable(time),
        "ended_at": nullable(time),
        "duration_s": nullable(NUMBER),
        "timer": nullable(TEXT),
        "verdict": nullable(TEXT),
        "reason": nullable(TEXT),
        "exit_code": nullable(count),
        "signal": nullable(count),
        "ledger": nullable(
            objects(
                {
                    "tried": FLAG,
                    "pid": nullable(count),
                    "wait_status": nullable(count),
                    "errno": nullable(count),
                    "lost": FLAG,
                    "alive": nullable(FLAG),
                }
            )
        ),
    }
)
_ATTEMPT: Final = objects(
    {
        "attempt": count,
        "agent": TEXT,
        "model": nullable(TEXT),
        "rounds": count,
        **only(TASK, ("outcome", "reason_class", "reason", "started_at", "ended_at", "duration_s")),
        "jobs": lists(_JOB),
    }
)
_DENIED: Final = objects(
    {
        "task": TEXT,
        "host": TEXT,
        "port": count,
        "count": count,
        "first_at": time,
        "last_at": time,
        "why": TEXT,
    }
)
_EXPLAINED_KEYS: Final = (
    *("id", "num", "status", "phase", "outcome", "word", "reason_class", "reason", "attempt", "round", "pid"),
    *("rescue_branch", "worktree", "worktree_kept", "worktree_remark", "leftovers", "output", "stderr"),
)
_EXPLAINED: Final = objects(
    {
        **only(TASK, _EXPLAINED_KEYS),
        "cause": TEXT,
        "why": TEXT,
        "follow_up": nullable(TEXT),
        "needs": lists(objects({"id": TEXT, "status": TASK_STATUS, "outcome": OUTCOME})),
        "holds": lists(_HOLD),
        "tokens": lists(objects({**_TOKEN, "wants": count})),
        "budget": nullable(TEXT),
        "retry_at": nullable(time),
        "chain": lists(TEXT),
    },
    {**only(TASK, ("proof", "audit", "landing")), **_TELLING, "attempts": lists(_ATTEMPT)},
)
EXPLAINED: Final = objects(
    {
        **without(SESSION, "labels", "dialect", "agent"),
        "holds": lists(_HOLD),
        "tokens": lists(objects(_TOKEN)),
        "causes": mappings(count),
        "landings": mappings(count),
        "denied": lists(_DENIED),
        "resume": nullable(TEXT),
        "damage": nullable(TEXT),
        "tasks": lists(_EXPLAINED),
    }
)

_DIFF_KEYS: Final = ("id", "num", "branch", "rescue_branch", "worktree", "base_commit", "commit", "diff_stat")
DIFF: Final = objects(
    {
        "session_id": TEXT,
        "tasks": lists(
            objects({**only(TASK, _DIFF_KEYS), "setup_commit": nullable(path), "patch": nullable(path)})
        ),
    }
)
