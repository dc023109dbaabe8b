"""The objects of the verbs about many sessions, branches, the queue and the machine."""

from __future__ import annotations

from typing import Final

from sessionrun.client.schemas.sessions import COUNTERS, LAUNCHED, STATUS_WORD, SUMMARY_SHOWN, Table, only
from sessionrun.model.words import STATES
from sessionrun.store.caches import TASK
from sessionrun.store.shapes import (
    FLAG,
    NUMBER,
    TEXT,
    anything,
    count,
    lists,
    mappings,
    nullable,
    objects,
    path,
    time,
    words,
)

_INTERVAL: Final = objects({"low": NUMBER, "middle": NUMBER, "high": NUMBER})
PREVIEW: Final = objects(
    {
        "dialect": TEXT,
        "dialect_reason": TEXT,
        "agent": TEXT,
        "agent_reason": TEXT,
        "total": count,
        "max_parallel": nullable(count),
        "base_branch": nullable(TEXT),
        "base_commit": nullable(TEXT),
        "worktree_dir": nullable(path),
        "land": nullable(objects({"target": TEXT, "gates": lists(TEXT)})),
        "waves": lists(lists(TEXT)),
        "critical_path": lists(TEXT),
        "starts_at": nullable(time),
        "forecast": nullable(objects({"seconds": _INTERVAL, "cost_usd": nullable(_INTERVAL), "like": count})),
        "held": FLAG,
        "tasks": lists(
            objects(
                {
                    "num": count,
                    "id": TEXT,
                    "title": TEXT,
                    "prompts": lists(TEXT),
                    "agent": TEXT,
                    "argv": lists(TEXT),
                    "cwd": path,
                    "branch": nullable(TEXT),
                    "repo": nullable(TEXT),
                    "ref": nullable(TEXT),
                    "sandbox": nullable(TEXT),
                    "network": nullable(TEXT),
                    "needs": lists(TEXT),
                    "begins_at": nullable(lists(TEXT)),
                }
            )
        ),
    }
)

LIST: Final = objects({"sessions": lists(objects(SUMMARY_SHOWN))})
OVERVIEW: Final = objects(
    {
        "session_counts": objects(
            {
                **dict.fromkeys(("total", "running", "recovering", "completed", "cancelled"), count),
                "interrupted": count,
                "stopped": count,
                "states": objects(dict.fromkeys(STATES, count)),
            }
        ),
        "task_counts": objects(only(SUMMARY_SHOWN, COUNTERS)),
    }
)
LINE: Final = objects({"id": TEXT, "stream": words("stdout", "stderr"), "text": TEXT}, {"came_at": nullable(time)})
RESUMED: Final = objects({"session_id": TEXT, "resumed": FLAG, "status": STATUS_WORD})

_MONEY: Final[Table] = {
    "task_count": count,
    "unpriced_task_count": count,
    "models": lists(TEXT),
    **{name: nullable(count) for name in ("input_tokens", "cached_input_tokens", "output_tokens")},
    "cost_usd": nullable(NUMBER),
    "cost_source": nullable(words("agent", "table")),
    "cost_complete": FLAG,
}
COST: Final = objects(
    {
        "session_ids": lists(TEXT),
        "by": TEXT,
        "rows": lists(objects(_MONEY, dict.fromkeys(("session_id", "id", "model", "agent", "day"), TEXT))),
        "total": objects(_MONEY),
        "unpriced": mappings(count),
    }
)

_LANDED: Final = objects(
    {
        "id": TEXT,
        "num": count,
        "title": TEXT,
        "branch": nullable(TEXT),
        "status": words("landed", "bounced", "waiting", "held", "none", "ready"),
        "reason_class": nullable(TEXT),
        "reason": nullable(TEXT),
        "commit": nullable(TEXT),
        "files": lists(path),
        "against": lists(TEXT),
        "output": nullable(path),
        "group": nullable(TEXT),
        "chosen": nullable(FLAG),
        "not_chosen": nullable(TEXT),
    }
)
MERGED: Final = objects(
    {
        "session_id": TEXT,
        "target": TEXT,
        "old": nullable(TEXT),
        "new": nullable(TEXT),
        "dry_run": FLAG,
        "choose": nullable(words("best")),
        "gate_runs": count,
        "hold": nullable(objects({"reason_class": TEXT, "reason": TEXT, "mend": nullable(TEXT)})),
        "remarks": lists(TEXT),
        "tasks": lists(_LANDED),
    }
)

CLEANED: Final = objects(
    {
        "findings": lists(
            objects(
                {
                    "session_id": nullable(TEXT),
                    "repository": nullable(path),
                    "what": words(
                        *(
                            "session",
                            "worktree",
                            "branch",
                            "trash",
                            "room",
                            "environment",
                            "mirror",
                            "checkout",
                            "replica",
                        )
                    ),
                    "name": path,
                    "id": nullable(TEXT),
                    "removed": FLAG,
                    "would_remove": nullable(FLAG),
                    "why": TEXT,
                },
                {"bytes": count},
            )
        )
    }
)

QUEUE_TASK: Final = objects(
    {
        "id": TEXT,
        "title": TEXT,
        "body": TEXT,
        "status": words("open", "claimed", "deferred", "closed"),
        "backend_status": TEXT,
        "ready": FLAG,
        "priority": nullable(NUMBER),
        "depends": lists(TEXT),
        "blocked_by": lists(TEXT),
        "group": nullable(TEXT),
        "is_group": FLAG,
        "worker": nullable(TEXT),
        "session_id": nullable(TEXT),
        "claimed_at": nullable(TEXT),
        "reason": nullable(TEXT),
    }
)
QUEUE: Final = objects({"backend": words("file", "beads"), "place": path, "tasks": lists(QUEUE_TASK)})
QUEUE_TASKS: Final = objects({"tasks": lists(QUEUE_TASK)})
IMPORTED: Final = objects({"added": lists(QUEUE_TASK), "known": lists(TEXT)})
INGESTED: Final = objects(
    {
        "dry_run": FLAG,
        "added": lists(objects({"id": nullable(TEXT), "title": TEXT, "source": path})),
        "known": lists(objects({"title": TEXT, "source": path})),
        "kept": lists(objects({"source": path, "lines": count})),
    }
)
SPLIT: Final = objects(
    {
        "group": nullable(QUEUE_TASK),
        "tasks": lists(QUEUE_TASK),
        "titles": lists(TEXT),
        "by": words("agent", "rule"),
        "session_ids": lists(TEXT),
    },
    {"dispatch": nullable(LAUNCHED)},
)

REPLAYED: Final = objects(
    {
        "session_id": TEXT,
        "replay_of": TEXT,
        "results_dir": path,
        "differences": lists(objects({"task": TEXT, "key": TEXT, "recorded": anything, "replayed": anything})),
    }
)

NODES: Final = lists(
    objects(
        {
            "id": TEXT,
            "name": TEXT,
            "slots": count,
            "version": TEXT,
            "lives": FLAG,
            "used": count,
            "walls": mappings(TEXT),
            "silent_s": nullable(NUMBER),
            "lease_s": nullable(NUMBER),
        }
    )
)
DOCTOR: Final = objects(
    {
        "session_count": count,
        "remaining": count,
        "clusters": lists(
            objects(
                {
                    "address": TEXT,
                    "configured": FLAG,
                    "session_ids": lists(TEXT),
                    "answers": FLAG,
                    "nodes": NODES,
                }
            )
        ),
        "findings": lists(
            objects(
                {
                    "session_id": nullable(TEXT),
                    "check": TEXT,
                    "severity": words("error", "warning"),
                    "where": path,
                    "what": TEXT,
                    "plan": TEXT,
                    "fixable": FLAG,
                    "fixed": FLAG,
                }
            )
        ),
    }
)
_AGENT: Final[Table] = {"name": TEXT, "builtin": FLAG, "path": nullable(path), "version": nullable(TEXT)}
DOCTOR_AGENTS: Final = objects(
    {
        "agents": lists(
            objects(
                {
                    **_AGENT,
                    "provider": TEXT,
                    "known": nullable(FLAG),
                    "known_version": nullable(TEXT),
                    "needs_sign_in": FLAG,
                    "signed_in": nullable(FLAG),
                    "signed_in_by": nullable(TEXT),
                    "refusal": nullable(TEXT),
                    "ready": nullable(FLAG),
                    "unready": nullable(TEXT),
                    "hint": nullable(TEXT),
                    "startable": FLAG,
                }
            )
        ),
        "not_passed_on": lists(TEXT),
        "walls": objects(dict.fromkeys(("version", "project", "strict", "keys"), nullable(TEXT))),
    }
)
AGENTS: Final = objects({"agents": lists(objects({**_AGENT, "output_format": TEXT}))})

_PREBUILT: Final = objects(
    {
        "digest": nullable(TEXT),
        "tasks": lists(TEXT),
        "path": nullable(path),
        "cached": FLAG,
        "error": nullable(TEXT),
        "log": nullable(path),
        "duration_s": NUMBER,
    }
)
PRECACHED: Final = objects(
    {
        "repositories": lists(
            objects(
                {
                    "repo": path,
                    "mirror": nullable(path),
                    "refs": lists(objects({"ref": nullable(TEXT), "commit": nullable(TEXT)})),
                    "error": nullable(TEXT),
                    "duration_s": NUMBER,
                    "environments": lists(_PREBUILT),
                }
            )
        )
    }
)
CONFIG: Final = objects({"settings": lists(objects({"name": TEXT, "value": anything, "origin": TEXT}))})

_NOTIFIED_TASK_KEYS: Final = (
    *("num", "id", "title", "outcome", "word", "reason_class", "reason", "agent", "model", "branch"),
    "landing",
)
NOTIFIED_TASK: Final[Table] = {key: TASK[key] for key in _NOTIFIED_TASK_KEYS}

CERTS: Final = objects({"files": lists(path)})
CLUSTER_STOPPED: Final = objects(
    {
        "address": TEXT,
        "nodes": lists(objects({"id": TEXT, "name": TEXT, "state": words("up", "leaving", "left", "gone")})),
        "head": words("left", "up", "foreign"),
        "sessions": lists(TEXT),
    }
)
CLUSTER: Final = objects(
    {
        "address": TEXT,
        "epoch": TEXT,
        "nodes": NODES,
        "sessions": lists(objects({"id": TEXT, "jobs": count})),
    }
)
