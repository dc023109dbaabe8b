"""`schema`: what each verb prints with `--json`, and files of a session, as shapes; sessions are `model.shown`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from sessionrun.client.findings import Finding
from sessionrun.client.installed import Examined
from sessionrun.client.reading.comparison import Told
from sessionrun.client.schemas.shape import Shape, keys_of, only
from sessionrun.input.config import InUse
from sessionrun.model.kinds import Count, Time
from sessionrun.model.shown import (
    BriefTask,
    Counters,
    EndedTask,
    FileStatus,
    NotifiedTask,
    Seen,
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
            "job_id": str,
            "status": str,
            "error": str | None,
            "output_paths": [str],
            "output_lines": Count | None,
            "test_path": str | None,
            "test_lines": Count | None,
            "retry_attempted": bool,
            "implicit_context_files": [str],
        }
    ],
}
"""What Markdown job files came to."""

_TELLING: Final = {"telling?": (Telling, None)}
_TEXTS: Final = {"text": str | None, "stderr_text": str | None}
_HIDDEN: Final = ({"passed": Count, "total": Count}, None)
_ANSWERED: Final = {**keys_of(Task), **_TEXTS, **_TELLING, "hidden_tests?": _HIDDEN}
ANSWERED: Final = {**SESSION, "tasks": [_ANSWERED], "summary?": JOB_FILES}
"""What `results` prints, and `--sync` at the end."""

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
    "session_id": str,
    "by": str,
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
    "results_dir": str,
    "left": Count,
    "cursor": Count,
    "timed_out": bool,
    "tasks": [EndedTask],
}
DIGEST: Final = {
    **keys_of(Verdict),
    **only(Counters, ("total", "completed", "successful", "failed")),
    "results_dir": str,
    "rest": str,
    "more_failed": [str],
    "more_failed_numbers": [str],
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
    "key": str,
    "round": Count,
    "phase": str,
    "start": Count,
    "node": str | None,
    **only(Task, ("pid", "started_at", "ended_at", "duration_s", "reason", "exit_code", "signal")),
    "timer": str | None,
    "verdict": str | None,
    "ledger": str | None,
}
_ATTEMPT: Final = {
    **only(Task, ("attempt", "agent", "model", "outcome", "reason_class", "reason")),
    **only(Task, ("started_at", "ended_at", "duration_s")),
    "rounds": Count,
    "jobs": [_JOB],
}
_DENIED: Final = {
    "task": str,
    "host": str,
    "port": Count,
    "count": Count,
    "first_at": Time,
    "last_at": Time,
    "why": str,
}
_EXPLAINED: Final = {
    **keys_of(Task),
    "cause": str,
    "why": str,
    "follow_up": str | None,
    "needs": [only(Task, ("id", "status", "outcome"))],
    "holds": [_HOLD],
    "tokens": [{**_TOKEN, "wants": Count}],
    "budget": str | None,
    "retry_at": Time | None,
    "chain": [str],
    **_TELLING,
    "attempts?": [_ATTEMPT],
}
EXPLAINED: Final = {
    **SESSION,
    "holds": [_HOLD],
    "tokens": [_TOKEN],
    "causes": {str: Count},
    "landings": {str: Count},
    "denied": [_DENIED],
    "resume": str | None,
    "damage": str | None,
    "tasks": [_EXPLAINED],
}
# --- many sessions and the machine ---

PREVIEW: Final = {
    "dialect": str,
    "dialect_reason": str,
    "agent": str,
    "agent_reason": str,
    "total": Count,
    "max_parallel": Count | None,
    "base_branch": str | None,
    "base_commit": str | None,
    "worktree_dir": str | None,
    "land": ({"target": str, "gates": [str]}, None),
    "waves": [[str]],
    "critical_path": [str],
    "starts_at": Time | None,
    "held": bool,
    "tasks": [
        {
            **only(Task, ("num", "id", "title", "agent", "branch", "repo", "ref", "needs")),
            "prompts": [str],
            "argv": [str],
            "cwd": str,
            "sandbox": str | None,
            "network": str | None,
            "begins_at": ([str], None),
        }
    ],
}
LIST: Final = {"sessions": [keys_of(Summary, Seen)]}
TOTALS: Final = {
    **LIST,
    "session_counts": {
        **dict.fromkeys(("total", "running", "recovering", "completed", "cancelled", "interrupted"), Count),
        "stopped": Count,
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

CLEANED: Final = {
    "findings": [
        {
            "session_id": str | None,
            "repository": str | None,
            "what": Literal[
                "session",
                "worktree",
                "branch",
                "trash",
                "room",
                "environment",
                "mirror",
                "replica",
            ],
            "name": str,
            "id": str | None,
            "removed": bool,
            "would_remove": bool | None,
            "why": str,
            "bytes?": Count,
        }
    ]
}

_FINDING: Final = only(Finding, ("check", "severity", "where", "what", "plan"))
DOCTOR: Final = {
    "session_count": Count,
    "remaining": Count,
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
    "results": (*several(ANSWERED), DIGEST),
    "list": (LIST, TOTALS),
    "wait": several(SHOWN, NEXT_END),
    "logs": (LINE,),
    "cancel": several(SHOWN),
    "resume": several(RESUMED),
    "retry": (*several(*_CHANGED), LAUNCHED),
    "continue": _CHANGED,
    "hold": several(SHOWN),
    "release": several(SHOWN),
    "set": several(SHOWN),
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
