"""The files of an order that name places: on a node they name those of the node.

NODE/repositories/DIGEST/replica      the repository
                         worktrees    of its tasks
                         walls        what these have inside of walls
                         proofs       what proofs have found out
"""

from __future__ import annotations

import socket
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import orjson

from sessionrun.cluster.messages import Message
from sessionrun.model.cluster import NODE_TOKEN
from sessionrun.model.places import Place, Repository
from sessionrun.store.jobfiles import REQUEST
from sessionrun.walls.wish import INSIDE
from sessionrun.workspaces.companions import place_links
from sessionrun.workspaces.environments.request import WISH as ENVIRONMENT
from sessionrun.workspaces.environments.version import find_tag_behind

PLACED: Final = (REQUEST, ENVIRONMENT, INSIDE)
"""Files of a job's folder that name places: on a node they name those of the node."""

WALLS: Final = "walls"
"""Directory beside a replica: what tasks have inside of walls."""


def find_replica(repository: Repository) -> str:
    """Where a node has its replica: one for each checkout of each machine."""
    unique = f"{socket.gethostname()}:{repository.common_dir}:{repository.top}".encode()
    return f"{NODE_TOKEN}/repositories/{sha256(unique).hexdigest()[:16]}/replica"


def place_request(content: bytes, repository: Repository, place: Place | None = None) -> bytes:
    """A request as the node's job is to read it: about the replica, and the `place` that PREPARE made there."""
    replica = find_replica(repository)
    there = replace(
        repository,
        top=replica,
        common_dir=f"{replica}/.git",
        worktree_dir=str(Path(replica).with_name("worktrees")),
        settings=repository.settings and replace(repository.settings, git_dir=f"{replica}/.git"),
        upstream=None,
    )
    return orjson.dumps(_place_record(orjson.loads(content), repository, there, place))


def _place_record(record: Message, here: Repository, there: Repository, place: Place | None) -> Message:
    """The same of a part of a request: that of a round is within the request of a CHECK or WORK."""
    placed = {**record}
    if place is not None and record.get("place") and record["place"]["branch"] is not None:
        placed["place"] = {**record["place"], "branch": place.branch}
    if record.get("repository"):
        placed["repository"] = there
    if record.get("upstream"):  # to the node its mirror is a repository as any other
        placed |= {"upstream": None, "start": None, "gives_way": record["upstream"]["history"] is not None}
    if isinstance(record.get("walls"), str):  # of a workspace
        placed["walls"] = _place_walls(record["walls"], record["session_id"], there)
    if "plain_env" in record:
        placed |= _place_wish(record, here, there)
    if "links" in record:
        placed["links"] = place_links(here.top, record["links"])[0]
    if record.get("tenant"):  # of an environment, which may be that of a room
        placed["tenant"] = {**record["tenant"], "worktree": place and place.worktree}
        for name in ("top", "directory"):
            placed[name] = record[name].replace(f"{here.worktree_dir}/", f"{there.worktree_dir}/")
        if record["mirror"] is not None:
            placed |= {"mirror": None, "tag": find_tag_behind(record["mirror"], record["commit"])}
    if isinstance(record.get("known"), str):  # of a PROVE: tasks that a node has share what their proofs find out
        placed["known"] = str(Path(there.top).with_name("proofs") / record["workspace"]["session_id"])
    for name in ("loop", "workspace", "environment", "verification", "walls", "wish"):
        if isinstance(record.get(name), dict):
            placed[name] = _place_record(record[name], here, there, place)
    return placed


def _place_wish(record: Message, here: Repository, there: Repository) -> Message:
    """What changes in what walls a job is to have: they hide the books of the node, too."""
    room, moved = (f"{here.worktree_dir}/", f"{there.worktree_dir}/"), {here.top: there.top}
    return {
        "folder": _place_walls(record["folder"], record["session_id"], there),
        "hidden": [*record["hidden"], f"{NODE_TOKEN}/.."],
        "env": {name: moved.get(value, value) for name, value in record["env"].items()},
        **{name: record[name] and record[name].replace(*room) for name in ("room", "begins_in", "git")},
    }


def _place_walls(folder: str, session_id: str, there: Repository) -> str:
    """Where an attempt's folder of walls is on a node: beside the replica, for all of its jobs."""
    path = Path(folder)
    return str(Path(there.top).with_name(WALLS) / session_id / path.parent.name / path.name)
