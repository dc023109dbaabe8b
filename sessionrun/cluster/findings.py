"""What `doctor` and `clean` find of clusters and of nodes on this machine; what `cluster` prints, as shapes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from sessionrun import __version__
from sessionrun.client.findings import Finding, Findings, Kind, error, warning
from sessionrun.model.asked import SLURM, Cluster
from sessionrun.model.errors import SessionrunError
from sessionrun.model.kinds import Count
from sessionrun.store.files import list_folders
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.store.space import Cached

# --- clusters ---


def check_clusters(sessions: Sequence[SessionDir], with_config: bool) -> Iterator[Finding]:
    """What is wrong with each cluster that a session which lives, or perhaps the configuration, names.

    Asked is only where one is named: the library that speaks with a scheduler is slow to load.
    """
    from sessionrun.cluster.address import open_cluster, show_cluster

    named: dict[str, Cluster | None] = {}
    if with_config:
        from sessionrun.input.config import load_config

        with suppress(SessionrunError):
            address = load_config(Path.cwd(), os.environ).values.get("cluster")
            named = {} if address in (None, SLURM) else {address: None}
    for session in sessions:
        try:
            cluster = session.load_spec().cluster if session.is_alive() else None
        except (SessionrunError, OSError):
            continue  # another check finds it
        named |= {cluster.address: cluster} if cluster is not None else {}
    for address, cluster in sorted(named.items()):
        plan = "until then no session starts there"
        try:
            cluster = cluster or open_cluster(address, os.environ)
            plan = "start it: sessionrun cluster head; jobs that run go on until their node's lease is over"
            nodes = show_cluster(cluster)["nodes"]
        except SessionrunError as fault:
            yield error(address, str(fault), plan)
        else:
            yield from _judge_nodes(address, nodes)


def _judge_nodes(address: str, nodes: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    for node in nodes:
        where = f"node {node['id']} of {address}"
        if not node["lives"]:
            what = (
                "it is gone: no contact for longer than its lease; its jobs are counted as lost, "
                "and worktrees on it wait until it is back"
            )
            plan = f"sessionrun cluster node {address} --name {node['name']} on its machine; then sessionrun retry"
            yield warning(where, what, plan)
        elif node["version"] != __version__:
            what = f"it has version {node['version']} of sessionrun, and gets no jobs of this one ({__version__})"
            yield warning(where, what, "install the same version there")
    if not any(node["lives"] and node["version"] == __version__ for node in nodes):
        plan = f"sessionrun cluster node {address} on a machine"
        yield warning(address, "no node can run jobs: sessions wait", plan)


# --- nodes of this machine ---


def check_replicas(_: Path) -> Iterator[Finding]:
    """Whether work lies on this machine's nodes that did not come home: nothing works on it, or will send it."""
    what = "a worktree of a task whose work did not come to its session's machine; no job of the node has it"
    plan = "git -C it log, and take what you need; then remove it, and sessionrun clean --cache"
    for folder in _list_folders():
        if not _has_jobs(folder.parent):
            for name in list_folders(folder):
                for path in _list_worktrees(folder / name):
                    yield warning(path, what, plan)


def list_kinds() -> tuple[Kind, ...]:
    """The replicas of repositories on the nodes of this machine."""
    return (Kind("replica", iterate_replicas, remove_replica, beside=True),)


def iterate_replicas(_: Path) -> Iterator[Cached]:
    """The replicas of all nodes of this machine, by name: they lie beside the cache."""
    from sessionrun.store.trees import iterate_entries  # `explain` has no need of it

    for folder in _list_folders():
        yield from iterate_entries(folder, lambda name: True)


def remove_replica(replica: Cached, *, dry_run: bool = False) -> str | None:
    """Remove a replica; why it stays, or None.

    It holds what tasks began with, which sessions send again.  It stays while its node has jobs, and while a
    worktree of it is there: that is work which did not come home.
    """
    from sessionrun.store.trees import remove_unused

    node = replica.path.parent.parent

    def find_obstacle() -> str | None:
        if _has_jobs(node):
            return f"the node {node.name} has jobs"
        worktrees = _list_worktrees(replica.path)
        return f"there are worktrees in it: {worktrees[0]}" if worktrees else None

    return remove_unused(replica.path, dry_run=dry_run, find_obstacle=find_obstacle)


def _list_worktrees(replica: Path) -> list[Path]:
    """Those of tasks: rooms and environments, with a dot, hold no work."""
    names = list_folders(replica / "worktrees")
    return [replica / "worktrees" / name for name in names if not name.startswith(".")]


def _list_folders() -> list[Path]:
    """Where the replicas of each node are."""
    from sessionrun.cluster.node_directory import find_nodes_dir  # `explain` has no need of it

    nodes = find_nodes_dir(os.environ)
    return [nodes / node / "repositories" for node in list_folders(nodes)]


def _has_jobs(node: Path) -> bool:
    from sessionrun.cluster.node_directory import JOBS

    return any(list_folders(site / JOBS) for site in node.glob("node-*"))


FINDINGS: Final = Findings(
    machine_checks={"replicas": check_replicas}, check_clusters=check_clusters, list_kinds=list_kinds
)


# --- shapes ---

_NODES: Final = [
    {
        "id": str,
        "name": str,
        "slots": Count,
        "version": str,
        "lives": bool,
        "used": Count,
        "walls": {str: str},
        "silent_s": float | None,
        "lease_s": float | None,
    }
]
_STOPPED: Final = {
    "address": str,
    "nodes": [{"id": str, "name": str, "state": Literal["up", "leaving", "left", "gone"]}],
    "head": Literal["left", "up", "foreign"],
    "sessions": [str],
}
_SHOWN: Final = {"address": str, "epoch": str, "nodes": _NODES, "sessions": [{"id": str, "jobs": Count}]}

OUTPUTS: Final = {"cluster": ({"files": [str]}, _SHOWN, _STOPPED)}
