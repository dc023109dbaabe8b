"""What every door to a landing says of the work: whose it is, and in what surroundings its gates run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sessionrun.landing.records import Gates, digest_target
from sessionrun.model.places import Repository
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.workspaces.environments.request import EnvironmentRequest, Tenant, find_cache, find_target


def make_gates(gates: Gates, spec: SessionSpec, tasks: Sequence[TaskSpec], session: Path, target: str) -> Gates:
    """Gates in the surroundings that the tasks of a session have; those with a repository elsewhere do not count.

    If all that want an environment want the same, the gates have one, too: a copy of an entry of the cache, as
    a task has, and never one in which an agent worked.

    Args:
        gates: the commands.
        spec: the session's.
        tasks: all of them.
        session: its directory.
        target: the full name of the branch.
    """
    own = [task for task in tasks if task.upstream is None]
    gates = replace(gates, links=tuple(dict.fromkeys(link for task in own for link in task.links)))
    wanted = {task.environment for task in own if task.environment is not None}
    if len(wanted) != 1 or not gates.commands or spec.repository is None:
        return gates
    cache, room = find_cache(spec.cache), room_path(spec.repository, target)
    environment = EnvironmentRequest(
        top=str(room),
        directory=str(room),
        cache=cache,
        target=find_target(cache, spec.session_id, room.name, 1, in_room=True),  # no task has the name of a room
        python=wanted.pop().python,
        require_cache=spec.cache is not None and spec.cache.require_cache,
        tenant=Tenant(str(session.absolute()), spec.session_id, room.name, 1, in_room=True),
    )
    return replace(gates, environment=environment)


def room_path(repository: Repository, target: str) -> Path:
    """Where the gates of a target run."""
    return Path(repository.worktree_dir, find_prefix(repository) + digest_target(target))


def find_prefix(repository: Repository) -> str:
    """How the names of a repository's rooms begin; the digest of the target follows."""
    from hashlib import sha256  # as of `digest_target`

    whose = sha256(os.fsencode(repository.common_dir)).hexdigest()[:8]
    return f".gate-{whose}-"


def word_trailers(
    task: str, session_id: str, agent: str, model: str | None, cost_usd: float | None
) -> tuple[str, ...]:
    """The lines at the end of the message of a task's merge: whose work it is."""
    trailers = {
        "Task": task,
        "Session": session_id,
        "Agent": agent,
        "Model": model,
        "Cost": None if cost_usd is None else f"{cost_usd:.4f} USD",
    }
    return tuple(f"Sessionrun-{name}: {' '.join(str(value).split())}" for name, value in trailers.items() if value)
