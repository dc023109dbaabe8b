"""Where a session's jobs run if not on this machine: a cluster's scheduler, and how to speak with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from sessionrun.model.frozen import frozen

SLURM: Final = "slurm"
"""The address of the cluster whose jobs are Slurm's."""

NODE_TOKEN: Final = "@sessionrun-node@"
"""In an order to a node: the directory of the node."""

CACHE_TOKEN: Final = "@sessionrun-cache@"
"""The same: the cache of the user there."""

PATH_TOKEN: Final = "@sessionrun-path@"
"""The same: the value of PATH there."""


def is_node_id(node: str | None) -> bool:
    """Whether that is ``NAME@ID``: such a node may have no disk in common with this machine; Slurm's have."""
    return node is not None and "@" in node


@frozen
class Cluster:
    """The address of a scheduler, ``tls://HOST:PORT``, and the paths of the three files for TLS.

    Or the word `SLURM`: then `options` are those of sbatch, by their long names, and `max_array` is how
    many jobs one array may have.
    """

    address: str
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    max_array: int = 1000

    @property
    def is_slurm(self) -> bool:
        """Whether its jobs are Slurm's, which has a queue of its own: it offers no slots."""
        return self.address == SLURM


def uses_replicas(cluster: Cluster | None) -> bool:
    """Whether the worktrees of a session are on nodes, which need not share a disk with its machine."""
    return cluster is not None and not cluster.is_slurm


@frozen
class SlotsOffered:
    """The nodes of the session's cluster that live have so many slots in all: an event of the journal."""

    slots: int
    nodes: int
