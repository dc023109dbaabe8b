"""The thread of a supervisor that calls the scheduler: one call with news at a time, and one that waits for news.

Output is written here, before anything is told of the job's end.  All else is queued for the supervisor's thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import orjson

from sessionrun.cluster.head import Head, News
from sessionrun.cluster.messages import PROTOCOL
from sessionrun.cluster.timers import CALL_SLACK_S
from sessionrun.model.cluster import Cluster
from sessionrun.runtime.dask.contact import Contact
from sessionrun.runtime.executors.worker import Worker

WAIT_S: Final = 5.0
SOON_S: Final = 0.05
"""So long after an end the supervisor may take to have something to say to it: until then no call waits."""

AGAIN_FIRST_S: Final = 0.1
AGAIN_LAST_S: Final = 2.0
CLOSE_TIMEOUT_S: Final = 3.0
REGISTER_S: Final = 20.0
CONNECT_S: Final = 3.0
"""So long a question tries to connect: nobody waits longer for a scheduler that is not there."""


def open_rpc(cluster: Cluster, connect_s: float | None = None) -> Any:
    """A connection to the scheduler that outlives its restarts; `connect_s` limits a try to connect (seconds)."""
    from distributed import rpc
    from distributed.security import Security

    security: Any = Security(  # type: ignore[no-untyped-call]
        tls_ca_file=cluster.ca_file,
        tls_client_cert=cluster.cert_file,
        tls_client_key=cluster.key_file,
        require_encryption=True,
    )
    arguments = security.get_connection_args("client")
    return rpc(cluster.address, timeout=connect_s, connection_args=arguments)  # type: ignore[no-untyped-call]


class Carrier:
    """The thread.  `head` is shared with the supervisor's thread under `lock`; `news` is what this one has heard.

    `keep` takes what a reply brought, and returns what is for the supervisor.
    """

    contact: Contact | None = None
    """Set before it starts."""

    def __init__(self, cluster: Cluster, head: Head, keep: Callable[[News], list[Any]]) -> None:
        self.head = head
        self.lock = threading.Lock()
        self.news: Worker[Any] = Worker("cluster", lambda: asyncio.run(self._go()))
        self.complaint: str | None = None
        self._cluster = cluster
        self._keep = keep
        self._closing = False
        self._told_end = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poked: asyncio.Event | None = None

    def start(self) -> None:
        """Begin to call."""
        self.news.start()

    def poke(self) -> None:
        """The head has something to tell."""
        loop, poked = self._loop, self._poked
        if loop is not None and poked is not None:
            try:
                loop.call_soon_threadsafe(poked.set)
            except RuntimeError:
                pass  # the thread has ended

    def close(self) -> None:
        """Tell the rest, that the session has ended, and end."""
        with self.lock:
            self.head.close()
            self._closing = True
        self.poke()
        self.news.join(CLOSE_TIMEOUT_S)

    async def _go(self) -> None:
        self._loop, self._poked = asyncio.get_running_loop(), asyncio.Event()
        rpc = open_rpc(self._cluster)
        parked: asyncio.Task[bool] | None = None
        pause_s = AGAIN_FIRST_S
        while self.news.fault is None:
            self._poked.clear()
            with self.lock:
                has_news = self.head.has_news
            if self._closing and not has_news:
                return
            if parked is not None and parked.done():
                pause_s = AGAIN_FIRST_S if parked.result() else pause_s
                if not parked.result():
                    await asyncio.sleep(pause_s)
                parked = None
                continue
            if has_news:
                if await self._call(rpc, 0.0):
                    pause_s = AGAIN_FIRST_S
                else:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, AGAIN_LAST_S)
                continue
            if self._told_end:
                self._told_end = False
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._poked.wait(), SOON_S)
                continue
            if parked is None:
                parked = asyncio.create_task(self._call(rpc, WAIT_S))
            poke = asyncio.create_task(self._poked.wait())
            await asyncio.wait((parked, poke), return_when=asyncio.FIRST_COMPLETED)
            poke.cancel()

    async def _call(self, rpc: Any, wait_s: float) -> bool:
        """One call and its reply; whether it came."""
        with self.lock:
            call = self.head.make_call(wait_s)
        body = orjson.dumps({**call, "protocol": PROTOCOL})
        try:
            answer = await asyncio.wait_for(rpc.sr_head(body=body), wait_s + CALL_SLACK_S)
            if answer is None:  # it was started anew, or never had our plug-ins
                from sessionrun.runtime.dask.plugins import register  # not needed where the scheduler has them

                await asyncio.wait_for(register(rpc), wait_s + REGISTER_S)
                raise ConnectionError("the scheduler had none of our plug-ins: they are registered now")
            reply = orjson.loads(answer)
        except Exception as error:  # whatever the library raises: the call has failed
            with self.lock:
                self.head.fail()
            if self.contact is not None:
                self.contact.failed(self.head.epoch)
            self.complaint = str(error) or type(error).__name__
            return False
        self.complaint = None
        if "refused" in reply:
            self.news.fail(f"the scheduler at {self._cluster.address} refuses this session: {reply['refused']}")
            return True
        with self.lock:
            news = self.head.take(call, reply)
            superseded = self.head.superseded
            nodes, busy = [*self.head.nodes.values()], {at.node for at in self.head.opened.values()}
        if superseded:
            self.news.fail("another supervisor of this session speaks with the cluster")
            return True
        if self.contact is not None:
            if reply["nodes"] is not None:
                self.contact.see(nodes, reply["epoch"])
            self.contact.heard(busy)
        heard = self._keep(news)
        self._told_end = self._told_end or any(kind != "begun" for kind, _ in heard)
        if reply["nodes"] is not None:
            heard.append(None)
        self.news.add(*heard)
        return True


class NotOurs(Exception):
    """A scheduler of dask without our plug-ins."""


async def ask_or_register(cluster: Cluster, timeout_s: float) -> tuple[Any, dict[str, str] | None]:
    """What the scheduler shows of itself.  If it has none of our plug-ins they are registered first.

    Returns:
        What it shows, and None; or, if they were registered, why which workers cannot be nodes, by address.
    """
    try:
        return await ask(cluster, "sr_show", timeout_s), None
    except NotOurs:
        from sessionrun.runtime.dask.plugins import register
    rpc = open_rpc(cluster)
    try:
        failed = await asyncio.wait_for(register(rpc), REGISTER_S)
    finally:
        await rpc.close_rpc()
    return await ask(cluster, "sr_show", timeout_s), failed


async def ask(cluster: Cluster, name: str, timeout_s: float, **words: object) -> Any:
    """What the scheduler answers to a call; raises what the library raises without an answer in time (seconds)."""
    rpc = open_rpc(cluster, CONNECT_S)
    try:
        body = orjson.dumps({**words, "protocol": PROTOCOL})
        answer = await asyncio.wait_for(getattr(rpc, name)(body=body), timeout_s)
        if answer is None:
            raise NotOurs(
                "its scheduler has no plug-ins of sessionrun; the first session brings them: run --cluster"
            )
        return orjson.loads(answer)
    finally:
        await rpc.close_rpc()
