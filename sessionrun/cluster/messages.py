"""The messages between the scheduler of a cluster, its nodes and the sessions, as JSON objects; and its records.

In an order to a node a token stands for what each machine has of its own.

The records say what the scheduler knows of a node, of a session, and of one job.  `permits` changes them.

A job is named ``SESSION/KEY``; its key names one attempt, round, phase and start, so no job runs twice.

    tick     node to scheduler     seq: CLOCK_BOOTTIME (ns) of sending, the origin of the lease and the order of
                                   ticks of one boot; boot: their number; node, name, slots, walls; epoch: of the
                                   last answer; wait: seconds; held: jobs that it has, but for those in ends; ends;
                                   out
    answer   scheduler to node     seq, epoch; renew: whether the lease goes on; times; orders, by job; stop: job,
                                   level; void: jobs to kill and forget; ack: ends to forget; wrote: job, name,
                                   bytes; leave: the node is to end
    call     session to scheduler  session, gen: lives of its supervisor; seq; epoch; wait; open, where it was
                                   asked for: job, node, epoch; again: the last reply did not come; wants;
                                   close: the session has ended
    reply    scheduler to session  state; epoch; news; out; nodes, if changed

Wants are ``submit JOB NODE ORDER WAITS`` (also for a node that is gone), ``stop JOB LEVEL``, ``drop JOB`` and
``wrote JOB NAME BYTES``, in the order in which they came.
News are ``begun JOB``, ``ended END`` and ``dead JOB REASON RAN``.
What walls a node cannot build, and why, are the names and reasons of `walls`.
An end is ``{job, kind, files, ...}``: `files` are the names and sizes (bytes) of all that the job leaves; `kind`
is exit, lost, or lease, which ended it; the rest is what `session.executor` says of an end.
A chunk of `out` is ``{job, name, at, content}``: bytes of a file as base64, from an offset.

Nodes that are to end get no new jobs, and go when what they have is done with.  Only a RELEASE still runs there,
so that the work of a task comes home first.  A node that waits too long for a session goes all the same: what it
has not told it tells when it is started again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, Literal, TypeAlias

from sessionrun.keeper.wire import PACKAGE_ROOT
from sessionrun.model.asked import CACHE_TOKEN, NODE_TOKEN, PATH_TOKEN
from sessionrun.model.frozen import changeable
from sessionrun.model.keys import JobKey, parse_job_key
from sessionrun.store.index import find_cache_folder

PROTOCOL: Final = 6
"""Counts up with each change that an older node or session would not understand."""

Message: TypeAlias = dict[str, Any]

ReplyState = Literal["ok", "open", "stale", "superseded"]
"""`open`: say first what is open; `stale`: a later call came before; `superseded`: by another supervisor."""

TERM: Final = 1
KILL: Final = 2
ABANDON: Final = 3
"""How a job is stopped: TERM and then KILL; KILL; KILL, for its session has not come back."""


def session_of(job: str) -> str:
    return job.partition("/")[0]


def key_of(job: str) -> JobKey:
    """The key of a job.  ValueError: it is no name of a job."""
    return parse_job_key(job.partition("/")[2])


QUIET_S: Final = 2.0
"""A node goes when no session has wanted anything of it for so long: after the end of a job a RELEASE may come."""

AWAY_S: Final = 1.0
"""A node has gone when it was told so and sent no other tick for so long."""

Party: TypeAlias = tuple[Literal["node", "session"], str]

State: TypeAlias = Literal["offered", "delivered", "ended", "dead"]

OUTDATED: Final[Message] = {"seq": -1}
"""The answer to a tick after which another one came: it counts for nothing."""


class Node:
    """A node as the scheduler knows it; `until` is when its lease ends at the latest (the scheduler's time).

    `about` has the node's name, slots, version and walls, as `show` gives them to `cluster status`.
    `sent` is the order of its last tick: the number of the boot, and the time of sending.

    `silent`: it has not ticked for longer than it should.
    `held` are the jobs that it had at its last tick, `ends` those whose ends it told.
    """

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.about: Message = {"name": node_id, "slots": 0, "version": "", "walls": {}}
        self.sent = -1, -1
        self.until = float("-inf")
        self.lives = False
        self.silent = False
        self.permits: dict[str, Permit] = {}
        self.wrote: dict[tuple[str, str], int] = {}
        self.held: list[str] = []
        self.ends: list[str] = []
        self.leaves_by: float | None = None
        self.quiet_since = float("-inf")
        self.left_at: float | None = None

    def list_permits(self, state: State) -> list[Permit]:
        """The jobs in that state, in the order in which they came."""
        return [permit for permit in self.permits.values() if permit.state == state]

    def choose_offers(self) -> list[Permit]:
        """As many as the node has slots for, whichever sessions they are of; the others wait."""
        free = max(0, self.about["slots"] - len(self.list_permits("delivered")))
        offers = self.list_permits("offered")
        return [p for p in offers if self.leaves_by is None or key_of(p.job).phase == "release"][:free]

    def may_leave(self, now: float) -> bool:
        """Whether the answer that is made now sends the node away."""
        if self.leaves_by is None:
            return False
        if self.held or any(permit.is_wanted for permit in self.permits.values()):
            self.quiet_since = now
        leaves = now > self.leaves_by or (not self.held and now - self.quiet_since > QUIET_S)
        self.left_at = now if leaves else None
        return leaves

    def describe(self, now: float) -> Message:
        """Id, name and state of the node, as `cluster stop` prints them."""
        state = ("leaving" if self.leaves_by is not None else "up") if self.lives else "gone"
        has_left = self.left_at is not None and now - self.left_at > AWAY_S
        return {"id": self.node_id, "name": self.about["name"], "state": "left" if has_left else state}

    def show(self, now: float, lease: float) -> Message:
        """The node as sessions and people see it.

        `used` are its slots in use, by all sessions; `walls` says of which it cannot build why (`Sandbox.needs`).
        `lease_s` is what is left of its lease, `silent_s` how long there has been no contact (seconds, or None).
        """
        used = len(self.list_permits("offered")) + len(self.list_permits("delivered"))
        left_s = round(self.until - now, 1)
        return {
            "id": self.node_id,
            **self.about,
            "silent_s": round(lease - left_s, 1) if self.silent else None,
            "lease_s": max(0.0, left_s) if self.lives else None,
            "lives": self.lives and self.leaves_by is None,
            "used": min(used, self.about["slots"]),
        }


@changeable
class Permit:
    """One job; `adopted`: it was submitted in an older epoch.

    `stop` is how it is to end (see `messages`), 0: it goes on; negative once an answer to its node has said so.
    `end` is what its session hears of it once it has ended or is dead.
    """

    job: str
    node: Node
    order: Message | None
    state: State = "offered"
    waits: bool = False
    adopted: bool = False
    begun: bool = False
    stop: int = 0
    end: Message | None = None
    chunks: dict[str, Message] = field(default_factory=dict)

    @property
    def is_wanted(self) -> bool:
        """Whether something of the job is still to be done on its node."""
        is_release = key_of(self.job).phase == "release"
        return self.state in ("delivered", "ended") or (self.state == "offered" and is_release)


class Session:
    """A session as the scheduler knows it; `gen` counts the lives of its supervisor.

    `attached`: this life has told what is open; `known`: one of its lives has, and it has not ended.
    """

    def __init__(self) -> None:
        self.gen = -1
        self.seq = -1
        self.attached = False
        self.known = False
        self.fetches_until = float("-inf")
        self.closed_at: float | None = None
        self.permits: dict[str, Permit] = {}
        self.news: dict[str, Permit] = {}
        self.nodes_told = -1


SESSION_TOKEN: Final = "@sessionrun-session@"
PYTHON_TOKEN: Final = "@sessionrun-python@"
PACKAGE_TOKEN: Final = "@sessionrun-package@"
"""The directory of the session, for which there is the job's folder; our Python; the directory of our package.
There are more in `model.asked`."""


def put_tokens(session: str) -> Callable[[str], str]:
    """What puts tokens into the words of a job whose session's directory that is."""

    def there(word: str) -> str:
        if word == sys.executable:
            return PYTHON_TOKEN
        if word.startswith(PACKAGE_ROOT + os.sep):
            word = PACKAGE_TOKEN + word[len(PACKAGE_ROOT) :]
        return word.replace(session, SESSION_TOKEN)

    return there


def take_tokens(text: str, folder: str, node: str) -> str:
    """A text with the places of this machine: of a job's folder, and of its node."""
    text = text.replace(SESSION_TOKEN, folder).replace(NODE_TOKEN, node)
    text = text.replace(PYTHON_TOKEN, sys.executable).replace(PACKAGE_TOKEN, PACKAGE_ROOT)
    if CACHE_TOKEN in text:
        text = text.replace(CACHE_TOKEN, str(find_cache_folder()))
    return text.replace(PATH_TOKEN, os.environ.get("PATH") or os.defpath)
