"""The permits in the process of dask's scheduler: ``dask scheduler --preload`` this module.

Calls wait here for news.  Bodies are JSON; dask carries them as bytes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias
from uuid import uuid4

import orjson

from sessionrun.cluster.ends import name_epoch, parse_timers
from sessionrun.cluster.messages import OUTDATED, PROTOCOL, Message, Party
from sessionrun.cluster.permits import Permits
from sessionrun.store import processes

TIMERS_VARIABLE: Final = "SESSIONRUN_CLUSTER_TIMERS"
"""The cluster's times, as in ``lease=60,tick=2``; see `cluster.ends`."""

EXIT_LEFT: Final = 77
"""What this program ends with when it was told to end: `cluster head` starts it again after any other end."""

LOOP_VARIABLE: Final = "SESSIONRUN_LOOP"
"""The process of the `cluster head` that started this program."""

HEAD: Final = "sr_head"
END_S: Final = 0.2
CLOCK_S: Final = 0.2
"""How often it is looked which leases are over."""

CLOSE_TIMEOUT_S: Final = 5.0


async def dask_setup(scheduler: Any) -> None:
    """Begin: dask calls this when its scheduler starts.

    It is killed with the verb that started it, if one did: nothing would start it again when it ends.
    """
    if (verb := os.environ.get(LOOP_VARIABLE)) is not None:
        processes.die_with_parent()
        if os.getppid() != int(verb):  # it died before
            os._exit(0)
    timers = parse_timers(os.environ.get(TIMERS_VARIABLE, ""))
    room = WaitingRoom(Permits(name_epoch(uuid4().hex[:12], timers), time.monotonic(), timers), time.monotonic)
    endings = list[asyncio.Task[None]]()  # the loop has weak references alone

    def stop(wanted: Message, answer: Answer) -> None:
        """End the nodes or, with `head`, this program, if it is ours; says how far that is."""
        if not wanted["head"]:
            answer(room.permits.stop_nodes(time.monotonic(), force=wanted["force"]))
            room.answer_news()
            return
        answer({"ends": verb is not None})
        if verb is not None:
            endings.append(asyncio.create_task(end(scheduler)))

    def show(asked: Message, answer: Answer) -> None:
        answer(room.permits.show(time.monotonic()))

    calls = {"sr_node": room.take_tick, HEAD: room.take_call, "sr_show": show, "sr_stop": stop}
    scheduler.handlers.update({name: serve(scheduler, take) for name, take in calls.items()})
    look_at_clock(room)


def look_at_clock(room: WaitingRoom) -> None:
    """See what is over, again and again."""
    room.look_at_clock()
    asyncio.get_running_loop().call_later(CLOCK_S, look_at_clock, room)


async def join(scheduler: Any) -> None:
    """Begin in a scheduler that was started without this module, unless it has the permits already."""
    if HEAD not in scheduler.handlers:
        await dask_setup(scheduler)


Answer: TypeAlias = Callable[[Message], None]


def serve(scheduler: Any, take: Callable[[Message, Answer], None]) -> Callable[..., Awaitable[bytes]]:
    """What dask calls with a message, unless the other end cannot be served."""

    async def handle(body: bytes) -> bytes:
        message = orjson.loads(body)
        spoken, fault = message.get("protocol"), None
        if spoken != PROTOCOL:
            fault = f"what calls it speaks version {spoken!r} of the protocol, and this scheduler {PROTOCOL}"
        elif getattr(scheduler, "idle_timeout", None):
            fault = (
                "the scheduler would end when it is idle, and for dask it always seems so: "
                "start it without distributed.scheduler.idle-timeout"
            )
        if fault is not None:
            return orjson.dumps({"refused": fault})
        answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        take(message, lambda answer: None if answered.done() else answered.set_result(answer))
        return orjson.dumps(await answered)

    return handle


async def end(scheduler: Any) -> None:
    """End this program, once the answer has left that it ends."""
    await asyncio.sleep(END_S)
    with suppress(Exception):
        await asyncio.wait_for(scheduler.close(), CLOSE_TIMEOUT_S)
    os._exit(EXIT_LEFT)


class WaitingRoom:
    """The calls that wait, one of each node and session, and the permits that answer them.

    It knows nothing of dask: with another `clock` (seconds) the simulation runs it, too.
    """

    def __init__(self, permits: Permits, clock: Callable[[], float]) -> None:
        self.permits = permits
        self._clock = clock
        self._waiting: dict[Party, tuple[float, Answer]] = {}

    def take_tick(self, tick: Message, answer: Answer) -> None:
        if self.permits.take_tick(self._clock(), tick):
            self._wait(("node", tick["node"]), tick["wait"], answer)
        else:
            answer(OUTDATED)

    def take_call(self, call: Message, answer: Answer) -> None:
        state = self.permits.take_call(self._clock(), call)
        if state == "ok":
            self._wait(("session", call["session"]), call["wait"], answer)
        else:
            answer(self.permits.reply_nothing(state))

    def _wait(self, party: Party, wait_s: float, answer: Answer) -> None:
        """Let a call wait for news; one of the same party that came before counts for nothing."""
        if party in self._waiting:
            _, answer_earlier = self._waiting.pop(party)
            answer_earlier(OUTDATED if party[0] == "node" else self.permits.reply_nothing())
        self._waiting[party] = self._clock() + wait_s, answer
        self.answer_news()
        if party in self._waiting and (wait_s <= 0 or self._has_news(party)):
            self._answer(party)

    def _has_news(self, party: Party) -> bool:
        kind, name = party
        return self.permits.node_has_news(name) if kind == "node" else self.permits.session_has_news(name)

    def _answer(self, party: Party) -> None:
        _, answer = self._waiting.pop(party)
        kind, name = party
        now = self._clock()
        if kind == "node":
            answer(self.permits.answer_node(now, name))
        elif name in self.permits.sessions:
            answer(self.permits.reply(now, name))
        else:  # it has ended, and was forgotten meanwhile
            answer(self.permits.reply_nothing())

    def answer_news(self) -> None:
        """Answer the calls for which there is news now."""
        for party in self.permits.take_touched():
            if party in self._waiting and self._has_news(party):
                self._answer(party)

    def look_at_clock(self) -> None:
        """See which leases are over, and which calls have waited for as long as they wanted."""
        self.permits.advance(self._clock())
        self.answer_news()
        self.answer_overdue()

    def answer_overdue(self) -> None:
        now = self._clock()
        for party in [party for party, (until, _) in self._waiting.items() if now >= until]:
            if party in self._waiting:
                self._answer(party)
