"""The clusters that the configuration or living sessions name: whether they answer, and what is wrong.

Asked is only where one is named: the library that speaks with a scheduler is slow to load.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sessionrun import __version__
from sessionrun.client.doctor.finding import Finding
from sessionrun.model.cluster import SLURM, Cluster
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.store.session import SessionDir


@frozen
class Named:
    """A cluster, and what names it: sessions that live, and perhaps the configuration.

    `fault`: why its head cannot be asked.
    """

    cluster: Cluster
    configured: bool
    sessions: tuple[str, ...]
    fault: str | None = None


def find_named(sessions: Sequence[SessionDir], *, with_config: bool) -> list[Named]:
    """The clusters that are named, by address; what cannot be read is another check's finding."""
    by_address: dict[str, Named] = {}
    named = _find_configured() if with_config else None
    if named is not None:
        by_address[named.cluster.address] = named
    for session in sessions:
        cluster = _find_cluster(session)
        if cluster is not None:
            known = by_address.get(cluster.address)
            ids = (*(known.sessions if known else ()), session.session_id)
            by_address[cluster.address] = Named(cluster, known is not None and known.configured, ids)
    return [by_address[address] for address in sorted(by_address)]


def _find_configured() -> Named | None:
    from sessionrun.agents.table import BUILTIN
    from sessionrun.client.cluster.address import open_cluster
    from sessionrun.client.config import load_config

    try:
        address = load_config(Path.cwd(), os.environ, BUILTIN).values.get("cluster")
    except SessionrunError:
        return None
    if address is None or address == SLURM:
        return None
    try:
        return Named(open_cluster(address, os.environ), True, ())
    except SessionrunError as error:
        return Named(Cluster(address), True, (), str(error))


def _find_cluster(session: SessionDir) -> Cluster | None:
    try:
        return session.load_spec().cluster if session.is_alive() else None
    except (SessionrunError, OSError):
        return None


def look_at(named: Named) -> tuple[dict[str, Any], list[Finding]]:
    """What a cluster shows of itself, and what is wrong with it."""
    from sessionrun.client.cluster.address import show_cluster

    about = {"address": named.cluster.address, "configured": named.configured, "session_ids": list(named.sessions)}
    if named.fault is not None:
        finding = Finding(
            "cluster", "error", named.cluster.address, named.fault, "until then no session starts there"
        )
        return {**about, "answers": False, "nodes": []}, [finding]
    try:
        shown = show_cluster(named.cluster)
    except SessionrunError as error:
        plan = "start it: sessionrun cluster head; jobs that run go on until their node's lease is over"
        finding = Finding("cluster", "error", named.cluster.address, str(error), plan)
        return {**about, "answers": False, "nodes": []}, [finding]
    return {**about, "answers": True, "nodes": shown["nodes"]}, list(_judge(named, shown["nodes"]))


def _judge(named: Named, nodes: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    address = named.cluster.address
    for node in nodes:
        where = f"node {node['id']} of {address}"
        if not node["lives"]:
            what = (
                "it is gone: no contact for longer than its lease; its jobs are counted as lost, "
                "and worktrees on it wait until it is back"
            )
            plan = f"sessionrun cluster node {address} --name {node['name']} on its machine; then sessionrun retry"
            yield Finding("cluster", "warning", where, what, plan)
        elif node["version"] != __version__:
            what = f"it has version {node['version']} of sessionrun, and gets no jobs of this one ({__version__})"
            yield Finding("cluster", "warning", where, what, "install the same version there")
    if not any(node["lives"] and node["version"] == __version__ for node in nodes):
        what = "no node can run jobs: sessions wait"
        yield Finding("cluster", "warning", address, what, f"sessionrun cluster node {address} on a machine")


def check_replicas(results_dir: Path) -> Iterator[Finding]:
    """Whether work lies on this machine's nodes that did not come home."""
    from sessionrun.client.cleaning.cache import find_left

    for path in find_left():
        what = "a worktree of a task whose work did not come to its session's machine; no job of the node has it"
        plan = "git -C it log, and take what you need; then remove it, and sessionrun clean --cache"
        yield Finding("replicas", "warning", str(path), what, plan)
