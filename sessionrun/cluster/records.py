"""What the scheduler knows of a node, of a session, and of one job.  `permits` changes them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from sessionrun.cluster.messages import Message

State: TypeAlias = Literal["offered", "delivered", "ended", "dead"]


class Node:
    """A node as the scheduler knows it; `until` is when its lease ends at the latest (the scheduler's time).

    `silent`: it has not ticked for longer than it should.
    `ticked` are the jobs that it had at its last tick, `held` those of them that no answer has dealt with.
    """

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.name = node_id
        self.slots = 0
        self.version = ""
        self.walls: dict[str, str] = {}
        self.boot = -1
        self.seq = -1
        self.until = float("-inf")
        self.lives = False
        self.silent = False
        self.watched = False
        self.permits: dict[str, Permit] = {}
        self.offers: dict[str, Permit] = {}
        self.stops: dict[str, Permit] = {}
        self.wrote: dict[tuple[str, str], int] = {}
        self.held: list[str] = []
        self.ticked: list[str] = []
        self.ends: list[str] = []
        self.leaves_by: float | None = None
        self.quiet_since = float("-inf")
        self.left_at: float | None = None

    def is_later(self, tick: Message) -> bool:
        """Whether a tick was sent after all that came.  The clock of a machine begins anew with each boot."""
        return bool((tick["boot"], tick["seq"]) > (self.boot, self.seq))


class Permit:
    """One job."""

    __slots__ = (
        "adopted",
        "begun",
        "chunks",
        "end",
        "job",
        "node",
        "order",
        "ran",
        "reason",
        "state",
        "stop",
        "waits",
    )

    def __init__(self, job: str, node: Node, order: Message | None, state: State = "offered") -> None:
        self.job = job
        self.node = node
        self.order = order
        self.state: State = state
        self.adopted = order is None
        self.begun = False
        self.stop = 0
        self.waits = False
        self.reason = ""
        self.ran = False
        self.end: Message | None = None
        self.chunks: dict[str, Message] = {}


class Session:
    """A session as the scheduler knows it; `gen` counts the lives of its supervisor."""

    def __init__(self) -> None:
        self.gen = -1
        self.seq = -1
        self.attached = False
        self.called_at = float("-inf")
        self.closed_at: float | None = None
        self.permits: dict[str, Permit] = {}
        self.news: dict[str, Permit] = {}
        self.nodes_told = -1
