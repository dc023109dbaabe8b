"""`schema`: what each verb prints with `--json`, and files of a session, as shapes; sessions are `model.shown`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from sessionrun.client.config import InUse
from sessionrun.client.explain import SHOWN_KEYS
from sessionrun.client.findings import Finding
from sessionrun.client.installed import Examined
from sessionrun.client.reading.comparison import Told
from sessionrun.client.schemas.shape import Shape, keys_of, only
from sessionrun.model.kinds import Count, Time
from sessionrun.model.shown import (
    BriefTask,
    Counters,
    EndedTask,
    FileStatus,
    NotifiedTask,
    Seen,
    Source,
    Standing,
    Status,
    Summary,
    Task,
    Telling,
    Usage,
    Verdict,
)
from sessionrun.model.spec import Outcome
from sessionrun.model.words import State, Word

ERROR_KEYS: Final = {"error": {"code": Count, "message": str}}


def _maybe(*records: type) -> dict[str, Shape]:
    """The keys of records, of which any may be absent."""
    return {f"{key}?": shape for key, shape in keys_of(*records).items()}


# --- sessions and their tasks ---

SESSION: Final = keys_of(Status, Seen)
SHOWN: Final = {**SESSION, "tasks": [Task], "cursor?": Count, "timed_out?": bool}
FAILED: Final = {"session_id": str, **ERROR_KEYS}
"""Of several sessions, one for which the verb failed."""

JOB_FILES: Final = {
    **dict.fromkeys(("processed", "passed", "failed", "skipped"), Count),
    "results": [
        {
            **dict.fromkeys(("job_id", "status"), str),
            **dict.fromkeys(("error", "test_path"), str | None),
            **dict.fromkeys(("output_lines", "test_lines"), Count | None),
            **dict.fromkeys(("output_paths", "implicit_context_files"), list[str]),
            "retry_attempted": bool,
        }
    ],
}
"""What Markdown job files came to."""

_TELLING: Final = {"telling?": (Telling, None)}
_ANSWERED: Final = {
    **keys_of(Task),
    **dict.fromkeys(("text", "stderr_text"), str | None),
    **_TELLING,
    "hidden_tests?": (dict.fromkeys(("passed", "total"), Count), None),
}
ANSWERED: Final = {**SESSION, "tasks": [_ANSWERED], "summary?": JOB_FILES}
"""What `--sync` prints at the end."""

ID_ALONE: Final = {"session_id": str}
LAUNCHED: Final = {
    **only(Summary, ("session_id", "agent", "dialect", "name", "labels", "total", "max_parallel")),
    "results_dir": str,
}
NOTHING_TO_DO: Final = {
    "session_id": str | None,
    **dict.fromkeys(("total?", "skipped?", "open?"), Count),
    "summary?": JOB_FILES,
}

_COMPARED: Final = {
    **dict.fromkeys(("runs", "succeeded", "failed", "open"), Count),
    "duration_s": float | None,
    **only(Usage, ("cost_usd", "cost_source")),
    "unpriced_jobs": Count | None,
    "diff": (dict.fromkeys(("files", "insertions", "deletions"), float), None),
    "check": ({"passed": Count, "failed": Count}, None),
    "proof": ({str: Count}, None),
    "pass_at": {str: dict.fromkeys(("estimate", "low", "high"), float)},
}
_CELL: Final = {**_COMPARED, "model": str, "task": str, "agent": str, "outcome?": Outcome | None, "words": [Word]}
_BEHIND: Final = {"tasks": Count, **dict.fromkeys(("estimate", "low", "high", "p"), float), "verdict": Told}
COMPARED: Final = {
    **dict.fromkeys(("session_id", "by"), str),
    "samples": Count,
    "groups": [
        {**_COMPARED, "key": str, "cost_per_success": float | None, "behind": (_BEHIND, None), "cells": [_CELL]}
    ],
}
BRIEF: Final = {
    "session_id": str,
    "cursor": Count,
    "tasks": [{**_maybe(BriefTask), **_TELLING}],
    **{key: shape for key, shape in _maybe(Standing, Seen).items() if key != "session_id?"},
    **{f"{key}?": shape for key, shape in only(Status, ("name", "budget", "view_problems")).items()},
    "counts?": {str: Count},
}
FIELDS: Final = {
    **_maybe(Status, Seen),
    "session_id": str,
    "cursor": Count,
    "tasks?": [{**_maybe(Task), **_TELLING}],
}
NEXT_END: Final = {
    **keys_of(Standing),
    **dict.fromkeys(("left", "cursor"), Count),
    "results_dir": str,
    "timed_out": bool,
    "tasks": [EndedTask],
}
RESULTS: Final = {
    **only(Verdict, ("session_id", "status", "outcome")),
    "results_dir": str,
    "tasks": [_ANSWERED],
    "summary?": JOB_FILES,
}
DIGEST: Final = {
    **keys_of(Verdict),
    **only(Counters, ("total", "completed", "successful", "failed")),
    **dict.fromkeys(("results_dir", "rest"), str),
    **dict.fromkeys(("more_failed", "more_failed_numbers"), list[str]),
    "more_fine": Count,
    "tasks": [
        {
            **only(Task, ("num", "id", "word", "reason")),
            "text": str | None,
            "text_bytes": Count | None,
            "stderr_text?": str,
            "stderr_bytes?": Count,
            **_TELLING,
        }
    ],
}

_HOLD: Final = {"resource": str, "reason": str, "until": Time | None}
_TOKEN: Final = {"resource": str, "capacity": Count, "free": Count, "holders": [str]}
_JOB: Final = {
    **dict.fromkeys(("key", "phase"), str),
    **dict.fromkeys(("round", "start"), Count),
    **dict.fromkeys(("node", "timer", "verdict", "ledger"), str | None),
    **only(Task, ("pid", "started_at", "ended_at", "duration_s", "reason", "exit_code", "signal")),
}
_ATTEMPT: Final = {
    **only(Task, ("attempt", "agent", "model", "outcome", "reason_class", "reason")),
    **only(Task, ("started_at", "ended_at", "duration_s")),
    "rounds": Count,
    "jobs": [_JOB],
}
_DENIED: Final = {
    **dict.fromkeys(("task", "host", "why"), str),
    **dict.fromkeys(("port", "count"), Count),
    **dict.fromkeys(("first_at", "last_at"), Time),
}
_STORY: Final = only(Task, SHOWN_KEYS)
_EXPLAINED: Final = {
    **{f"{key}?" if key in ("proof", "audit") else key: shape for key, shape in _STORY.items()},
    **dict.fromkeys(("cause", "why"), str),
    **dict.fromkeys(("follow_up", "budget"), str | None),
    "needs": [only(Task, ("id", "status", "outcome"))],
    "holds": [_HOLD],
    "tokens": [{**_TOKEN, "wants": Count}],
    "retry_at": Time | None,
    "chain": [str],
    "landing?": keys_of(Task)["landing"],
    **_TELLING,
    "attempts?": [_ATTEMPT],
}
EXPLAINED: Final = {
    **{key: shape for key, shape in SESSION.items() if key not in keys_of(Source)},
    "holds": [_HOLD],
    "tokens": [_TOKEN],
    **dict.fromkeys(("causes", "landings"), dict[str, Count]),
    **dict.fromkeys(("resume", "damage"), str | None),
    "denied": [_DENIED],
    "tasks": [_EXPLAINED],
}

# --- many sessions and the machine ---

PREVIEW: Final = {
    **dict.fromkeys(("dialect", "dialect_reason", "agent", "agent_reason"), str),
    **dict.fromkeys(("base_branch", "base_commit", "worktree_dir"), str | None),
    "total": Count,
    "max_parallel": Count | None,
    "land": ({"target": str, "gates": [str]}, None),
    "waves": [[str]],
    "critical_path": [str],
    "starts_at": Time | None,
    "held": bool,
    "tasks": [
        {
            **only(Task, ("num", "id", "title", "agent", "branch", "repo", "ref", "needs")),
            **dict.fromkeys(("prompts", "argv"), list[str]),
            **dict.fromkeys(("sandbox", "network"), str | None),
            "cwd": str,
            "begins_at": ([str], None),
        }
    ],
}
LIST: Final = {"sessions": [keys_of(Summary, Seen)]}
TOTALS: Final = {
    **LIST,
    "session_counts": {
        **dict.fromkeys(
            ("total", "running", "recovering", "completed", "cancelled", "interrupted", "stopped"), Count
        ),
        "states": dict[State, Count],
    },
    "task_counts": Counters,
}
LINE: Final = {"id": str, "stream": Literal["stdout", "stderr"], "text": str}
RESUMED: Final = {**only(Verdict, ("session_id", "status")), "resumed": bool}

_MONEY: Final = {
    "task_count": Count,
    "unpriced_task_count": Count,
    "models": [str],
    **only(Usage, ("input_tokens", "cached_input_tokens", "output_tokens", "cost_usd", "cost_source")),
    "cost_complete": bool,
}
COST: Final = {
    "session_ids": [str],
    "by": str,
    "rows": [{**_MONEY, **dict.fromkeys(("session_id?", "id?", "model?", "agent?", "day?"), str)}],
    "total": _MONEY,
    "unpriced": {str: Count},
}

_CLEANED: Final = Literal["session", "worktree", "branch", "trash", "room", "environment", "mirror", "replica"]
CLEANED: Final = {
    "findings": [
        {
            **dict.fromkeys(("session_id", "repository", "id"), str | None),
            **dict.fromkeys(("name", "why"), str),
            "what": _CLEANED,
            "removed": bool,
            "would_remove": bool | None,
            "bytes?": Count,
        }
    ]
}

_FINDING: Final = only(Finding, ("check", "severity", "where", "what", "plan"))
DOCTOR: Final = {
    **dict.fromkeys(("session_count", "remaining"), Count),
    "findings": [{"session_id": str | None, **_FINDING, "fixable": bool, "fixed": bool}],
}
DOCTOR_AGENTS: Final = {
    "agents": [{**keys_of(Examined), "needs_sign_in": bool, "signed_in": bool | None, "startable": bool}],
    "not_passed_on": [str],
    "walls": dict.fromkeys(("version", "project", "strict", "keys"), str | None),
}

CONFIG: Final = {"settings": [keys_of(InUse)]}

# --- by verb ---


def several(*forms: Mapping[str, Shape]) -> tuple[Mapping[str, Shape], ...]:
    """These, and what is printed of several sessions."""
    return (*forms, {"sessions": [(*forms, FAILED)]})


_CHANGED: Final = (SHOWN, ID_ALONE, ANSWERED)
LAUNCH: Final = (LAUNCHED, PREVIEW, NOTHING_TO_DO, *_CHANGED)

OUTPUTS: Final[Mapping[str, tuple[Mapping[str, Shape], ...]]] = {
    "run": LAUNCH,
    "status": several(SHOWN, BRIEF, FIELDS, COMPARED),
    "results": (*several(RESULTS), DIGEST),
    "list": (LIST, TOTALS),
    "wait": several(SHOWN, NEXT_END),
    "logs": (LINE,),
    "cancel": several(SHOWN),
    "resume": several(RESUMED),
    "retry": (*several(*_CHANGED), LAUNCHED),
    "continue": _CHANGED,
    **dict.fromkeys(("hold", "release", "set"), several(SHOWN)),
    "explain": several(EXPLAINED),
    "cost": (COST,),
    "clean": (CLEANED,),
    "doctor": (DOCTOR, DOCTOR_AGENTS),
    "config": (CONFIG,),
}
"""What each of the core's verbs may print when it does not fail; its options decide which of them."""

FILES: Final[Mapping[str, Mapping[str, Shape]]] = {
    "status.json": {**keys_of(Status, FileStatus), "tasks": [Task], "checksum": str},
    "summary": {**keys_of(Summary, FileStatus), "checksum": str},
    "notification": {
        "schema_version": Count,
        "event": Literal["failed", "held", "landed", "completed"],
        "message": str,
        **keys_of(Verdict, Counters),
        **only(Summary, ("name", "labels", "started_at", "ended_at")),
        "results_dir": str,
        "task": (NotifiedTask, None),
    },
    "error": {"schema_version": Count, **ERROR_KEYS},
}
"""What else has a schema: files of a session, what `--notify` sends, and what a verb prints when it fails."""
