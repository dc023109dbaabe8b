"""What `doctor` finds of clusters and of nodes on this machine, and what `clean` finds of the latter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun import __version__
from sessionrun.client.findings import Finding, Findings, Kind, Shown, error, warning
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


class Named(NamedTuple):
    """A cluster, and what names it: sessions that live, and perhaps the configuration.

    `fault`: why its head cannot be asked.
    """

    cluster: Cluster
    configured: bool
    sessions: tuple[str, ...]
    fault: str | None = None


def find_named(sessions: Sequence[SessionDir], *, with_config: bool) -> list[Named]:
    """The clusters that are named, by address; what cannot be read is another check's finding.

    Asked is only where one is named: the library that speaks with a scheduler is slow to load.
    """
    configured = _find_configured() if with_config else None
    by_address = {} if configured is None else {configured.cluster.address: configured}
    for session in sessions:
        try:
            cluster = session.load_spec().cluster if session.is_alive() else None
        except (SessionrunError, OSError):
            continue
        if cluster is not None:
            known = by_address.get(cluster.address, Named(cluster, False, ()))
            ids = (*known.sessions, session.session_id)
            by_address[cluster.address] = Named(cluster, known.configured, ids)
    return [by_address[address] for address in sorted(by_address)]


def _find_configured() -> Named | None:
    from sessionrun.agents.table import BUILTIN
    from sessionrun.client.config import load_config
    from sessionrun.cluster.address import open_cluster

    try:
        address = load_config(Path.cwd(), os.environ, BUILTIN).values.get("cluster")
    except SessionrunError:
        return None
    if address is None or address == SLURM:
        return None
    try:
        return Named(open_cluster(address, os.environ), True, ())
    except SessionrunError as fault:
        return Named(Cluster(address), True, (), str(fault))


def look_at_clusters(sessions: Sequence[SessionDir], with_config: bool) -> Iterator[Shown]:
    """What each cluster that is named shows of itself, and what is wrong with it."""
    yield from map(_look_at_cluster, find_named(sessions, with_config=with_config))


def _look_at_cluster(named: Named) -> Shown:
    from sessionrun.cluster.address import show_cluster

    address = named.cluster.address
    about = {"address": address, "configured": named.configured, "session_ids": list(named.sessions)}
    fault, plan, nodes = named.fault, "until then no session starts there", []
    if fault is None:
        try:
            nodes = show_cluster(named.cluster)["nodes"]
        except SessionrunError as refused:
            plan = "start it: sessionrun cluster head; jobs that run go on until their node's lease is over"
            fault = str(refused)
    if fault is not None:
        return {**about, "answers": False, "nodes": []}, [error(address, fault, plan)]
    return {**about, "answers": True, "nodes": nodes}, list(_judge_nodes(address, nodes))


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
    machine_checks={"replicas": check_replicas}, look_at_clusters=look_at_clusters, list_kinds=list_kinds
)
