"""The node's end: the ticks that it sends, and what the answers have it do.

An answer counts only if it is the one to the last tick sent: else an order of long ago could come in beside the
lease of today.  What an answer that was dropped said is said again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from sessionrun.cluster.messages import Message
from sessionrun.cluster.timers import Timers
from sessionrun.model.frozen import frozen


@frozen
class Tasks:
    """What an answer has the node do.

    Attributes:
        until_ns: when its lease ends now (CLOCK_BOOTTIME); None: it is not renewed.
        grace_ns: so long before that the node ends its jobs.
        orders: jobs to start, by name.
        stop: jobs to end, and how (see `messages`).
        void: jobs that no session wants: they are killed, and their ends forgotten.
        forget: jobs whose end is known at the other end.
        wrote: how much of a file has arrived (bytes), by job and name.
        leave: the node's processes are to end.
    """

    until_ns: int | None = None
    grace_ns: int = 0
    orders: Mapping[str, Message] = field(default_factory=dict)
    stop: Sequence[tuple[str, int]] = ()
    void: Sequence[str] = ()
    forget: Sequence[str] = ()
    wrote: Sequence[tuple[str, str, int]] = ()
    leave: bool = False


class Link:
    """Ticks and answers of one life of the process that makes them."""

    def __init__(
        self,
        node_id: str,
        name: str,
        slots: int,
        version: str,
        walls: Mapping[str, str] | None = None,
        boot: int = 0,
    ) -> None:
        self.epoch: str | None = None
        self.timers = Timers()
        self._about: Message = {"node": node_id, "name": name, "slots": slots, "version": version}
        self._about |= {"walls": dict(walls or {}), "boot": boot}
        self._last = -1

    def set_slots(self, slots: int) -> None:
        """From now on the node has so many."""
        self._about["slots"] = slots

    def make_tick(
        self, now_ns: int, *, held: Iterable[str], ends: Iterable[Message], out: Iterable[Message], wait_s: float
    ) -> Message:
        """The next tick.  `held` are all jobs that the node has, but those whose end is among `ends`."""
        self._last = max(now_ns, self._last + 1)
        lists = {"held": list(held), "ends": list(ends), "out": list(out)}
        return {**self._about, "seq": self._last, "epoch": self.epoch, "wait": wait_s, **lists}

    def take(self, answer: Message) -> Tasks | None:
        """What an answer has the node do; None: another tick was sent since, so it counts for nothing."""
        if answer["seq"] != self._last:
            return None
        self.epoch = answer["epoch"]
        times = answer["times"]
        self.timers = Timers(times["tick"], times["lease"], times["grace"], self.timers.margin)
        return Tasks(
            until_ns=answer["seq"] + round(times["lease"] * 1e9) if answer["renew"] else None,
            grace_ns=round(times["grace"] * 1e9),
            orders={order["job"]: order["order"] for order in answer["orders"]},
            stop=[(job, level) for job, level in answer["stop"]],
            void=answer["void"],
            forget=answer["ack"],
            wrote=[(job, name, size) for job, name, size in answer["wrote"]],
            leave=answer.get("leave", False),
        )
