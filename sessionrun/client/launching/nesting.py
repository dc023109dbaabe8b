"""Sessions that jobs of other sessions launch: whose they are, and how deep and how dear they may be."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sessionrun.client.notices import notify
from sessionrun.client.reading.view import load_or_warn, load_summary_view
from sessionrun.model.errors import InputError
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import BUDGET_VARIABLE, DEPTH_VARIABLE, MAX_DEPTH, Limits, Parent, SessionSpec
from sessionrun.store.processes import JOB_MARKER
from sessionrun.store.session import SessionDir, iterate_sessions


def settle_nesting(spec: SessionSpec, environ: Mapping[str, str]) -> SessionSpec:
    """The spec with its parent, if a job launches it, and with a budget that is not above what that job has.

    Raises:
        InputError: it would be deeper than sessions may be, or a setting cannot be used.
    """
    parent = find_parent(environ)
    if parent is None:
        return spec if spec.parent is None else replace(spec, parent=None)
    most = _load_max_depth(environ)
    if parent.depth > most:
        raise InputError(
            f"task {parent.task!r:.140} of session {parent.session_id[:8]} launches a session that would be "
            f"{parent.depth} deep, but max_depth is {most}: let the task work by itself, or set max_depth in "
            "sessionrun.toml"
        )
    return replace(spec, parent=parent, limits=_cap(spec.limits, environ))


def find_parent(environ: Mapping[str, str]) -> Parent | None:
    """The task by whose job this process was started."""
    words = environ.get(JOB_MARKER, "").split("/")
    if len(words) == len(("node", "session", *JobKey._fields)):
        words = words[1:]
    if len(words) < 2 or not all(words[:2]):
        return None
    depth = environ.get(DEPTH_VARIABLE, "")
    return Parent(words[0], words[1], int(depth) if depth.isdecimal() and len(depth) < 10 else 1)


def _load_max_depth(environ: Mapping[str, str]) -> int:
    from sessionrun.agents.table import BUILTIN
    from sessionrun.client.config import load_config

    most = load_config(Path.cwd(), environ, BUILTIN).values.get("max_depth")
    return MAX_DEPTH if most is None else most


def _cap(limits: Limits, environ: Mapping[str, str]) -> Limits:
    try:
        most = float(environ.get(BUDGET_VARIABLE, ""))
    except ValueError:
        return limits
    if not most > 0 or (limits.budget_usd is not None and limits.budget_usd <= most):
        return limits
    if limits.budget_usd is not None:
        notify(f"the budget is ${most:g}, which is what the task has that launches this session")
    soft = limits.soft_budget_usd
    return replace(limits, budget_usd=most, soft_budget_usd=None if soft is None else min(soft, most))


def find_nested(sessions: Collection[SessionDir], tasks: Collection[str] = ()) -> list[SessionDir]:
    """The sessions that jobs of these launched, and those inside of them, the outer ones first.

    Args:
        sessions: where to begin.
        tasks: only those that jobs of these tasks launched, by id; empty: of all.
    """
    children: dict[str, list[tuple[SessionDir, str]]] = {}
    for session, parent in _load_parents({session.path.parent for session in sessions}):
        children.setdefault(parent["session_id"], []).append((session, parent["task"]))
    found: dict[str, SessionDir] = {}
    outer = [session.session_id for session in sessions]
    for place, session_id in enumerate(outer):
        for session, task in children.get(session_id, ()):
            is_wanted = not tasks or place >= len(sessions) or task in tasks
            if is_wanted and session.session_id not in found:
                found[session.session_id] = session
                outer.append(session.session_id)
    return list(found.values())


def _load_parents(places: Iterable[Path]) -> Iterable[tuple[SessionDir, Mapping[str, Any]]]:
    """The sessions of these results directories and of the user's index that a job launched."""
    from sessionrun.store import index

    known = {os.fspath(session.path): session for place in places for session in iterate_sessions(place)}
    known |= {os.fspath(session.path): session for session in index.sessions()}
    for session in known.values():
        view = load_or_warn(session, load_summary_view)
        if view is not None and view.get("parent"):
            yield session, view["parent"]
