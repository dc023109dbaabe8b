"""Checks of status.json and summary: they must say what the logs say, and can be made anew from the logs.

Only status.json knows which files outside of the session are not up to date.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from sessionrun.client.doctor.evidence import Evidence
from sessionrun.client.doctor.finding import Finding, Fix
from sessionrun.engine.status import project, project_summary


def check_status(evidence: Evidence) -> Iterator[Finding]:
    """Whether status.json is there and says what the logs say."""
    yield from _check("status", evidence, evidence.status, summary=False)


def check_summary(evidence: Evidence) -> Iterator[Finding]:
    """Whether the summary is there and says what the logs say."""
    yield from _check("summary", evidence, evidence.summary, summary=True)


def check_views(evidence: Evidence) -> Iterator[Finding]:
    """Whether the files that show the session to other programs were up to date when they were last written."""
    name = evidence.session.session_id
    if evidence.ended:
        plan = f"the session has ended and writes it no more; sessionrun status {name} shows how the tasks ended"
    else:
        plan = "put aside what lies in its place: the session writes it again when something changes"
    for problem in (evidence.status or {}).get("view_problems", ()):
        yield Finding("views", "warning", str(evidence.session.path), problem, plan)


def _check(name: str, evidence: Evidence, cached: dict[str, Any] | None, *, summary: bool) -> Iterator[Finding]:
    session, state = evidence.session, evidence.state
    where = str(session.summary_path if summary else session.status_path)
    if evidence.alive or evidence.spec is None or not evidence.begun:
        return  # the living supervisor replaces it in time
    if state is None:
        if cached is None:
            plan = "it cannot be made anew while the logs are damaged"
            yield Finding(name, "error", where, "missing or damaged", plan)
        return
    if cached is not None and _number(cached.get("seq")) > state.seq:
        what = f"it counts {cached['seq']} journal entries, and the journal has {state.seq}: the journal lost some"
        plan = "keep a copy of the whole directory; the outcomes that only this file has are in no log"
        yield Finding(name, "error", where, what, plan)
        return
    status: dict[str, Any] = orjson.loads(orjson.dumps(project(state)))
    status["view_problems"] = (evidence.status or status).get("view_problems", [])  # they are in no log
    expected = project_summary(status) if summary else status
    fault = "missing or damaged" if cached is None else _describe(cached, expected)
    if fault is not None:
        plan = "--fix makes it anew from the logs; until then the verbs read these where they can tell"
        yield Finding(name, "warning", where, fault, plan, _rebuild(evidence, status))


def _rebuild(evidence: Evidence, status: dict[str, Any]) -> Fix | None:
    """Write both files, but not while one of them is ahead of the logs: its content is nowhere else."""
    assert evidence.state is not None
    for cache in (evidence.status, evidence.summary):
        if cache is not None and _number(cache.get("seq")) > evidence.state.seq:
            return None
    return lambda: evidence.session.replace_status(status, project_summary(status), durable=True)


def _describe(cached: dict[str, Any], expected: dict[str, Any]) -> str | None:
    if _number(cached.get("seq")) < expected["seq"]:
        return f"stale: it counts {cached.get('seq')} of {expected['seq']} journal entries"
    place = _find_difference(cached, expected)
    return None if place is None else f"it is not what the logs say: {place}"


def _find_difference(cached: Any, expected: Any, place: str = "") -> str | None:
    """Where two JSON values differ."""
    if isinstance(cached, dict) and isinstance(expected, dict):
        pairs = [(f"{place}.{key}", cached.get(key), expected[key]) for key in expected]
    elif isinstance(cached, list) and isinstance(expected, list) and len(cached) == len(expected):
        pairs = [(f"{place}[{number}]", *both) for number, both in enumerate(zip(cached, expected, strict=True))]
    else:
        return None if cached == expected else place.lstrip(".")
    for name, actual, wanted in pairs:
        inner = _find_difference(actual, wanted, name)
        if inner is not None:
            return inner
    return None


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
