"""The long-lived programs of a cluster's machines, a scheduler on one, guards of nodes on others, their end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sessionrun.cluster.address import (
    ask_scheduler,
    check_address,
    find_certs,
    open_cluster,
    require_dask,
    show_cluster,
)
from sessionrun.cluster.dask_scheduler import EXIT_LEFT, LOOP_VARIABLE, TIMERS_VARIABLE
from sessionrun.cluster.ends import parse_timers
from sessionrun.cluster.node_directory import MAX_NAME, RESCUE_S, find_nodes_dir, guard, lock_node, take_lock
from sessionrun.keeper.wire import say
from sessionrun.model.asked import Cluster
from sessionrun.model.errors import InputError, name_some

HEAD: Final = ".head"
"""What the head of this machine has among its nodes; no node is called so."""

RESTART_S: Final = 0.5
LOOK_S: Final = 0.2
PAGES: Final = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")
CALM: Final[Mapping[str, str]] = {
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
    "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": "[]",
}
"""Else dask's scheduler looks all the time at tasks of its own, of which there are none.  It listens for HTTP in
any case, and would show logs and addresses to all users of the machine."""

END_TIMEOUT_S: Final = 10.0
NODES_TIMEOUT_S: Final = 90.0
"""Longer than a node waits for sessions (`cluster.messages`)."""

HEAD_TIMEOUT_S: Final = 15.0
MOST_NAMED: Final = 5


# --- the head ---


def open_head(host: str, port: int, environ: Mapping[str, str]) -> tuple[list[str], str, int]:
    """The program of a cluster's scheduler, the address that others give, and a lock by which that is ours alone.

    InputError: something is wrong, or the address is not free; see also `take_lock`.
    """
    require_dask()
    if not host:
        raise InputError("--host '': give an address of this machine")
    host = f"[{host.strip('[]')}]" if ":" in host else host
    try:
        parse_timers(environ.get(TIMERS_VARIABLE, ""))
    except ValueError as error:
        raise InputError(f"{TIMERS_VARIABLE}: {error}") from None
    free = _probe(host, 0)
    port = port or free
    address, (ca_file, cert_file, key_file) = f"tls://{host}:{port}", find_certs(environ)
    program = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", address, *PAGES]
    preload = ["--preload", "sessionrun.cluster.dask_scheduler"]
    certs = ["--tls-ca-file", ca_file, "--tls-cert", cert_file, "--tls-key", key_file]
    lock = find_nodes_dir(environ) / HEAD / f"{quote(address, safe='')}.lock"
    lock_fd = take_lock(lock, "head", f"at {address}", "--port")
    _probe(host, port)  # a head that was ending has let go of it
    return [*program, *preload, *certs], address, lock_fd


def _probe(host: str, port: int) -> int:
    """See that it is possible to listen there, and the port; for 0 a free one."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            where = f"{host}:{port}" if port else host
            raise InputError(f"cannot listen at {where}: {why}; see --host and --port") from None
        return int(probe.getsockname()[1])


def keep_head(argv: list[str], lock_fd: int, environ: Mapping[str, str]) -> int:
    """Run the scheduler again and again until it, or this process, is told to end (TERM, INT); returns 0 then.

    It inherits its lock, and is killed with this process: jobs go on for a lease, in which this may start again.
    What dask leaves on disk is not for the common directory.
    """
    passed = {**CALM, "DASK_TEMPORARY_DIRECTORY": str(find_nodes_dir(environ) / HEAD), **environ}
    passed[LOOP_VARIABLE] = str(os.getpid())
    ended = _await_signal()
    while not ended.is_set():
        child = subprocess.Popen(argv, env=passed, stdin=subprocess.DEVNULL, pass_fds=(lock_fd,))
        while child.poll() is None and not ended.is_set():
            ended.wait(LOOK_S)
        if ended.is_set():
            child.terminate()
            try:
                child.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            return 0
        if child.returncode == EXIT_LEFT:
            say("stopped by `sessionrun cluster stop`")
            return 0
        say(f"{Path(argv[2]).name} ended with {child.returncode}: it is started again")
        ended.wait(RESTART_S)
    return 0


# --- a node ---


def keep_node(
    name: str | None, slots: int | None, address: str, environ: Mapping[str, str], rescue_s: float | None
) -> None:
    """Guard the node of that name until it, or this process, is told to end (TERM, INT).

    InputError: what it is given cannot be used; see also `lock_node`.
    """
    require_dask()
    name = name if name is not None else socket.gethostname().partition(".")[0] or "node"
    slots = (os.cpu_count() or 1) if slots is None else slots
    cluster = open_cluster(address, environ)
    site = lock_node(name, slots, cluster, environ, RESCUE_S if rescue_s is None else rescue_s)
    say(f"node {site.node_id}: {site.slots} slots, {site.path}")
    guard(site, _await_signal())


def _await_signal() -> threading.Event:
    """What is set when this process is told to end."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended


# --- a node of a worker of dask's ---

SLOT: Final = "slot"
"""The resource by which a worker says how many slots it has; without it one for each thread."""

_THREADS: Final[list[threading.Thread]] = []


async def join(worker: Any) -> None:
    """Guard a node in a worker of dask that the user started, unless this process guards one: see `dask_carrier`.

    Raises:
        InputError: the scheduler's address is without TLS; see also `lock_node`.
    """
    if _THREADS:
        return
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{socket.gethostname().partition('.')[0]}-{worker.name}").strip("-.")
    slots = max(1, int(worker.state.total_resources.get(SLOT, worker.state.nthreads)))
    name, tls = name[:MAX_NAME], worker.security
    files: list[str | None] = [tls.tls_ca_file, tls.tls_worker_cert, tls.tls_worker_key]
    # the node's processes are elsewhere; dask also takes the text of a file
    ca_file, cert_file, key_file = (
        file if file is None or "\n" in file else os.path.abspath(file) for file in files
    )
    cluster = Cluster(worker.scheduler.address, ca_file, cert_file, key_file)
    check_address(cluster.address)
    site = await asyncio.to_thread(lock_node, name, slots, cluster, os.environ)
    _THREADS.append(threading.Thread(target=guard, args=(site, threading.Event()), daemon=True))
    _THREADS[0].start()


# --- their end ---


def stop_cluster(cluster: Cluster, *, force: bool) -> dict[str, Any]:
    """End the nodes when their jobs are done with, then the head, through which the nodes hear of it.

    Returns:
        What became of each, and the sessions that go on without them.

    Raises:
        InputError: jobs run and `force` is not given, or the head cannot be reached.
    """
    answer, _ = ask_scheduler(cluster, "sr_stop", head=False, force=force)
    if not answer["begun"]:
        named = []
        for each in answer["busy"]:
            session_id, _, key = each["job"].partition("/")
            named.append(f"task {key.partition('/')[0]} of session {session_id} on {each['node']}")
        raise InputError(
            f"{len(named)} jobs still run: {name_some(named, MOST_NAMED)}; wait for them, or cancel the sessions; "
            "with --force the jobs are killed, and their tasks are lost"
        )
    deadline = time.monotonic() + NODES_TIMEOUT_S
    while stays := any(node["state"] in ("up", "leaving") for node in answer["nodes"]):
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_S)
        answer, _ = ask_scheduler(cluster, "sr_stop", head=False, force=force)
    sessions = [session["id"] for session in show_cluster(cluster)["sessions"]]
    head = "up" if stays else _stop_head(cluster)
    return {"address": cluster.address, "nodes": answer["nodes"], "head": head, "sessions": sessions}


def _stop_head(cluster: Cluster) -> str:
    """`left`; `up`: it did not end; `foreign`: `cluster head` did not start it, so it is the user's own."""
    answer, _ = ask_scheduler(cluster, "sr_stop", head=True, force=False)
    if not answer["ends"]:
        return "foreign"
    deadline = time.monotonic() + HEAD_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            show_cluster(cluster)
        except InputError:
            return "left"
        time.sleep(LOOK_S)
    return "up"
