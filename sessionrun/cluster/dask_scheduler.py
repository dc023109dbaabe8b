"""The permits in the process of dask's scheduler: ``dask scheduler --preload`` this module.

Calls wait here for news.  Bodies are JSON; dask carries them as bytes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import orjson

from sessionrun.cluster.ends import name_epoch, parse_timers
from sessionrun.cluster.messages import OUTDATED, PROTOCOL, Message
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
    room = WaitingRoom(Permits(name_epoch(uuid4().hex[:12], timers), time.monotonic(), timers), scheduler)
    calls = {"sr_node": room.take_tick, HEAD: room.take_call, "sr_show": room.show, "sr_stop": room.stop}
    room.look_at_clock()
    scheduler.handlers.update({name: room.serve(answer) for name, answer in calls.items()})


async def join(scheduler: Any) -> None:
    """Begin in a scheduler that was started without this module, unless it has the permits already."""
    if HEAD not in scheduler.handlers:
        await dask_setup(scheduler)


class WaitingRoom:
    """The calls that wait, and the permits that answer them."""

    def __init__(self, permits: Permits, scheduler: Any) -> None:
        self._permits = permits
        self._scheduler = scheduler
        self._ticks: dict[str, asyncio.Future[bool]] = {}
        self._calls: dict[str, asyncio.Future[bool]] = {}
        self._ending: asyncio.Task[None] | None = None

    def serve(self, answer: Callable[[Message], Awaitable[Message]]) -> Callable[..., Awaitable[bytes]]:
        """What dask calls with a message, unless the other end cannot be served."""

        async def handle(body: bytes) -> bytes:
            message = orjson.loads(body)
            spoken, fault = message.get("protocol"), None
            if spoken != PROTOCOL:
                fault = f"what calls it speaks version {spoken!r} of the protocol, and this scheduler {PROTOCOL}"
            elif getattr(self._scheduler, "idle_timeout", None):
                fault = (
                    "the scheduler would end when it is idle, and for dask it always seems so: "
                    "start it without distributed.scheduler.idle-timeout"
                )
            return orjson.dumps(await answer(message) if fault is None else {"refused": fault})

        return handle

    async def take_tick(self, tick: Message) -> Message:
        permits, node = self._permits, tick["node"]
        if permits.take_tick(time.monotonic(), tick) and await self._wait(
            self._ticks, node, tick["wait"], lambda: permits.node_has_news(node)
        ):
            return permits.answer_node(time.monotonic(), node)
        return OUTDATED

    async def take_call(self, call: Message) -> Message:
        permits, session = self._permits, call["session"]
        state = permits.take_call(time.monotonic(), call)
        if state != "ok":
            return permits.reply_nothing(state)
        is_last = await self._wait(self._calls, session, call["wait"], lambda: permits.session_has_news(session))
        if not is_last or session not in permits.sessions:
            return permits.reply_nothing()
        return permits.reply(time.monotonic(), session)

    async def show(self, asked: Message) -> Message:
        return self._permits.show(time.monotonic())

    async def stop(self, wanted: Message) -> Message:
        """End the nodes or, with `head`, this scheduler; says how far that is."""
        if wanted["head"]:
            if LOOP_VARIABLE in os.environ:
                self._ending = asyncio.create_task(self._end())
            return {"ends": LOOP_VARIABLE in os.environ}
        answer = self._permits.stop_nodes(time.monotonic(), force=wanted["force"])
        self._wake_others()
        return answer

    async def _end(self) -> None:
        await asyncio.sleep(END_S)  # so that the answer leaves
        with suppress(Exception):
            await asyncio.wait_for(self._scheduler.close(), CLOSE_TIMEOUT_S)
        os._exit(EXIT_LEFT)

    async def _wait(
        self, waiting: dict[str, asyncio.Future[bool]], name: str, wait_s: float, has_news: Callable[[], bool]
    ) -> bool:
        """Wait for news; False: a later call of the same party came, so this one counts for nothing."""
        if name in waiting and not waiting[name].done():
            waiting[name].set_result(False)
        self._wake_others()
        if wait_s <= 0 or has_news():
            return True
        future = waiting[name] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(future, wait_s)
        except asyncio.TimeoutError:
            return True
        finally:
            if waiting.get(name) is future:
                del waiting[name]

    def _wake_others(self) -> None:
        """Let the calls go on for which there is news now."""
        permits = self._permits
        nodes, sessions = permits.take_touched()
        for waiting, names, has_news in (
            (self._ticks, nodes, permits.node_has_news),
            (self._calls, sessions, permits.session_has_news),
        ):
            for name in names & waiting.keys():
                if not waiting[name].done() and has_news(name):
                    waiting[name].set_result(True)

    def look_at_clock(self) -> None:
        """See which leases are over, again and again."""
        self._permits.advance(time.monotonic())
        self._wake_others()
        asyncio.get_running_loop().call_later(CLOCK_S, self.look_at_clock)
