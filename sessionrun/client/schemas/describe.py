"""Which object each verb prints, and its JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sessionrun.client.schemas import sessions, work
from sessionrun.client.schemas.sessions import only
from sessionrun.model.words import OUTPUT_VERSION
from sessionrun.store.caches import STATUS, SUMMARY, TASK
from sessionrun.store.shapes import TEXT, Kind, Schema, count, either, lists, nullable, objects, words

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


ERROR_KEYS: Final = {"error": objects({"code": count, "message": TEXT})}
_EACH: Final = either(sessions.SHOWN, sessions.NEXT_END, sessions.FAILED)
_SEVERAL: Final = objects({"sessions": lists(_EACH)})
_CHANGED: Final = (sessions.SHOWN, sessions.ID_ALONE, sessions.ANSWERED)

OUTPUTS: Final[Mapping[str, tuple[Kind, ...]]] = {
    "run": (sessions.LAUNCHED, work.PREVIEW, sessions.NOTHING_TO_DO, *_CHANGED),
    "status": (sessions.SHOWN, sessions.BRIEF, sessions.FIELDS, sessions.COMPARED),
    "results": (sessions.RESULTS, sessions.DIGEST),
    "list": (work.LIST,),
    "overview": (work.OVERVIEW,),
    "wait": (sessions.SHOWN, sessions.NEXT_END, _SEVERAL),
    "logs": (work.LINE,),
    "cancel": (sessions.SHOWN, _SEVERAL),
    "resume": (work.RESUMED,),
    "retry": (*_CHANGED, sessions.LAUNCHED, _SEVERAL),
    "continue": _CHANGED,
    "hold": (sessions.SHOWN, _SEVERAL),
    "release": (sessions.SHOWN, _SEVERAL),
    "set": (sessions.SHOWN, _SEVERAL),
    "explain": (sessions.EXPLAINED,),
    "cost": (work.COST,),
    "diff": (sessions.DIFF,),
    "merge": (work.MERGED,),
    "clean": (work.CLEANED,),
    "queue": (work.QUEUE, work.QUEUE_TASK, work.QUEUE_TASKS, work.IMPORTED),
    "dispatch": (sessions.LAUNCHED, work.PREVIEW, sessions.NOTHING_TO_DO, *_CHANGED),
    "ingest": (work.INGESTED,),
    "split": (work.SPLIT,),
    "replay": (work.REPLAYED,),
    "doctor": (work.DOCTOR, work.DOCTOR_AGENTS),
    "precache": (work.PRECACHED,),
    "config": (work.CONFIG,),
    "cluster": (work.CERTS, work.CLUSTER, work.CLUSTER_STOPPED),
    "agents": (work.AGENTS,),
}
"""By verb: what it may print with `--json` when it does not fail; its options decide which of them."""

_NOTIFICATION: Final = objects(
    {
        "schema_version": count,
        "event": words("failed", "held", "landed", "completed"),
        "message": TEXT,
        **only(sessions.SESSION, ("session_id", "name", "labels", "status", "outcome", "state", "result")),
        **only(sessions.SESSION, ("started_at", "ended_at")),
        **only(sessions.SESSION, (*sessions.COUNTERS, "results_dir")),
        "task": nullable(objects(work.NOTIFIED_TASK)),
    }
)

FILES: Final[Mapping[str, Kind]] = {
    "status.json": objects({**STATUS, "tasks": lists(objects(TASK)), "checksum": TEXT}),
    "summary": objects({**SUMMARY, "checksum": TEXT}),
    "notification": _NOTIFICATION,
    "error": objects({"schema_version": count, **ERROR_KEYS}),
}
"""What else has a schema: files of a session, what `--notify` sends, and what a verb prints when it fails."""

NAMES: Final = ("plan", *FILES, *OUTPUTS)


def describe(name: str) -> Schema:
    """The JSON Schema of what goes by a name of `NAMES`; keys that it does not name may be there, too."""
    if name == "plan":
        from sessionrun.dialects.schema import describe_plan

        return describe_plan()
    if name in FILES:
        return {"$schema": DRAFT, "title": name, **FILES[name].describe()}
    variants = [_add_version(kind.describe()) for kind in OUTPUTS[name]]
    body = variants[0] if len(variants) == 1 else {"anyOf": variants}
    return {"$schema": DRAFT, "title": f"sessionrun {name} --json", **body}


def _add_version(schema: Schema) -> Schema:
    properties = {"schema_version": {"const": OUTPUT_VERSION}, **schema["properties"]}
    return {**schema, "properties": properties, "required": ["schema_version", *schema["required"]]}
