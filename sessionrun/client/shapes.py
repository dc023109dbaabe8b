"""`schema`: what each verb prints with `--json`, and files of a session, as shapes; and their JSON Schemas.

A shape is a type as it stands at a key, `[shape]` for a list of such, `{str: shape}` for an object with any keys,
a tuple for one of several, or an object: a record, a TypedDict, or keys with their shapes, of which those that end
in `?` may be absent.  Sessions and tasks are in `model.shown`.  The schemas are of draft 2020-12.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from sessionrun.agents.installed import Examined
from sessionrun.client.findings import Finding, Leftover
from sessionrun.client.reading.comparison import Told
from sessionrun.input.config import InUse
from sessionrun.model import checks, kinds, places, shown, spec, usage, words
from sessionrun.model.kinds import Count, Time
from sessionrun.model.spec import Outcome
from sessionrun.model.words import State, Word

# --- from shapes to schemas ---

Shape: TypeAlias = Any
Keys: TypeAlias = Mapping[str, Shape]
Schema: TypeAlias = dict[str, Any]

_LEAVES: Final[Mapping[Any, Schema]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    NoneType: {"type": "null"},
    Any: {},
    kinds.Count: {"type": "integer", "minimum": 0},
    kinds.Time: {"type": "string", "format": "date-time"},
    kinds.FileName: {"type": "string", "minLength": 1},
}
_MODULES: Final = (checks, kinds, places, spec, usage, words)
_NAMES: Final = {"Sequence": Sequence, **{name: kind for each in _MODULES for name, kind in vars(each).items()}}
"""What annotations name that only a type checker imports."""


def keys_of(*records: type) -> dict[str, Shape]:
    """The keys of records together; the last one decides what a key is that several have."""
    keys: dict[str, Shape] = {}
    for record in records:
        absent: Collection[str] = getattr(record, "__optional_keys__", ())
        names = {**_NAMES, **vars(sys.modules[record.__module__])}
        hints = get_type_hints(record, localns=names, include_extras=True)
        keys |= {f"{key}?" if key in absent else key: hint for key, hint in hints.items()}
    return keys


def only(record: type, keys: Collection[str]) -> dict[str, Shape]:
    known = keys_of(record)
    return {key: known[key] for key in keys}


def maybe(*records: type) -> dict[str, Shape]:
    """The keys of records, of which any may be absent."""
    return {f"{key}?": shape for key, shape in keys_of(*records).items()}


def describe_shape(shape: Shape) -> Schema:
    if isinstance(shape, Mapping):
        return _describe_mapping(*next(iter(shape.items()))) if str in shape else _describe_object(shape)
    if isinstance(shape, tuple):
        return _describe_union(shape)
    if isinstance(shape, list):
        return {"type": "array", "items": describe_shape(shape[0])}
    if shape in _LEAVES:
        return dict(_LEAVES[shape])
    origin: Any = get_origin(shape)
    inner = get_args(shape)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, UnionType):
        return _describe_union(inner)
    if origin is Annotated:
        return describe_shape(inner[0])
    if origin in (list, tuple, Sequence):
        return describe_shape([inner[0]])
    if origin in (dict, Mapping):
        return _describe_mapping(*inner)
    assert is_typeddict(shape) or is_dataclass(shape) or issubclass(shape, tuple), shape
    return _describe_object(keys_of(shape))


def _describe_object(keys: Keys) -> Schema:
    properties = {key.rstrip("?"): describe_shape(shape) for key, shape in keys.items()}
    return {"type": "object", "properties": properties, "required": [key for key in keys if not key.endswith("?")]}


def _describe_mapping(key: Shape, value: Shape) -> Schema:
    """An object with any keys or, if the key is one of certain words, with all of these."""
    words = get_args(key)
    if words:
        return _describe_object(dict.fromkeys(words, value))
    return {"type": "object", "additionalProperties": describe_shape(value)}


def _describe_union(shapes: Collection[Shape]) -> Schema:
    nullable = NoneType in shapes or None in shapes
    schemas = [describe_shape(shape) for shape in shapes if shape not in (None, NoneType)]
    if len(schemas) > 1:
        return {"anyOf": [*schemas, *([{"type": "null"}] if nullable else [])]}
    (schema,) = schemas
    if not nullable:
        return schema
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]} if "type" in schema else schema


# --- sessions and their tasks ---

ERROR_KEYS: Final = {"error": {"code": Count, "message": str}}
SESSION: Final = keys_of(shown.Status, shown.Seen)
SHOWN: Final = {**SESSION, "tasks": [shown.Task], "cursor?": Count, "timed_out?": bool}
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

_TELLING: Final = {"telling?": (shown.Telling, None)}
_ANSWERED: Final = {
    **keys_of(shown.Task),
    **dict.fromkeys(("text", "stderr_text"), str | None),
    **_TELLING,
    "hidden_tests?": ({"passed": Count, "total": Count}, None),
}
ANSWERED: Final = {**SESSION, "tasks": [_ANSWERED], "summary?": JOB_FILES}
"""What `results` prints, and `--sync` at the end."""

ID_ALONE: Final = {"session_id": str}
LAUNCHED: Final = {
    **only(shown.Summary, ("session_id", "agent", "dialect", "name", "labels", "total", "max_parallel")),
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
    **only(shown.Usage, ("cost_usd", "cost_source")),
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
    "tasks": [{**maybe(shown.BriefTask), **_TELLING}],
    **{key: shape for key, shape in maybe(shown.Standing, shown.Seen).items() if key != "session_id?"},
    **{f"{key}?": shape for key, shape in only(shown.Status, ("name", "budget", "view_problems")).items()},
    "counts?": {str: Count},
}
FIELDS: Final = {
    **maybe(shown.Status, shown.Seen),
    "session_id": str,
    "cursor": Count,
    "tasks?": [{**maybe(shown.Task), **_TELLING}],
}
NEXT_END: Final = {
    **keys_of(shown.Standing),
    "results_dir": str,
    "left": Count,
    "cursor": Count,
    "timed_out": bool,
    "tasks": [shown.EndedTask],
}
DIGEST: Final = {
    **keys_of(shown.Verdict),
    **only(shown.Counters, ("total", "completed", "successful", "failed")),
    "results_dir": str,
    "rest": str,
    "more_failed": [str],
    "more_failed_numbers": [str],
    "more_fine": Count,
    "tasks": [
        {
            **only(shown.Task, ("num", "id", "word", "reason")),
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
    **only(shown.Task, ("pid", "started_at", "ended_at", "duration_s", "reason", "exit_code", "signal")),
    **dict.fromkeys(("node", "timer", "verdict", "ledger"), str | None),
}
_ATTEMPT: Final = {
    **only(shown.Task, ("attempt", "agent", "model", "outcome", "reason_class", "reason")),
    **only(shown.Task, ("started_at", "ended_at", "duration_s")),
    "rounds": Count,
    "jobs": [_JOB],
}
_DENIED: Final = {
    **dict.fromkeys(("task", "host", "why"), str),
    **dict.fromkeys(("port", "count"), Count),
    **dict.fromkeys(("first_at", "last_at"), Time),
}
_EXPLAINED: Final = {
    **keys_of(shown.Task),
    "cause": str,
    "why": str,
    "follow_up": str | None,
    "needs": [only(shown.Task, ("id", "status", "outcome"))],
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
    "denied": [_DENIED],
    **dict.fromkeys(("causes", "landings"), dict[str, Count]),
    **dict.fromkeys(("resume", "damage"), str | None),
    "tasks": [_EXPLAINED],
}

# --- many sessions and the machine ---

PREVIEW: Final = {
    **only(shown.Summary, ("dialect", "agent", "total", "max_parallel")),
    **dict.fromkeys(("dialect_reason", "agent_reason"), str),
    **dict.fromkeys(("base_branch", "base_commit", "worktree_dir"), str | None),
    "land": ({"target": str, "gates": [str]}, None),
    "waves": [[str]],
    "critical_path": [str],
    "starts_at": Time | None,
    "held": bool,
    "tasks": [
        {
            **only(shown.Task, ("num", "id", "title", "agent", "branch", "repo", "ref", "needs")),
            "prompts": [str],
            "argv": [str],
            "cwd": str,
            "sandbox": str | None,
            "network": str | None,
            "begins_at": ([str], None),
        }
    ],
}
LIST: Final = {"sessions": [keys_of(shown.Summary, shown.Seen)]}
TOTALS: Final = {
    **LIST,
    "session_counts": {
        **dict.fromkeys(("total", "running", "recovering", "completed", "cancelled", "interrupted"), Count),
        "stopped": Count,
        "states": dict[State, Count],
    },
    "task_counts": shown.Counters,
}

_MONEY: Final = {
    "task_count": Count,
    "unpriced_task_count": Count,
    "models": [str],
    **only(shown.Usage, ("input_tokens", "cached_input_tokens", "output_tokens", "cost_usd", "cost_source")),
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
            **only(Leftover, ("what", "name", "removed", "why")),
            "id": str | None,
            "would_remove": bool | None,
            "bytes?": Count,
        }
    ]
}

DOCTOR: Final = {
    "session_count": Count,
    "remaining": Count,
    "findings": [
        {
            "session_id": str | None,
            **only(Finding, ("check", "severity", "where", "what", "plan")),
            **dict.fromkeys(("fixable", "fixed"), bool),
        }
    ],
}
DOCTOR_AGENTS: Final = {
    "agents": [{**keys_of(Examined), "needs_sign_in": bool, "signed_in": bool | None, "startable": bool}],
    "not_passed_on": [str],
    "walls": dict.fromkeys(("version", "project", "strict", "keys"), str | None),
}

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
    "logs": ({"id": str, "stream": Literal["stdout", "stderr"], "text": str},),
    "cancel": several(SHOWN),
    "resume": several({**only(shown.Verdict, ("session_id", "status")), "resumed": bool}),
    "retry": (*several(*_CHANGED), LAUNCHED),
    "continue": _CHANGED,
    "hold": several(SHOWN),
    "release": several(SHOWN),
    "set": several(SHOWN),
    "explain": several(EXPLAINED),
    "cost": (COST,),
    "clean": (CLEANED,),
    "doctor": (DOCTOR, DOCTOR_AGENTS),
    "config": ({"settings": [keys_of(InUse)]},),
}
"""What each of the core's verbs may print when it does not fail; its options decide which of them."""

FILES: Final[Mapping[str, Mapping[str, Shape]]] = {
    "status.json": {**keys_of(shown.Status, shown.FileStatus), "tasks": [shown.Task], "checksum": str},
    "summary": {**keys_of(shown.Summary, shown.FileStatus), "checksum": str},
    "notification": {
        "schema_version": Count,
        "event": Literal["failed", "held", "landed", "completed"],
        "message": str,
        **keys_of(shown.Verdict, shown.Counters),
        **only(shown.Summary, ("name", "labels", "started_at", "ended_at")),
        "results_dir": str,
        "task": (shown.NotifiedTask, None),
    },
    "error": {"schema_version": Count, **ERROR_KEYS},
}
"""What else has a schema: files of a session, what `--notify` sends, and what a verb prints when it fails."""
