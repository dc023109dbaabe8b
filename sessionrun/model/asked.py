"""Frozen records of what a session asks of its surroundings: walls, a queue to be fed from, a cluster.

They stand in spec.json; what they mean is the business of their rooms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal, get_args

from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import Seconds

Policy = Literal["none", "project", "strict"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

Network = Literal["allow", "proxy", "none"]
NETWORKS: Final[tuple[Network, ...]] = get_args(Network)

LIMITS: Final = ("memory", "cpus")
"""Limits by control groups, which not every machine has."""

CLOSED: Final = " without the network"
"""The end of the name of a policy whose jobs do not have the machine's network."""


@frozen
class Sandbox:
    """The sandbox of a task: its jobs see and change only what the policy names.

    `project` shows the system and the home directory without known secrets, `strict` only what is named.  `none`
    is there until a plan is settled: a task that wants no walls whatever others have.  Beside those of the policy
    come `hosts` that a proxy lets through, `env` (names), and `read` and `devices` (absolute paths).  `memory`
    (bytes) and `cpus` are of a job with all of its processes, `disk` (bytes) of all that the task can write; None:
    no limit.
    """

    policy: Policy
    network: Network = "allow"
    hosts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    processes: int | None = None
    memory: int | None = None
    cpus: float | None = None
    disk: int | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """What a machine has to be able to give, by names; see `walls.trial.list_problems`."""
        closed = "" if self.network == "allow" else CLOSED
        return (f"{self.policy}{closed}", *(limit for limit in LIMITS if getattr(self, limit) is not None))


UNCLAIMED: Final = "it is claimed in the queue first"
"""The reason of the hold on a task that may have no claim; the session lifts it by itself."""

TAKE_BACK_S: Final = 60.0


@frozen
class FeedSpec:
    """Which queue (`top` is absolute, `backend` keeps it), which of its tasks, and for how long.

    `chosen` are ids in the queue; empty: all.  With `watch` it waits for more tasks.  Each `sync_s` a queue is
    loaded of which no file tells that it changed, and exchanged with others.  `ingest` is how many follow-ups of
    agents may come in by themselves.  Claims of sessions that are gone are looked for each `take_back_s` (0:
    never), of so many tasks at once.  `lands_again`: work that did not land is tried again when its task is closed
    by another.
    """

    top: str
    backend: str
    group: str | None = None
    chosen: tuple[str, ...] = ()
    watch: bool = False
    poll_s: Seconds = 2.0
    sync_s: Seconds = 30.0
    ingest: int = 0
    take_back_s: Seconds = TAKE_BACK_S
    take_back_most: int | None = None
    lands_again: bool = True


TROUBLE: Final = "feed"
"""The hold of this name says what is wrong with the queue; no task waits for it."""

SLURM: Final = "slurm"
"""The address of the cluster whose jobs are Slurm's."""

NODE_TOKEN: Final = "@sessionrun-node@"
"""In an order to a node: the directory of the node."""

CACHE_TOKEN: Final = "@sessionrun-cache@"
"""The same: the cache of the user there."""

PATH_TOKEN: Final = "@sessionrun-path@"
"""The same: the value of PATH there."""


@frozen
class Cluster:
    """The address of a scheduler, ``tls://HOST:PORT``, and the paths of the three files for TLS.

    Or the word `SLURM`: then `options` are those of sbatch, by their long names.
    """

    address: str
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

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


SUGGESTIONS: Final = "suggested_tasks.txt"
"""The file into which the prompt of a task of the queue asks agents to write them."""
