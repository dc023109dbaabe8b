"""The thread of a supervisor that calls the scheduler, and how sessions and nodes call it.

Output is written here, before anything is told of the job's end.  All else is told to the supervisor's thread.
For readers it notes in `contact.json` with which nodes there is no contact, or that there is none with the head.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import orjson

from sessionrun.cluster.ends import CALL_SLACK_S, Head, lease_of
from sessionrun.cluster.messages import PROTOCOL, Message
from sessionrun.model.asked import Cluster
from sessionrun.model.words import format_time
from sessionrun.session.worker import Worker
from sessionrun.store.files import replace_file
from sessionrun.store.session import SessionDir

Deed: TypeAlias = Callable[[Head], None]

WAIT_S: Final = 5.0
AGAIN_FIRST_S: Final = 0.1
AGAIN_LAST_S: Final = 2.0
CLOSE_TIMEOUT_S: Final = 3.0
REGISTER_S: Final = 20.0
CONNECT_S: Final = 3.0
"""How long a question tries to reach the scheduler before it gives up (seconds)."""


class Carrier:
    """The thread, which alone has the `head`: it is asked for deeds with that, and tells what it has heard.

    `keep` takes what a reply brought, and returns what is for the supervisor.  Beside that it is told of a new
    `epoch`, and of all `nodes`.
    """

    def __init__(
        self, cluster: Cluster, head: Head, contact: Contact, keep: Callable[[Message], list[Any]]
    ) -> None:
        self.worker: Worker[Deed, tuple[str, Any]] = Worker("cluster", lambda _: asyncio.run(self._go()))
        self._cluster, self._head, self._contact, self._keep = cluster, head, contact, keep
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poked: asyncio.Event | None = None
        self.worker.start()

    def ask(self, *deeds: Deed) -> None:
        """Have these done with the head, and let it call if it has something to tell then."""
        for deed in deeds:
            self.worker.ask(deed)
        if self._loop is not None and self._poked is not None:
            with suppress(RuntimeError):  # the thread has ended
                self._loop.call_soon_threadsafe(self._poked.set)

    def close(self) -> None:
        """Tell the rest, that the session has ended, and end."""
        self.ask(Head.close)
        self.worker.stop(CLOSE_TIMEOUT_S)

    async def _go(self) -> None:
        self._loop, self._poked = asyncio.get_running_loop(), asyncio.Event()
        await keep_calling(partial(self._call, open_rpc(self._cluster)), self._find_news, self._poked)

    def _find_news(self) -> bool | None:
        """Do what was asked for; whether there is something to tell then, None: never again."""
        for deed in self.worker.wait(0.0):
            deed(self._head)
        return None if self.worker.fault is not None or self._head.is_over else self._head.has_news

    async def _call(self, rpc: Any, parks: bool) -> bool:
        """One call and its reply; whether it came."""
        wait_s = WAIT_S if parks else 0.0
        call = self._head.make_call(wait_s)
        try:
            reply = await ask(rpc, "sr_head", call, wait_s + CALL_SLACK_S)
            if reply is None:  # it was started anew, or never had our plug-ins
                await asyncio.wait_for(register(rpc), wait_s + REGISTER_S)
                raise ConnectionError("the scheduler had none of our plug-ins: they are registered now")
        except Exception as error:  # whatever the library raises: the call has failed
            self._head.fail()
            self._contact.failed(self._head.epoch, word_fault(error))
            return False
        if "refused" in reply:
            self.worker.fail(f"the scheduler at {self._cluster.address} refuses this session: {reply['refused']}")
            return True
        self._take(call, reply)
        return True

    def _take(self, call: Message, reply: Message) -> None:
        epoch = self._head.epoch
        self._head.take(call, reply)
        if self._head.superseded:
            self.worker.fail("another supervisor of this session speaks with the cluster")
            return
        self._contact.heard(self._head, reply)
        if self._head.epoch != epoch:
            self.worker.tell(("epoch", self._head.epoch))
        heard = self._keep(reply)
        self.worker.tell(*heard, *([] if reply["nodes"] is None else [("nodes", {**self._head.nodes})]))


class Contact:
    """Logs and writes to `contact.json`: nothing is decided by it, and a reader needs it before a lease is over.

    A time is that of this machine: what the scheduler tells are seconds from when it tells it.  All of it is done
    in the carrier's thread.
    """

    def __init__(self, session: SessionDir, log: Callable[[object], None]) -> None:
        self._session = session
        self._log = log
        self._silent: dict[str, dict[str, Any]] = {}
        self._written: list[dict[str, Any]] | None = None
        self._fault: str | None = None
        self._heard_at = time.time()

    def heard(self, head: Head, reply: Message) -> None:
        """The scheduler has answered, with the nodes if they have changed; shown are those that have our jobs."""
        self._heard_at, self._fault = time.time(), None
        if reply["nodes"] is not None:
            self._silent = {
                node: _describe(node, self._heard_at - seen["silent_s"], reply["epoch"])
                for node, seen in head.nodes.items()
                if seen["silent_s"] is not None
            }
        busy = {at.node for at in head.opened.values()}
        self._write([silence for node, silence in self._silent.items() if node in busy])

    def failed(self, epoch: str | None, fault: str) -> None:
        """The head has not answered: unless others reach it, no lease is renewed any more."""
        if fault != self._fault:
            self._log(f"no contact with the cluster: {fault}")
        self._fault = fault
        self._write([_describe(None, self._heard_at, epoch or "")])

    def _write(self, silences: list[dict[str, Any]]) -> None:
        if silences == self._written:
            return
        try:
            if silences:
                replace_file(self._session.contact_path, json.dumps(silences).encode(), durable=False)
            else:
                self._session.contact_path.unlink(missing_ok=True)
            self._written = silences
        except OSError as error:
            self._log(f"contact.json cannot be written: {error.strerror}")


def _describe(node: str | None, since: float, epoch: str) -> dict[str, Any]:
    ends_at = since + lease_of(epoch)
    return {"node": node, "since": format_time(since), "lease_ends_at": format_time(ends_at)}


# --- dask's part ---


async def keep_calling(
    call: Callable[[bool], Awaitable[bool]], find_news: Callable[[], bool | None], poked: asyncio.Event
) -> None:
    """Let a session or a node call the scheduler: with news at once, and else for news, which waits there.

    Args:
        call: makes a call that waits, or one that does not; whether an answer came.
        find_news: whether there is news; None: it is over.
        poked: is set when that may have changed.
    """
    parked: asyncio.Future[bool] | None = None
    pause_s = AGAIN_FIRST_S
    while True:
        poked.clear()
        if (has_news := find_news()) is None:
            return
        if parked is not None and parked.done():
            came, parked = parked.result(), None
        elif has_news:
            came = await call(False)
        else:
            parked = parked or asyncio.ensure_future(call(True))
            poke = asyncio.create_task(poked.wait())
            await asyncio.wait((parked, poke), return_when=asyncio.FIRST_COMPLETED)
            poke.cancel()
            continue
        if not came:
            await asyncio.sleep(pause_s)
        pause_s = AGAIN_FIRST_S if came else min(2 * pause_s, AGAIN_LAST_S)


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


def word_fault(error: BaseException) -> str:
    """Why a call has failed, in a line.

    dask's own error says that it could not call, and the cause of that says why, after the name of an object.
    """
    cause = error.__cause__ if isinstance(error, OSError) and error.__cause__ is not None else error
    text = str(cause) or str(error)  # its last try may have had no time left, and then says nothing
    return (text.partition("\n")[0].rpartition(">: ")[2] or type(error).__name__).rstrip(".")


async def ask(rpc: Any, name: str, message: Message, limit_s: float) -> Any:
    """What the scheduler answers to a message; None: it has none of our plug-ins.

    Raises what the library raises without an answer in time (seconds).
    """
    body = orjson.dumps({**message, "protocol": PROTOCOL})
    answer = await asyncio.wait_for(getattr(rpc, name)(body=body), limit_s)
    return None if answer is None else orjson.loads(answer)


async def ask_once(
    cluster: Cluster, name: str, words: Message, limit_s: float, *, registers: bool = False
) -> tuple[Any, dict[str, str] | None]:
    """The same over a connection of its own; with `registers` a scheduler that has none of our plug-ins gets them.

    Returns:
        The answer, and None; or, if they were registered, why which workers cannot be nodes, by address.
    """
    failed: dict[str, str] | None = None
    async with open_rpc(cluster, CONNECT_S) as rpc:
        answer = await ask(rpc, name, words, limit_s)
        if answer is None and registers:
            failed = await asyncio.wait_for(register(rpc), REGISTER_S)
            answer = await ask(rpc, name, words, limit_s)
    return answer, failed


class _Plugin:
    """Stands for a plug-in of dask's that is made where it is read, of text that any Python can read.

    dask keeps what a worker is to have, and gives it to workers that come later.  There it must do no harm where
    `sessionrun` is not installed: a class that cannot be loaded would end such a worker.  So the import is in the
    plug-in, and fails for the log alone.
    """

    def __init__(self, kind: str, method: str, end: str, module: str) -> None:
        """`method` of this `kind` begins the `module`, and dask gives it what it is called by the name `end`."""
        self._text = (
            f"type('Sessionrun{kind}', (__import__('distributed').{kind},), {{'{method}': lambda self, {end}: "
            f"__import__('importlib').import_module('sessionrun.cluster.{module}').join({end})}})()"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (self._text,)


async def register(rpc: Any) -> dict[str, str]:
    """Bring our ends into a cluster of dask's: permits into its scheduler, a guard of a node into each worker.

    Returns why which workers could not take theirs, by address.  Raises what the library raises, if the scheduler
    refuses.
    """
    from distributed.core import clean_exception
    from distributed.protocol.pickle import dumps

    permits = _Plugin("SchedulerPlugin", "start", "scheduler", "dask_scheduler")
    guard = _Plugin("WorkerPlugin", "setup", "worker", "machines")
    packed: list[Any] = [dumps(plugin) for plugin in (permits, guard)]  # type: ignore[no-untyped-call]
    names = [f"sessionrun-{end}-{PROTOCOL}" for end in ("permits", "guard")]
    await rpc.register_scheduler_plugin(plugin=packed[0], name=names[0], idempotent=True)
    answers = await rpc.register_worker_plugin(plugin=packed[1], name=names[1], idempotent=True)
    if answers is None:
        raise ConnectionError("what listens there is no scheduler of dask's")
    failed = {}
    for address, answer in answers.items():
        if answer.get("status") == "error":
            _, error, _ = clean_exception(answer["exception"], answer.get("traceback"))
            failed[address] = str(error) or type(error).__name__
    return failed
