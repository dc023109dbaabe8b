"""The two ends of the protocol beside the scheduler, a session's and a node's, and the times that it tells them.

The session's is what its supervisor tells the scheduler, and what it hears; the node's are its ticks, and what the
answers have it do.

What a call wants is said again until a reply shows that the call was taken.  What it hears counts once the
supervisor's journal has it: `drop` says so, and only then the scheduler forgets.

An answer counts only if it is the one to the last tick sent: else an order of long ago could come in beside the
lease of today.  What an answer that was dropped said is said again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

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
    known = sorted(field.name for field in fields(Timers))
    given: dict[str, float] = {}
    for pair in filter(None, text.replace(" ", "").split(",")):
        name, _, number = pair.partition("=")
        if name not in known:
            raise ValueError(f"{name!r} is not one of {', '.join(known)}")
        if not re.fullmatch(r"[0-9]*\.?[0-9]+", number):
            raise ValueError(f"{pair!r} is no time: write seconds, as in lease=60")
        given[name] = float(number)
    timers = Timers(**given)
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
        self.is_over = False
        self.nodes: dict[str, Message] = {}
        self.opened = dict(opened)
        self._session = session
        self._gen = gen
        self._seq = 0
        self._asked_to_open = True
        self._again = False
        self._closes = False
        # by what it is and of which job (and file); what is wanted anew is another list
        self._wants: dict[tuple[str, ...], list[Any]] = {}

    # --- what the supervisor wants ---

    def submit(self, job: str, at: Opened, order: Message, *, waits: bool = False) -> None:
        """Have a job run on a node; the journal says so already, durably.

        `waits`: no other node can do it, so the order waits until the node comes back, or the job is stopped.
        """
        self.opened[job] = at
        self._wants["submit", job] = ["submit", job, at.node, order, waits]

    def stop(self, job: str, level: int) -> None:
        """End a job, with TERM and then KILL, or with KILL."""
        if job in self.opened and level > self._wants.get(("stop", job), [0])[-1]:
            self._wants["stop", job] = ["stop", job, level]

    def drop(self, job: str) -> None:
        """Forget a job: the journal has its end, durably, or never had the job."""
        self.opened.pop(job, None)
        for kind in ("submit", "stop"):
            self._wants.pop((kind, job), None)
        self._wants["drop", job] = ["drop", job]

    def wrote(self, job: str, name: str, size: int) -> None:
        """So many bytes of a file are written here."""
        self._wants["wrote", job, name] = ["wrote", job, name, size]

    def close(self) -> None:
        """The session has ended: the last call says so, and then it `is_over`."""
        self._closes = True

    # --- calls ---

    @property
    def has_news(self) -> bool:
        """Whether a call would bring something; the supervisor makes one at a time of those."""
        return bool(self._wants) or self._asked_to_open or self._again or (self._closes and not self.is_over)

    def make_call(self, wait_s: float) -> Message:
        """The next call, with all that the scheduler has to hear; `wait_s` is for a call without news."""
        self._seq += 1
        opened: list[list[str]] | None = None
        if self._asked_to_open and self.epoch is not None:
            # What was not submitted in this epoch never will be: a call of an older one may have brought it.
            for job, at in self.opened.items():
                if at.epoch != self.epoch:
                    self._wants.pop(("submit", job), None)
            known = {job: at for job, at in self.opened.items() if ("submit", job) not in self._wants}
            opened = [[job, at.node, at.epoch] for job, at in known.items()]
        return {
            "session": self._session,
            "gen": self._gen,
            "seq": self._seq,
            "epoch": self.epoch,
            "wait": wait_s,
            "open": opened,
            "wants": list(self._wants.values()),
            "again": self._again,
            "close": self._closes,
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
        # what this call said need not be said again; what came since is not in it
        if call["open"] is not None:
            self._asked_to_open = False
        self._again = self._again and not call["again"]
        self.is_over = self.is_over or call["close"]
        for wanted in call["wants"]:
            key = tuple(wanted[: 3 if wanted[0] == "wrote" else 2])
            if self._wants.get(key) is wanted:
                del self._wants[key]

    def fail(self) -> None:
        """A call failed: it may have been taken or not, and what its reply told is lost."""
        self._again = True


def find_lease(answer: Message) -> tuple[int, int] | None:
    """Until when an answer renews the node's lease (CLOCK_BOOTTIME, ns), and the grace before that; None: not."""
    times = answer["times"]
    until_ns = answer["seq"] + round(times["lease"] * 1e9)
    return (until_ns, round(times["grace"] * 1e9)) if answer["renew"] else None


class Link:
    """Ticks and answers of one life of the process that makes them.

    `about` is what each tick says of the node: node, name, slots, version, walls and boot.
    """

    def __init__(self, about: Message) -> None:
        self.about = about
        self.epoch: str | None = None
        self.timers = Timers()
        self._last = -1

    def make_tick(
        self, now_ns: int, *, held: list[str], ends: list[Message], out: list[Message], wait: float
    ) -> Message:
        """The next tick.  `held` are all jobs that the node has, but those whose end is among `ends`."""
        self._last = max(now_ns, self._last + 1)
        lists = {"held": held, "ends": ends, "out": out}
        return {**self.about, "seq": self._last, "epoch": self.epoch, "wait": wait, **lists}

    def take(self, answer: Message) -> bool:
        """Whether an answer counts: another tick may have been sent since."""
        if answer["seq"] != self._last:
            return False
        self.epoch, self.timers = answer["epoch"], Timers(**answer["times"])
        return True
