"""Rebuilds a session spec from its record: `spec_from_record(orjson.loads(orjson.dumps(spec)))` equals `spec`.

Keys that a later version of the same schema added are left out.  This module must not know files or processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final, TypeVar

from sessionrun.model.brief import brief_from_record
from sessionrun.model.cluster import Cluster
from sessionrun.model.ends import Handed
from sessionrun.model.errors import InputError
from sessionrun.model.feeding import feed_from_record
from sessionrun.model.hidden import hidden_from_record
from sessionrun.model.mends import mend_from_record
from sessionrun.model.nesting import Parent
from sessionrun.model.places import repository_from_record
from sessionrun.model.sandbox import sandbox_from_record
from sessionrun.model.seats import Seats
from sessionrun.model.spec import (
    SCHEMA_VERSION,
    AgentSpec,
    Alternative,
    CacheSite,
    Check,
    Environment,
    Export,
    Landing,
    Limits,
    Price,
    Prove,
    SessionSpec,
    TaskSpec,
    Workspace,
)
from sessionrun.model.upstreams import mirror_site_from_record, upstream_from_record

_ALIKE: Final = frozenset(("prompt_mode", "agent", "model", "cwd", "base", "uses", "env", "labels"))
"""What most tasks of a session have in common: it is in memory once."""

_NOTHING: Final[Mapping[str, Any]] = {}


@lru_cache(maxsize=1024)
def _share_text(text: str) -> str:
    return text


def _share(value: Any) -> Any:
    return _share_text(value) if isinstance(value, str) else _NOTHING if value == {} else value


def task_from_record(record: Mapping[str, Any]) -> TaskSpec:
    """Rebuild a task from what spec.json or a TaskAdded record holds."""
    values = {name: _share(value) if name in _ALIKE else value for name, value in record.items()}
    for name in ("prompts", "args", "setup", "links", "needs", "fallback_on"):
        if name in values:
            values[name] = tuple(values[name])
    if "fallback" in values:
        values["fallback"] = tuple(_from_record(Alternative, alternative) for alternative in values["fallback"])
    if "handed" in values:
        values["handed"] = tuple(_from_record(Handed, handed) for handed in values["handed"])
    if "workspace" in values:
        values["workspace"] = _from_record(Workspace, values["workspace"])
    if values.get("upstream") is not None:
        values["upstream"] = upstream_from_record(values["upstream"])
    if values.get("environment") is not None:
        values["environment"] = _from_record(Environment, values["environment"])
    if values.get("check") is not None:
        check = {**values["check"], "files": values["check"].get("files", ())}
        check = {**check, **{name: tuple(check[name]) for name in ("commands", "files")}}
        values["check"] = _from_record(Check, check)
    if values.get("brief") is not None:
        values["brief"] = brief_from_record(values["brief"])
    if values.get("prove") is not None:
        prove = {**values["prove"]}
        prove |= {name: tuple(prove.get(name, ())) for name in ("test_files", "own")}
        prove["hidden"] = hidden_from_record(prove.get("hidden"))
        values["prove"] = _from_record(Prove, prove)
    if values.get("mend") is not None:
        values["mend"] = mend_from_record(values["mend"])
    if values.get("sandbox") is not None:
        values["sandbox"] = sandbox_from_record(values["sandbox"])
    return _from_record(TaskSpec, values)


def spec_from_record(record: Mapping[str, Any]) -> SessionSpec:
    """Rebuild a session spec from the object in spec.json.

    Raises:
        InputError: the file was written by a newer version.
    """
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(f"spec.json has schema_version {version}; this sessionrun reads {SCHEMA_VERSION}")
    values = dict(record)
    values["agents"] = {name: agent_from_record(agent) for name, agent in record["agents"].items()}
    values["tasks"] = tuple(task_from_record(task) for task in record["tasks"])
    if values.get("repository") is not None:
        values["repository"] = repository_from_record(values["repository"])
    if values.get("landing") is not None:
        landing = {**values["landing"], "gates": tuple(values["landing"].get("gates", ()))}
        if landing.get("sandbox") is not None:
            landing["sandbox"] = sandbox_from_record(landing["sandbox"])
        values["landing"] = _from_record(Landing, landing)
    if values.get("feed") is not None:
        values["feed"] = feed_from_record(values["feed"])
    if values.get("template") is not None:
        values["template"] = task_from_record(values["template"])
    if values.get("seats") is not None:
        values["seats"] = _from_record(Seats, values["seats"])
    if values.get("mirrors") is not None:
        values["mirrors"] = mirror_site_from_record(values["mirrors"])
    if values.get("parent") is not None:
        values["parent"] = _from_record(Parent, values["parent"])
    if values.get("cluster") is not None:
        values["cluster"] = _from_record(Cluster, values["cluster"])
    if values.get("cache") is not None:
        values["cache"] = _from_record(CacheSite, values["cache"])
    values["limits"] = _from_record(Limits, record.get("limits", {}))
    values["prices"] = {name: _from_record(Price, price) for name, price in record.get("prices", {}).items()}
    exports = record.get("exports", ())
    values["exports"] = tuple(_from_record(Export, export) for export in exports)
    values["notify"] = tuple(record.get("notify", ()))
    return _from_record(SessionSpec, values)


def additions_from_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """The tasks, agents, prices and rules that a TasksAdded record holds."""
    agents, prices = record.get("agents", {}), record.get("prices", {})
    return {
        "tasks": tuple(task_from_record(task) for task in record["tasks"]),
        "agents": {name: agent_from_record(agent) for name, agent in agents.items()},
        "prices": {name: _from_record(Price, price) for name, price in prices.items()},
        "leavings": tuple(record.get("leavings", ())),
    }


def agent_from_record(record: Mapping[str, Any]) -> AgentSpec:
    """Rebuild an agent from its record."""
    values = dict(record)
    for name in ("argv", "model_args", "approve_args", "continue_args", "budget_args", "ready"):
        if name in values:
            values[name] = tuple(values[name])
    return _from_record(AgentSpec, values)


_Record = TypeVar("_Record")


_NAMES: Final[dict[type[Any], frozenset[str]]] = {
    cls: frozenset(f.name for f in fields(cls))
    for cls in (
        AgentSpec,
        Alternative,
        CacheSite,
        Handed,
        Workspace,
        Environment,
        Check,
        Prove,
        Landing,
        Limits,
        Price,
        TaskSpec,
        SessionSpec,
        Export,
        Seats,
        Parent,
        Cluster,
    )
}


def _from_record(cls: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Build a record, leaving out keys that a later version of the same schema added."""
    known = _NAMES[cls]
    return cls(**{name: value for name, value in values.items() if name in known})
