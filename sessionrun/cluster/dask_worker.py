"""The bridge in the process of a dask worker, one for each node: ``dask worker --preload`` this module.

It carries bytes between the node and the scheduler.  It starts the node's root where there is none, and it is the
third of the node's watchers: what still runs a second after the end of the lease it kills.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from sessionrun.cluster.ends import BRIDGE_SLACK_S
from sessionrun.cluster.node_directory import (
    EXIT_LEFT,
    LEFT,
    LOCK,
    LOOP_VARIABLE,
    MAX_NAME,
    NODE_VARIABLE,
    SOCKET,
    NodeSite,
    find_nodes_dir,
    has_root,
    load_site,
    open_node,
    start_root,
    stay_with_verb,
)
from sessionrun.keeper.lease import Watcher
from sessionrun.keeper.wire import pack, say
from sessionrun.model.errors import SessionrunError
from sessionrun.store import locks
from sessionrun.store.files import make_directories

LOCK_TIMEOUT_S: Final = 5.0
AGAIN_S: Final = 0.2
ROOT_LOOK_S: Final = 0.5
SLOT: Final = "slot"
"""The resource by which a worker of the user's own says how many slots it has; without it one for each thread."""

CLOSE_TIMEOUT_S: Final = 5.0
CALL_TIMEOUT_S: Final = 60.0
"""Longer than any call may wait: the node knows better when a call has failed."""

_TASKS: Final[set[asyncio.Task[None]]] = set()


async def dask_setup(worker: Any) -> None:
    """Begin: dask calls this when a worker starts that has this module by ``--preload``."""
    stay_with_verb()
    _begin(worker, load_site(Path(os.environ[NODE_VARIABLE])))


async def join(worker: Any) -> None:
    """Begin in a worker that was started without this module, unless it is a node already.

    Raises:
        InputError, OSError: the node's directory cannot be written.
        SessionrunError: another worker of this machine is that node.
    """
    if _TASKS:
        return
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{socket.gethostname().partition('.')[0]}-{worker.name}").strip("-.")
    slots = max(1, int(worker.state.total_resources.get(SLOT, worker.state.nthreads)))
    nodes, name = find_nodes_dir(os.environ), name[:MAX_NAME]
    make_directories(nodes / name, 0o700)
    if await asyncio.to_thread(locks.hold, nodes / name / LOCK, timeout_s=LOCK_TIMEOUT_S) is None:
        raise SessionrunError(f"another worker of this machine is the node {name}; give it another --name")
    _begin(worker, open_node(nodes, name, slots))


def _begin(worker: Any, site: NodeSite) -> None:
    for work in (_carry(worker, site), _keep_root(worker, site), _watch(site)):
        _keep(work)


def _keep(work: Coroutine[Any, Any, None]) -> None:
    """Let it go on beside this: the loop itself holds no task for good."""
    task = asyncio.create_task(work)
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)


async def _keep_root(worker: Any, site: NodeSite) -> None:
    while True:
        if os.path.lexists(site.path / LEFT):
            await _leave(worker, site)
        elif not has_root(site):
            reason = await asyncio.to_thread(start_root, site)
            if reason is not None:
                say(f"node {site.name}: its root does not start: {reason}")
        await asyncio.sleep(ROOT_LOOK_S)


async def _leave(worker: Any, site: NodeSite) -> None:
    """The node was told to end: so does its worker, if `cluster node` started it; not one of the user's own."""
    if has_root(site) or LOOP_VARIABLE not in os.environ:
        return
    with suppress(Exception):
        await asyncio.wait_for(worker.close(), CLOSE_TIMEOUT_S)
    os._exit(EXIT_LEFT)


async def _watch(site: NodeSite) -> None:
    watcher = Watcher(site.path, BRIDGE_SLACK_S)
    while True:
        pause_s = await asyncio.to_thread(watcher.look)
        await asyncio.sleep(min(pause_s, 1.0))


async def _carry(worker: Any, site: NodeSite) -> None:
    """Connect to the node's link, again and again, and carry what it sends."""
    while True:
        try:
            reader, writer = await _connect(site)
        except OSError:
            await asyncio.sleep(AGAIN_S)
            continue
        with (
            closing(writer),
            suppress(asyncio.IncompleteReadError, OSError),
        ):  # then its keeper starts another link
            while True:
                _keep(_call(worker, writer, *json.loads(await reader.readuntil(b"\n"))))


async def _connect(site: NodeSite) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    folder = os.open(site.path, os.O_RDONLY | os.O_DIRECTORY)
    try:  # by the descriptor, for the path of a socket may have 107 bytes only
        path = f"/proc/self/fd/{folder}/{SOCKET}" if os.path.isdir("/proc/self/fd") else site.path / SOCKET
        return await asyncio.open_unix_connection(path, limit=1 << 28)  # no frame is as long
    finally:
        os.close(folder)


async def _call(worker: Any, writer: asyncio.StreamWriter, number: int, content: str) -> None:
    """Carry one tick and its answer; without an answer an empty one, so that the node need not wait for it."""
    answer = b""
    try:
        answer = await asyncio.wait_for(worker.scheduler.sr_node(body=content.encode()), CALL_TIMEOUT_S)
    except Exception as error:  # whatever the library raises: the call has failed
        say(f"tick {number}: {type(error).__name__}: {error}")
        await asyncio.sleep(AGAIN_S)
    writer.write(pack((number, answer.decode())))
