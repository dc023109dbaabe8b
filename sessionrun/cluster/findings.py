"""What `doctor` finds of clusters and of nodes on this machine, and what `clean` finds of the latter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sessionrun import __version__
from sessionrun.client.findings import Finding, Findings, Kind, error, warning
from sessionrun.model.asked import SLURM, Cluster
from sessionrun.model.errors import SessionrunError
from sessionrun.store.session import SessionDir


def check_replicas(_: Path) -> Iterator[Finding]:
    """Whether work lies on this machine's nodes that did not come home."""
    from sessionrun.cluster.node_directory import find_stranded

    for path in find_stranded():
        what = "a worktree of a task whose work did not come to its session's machine; no job of the node has it"
        plan = "git -C it log, and take what you need; then remove it, and sessionrun clean --cache"
        yield warning(path, what, plan)


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


def list_kinds() -> tuple[Kind, ...]:
    """The replicas of repositories on the nodes of this machine."""
    from sessionrun.cluster.node_directory import iterate_replicas, remove_replica

    return (Kind("replica", iterate_replicas, remove_replica, beside=True),)


FINDINGS: Final = Findings(
    machine_checks={"replicas": check_replicas}, check_clusters=check_clusters, list_kinds=list_kinds
)
