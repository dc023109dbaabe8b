"""A worker of dask that the user started guards a node: a plug-in of it, see `dask_carrier`."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
from typing import Any, Final

from sessionrun.cluster.address import check_address
from sessionrun.cluster.node_directory import (
    GUARD_LOCK,
    MAX_NAME,
    check_node,
    find_nodes_dir,
    guard,
    open_node,
    take_lock,
)
from sessionrun.keeper.wire import say
from sessionrun.model.asked import Cluster

SLOT: Final = "slot"
"""The resource by which a worker says how many slots it has; without it one for each thread."""

_THREADS: Final[list[threading.Thread]] = []


async def join(worker: Any) -> None:
    """Begin, unless this process guards a node already.

    Raises:
        InputError: the node's directory cannot be written, another program of this machine is that node, the
            name or the number of slots cannot be used, or the scheduler's address is without TLS.
    """
    if _THREADS:
        return
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{socket.gethostname().partition('.')[0]}-{worker.name}").strip("-.")
    slots = max(1, int(worker.state.total_resources.get(SLOT, worker.state.nthreads)))
    nodes, name, tls = find_nodes_dir(os.environ), name[:MAX_NAME], worker.security
    files: list[str | None] = [tls.tls_ca_file, tls.tls_worker_cert, tls.tls_worker_key]
    # the node's processes are elsewhere; dask also takes the text of a file
    ca_file, cert_file, key_file = (
        file if file is None or "\n" in file else os.path.abspath(file) for file in files
    )
    cluster = Cluster(worker.scheduler.address, ca_file, cert_file, key_file)
    check_address(cluster.address)
    check_node(name, slots)
    await asyncio.to_thread(take_lock, nodes / name / GUARD_LOCK, "node", f"the node {name}", "--name")
    site = open_node(nodes, name, slots, cluster)
    _THREADS.append(threading.Thread(target=guard, args=(site, threading.Event(), say), daemon=True))
    _THREADS[0].start()
