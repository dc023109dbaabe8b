"""The two ends of the protocol beside the scheduler, a session's and a node's, and the times that it tells them.

The session's is what its supervisor tells the scheduler, and what it hears; the node's are its ticks, and what the
answers have it do.

A list that a call brings is said again until a reply shows that the call was taken.  What it hears counts once the
supervisor's journal has it: `drop` says so, and only then the scheduler forgets.

An answer counts only if it is the one to the last tick sent: else an order of long ago could come in beside the
lease of today.  What an answer that was dropped said is said again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Final

from sessionrun.cluster.messages import Message
from sessionrun.model.frozen import frozen

ROOT_SLACK_S: Final = 0.5
GUARD_SLACK_S: Final = 1.0
"""So long after the end of a lease the other watchers of a node kill what still runs."""

CALL_SLACK_S: Final = 3.0
"""A call that waits has failed when its answer is so much later than it should be."""

KILL_ROUND_S: Final = 0.5
DRIFT: Final = 0.001
"""How much faster or slower than another a machine's clock may run."""


@frozen
class Timers:
    """All in seconds.

    Attributes:
        tick: how long a call of a node or a session waits at the scheduler for news.
        lease: how long a node may run jobs after it sent the last tick that was answered.
        grace: so long before the end of its lease a node stops its jobs with TERM; at the end with KILL.
        margin: so long after the end of a lease, as the scheduler measures it, nothing of it runs any more.
    """

    tick: float = 2.0
    lease: float = 60.0
    grace: float = 10.0
    margin: float = 5.0

    @property
    def silence(self) -> float:
        """After so long without a tick there is no contact with a node: it sends one at least every `tick`."""
        return 3 * self.tick


def parse_timers(text: str) -> Timers:
    """Read ``lease=60,tick=2``; what is not named has its default.

    Raises:
        ValueError: the text is not of that form, or the times do not go together.
    """
    known = {field.name for field in fields(Timers)}
    found: dict[str, float] = {}
    for pair in filter(None, text.replace(" ", "").split(",")):
        name, _, number = pair.partition("=")
        if name not in known:
            raise ValueError(f"{name!r} is not one of {', '.join(sorted(known))}")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = math.nan
        if not math.isfinite(found[name]):
            raise ValueError(f"{pair!r} is no time: write seconds, as in lease=60")
    timers = Timers(**found)
    # with other times two attempts of a task could run at once, or no job for long
    margin = GUARD_SLACK_S + ROOT_SLACK_S + KILL_ROUND_S + 2 * DRIFT * timers.lease
    if min(timers.tick, timers.grace) <= 0:
        raise ValueError("tick and grace must be more than 0")
    if timers.margin < margin:
        raise ValueError(f"margin must be at least {margin:g} s, for a lease of {timers.lease:g} s")
    if timers.lease < 3 * timers.tick + timers.grace:
        raise ValueError(f"lease must be at least three ticks and the grace, {3 * timers.tick + timers.grace:g} s")
    return timers


def name_epoch(unique: str, timers: Timers) -> str:
    """The name of an epoch: it tells its lease, for the next scheduler may have another one."""
    return f"{unique}-{timers.lease:g}"


def lease_of(epoch: str) -> float:
    """The lease of an epoch by its name (seconds); 0 if the name does not tell it."""
    try:
        return float(epoch.rpartition("-")[2])
    except ValueError:
        return 0.0


@frozen
class Opened:
    """A job that the journal has open: where it was submitted, and in which epoch."""

    node: str
    epoch: str


class Head:
    """One life of a session's supervisor; `gen` counts these lives, `opened` is what its journal has open.

    `nodes` are the nodes by their ids, as the scheduler showed them last: see `messages.Node.show`.
    """

    def __init__(self, session: str, gen: int, opened: Mapping[str, Opened]) -> None:
        self.epoch: str | None = None
        self.superseded = False
        self.nodes: dict[str, Message] = {}
        self.opened = dict(opened)
        self._session = session
        self._gen = gen
        self._seq = 0
        self._asked_to_open = True
        self._again = False
        self._closing = False
        self._submit: dict[str, Message] = {}
        self._stop: dict[str, int] = {}
        self._drop: dict[str, None] = {}
        self._wrote: dict[tuple[str, str], int] = {}

    # --- what the supervisor wants ---

    def submit(self, job: str, at: Opened, order: Message, *, waits: bool = False) -> None:
        """Have a job run on a node; the journal says so already, durably.

        `waits`: no other node can do it, so the order waits until the node comes back, or the job is stopped.
        """
        self.opened[job] = at
        self._submit[job] = {"job": job, "node": at.node, "order": order, "waits": waits}

    def stop(self, job: str, level: int) -> None:
        """End a job, with TERM and then KILL, or with KILL."""
        if job in self.opened and level > self._stop.get(job, 0):
            self._stop[job] = level

    def drop(self, job: str) -> None:
        """Forget a job: the journal has its end, durably, or never had the job."""
        self.opened.pop(job, None)
        self._submit.pop(job, None)
        self._stop.pop(job, None)
        self._drop[job] = None

    def wrote(self, job: str, name: str, size: int) -> None:
        """So many bytes of a file are written here."""
        self._wrote[job, name] = size

    def close(self) -> None:
        """The session has ended: the last call says so."""
        self._closing = True

    # --- calls ---

    @property
    def has_news(self) -> bool:
        """Whether a call would bring something; the supervisor makes one at a time of those."""
        lists = self._submit or self._stop or self._drop or self._wrote
        return bool(lists) or self._asked_to_open or self._again or self._closing

    def make_call(self, wait_s: float) -> Message:
        """The next call, with all that the scheduler has to hear; `wait_s` is for a call without news."""
        self._seq += 1
        opened: list[Message] | None = None
        if self._asked_to_open and self.epoch is not None:
            # What was not submitted in this epoch never will be: a call of an older one may have brought it.
            ours = {job: wanted for job, wanted in self._submit.items() if self.opened[job].epoch == self.epoch}
            self._submit, others = ours, [job for job in self.opened if job not in ours]
            opened = [
                {"job": job, "node": self.opened[job].node, "epoch": self.opened[job].epoch} for job in others
            ]
        return {
            "session": self._session,
            "gen": self._gen,
            "seq": self._seq,
            "epoch": self.epoch,
            "wait": wait_s,
            "open": opened,
            "submit": list(self._submit.values()),
            "stop": [[job, level] for job, level in self._stop.items()],
            "drop": list(self._drop),
            "wrote": [[job, name, size] for (job, name), size in self._wrote.items()],
            "again": self._again,
            "close": self._closing,
        }

    def take(self, call: Message, reply: Message) -> None:
        """Take in the reply to a call; what it brings of jobs is for others."""
        if reply["state"] == "superseded":
            self.superseded = True
        if reply["state"] == "open":
            self.epoch, self._asked_to_open = reply["epoch"], True
        if reply["state"] != "ok":
            return
        self.nodes |= {seen["id"]: seen for seen in reply["nodes"] or ()}
        # the lists of this call need not be said again; what came since is not in it
        if call["open"] is not None:
            self._asked_to_open = False
        self._again = self._again and not call["again"]
        self._closing = self._closing and not call["close"]
        for wanted in call["submit"]:
            if self._submit.get(job := wanted["job"]) is wanted:
                del self._submit[job]
        for job, level in call["stop"]:
            if self._stop.get(job) == level:
                del self._stop[job]
        for job in call["drop"]:
            self._drop.pop(job, None)
        for job, name, size in call["wrote"]:
            if self._wrote.get((job, name)) == size:
                del self._wrote[job, name]

    def fail(self) -> None:
        """A call failed: it may have been taken or not, and what its reply told is lost."""
        self._again = True


def find_lease(answer: Message) -> tuple[int, int] | None:
    """Until when an answer renews the node's lease (CLOCK_BOOTTIME, ns), and the grace before that; None: not."""
    times = answer["times"]
    until_ns = answer["seq"] + round(times["lease"] * 1e9)
    return (until_ns, round(times["grace"] * 1e9)) if answer["renew"] else None


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
        self.slots = slots
        self._about: Message = {"node": node_id, "name": name, "version": version}
        self._about |= {"walls": dict(walls or {}), "boot": boot}
        self._last = -1

    def make_tick(
        self, now_ns: int, *, held: Iterable[str], ends: Iterable[Message], out: Iterable[Message], wait_s: float
    ) -> Message:
        """The next tick.  `held` are all jobs that the node has, but those whose end is among `ends`."""
        self._last = max(now_ns, self._last + 1)
        lists = {"held": list(held), "ends": list(ends), "out": list(out)}
        about = {**self._about, "slots": self.slots, "seq": self._last, "epoch": self.epoch}
        return {**about, "wait": wait_s, **lists}

    def take(self, answer: Message) -> bool:
        """Whether an answer counts: another tick may have been sent since."""
        if answer["seq"] != self._last:
            return False
        self.epoch = answer["epoch"]
        times = answer["times"]
        self.timers = Timers(times["tick"], times["lease"], times["grace"], self.timers.margin)
        return True
